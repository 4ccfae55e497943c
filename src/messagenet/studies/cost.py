"""Time and memory of a training step and of a prediction of a trained model, measured in a clean process.

    python -m messagenet.studies.cost runs/mine/last 96 96 8           one line of json
    python -m messagenet.studies.cost runs/mine/last 96 96 8 frozen    the backbone is not trained
    python -m messagenet.studies.cost runs/mine/last 96 96 8 cached    nor run: its features are cached

Memory is the growth of the peak resident size (on a GPU, of the peak allocation). A process has only one peak: hence
one process for each model, and predictions before training steps.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

import messagenet.losses  # noqa: F401 (registers the losses)
from messagenet.data import Batch
from messagenet.errors import InputError
from messagenet.models import SegmentationModel
from messagenet.models.saving import read_config
from messagenet.prediction import Predictor
from messagenet.settings import KIND, Spec, build, find

TURNS = 3
BackboneUse = Literal["trained", "frozen", "cached"]


@dataclass(frozen=True)
class Cost:
    """Cost of a model."""

    step_seconds: float  # forward, loss and backward of one batch; no backbone if its features are cached
    prediction_seconds: float  # one image to its marginals
    prediction_megabytes: float  # memory on top of the model


def measure_in_subprocess(
    folder: Path, height: int, width: int, batch_size: int, backbone: BackboneUse, loss: Spec
) -> Cost:
    """Measures a saved model in a process of its own, which imports the modules that define its components."""
    modules = component_modules({**read_config(folder)["model"], "loss": loss})
    command = [sys.executable, "-m", "messagenet.studies.cost", str(folder), *map(str, (height, width, batch_size))]
    done = subprocess.run(
        [*command, backbone, json.dumps(loss), *modules],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise InputError(f"the cost of {folder} cannot be measured ({reason}); free some memory and resume")
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def component_modules(parts: Mapping[str, Any]) -> list[str]:
    """The modules that define components, given by their groups; other values are left out."""
    specs = {group: spec[KIND] for group, spec in parts.items() if isinstance(spec, Mapping)}
    modules = {find(group, kind).__module__: f'{group} "{kind}"' for group, kind in specs.items()}
    if "__main__" in modules:
        raise InputError(
            f"costs are measured in another process, which cannot import the {modules['__main__']} from a notebook or "
            "script; put it into a module"
        )
    return list(modules)


def measure(
    model: SegmentationModel,
    height: int,
    width: int,
    batch_size: int,
    backbone: BackboneUse = "trained",
    loss: Spec | str = "cross_entropy",
) -> Cost:
    """Measures a model in this process."""
    torch.manual_seed(0)
    predictor = Predictor(model)
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)

    def predict() -> None:
        predictor.marginals(image)

    predictor.marginals(image[:16, :16])  # loads what is compiled or read on first use
    before = _peak_memory()
    predict()
    megabytes = (_peak_memory() - before) / 2**20
    prediction_seconds = _seconds(predict)
    objective, batch = (build("loss", loss), _random_batch(model, height, width, batch_size, backbone == "cached"))
    model.train()
    if backbone != "trained":
        model.backbones.requires_grad_(False).eval()

    def step() -> None:
        model.zero_grad(set_to_none=True)
        objective(model, batch).mean.backward()

    return Cost(_seconds(step), prediction_seconds, megabytes)


def _random_batch(model: SegmentationModel, height: int, width: int, batch_size: int, from_features: bool) -> Batch:
    """Random images, or the features of one repeated, with random labels."""
    images = torch.rand(batch_size, 3, height, width, device=model.device)
    target = torch.randint(0, model.classes.num_classes, (batch_size, height, width), device=model.device)
    sizes = torch.tensor([[height, width]] * batch_size)
    ids = tuple(map(str, range(batch_size)))
    if not from_features:
        return Batch(images, None, target, sizes, ids)
    with torch.no_grad():
        one = model.forward_features(images[:1])
    features = (
        one.repeat(batch_size, 1, 1, 1)
        if isinstance(one, Tensor)
        else {name: each.repeat(batch_size, 1, 1, 1) for name, each in one.items()}
    )
    return Batch(None, features, target, sizes, ids)


def _seconds(function: Callable[[], Any]) -> float:
    """Median time of a few calls, after one to warm up."""
    function()
    times = []
    for _ in range(TURNS):
        start = time.perf_counter()
        function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _peak_memory() -> float:
    """Peak memory of this process in bytes."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status")  # on Linux, ru_maxrss includes the parent's memory; VmHWM does not
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024.0 * int(line.split()[1])
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # bytes on macOS


if __name__ == "__main__":
    for module in sys.argv[7:]:
        importlib.import_module(module)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = SegmentationModel.from_pretrained(sys.argv[1]).to(device)
    rows, columns, images = map(int, sys.argv[2:5])
    use: BackboneUse = next((each for each in get_args(BackboneUse) if each in sys.argv[5:]), "trained")
    loss = json.loads(sys.argv[6]) if len(sys.argv) > 6 else "cross_entropy"
    print(json.dumps(asdict(measure(model, rows, columns, images, use, loss))))
