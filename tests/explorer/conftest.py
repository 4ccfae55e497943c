"""Untrained models, and the explorer around them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from starlette.testclient import TestClient

from explorer.running import explorer_client
from messagenet.data import SCENE_CLASSES
from messagenet.explorer.models import ServedModel, load_models
from messagenet.graph import above, below, surrounding
from messagenet.models import MessageNet, UnaryNet


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> list[ServedModel]:
    """A model of two iterations with exact cavities, one with a box relation, and one without messages."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models")
    relations = [surrounding(cells=3), above(cells=2), below(cells=2)]
    box = [surrounding(0.4, form="box"), above(cells=2)]
    untrained = {
        "messages": MessageNet("tiny", SCENE_CLASSES, relations, hidden=8, iterations=2),
        "boxes": MessageNet("tiny", SCENE_CLASSES, box, hidden=8),
        "alone": UnaryNet("tiny", SCENE_CLASSES, hidden=8),
    }
    return load_models([model.save(folder / name) for name, model in untrained.items()])


@pytest.fixture(scope="module")
def client(models) -> Iterator[TestClient]:
    with explorer_client(models) as client:
        yield client
