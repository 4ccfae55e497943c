"""One run of several processes. Started by `test_processes.py` through torchrun."""

from __future__ import annotations

import sys
from pathlib import Path

from messagenet.data import SyntheticScenes
from messagenet.training import apply_overrides, load_config, train
from messagenet.training.build import DataSets

SETTINGS = (
    "model.hidden=8",
    "model.backbone_options={width: 8}",
    "augment.mirror=true",
    "run.steps=12",
    "run.accumulate=2",
    "run.workers=0",
    "run.log_every=1",
    "run.evaluate_every=5",
    "run.ema=0.9",
    "schedule.warmup=3",
)


def main(folder: Path, batch_size: int) -> None:
    config = apply_overrides(load_config("tiny"), [*SETTINGS, f"run.batch_size={batch_size}"])
    data = DataSets(SyntheticScenes(10, size=48), SyntheticScenes(3, size=48, split="val"))
    train(config, folder, data=data)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
