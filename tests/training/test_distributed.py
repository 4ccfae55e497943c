"""Two processes take the steps that one process takes with as many images per step."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from messagenet import cli
from messagenet.errors import InputError, Note
from messagenet.settings import kinds
from messagenet.training import TrainConfig
from messagenet.training.checkpoint import read_checkpoint
from messagenet.training.distributed import keep_strides, start_processes
from messagenet.training.progress import read_log
from messagenet.training.systems import apply_system

LOSSES = ("message", "ensemble", "context_crf", "crf_pseudo", "crf_likelihood")
CONTRACT = (
    "model.head.hidden=32",
    "model.backbone.width=32",
    "model.head.relations=[surrounding:3cells, above:3cells]",
    "optimiser.kind=sgd",
    "optimiser.lr=0.1",
    "run.steps=3",
)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
SCRIPT = Path(__file__).with_name("shared_run.py")


def shared_main() -> Callable[..., None]:
    spec = importlib.util.spec_from_file_location("shared_run", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    main: Callable[..., None] = module.main
    return main


def torchrun(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Starts two processes and waits for them."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*TORCHRUN, *map(str, arguments)], capture_output=True, text=True, env=environment, check=False, cwd=cwd
    )


def test_one_process_or_two(tmp_path: Path) -> None:
    shared_main()(tmp_path / "one", ["message"], ["run.batch_size=2"])
    ended = torchrun(SCRIPT, tmp_path / "two", "message", "run.batch_size=1")
    assert ended.returncode == 0, ended.stderr
    same_runs(tmp_path / "one" / "message", tmp_path / "two" / "message", records=12 + 3)


def same_runs(first: Path, second: Path, records: int, loss: float = 1e-5) -> None:
    """Compares the logs, with losses up to `loss`, and the models of two runs."""
    ours, theirs = (read_log(folder / "log.jsonl") for folder in (first, second))
    assert len(ours) == len(theirs) == records
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["step"] == other["step"]
        assert mine["epoch"] == other["epoch"]
        assert mine.get("loss") == pytest.approx(other.get("loss"), abs=loss)
        assert mine.get("mean_iou") == pytest.approx(other.get("mean_iou"), abs=1e-3)
    models = [load_file(folder / "last" / "model.safetensors") for folder in (first, second)]
    assert models[0].keys() == models[1].keys()
    for name, values in models[0].items():
        torch.testing.assert_close(models[1][name], values, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs of two processes, one for every loss."""
    folder = tmp_path_factory.mktemp("two")
    settings = (*CONTRACT, "run.batch_size=1", "run.accumulate=2")
    ended = torchrun(SCRIPT, folder, ",".join(LOSSES), *settings)
    assert ended.returncode == 0, ended.stderr
    return folder


def test_every_loss_is_trained_here() -> None:
    assert {apply_system(TrainConfig(), system).loss["kind"] for system in LOSSES} == set(kinds("loss"))


@pytest.mark.parametrize("system", LOSSES)
def test_a_step_does_not_depend_on_how_its_images_are_divided(system: str, tmp_path: Path, two_processes: Path) -> None:
    """Four images per step as 1×4, 2×2 and 4×1 (batch × accumulated batches), and on two processes."""
    loss = 2e-4 if system == "crf_likelihood" else 1e-5  # log Z less a score: a difference of large sums
    for batch_size in (1, 2, 4):
        sizes = (f"run.batch_size={batch_size}", f"run.accumulate={4 // batch_size}")
        shared_main()(tmp_path / f"{batch_size}", [system], [*CONTRACT, *sizes])
        same_runs(tmp_path / f"{batch_size}" / system, two_processes / system, 3 + 1, loss)


def test_processes_that_do_not_find_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    start_processes()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="2 processes were started but 1 joined"):
        start_processes()


def test_batch_norms_of_one_process_are_not_synchronised() -> None:
    with pytest.raises(InputError, match=r"run\.norm is sync, which needs several processes with a CUDA device each"):
        start_processes(norm="sync")


def test_processes_without_an_address_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise ValueError("`MASTER_ADDR` env was not set")

    monkeypatch.setattr("messagenet.training.distributed.Accelerator", refuse)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"cannot find each other .*MASTER_ADDR.*start them with torchrun"):
        start_processes()
    with pytest.raises(InputError, match=r"run\.precision bf16 does not work on this device .*use float32"):
        start_processes("bf16")


@pytest.mark.parametrize("has_bf16", [True, False])
def test_bf16_without_instructions_is_noted_once(monkeypatch: pytest.MonkeyPatch, has_bf16: bool) -> None:
    if start_processes().device.type != "cpu":
        pytest.skip("bf16 is for the GPU")
    monkeypatch.setattr("messagenet.training.distributed._cpu_has_bf16", lambda: has_bf16)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator = start_processes("bf16")
    notes = [str(each.message) for each in caught if issubclass(each.category, Note)]
    assert len(notes) == (0 if has_bf16 else 1)
    assert all(note.endswith("set run.precision=float32") for note in notes)
    assert accelerator.mixed_precision == "bf16"
    with warnings.catch_warnings():
        warnings.simplefilter("error", Note)
        assert start_processes().mixed_precision == "no"


def test_a_refused_setting_is_one_line(tmp_path: Path) -> None:
    """What the processes themselves print; torchrun adds its own summary."""
    logs = tmp_path / "logs"
    command = ("train", "--data", "synthetic:8", "--out", tmp_path / "run", "--set", "model.head.hiden=4")
    ended = torchrun("--log-dir", logs, "--redirects", "3", "-m", "messagenet", *command)
    assert ended.returncode != 0
    first, second = (path.read_text() for path in sorted(logs.glob("**/stderr.log")))
    assert 'no setting "model.head.hiden" for message: did you mean "hidden"?' in first
    assert first.count("\n") == 1
    assert second == ""
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_ctrl_c_ends_all_processes_with_a_checkpoint(tmp_path: Path) -> None:
    logs, folder = tmp_path / "logs", tmp_path / "runs" / "message"
    settings = ("run.batch_size=1", "run.steps=3000", "run.evaluate_every=3000")
    arguments = ("--log-dir", logs, "--redirects", "3", SCRIPT, folder.parent, "message", *settings)
    started = subprocess.Popen(
        [*TORCHRUN, *map(str, arguments)], env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(600):
            if len(read_log(folder / "log.jsonl")) > 2 or started.poll() is not None:
                break
            time.sleep(0.2)
        assert started.poll() is None
        started.send_signal(signal.SIGINT)
        started.wait(60)
    finally:
        started.kill()
    said = [path.read_text() for path in logs.glob("**/stderr.log")]
    assert len(said) == 2
    assert not any("Traceback" in text for text in said), said
    checkpoint = read_checkpoint(folder / "checkpoint")
    assert checkpoint is not None
    assert checkpoint.step == read_log(folder / "log.jsonl")[-1]["step"]


def test_a_process_that_fails_alone_speaks_for_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waited: list[float] = []
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(sys, "argv", ["messagenet", "train", "--data", "synthetic:8", "--set", "x=1", "--out", "x"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert waited == [cli.PATIENCE]
    assert 'error: process 1: there is no setting "x"' in capsys.readouterr().err


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
