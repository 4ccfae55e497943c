"""A run small enough to repeat many times: 48-pixel scenes, 12x12 nodes, a handful of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from messagenet.data import SyntheticScenes
from messagenet.training import TrainConfig, TrainResult, load_config, override, run_training
from messagenet.training.build import DataSets
from messagenet.training.systems import apply_system

SMALL = (
    "model.head.hidden=8",
    "model.backbone.width=8",
    "run.steps=6",
    "run.batch_size=4",
    "run.workers=0",
    "run.log_every=1",
    "run.evaluate_every=100",
    "schedule.warmup=2",
)


def small_config(*settings: str, system: str | None = None, shared: Sequence[str] = ()) -> TrainConfig:
    """The small run as a system; `shared` is set before the system, `settings` after it."""
    config = override(override(load_config("tiny"), SMALL), shared)
    return override(config if system is None else apply_system(config, system), settings)


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

    def trained(
        *settings: str, name: str = "run", system: str | None = None, shared: Sequence[str] = (), **arguments: object
    ) -> TrainResult:
        arguments.setdefault("data", small_data())
        config = small_config(*settings, system=system, shared=shared)
        return run_training(config, tmp_path / name, **arguments)  # type: ignore[arg-type]

    return trained
