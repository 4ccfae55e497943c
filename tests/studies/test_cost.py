"""Costs: measured in a process of their own, of what training does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from messagenet.data import SCENE_CLASSES, SyntheticScenes
from messagenet.errors import InputError
from messagenet.settings import find
from messagenet.studies import compare
from messagenet.studies.cost import BackboneUse, measure, measure_in_subprocess
from messagenet.training import DataSets, TrainConfig, load_config, override
from messagenet.training.build import build_model
from messagenet.training.systems import apply_system


def small() -> TrainConfig:
    settings = {
        "model.head": {"hidden": 8, "relations": ["surrounding:3cells"]},
        "model.backbone.width": 8,
        "run.steps": 2,
        "run.batch_size": 2,
        "run.workers": 0,
    }
    return override(load_config("tiny"), settings)


def test_costs_are_measured_in_a_process_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataSets(SyntheticScenes(6, size=32), SyntheticScenes(2, size=32, split="val"))
    (found,) = compare(["unary"], small(), [0], tmp_path, held_out=1, data=data)
    assert 0 < found.cost.prediction_seconds < 5
    assert 0 < found.cost.step_seconds < 5
    assert 0 <= found.cost.prediction_megabytes < 500
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(InputError, match="cannot be measured"):
        measure_in_subprocess(tmp_path / "unary/seed-0/model", 32, 32, 2, "trained", {"kind": "cross_entropy"})


@pytest.mark.parametrize(
    ("system", "backbone", "passes"),
    [
        ("message", "trained", 4),
        ("crf_rnn", "frozen", 4),
        ("message", "cached", 0),
        ("deeplab_crf", "cached", 0),
        ("crf_likelihood", "trained", 4),
    ],
)
def test_a_step_costs_what_training_does_with_the_backbone(
    system: str, backbone: BackboneUse, passes: int, tmp_path: Path
) -> None:
    config = apply_system(small(), system)
    model = build_model(config, SCENE_CLASSES).model
    folder = model.save(tmp_path)
    assert measure_in_subprocess(folder, 32, 32, 3, backbone, config.loss).step_seconds > 0
    seen: list[bool] = []
    feature_net = model.backbones["shared"]
    feature_net.register_forward_hook(
        lambda module, images, result: seen.append(module.training) if len(images[0]) == 3 else None
    )
    measure(model, 32, 32, 3, backbone, config.loss)
    trained = backbone == "trained"
    assert seen == [trained] * passes
    assert all((parameter.grad is not None) == trained for parameter in feature_net.parameters())
    assert all(parameter.grad is not None for parameter in model.head.parameters())


MINE = """
import torch, messagenet as mn
from neighbour import KERNEL

@mn.register("head", "linear")
class LinearHead(mn.Head):
    def __init__(self, in_channels, num_classes, *, kernel: int = KERNEL):
        super().__init__(in_channels, num_classes)
        self.classify = torch.nn.Conv2d(in_channels, num_classes, kernel, padding=kernel // 2)

    def forward(self, features, mask=None):
        return self.classify(features)
"""


def test_components_of_ones_own_are_compared(tmp_path: Path) -> None:
    (tmp_path / "linear_head.py").write_text(MINE)
    (tmp_path / "neighbour.py").write_text("KERNEL = 3\n")
    command = [sys.executable, "-m", "messagenet", "compare", "--import", "linear_head.py", "--study", "study.yaml"]
    (tmp_path / "study.yaml").write_text("seeds: [0]\nheld_out: 1\nsystems: {mine: [model.head.kind=linear]}\n")
    quick = ["--set=run.steps=1", "--set=run.batch_size=2", "--set=run.workers=0", "--set=data.val_limit=1"]
    done = subprocess.run(
        [*command, *quick, "--data", "synthetic:6", "--out", "out"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "mine" / "seed-0" / "result.json").read_text())
    assert result["cost"]["step_seconds"] > 0


def test_components_of_a_script_are_refused_before_they_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find("head", "unary"), "__module__", "__main__")
    data = DataSets(SyntheticScenes(6, size=32), SyntheticScenes(2, size=32, split="val"))
    with pytest.raises(
        InputError, match=r'cannot import the head "unary" from a notebook or script; put it into a mod'
    ):
        compare(["unary"], small(), [0], tmp_path, held_out=1, data=data)
    assert list(tmp_path.iterdir()) == []
