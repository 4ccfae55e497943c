"""`kill -9` at any moment, then resume: the run ends with the weights of one that was left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from messagenet.training.checkpoint import read_checkpoint
from messagenet.training.progress import read_log

TIMES = ("images_per_second", "waiting")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_run_ends_where_it_would_have(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_run.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "5"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
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
            assert (tmp_path / "whole" / model / file).read_bytes() == (
                tmp_path / "killed" / model / file
            ).read_bytes()
    logs = [
        [{key: value for key, value in record.items() if key not in TIMES} for record in read_log(path)]
        for path in (tmp_path / "whole" / "log.jsonl", tmp_path / "killed" / "log.jsonl")
    ]
    assert logs[0] == logs[1]
