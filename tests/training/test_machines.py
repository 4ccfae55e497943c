"""Inference machines fitted without a gradient through their iterations."""

from __future__ import annotations

from pathlib import Path

import pytest

from messagenet.data import SyntheticScenes
from messagenet.errors import InputError
from messagenet.models import SegmentationNet
from messagenet.models.machine_training import Fit, mean_loss
from messagenet.training import apply_overrides, load_config
from messagenet.training.build import build_network
from messagenet.training.machines import node_batches, train_machine

SCENES = SyntheticScenes(6, size=48)
HELD_OUT = SyntheticScenes(2, size=48, split="val")
SHORT = Fit(steps=15, nodes_per_image=40)


@pytest.mark.parametrize(("method", "tied"), [("forward", "false"), ("dagger", "true")])
def test_fitted_machines_predict_better_than_chance(method: str, tied: str, tmp_path: Path) -> None:
    config = apply_overrides(load_config("tiny"), ["model.kind=inference_machine", f"model.tied={tied}"])
    result = train_machine(config, tmp_path, method, SCENES, HELD_OUT, rounds=2, fit=SHORT)  # type: ignore[arg-type]
    net = SegmentationNet.from_pretrained(result.folder / "last")
    untrained = build_network(config.model, SCENES.classes).net
    batches = node_batches(net, HELD_OUT, config.loss)  # type: ignore[arg-type]
    assert net.stride == 4
    fitted, before = (mean_loss(each.head, batches) for each in (net, untrained))  # type: ignore[arg-type]
    assert fitted < 0.8 * before


def test_only_machines_are_fitted(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.kind=inference_machine"):
        train_machine(load_config("tiny"), tmp_path, "forward", SCENES, HELD_OUT)
