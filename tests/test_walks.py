"""How many files of the package a call walks through: a reader can follow each of them in one sitting.

    python tests/test_walks.py        prints the walks

Files are counted on a second call, when modules are loaded and graphs are cached.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import messagenet as mn
from messagenet.settings import build
from messagenet.training.batches import AugmentedData, Plan, make_loader
from messagenet.training.build import build_model
from messagenet.training.config import override
from messagenet.training.distributed import start_processes
from messagenet.training.learner import Learner
from messagenet.training.loop import run_training

PACKAGE = str(Path(mn.__file__).parent) + "/"


def walk(call: Callable[[], Any]) -> list[str]:
    """The files of the package whose functions a call enters, in the order of the first visits."""
    files: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE) and frame.f_code.co_name != "<module>":
            files.setdefault(name.removeprefix(PACKAGE))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(files)


def head_forward(folder: Path) -> Callable[[], Any]:
    head, features = mn.MessagePassing(16, 5, hidden=8), torch.randn(1, 16, 14, 15)
    return lambda: head(features)


def grid_query(folder: Path) -> Callable[[], Any]:
    graph, same = mn.grid_factor_graph(8, 8, 3), torch.eye(3)[None]
    unary = torch.randn(64, 3)
    return lambda: mn.BeliefPropagation().run(graph, [unary, same, same])


def photo(folder: Path) -> Callable[[], Any]:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (120, 160, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
    return lambda: mn.predict(folder / "photo.png", out=folder / "predictions")


def tiny_config() -> mn.TrainConfig:
    changes = {"run.steps": 2, "data.spec": "synthetic:20", "data.val_limit": 4, "run.workers": 0}
    return override(mn.load_config("tiny"), changes)


def training_step(folder: Path) -> Callable[[], Any]:
    config, data = tiny_config(), mn.open_data("synthetic:20")
    learner = Learner(config, build_model(config, data.classes), start_processes(), 2)
    learner.train_mode()
    plan = Plan.of(config.run, len(data), 1)
    images = AugmentedData(data, config.augment, 0)

    def step() -> None:
        batches = make_loader(images, plan.batches(0), mn.collate, 0)
        learner.update(0, learner.gradient(0, lambda: next(batches)))

    return step


def whole_run(folder: Path) -> Callable[[], Any]:
    runs = iter(range(9))
    return lambda: run_training(tiny_config(), folder / f"run-{next(runs)}")


WALKS = {
    "forward of the head, T = 1": (head_forward, 5),
    "belief propagation on a grid": (grid_query, 8),
    "one training step": (training_step, 15),
    "one photo, from file to file": (photo, 26),
    "a run with setup and scoring": (whole_run, 33),
}


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_is_short(name, tmp_path):
    make, limit = WALKS[name]
    call = make(tmp_path)
    call()
    files = walk(call)
    assert len(files) <= limit, files


def test_a_walk_counts_files():
    assert walk(lambda: build("backbone", "tiny"))[0] == "settings.py"
    assert walk(lambda: None) == []


if __name__ == "__main__":
    import tempfile

    warnings.simplefilter("ignore")
    for title, (make_call, limit) in WALKS.items():
        with tempfile.TemporaryDirectory() as temporary:
            call_again = make_call(Path(temporary))
            call_again()
            found = walk(call_again)
        print(f"{title}: {len(found)} files (at most {limit})\n    {' → '.join(found)}")
