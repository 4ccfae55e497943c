"""A run small enough to repeat many times: 48-pixel scenes, 12x12 nodes, a handful of steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from messagenet.data import SyntheticScenes
from messagenet.training import TrainConfig, TrainResult, apply_overrides, load_config, train
from messagenet.training.build import DataSets

SMALL = (
    "model.hidden=8",
    "model.backbone_options={width: 8}",
    "run.steps=6",
    "run.batch_size=4",
    "run.workers=0",
    "run.log_every=1",
    "run.evaluate_every=100",
    "schedule.warmup=2",
)


def small_config(*overrides: str) -> TrainConfig:
    return apply_overrides(load_config("tiny"), [*SMALL, *overrides])


def small_data(count: int = 8) -> DataSets:
    return DataSets(SyntheticScenes(count, size=48), SyntheticScenes(3, size=48, split="val"))


@pytest.fixture
def small() -> Callable[..., TrainConfig]:
    return small_config


@pytest.fixture
def scenes() -> DataSets:
    return small_data()


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., TrainResult]:
    """Trains with some settings changed; `name` is the folder under the test's own."""

    def trained(*overrides: str, name: str = "run", **arguments: object) -> TrainResult:
        arguments.setdefault("data", small_data())
        return train(small_config(*overrides), tmp_path / name, **arguments)  # type: ignore[arg-type]

    return trained
