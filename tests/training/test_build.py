"""Models built from a configuration: what they start from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from messagenet.data.classes import numbered_classes
from messagenet.errors import InputError
from messagenet.graph import surrounding
from messagenet.models import MessageNet
from messagenet.training import TrainConfig, load_config, override
from messagenet.training.build import build_model
from messagenet.training.systems import SYSTEMS, apply_system


def with_neck(filters: int) -> MessageNet:
    torch.manual_seed(0)
    neck = {"kind": "separable", "filters": filters}
    model = MessageNet("tiny", 3, [surrounding(0.4)], hidden=8, neck=neck)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 2)
    return model.eval()


@pytest.mark.parametrize("system", [name for name in SYSTEMS if name != "deeplab_mcl"])
def test_every_system_starts_from_the_bundled_model(system: str) -> None:
    config = apply_system(load_config("finetune"), system)
    before = torch.random.get_rng_state()
    built, pretrained = build_model(config, numbered_classes(3))
    assert torch.equal(torch.random.get_rng_state(), before)
    if config.model.backbone["kind"] == "hand_crafted":
        assert pretrained == frozenset()
        return
    expected = {name for name, _ in built.named_parameters() if name.startswith(("backbones.", "neck."))}
    assert pretrained == expected
    assert (built.neck is None) == (system in ("fcn8s", "deconvnet"))


def test_a_mistyped_start_is_told_the_right_name() -> None:
    config = override(TrainConfig(), {"model.backbone": "tiny", "model.pretrained": "vocs"})
    with pytest.raises(InputError, match='a known name; did you mean "voc"'):
        build_model(config, numbered_classes(3))


@pytest.mark.parametrize("same", [True, False])
def test_a_neck_is_taken_over_with_the_backbone_if_it_is_the_same(tmp_path: Path, same: bool) -> None:
    model = with_neck(filters=2)
    model.save(tmp_path)
    settings = {
        "model.backbone": "tiny",
        "model.pretrained": str(tmp_path),
        "model.neck.filters": 2 if same else 1,
        "model.neck.dropout": 0.3,  # has no weights
        "model.head.hidden": 8,
        "run.seed": 1,
    }
    built, pretrained = build_model(override(TrainConfig(), settings), numbered_classes(4))
    assert any(name.startswith("neck.") for name in pretrained) == same
    assert {f"backbones.{name}" for name, _ in built.backbones.named_parameters()} <= pretrained
    assert all(name in dict(built.named_parameters()) for name in pretrained)
    first = "filters.0.project.convolution.weight"
    assert built.neck is not None
    assert model.neck is not None
    assert torch.equal(built.neck.get_parameter(first), model.neck.get_parameter(first)) == same
