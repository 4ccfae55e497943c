"""Runs of several processes, one after the other. Started by `test_distributed.py` through torchrun."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from messagenet.data import SyntheticScenes
from messagenet.training import load_config, override, run_training
from messagenet.training.build import DataSets
from messagenet.training.systems import apply_system

SETTINGS = (
    "model.head.hidden=8",
    "model.backbone.width=8",
    "augment.mirror=true",
    "run.steps=12",
    "run.accumulate=2",
    "run.workers=0",
    "run.log_every=1",
    "run.evaluate_every=5",
    "run.ema=0.9",
    "schedule.warmup=3",
)


def main(folder: Path, systems: Sequence[str], settings: Sequence[str]) -> None:
    """Trains every system in a folder of its name."""
    data = DataSets(SyntheticScenes(10, size=48), SyntheticScenes(3, size=48, split="val"))
    shared = override(load_config("tiny"), [*SETTINGS, *settings])
    for system in systems:
        run_training(apply_system(shared, system), folder / system, data=data)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:])
