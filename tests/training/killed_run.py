"""Trains a run that is killed again and again, and one that is not. Started by `test_checkpoint.py`.

Every attempt is a fork of this process, which has imported everything but computed nothing, so that an attempt
costs little start-up. The parent kills it with SIGKILL at a random moment.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import tensorboardX  # noqa: F401 (both are imported late by the run itself)
import torch._dynamo  # noqa: F401

from messagenet.data import SyntheticScenes
from messagenet.training import TrainCallback, load_config, override, run_training
from messagenet.training.build import DataSets

SETTINGS = (
    "model.head.hidden=8",
    "model.backbone.width=8",
    "augment.mirror=true",
    "augment.scale_range=[0.8, 1.2]",
    "augment.crop=48",
    "run.steps=40",
    "run.batch_size=2",
    "run.accumulate=2",
    "run.ema=0.9",
    "run.workers=0",
    "run.log_every=4",
    "run.evaluate_every=10",
    "run.checkpoint_every=3",
)


class Ticks(TrainCallback):
    """Writes a byte into a pipe after every step."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def step(self, step: int, record: dict[str, Any] | None) -> None:
        os.write(self.pipe, b".")


def attempt(folder: Path) -> tuple[int, int]:
    """Forks a process that trains to the end; returns its id and the pipe it ticks on."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child:
        os.close(theirs)
        return child, ours
    try:
        data = DataSets(SyntheticScenes(10, size=48), SyntheticScenes(2, size=48, split="val"))
        config = override(load_config("tiny"), SETTINGS)
        run_training(config, folder, resume=True, data=data, progress=Ticks(theirs))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def killed_after(steps: int, seconds: float, folder: Path) -> bool:
    """Lets a process take some steps, waits a little, kills it; False if it had ended before."""
    child, pipe = attempt(folder)
    taken = 0
    while taken < steps and (ticks := os.read(pipe, steps - taken)):
        taken += len(ticks)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.close(pipe)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main(folder: Path, kills: int) -> None:
    """Both runs; prints how often the one was killed."""
    draw = random.Random(0)
    killed = 0
    for _ in range(kills):
        killed += killed_after(draw.randint(0, 9), draw.uniform(0, 0.05), folder / "killed")
    for name in ("killed", "whole"):
        child, _ = attempt(folder / name)
        if os.waitpid(child, 0)[1] != 0:
            raise SystemExit(1)
    print(killed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
