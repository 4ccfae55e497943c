"""What a trained model costs: time and memory of a training step and of a prediction, measured in a clean process.

    python -m messagenet.studies.cost runs/mine/last 96 96 8           one line of json
    python -m messagenet.studies.cost runs/mine/last 96 96 8 frozen    its backbone is not trained
    python -m messagenet.studies.cost runs/mine/last 96 96 8 kept      nor run: its features are kept

Memory is the growth of the largest resident size of the process (on a GPU, the largest amount allocated), and a
process has only one such largest: hence one of its own for each model, and predictions before training steps.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.geometry import node_labels
from messagenet.models import SegmentationNet
from messagenet.models.base import map_size
from messagenet.prediction import Predictor

TURNS = 3
Backbone = Literal["trained", "frozen", "kept"]


@dataclass(frozen=True)
class Cost:
    """What a model costs.

    Attributes:
        step_seconds: Forward, loss and backward of one batch, without reading images or changing weights;
            without the backbone if its features are kept.
        prediction_seconds: One image to its marginals.
        prediction_megabytes: Memory that it takes on top of the model.
    """

    step_seconds: float
    prediction_seconds: float
    prediction_megabytes: float


def measured(folder: Path, height: int, width: int, batch_size: int, backbone: Backbone) -> Cost:
    """Measures a saved model in a process of its own.

    Args:
        folder: The model.
        height: Of the images.
        width: Of the images.
        batch_size: Images per training step.
        backbone: What training does with it.
    """
    command = [sys.executable, "-m", "messagenet.studies.cost", str(folder)]
    done = subprocess.run(
        [*command, *map(str, (height, width, batch_size)), backbone],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise InputError(f"the cost of {folder} cannot be measured ({reason}); free some memory and resume")
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def measure(
    net: SegmentationNet, height: int, width: int, batch_size: int, backbone: Backbone = "trained"
) -> Cost:
    """Measures a model in this process."""
    torch.manual_seed(0)
    predictor = Predictor(net)
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)

    def predict() -> None:
        predictor.marginals(image)

    predictor.marginals(image[:16, :16])  # loads what is compiled or read on first use
    before = _largest()
    predict()
    megabytes = (_largest() - before) / 2**20
    prediction_seconds = _seconds(predict)

    loss = _loss_of(net, height, width, batch_size, from_features=backbone == "kept")
    net.train()
    if backbone != "trained":
        net.backbones.requires_grad_(False).eval()

    def step() -> None:
        net.zero_grad(set_to_none=True)
        loss().backward()

    return Cost(_seconds(step), prediction_seconds, megabytes)


def _loss_of(
    net: SegmentationNet, height: int, width: int, batch_size: int, from_features: bool
) -> Callable[[], Tensor]:
    """The loss of a batch of random images and labels, as often as wanted."""
    images = torch.rand(batch_size, 3, height, width, device=net.device)
    masks = torch.randint(0, net.classes.num_classes, (batch_size, height, width), device=net.device)
    if not from_features:
        return lambda: net.loss(images, masks).mean
    with torch.no_grad():
        one = net.features(images[:1])
    labels = node_labels(masks, map_size(one), net.judged_stride)
    batch = (
        one.repeat(batch_size, 1, 1, 1)
        if isinstance(one, Tensor)
        else {name: each.repeat(batch_size, 1, 1, 1) for name, each in one.items()}
    )
    return lambda: net.loss(batch, labels, are_features=True).mean


def _seconds(function: Callable[[], Any]) -> float:
    """The median of a few calls, after one to warm up."""
    function()
    times = []
    for _ in range(TURNS):
        start = time.perf_counter()
        function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _largest() -> float:
    """The most memory that this process has had, in bytes.

    Linux counts what the parent had before it started this process into `ru_maxrss`, but not into VmHWM.
    """
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024.0 * int(line.split()[1])
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # bytes on macOS


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = SegmentationNet.from_pretrained(sys.argv[1]).to(device)
    rows, columns, images = map(int, sys.argv[2:5])
    how: Backbone = next((each for each in get_args(Backbone) if each in sys.argv[5:]), "trained")
    print(json.dumps(asdict(measure(model, rows, columns, images, how))))
