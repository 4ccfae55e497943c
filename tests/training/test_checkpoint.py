"""Checkpoints: exact, atomic, forgiving of one damaged file; and runs that are killed and resumed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from messagenet.errors import InputError
from messagenet.settings import flat
from messagenet.training import TrainConfig
from messagenet.training.checkpoint import FREE, LENGTHS, Checkpoint, read_checkpoint, write_checkpoint
from messagenet.training.progress import read_log

TIMES = ("images_per_second", "waiting")


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint(step, {"model/w": torch.full((2, 3), float(step))}, {"best": 0.1 + 0.2, "scaler": None})


def test_what_was_written_is_read_back_exactly(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "none") is None
    tensors = {"a": torch.randn(3, dtype=torch.float64), "b": torch.tensor(7), "c": torch.randn(2, 4).T}
    write_checkpoint(tmp_path, Checkpoint(5, tensors, {"best": 0.1 + 0.2, "sums": [1 / 3, 2.0]}))
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert (found.step, found.state) == (5, {"best": 0.1 + 0.2, "sums": [1 / 3, 2.0]})
    assert all(torch.equal(found.tensors[name], tensors[name]) for name in tensors)


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (9, 10, 100, 1000):
        write_checkpoint(tmp_path, checkpoint(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000100", "step-00001000"]
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 1000


@pytest.mark.parametrize("damaged", ["tensors.safetensors", "state.json"])
def test_a_damaged_one_gives_way_to_the_one_before(tmp_path: Path, damaged: str) -> None:
    write_checkpoint(tmp_path, checkpoint(1))
    newest = write_checkpoint(tmp_path, checkpoint(2))
    content = (newest / damaged).read_bytes()
    (newest / damaged).write_bytes(content[: len(content) // 2])
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 1
    (tmp_path / "step-00000001" / damaged).unlink()
    with pytest.raises(InputError, match="no checkpoint can be read"):
        read_checkpoint(tmp_path)


def test_dying_before_the_rename_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, checkpoint(1))

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", die)
        with pytest.raises(Killed):
            write_checkpoint(tmp_path, checkpoint(2))
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 1
    write_checkpoint(tmp_path, checkpoint(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_a_full_disk_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"No space left on device.*--resume"):
        write_checkpoint(tmp_path, checkpoint(1))
    assert list(tmp_path.iterdir()) == []


def test_settings_that_may_change_are_settings() -> None:
    assert set(FREE) | set(LENGTHS) <= flat(TrainConfig()).keys()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_run_ends_where_it_would_have(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_run.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "5"], capture_output=True, text=True, env=environment, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) >= 3

    whole, killed = (read_checkpoint(tmp_path / name / "checkpoint") for name in ("whole", "killed"))
    assert whole is not None
    assert killed is not None
    assert (whole.step, killed.step) == (40, 40)
    assert whole.tensors.keys() == killed.tensors.keys()
    assert all(torch.equal(whole.tensors[name], killed.tensors[name]) for name in whole.tensors)
    for model in ("best", "last"):
        for file in ("model.safetensors", "config.json"):
            assert (tmp_path / "whole" / model / file).read_bytes() == (tmp_path / "killed" / model / file).read_bytes()
    logs = [
        [{key: value for key, value in record.items() if key not in TIMES} for record in read_log(path)]
        for path in (tmp_path / "whole" / "log.jsonl", tmp_path / "killed" / "log.jsonl")
    ]
    assert logs[0] == logs[1]
