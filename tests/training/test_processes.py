"""Two processes take the steps that one process takes with as many images per step."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from messagenet.errors import InputError
from messagenet.training.distributed import keep_strides, start_processes
from messagenet.training.progress import read_log

SCRIPT = Path(__file__).with_name("shared_run.py")


def test_one_process_or_two(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("shared_run", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    shared_run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shared_run)
    shared_run.main(tmp_path / "one", 2)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    ended = subprocess.run(
        [*command, str(SCRIPT), str(tmp_path / "two"), "1"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    one, two = (read_log(tmp_path / name / "log.jsonl") for name in ("one", "two"))
    assert len(one) == len(two) == 12 + 3
    for first, second in zip(one, two, strict=True):
        assert first["step"] == second["step"]
        assert first["epoch"] == second["epoch"]
        assert first.get("loss") == pytest.approx(second.get("loss"), abs=1e-5)
        assert first.get("mean_iou") == pytest.approx(second.get("mean_iou"), abs=1e-3)
    models = [load_file(tmp_path / name / "last" / "model.safetensors") for name in ("one", "two")]
    for name, values in models[0].items():
        torch.testing.assert_close(models[1][name], values, rtol=1e-3, atol=1e-4)


def test_processes_that_do_not_find_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="2 processes were started but 1 joined"):
        start_processes()


def test_gradients_lie_in_memory_as_their_parameters_do() -> None:
    torch.manual_seed(0)
    plain, kept = (torch.nn.Conv2d(8, 8, 3, groups=8), torch.nn.Conv2d(8, 8, 3, groups=8))
    kept.load_state_dict(plain.state_dict())
    keep_strides(kept)
    images = torch.randn(2, 8, 9, 9).contiguous(memory_format=torch.channels_last)
    for layer in (plain, kept):
        layer(images).square().sum().backward()
    assert kept.weight.grad is not None
    assert kept.weight.grad.stride() == kept.weight.stride()
    assert torch.equal(kept.weight.grad, plain.weight.grad)


def test_gradients_in_another_order_are_left_to_torch() -> None:
    weight = torch.nn.Parameter(torch.zeros(1, 2, 3))
    keep_strides(torch.nn.ParameterList([weight]))
    (weight.transpose(1, 2) * torch.arange(6.0).view(1, 3, 2)).sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.arange(6.0).view(1, 3, 2).transpose(1, 2))
