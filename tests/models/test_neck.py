"""The neck: what it computes, where it belongs, and models from before it existed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from messagenet.data.classes import numbered_classes
from messagenet.errors import InputError
from messagenet.graph import surrounding
from messagenet.models import KINDS, MessageNet, SegmentationNet
from messagenet.models.neck import Neck
from messagenet.prediction.predictor import Ready
from messagenet.training import load_config
from messagenet.training.build import build_network
from messagenet.training.config import ModelConfig


def with_neck(**neck):
    torch.manual_seed(0)
    net = MessageNet("tiny", 3, [surrounding(0.4)], hidden=8, neck=neck)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 2)
    return net.eval()


def test_filters_add_to_what_they_see():
    neck = Neck(6, filters=2).double().eval()
    features = torch.randn(2, 6, 5, 7, dtype=torch.float64)
    for block in neck.filters:
        torch.nn.init.zeros_(block.project.norm.weight)
    torch.testing.assert_close(neck(features), features)


def test_a_filter_sees_two_nodes_to_every_side_and_none_that_do_not_exist():
    neck = Neck(4, filters=1).double().eval()
    features = torch.randn(1, 4, 9, 9, dtype=torch.float64)
    other = features.clone()
    other[:, :, 4, 4] += 1
    moved = (neck(other) != neck(features)).any(1)[0].nonzero()
    assert moved.min(0).values.tolist() == [2, 2]
    assert moved.max(0).values.tolist() == [6, 6]
    valid = torch.ones(1, 9, 9, dtype=torch.bool)
    valid[:, 4, 4] = False
    heard = neck(other, valid) != neck(features, valid)
    assert not heard.any()


def test_messages_are_computed_from_what_leaves_the_neck():
    net = with_neck(width=5, filters=1)
    images = torch.rand(2, 3, 40, 52)
    features = net.features(images)
    assert net.head.in_channels == 5
    torch.testing.assert_close(net(images), net.head(net.neck(features)))
    torch.testing.assert_close(net.decided(features), net(images))


def test_predicted_as_it_is():
    net = with_neck(width=6, filters=2)
    images = torch.rand(1, 3, 40, 52)
    ready = Ready(net)
    for factor in (1, 3):
        with torch.no_grad():
            net.neck.filters[0].project.convolution.weight.mul_(factor)
        with torch.inference_mode():
            torch.testing.assert_close(ready(images), net(images), rtol=1e-4, atol=1e-5)


def test_saved_and_loaded(tmp_path):
    net = with_neck(width=6, filters=2)
    images = torch.rand(1, 3, 40, 52)
    torch.testing.assert_close(SegmentationNet.from_pretrained(net.save(tmp_path))(images), net(images))


def test_models_whose_filters_were_in_the_backbone(tmp_path):
    net = with_neck(filters=2)
    net.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["settings"]["neck"]
    config["settings"]["backbone_options"]["filters"] = 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    state = load_file(tmp_path / "model.safetensors")
    old = {name.replace("neck.", "backbones.shared."): values for name, values in state.items()}
    save_file(old, tmp_path / "model.safetensors")
    images = torch.rand(1, 3, 40, 52)
    torch.testing.assert_close(SegmentationNet.from_pretrained(tmp_path)(images), net(images))


def test_an_empty_neck_in_the_file_is_none(tmp_path):
    net = MessageNet("tiny", 3, [surrounding(0.4)], hidden=8)
    net.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["settings"]["neck"] = {}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert SegmentationNet.from_pretrained(tmp_path).neck is None


@pytest.mark.parametrize("wrong", [None, 3, []])
def test_settings_that_are_none_are_refused(tmp_path, wrong):
    MessageNet("tiny", 3, [surrounding(0.4)], hidden=8).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for broken in (
        {**config, "settings": wrong},
        {**config, "settings": config["settings"] | {"backbone_options": 3}},
    ):
        (tmp_path / "config.json").write_text(json.dumps(broken))
        with pytest.raises(InputError, match="does not describe a model"):
            SegmentationNet.from_pretrained(tmp_path)


class Filtered(torch.nn.Module):
    """A backbone of a user's own, with a part that happens to be called filters."""

    channels, stride = 4, 8

    def __init__(self):
        super().__init__()
        self.filters = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 8, 8))

    def forward(self, images):
        return self.filters(images)


def test_backbones_may_have_filters_of_their_own(tmp_path):
    net = MessageNet(Filtered(), 3, [surrounding(0.4)], hidden=8).eval()
    images = torch.rand(1, 3, 40, 52)
    again = SegmentationNet.from_pretrained(net.save(tmp_path), backbone=Filtered())
    torch.testing.assert_close(again(images), net(images))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_starts_from_the_model_in_the_box(kind):
    config = replace(load_config("finetune").model, kind=kind)
    before = torch.random.get_rng_state()
    built, pretrained = build_network(config, numbered_classes(3))
    assert torch.equal(torch.random.get_rng_state(), before)
    if kind == "inference_machine":  # on hand-crafted features
        return
    expected = {name for name, _ in built.named_parameters() if name.startswith(("backbones.", "neck."))}
    assert pretrained == expected
    assert (built.neck is None) == (kind == "fcn8s")


def test_a_mistyped_start_is_told_the_right_name():
    config = ModelConfig(backbone="tiny", pretrained="voc-animal")
    with pytest.raises(InputError, match='no known name; did you mean "voc-animals"'):
        build_network(config, numbered_classes(3))


@pytest.mark.parametrize("same", [True, False])
def test_taken_over_with_the_backbone(tmp_path, same):
    net = with_neck(filters=2)
    net.save(tmp_path)
    neck = {"filters": 2 if same else 1}
    config = ModelConfig(backbone="tiny", pretrained=str(tmp_path), neck=neck, hidden=8)
    built, pretrained = build_network(config, numbered_classes(4), seed=1)
    assert any(name.startswith("neck.") for name in pretrained) == same
    assert {f"backbones.{name}" for name, _ in built.backbones.named_parameters()} <= pretrained
    assert all(name in dict(built.named_parameters()) for name in pretrained)
    first = "filters.0.project.convolution.weight"
    assert torch.equal(built.neck.get_parameter(first), net.neck.get_parameter(first)) == same


@pytest.mark.parametrize("kind", [name for name in KINDS if name not in ("fcn8s", "inference_machine")])
def test_every_head_may_have_one(kind, tmp_path):
    config = ModelConfig(kind=kind, backbone="tiny", neck={"width": 16, "filters": 1}, hidden=64)
    net = build_network(config, numbered_classes(3)).net
    assert net.head_channels == 16
    images, truth = torch.rand(2, 3, 24, 32), torch.randint(0, 3, (2, 24, 32))
    net.train().loss(images, truth, names=("a", "b")).total.backward()
    assert all(p.grad is not None for p in net.neck.parameters())
    net.eval()
    again = SegmentationNet.from_pretrained(net.save(tmp_path))
    with torch.no_grad():
        torch.testing.assert_close(again(images), net(images))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"neck": {"filter": 1}}, "a neck has no option .filter.; did you mean .filters"),
        ({"neck": {"filters": -1}}, "filters must be a whole number from 0"),
        ({"neck": {"width": 0}}, "width must be a whole number above zero"),
        ({"neck": {"filters": 1}, "separate_features": True}, "set separate_features=false"),
    ],
)
def test_bad_options(settings, says):
    with pytest.raises(InputError, match=says):
        MessageNet("tiny", 3, [surrounding(0.4)], **settings)
