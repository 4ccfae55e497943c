"""Inference machines fitted without a gradient through their iterations."""

from __future__ import annotations

from pathlib import Path

import pytest

from messagenet.data import SyntheticScenes
from messagenet.errors import InputError
from messagenet.models import SegmentationNet
from messagenet.training import DataSets, TrainConfig, apply_overrides, load_config, read_log, train
from messagenet.training.build import build_network
from messagenet.training.inference_machine import mean_loss, node_batches

SCENES = DataSets(SyntheticScenes(24, size=48), SyntheticScenes(2, size=48, split="val"))


def machine(method: str, tied: bool, *more: str) -> TrainConfig:
    chosen = [
        f"run.method={method}",
        f"model.tied={str(tied).lower()}",
        "run.steps=20",
        "run.batch_size=1",
        "model.inference_iterations=2",
    ]
    return apply_overrides(load_config("tiny"), ["model.kind=inference_machine", *chosen, *more])


@pytest.mark.parametrize(("method", "tied"), [("forward", False), ("dagger", True)])
def test_fitted_machines_predict_better_than_chance(method: str, tied: bool, tmp_path: Path) -> None:
    config = machine(method, tied)
    result = train(config, tmp_path, data=SCENES)
    net = SegmentationNet.from_pretrained(result.folder / "best")
    untrained = build_network(config.model, SCENES.train.classes).net
    assert SCENES.val is not None
    batches = node_batches(net, SCENES.val, config.loss)  # type: ignore[arg-type]
    assert net.stride == 4
    fitted, before = (mean_loss(each.head, batches) for each in (net, untrained))  # type: ignore[arg-type]
    assert fitted < 0.8 * before
    (record,) = read_log(tmp_path / "log.jsonl")
    assert record["mean_iou"] == result.best_iou
    assert load_config(tmp_path / "config.yaml") == config


def test_only_machines_are_fitted() -> None:
    with pytest.raises(InputError, match=r"model\.kind=inference_machine and model\.tied=true"):
        machine("dagger", False)
    with pytest.raises(InputError, match=r"set model\.kind=inference_machine"):
        machine("forward", False, "model.kind=message")
