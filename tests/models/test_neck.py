"""The neck: what it computes and where it belongs."""

from __future__ import annotations

import pytest
import torch

from messagenet.errors import InputError
from messagenet.graph import surrounding
from messagenet.losses import CrossEntropy
from messagenet.models import MessageNet, SegmentationModel
from messagenet.models.neck import Neck
from messagenet.prediction import Predictor
from messagenet.settings import build, component, find, kinds
from oracles.systems import SYSTEMS, random_batch


def with_neck(**neck):
    torch.manual_seed(0)
    net = MessageNet("tiny", 3, [surrounding(0.4)], hidden=8, neck={"kind": "separable", **neck})
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
    mask = torch.ones(1, 9, 9, dtype=torch.bool)
    mask[:, 4, 4] = False
    assert torch.equal(neck(other, mask), neck(features, mask))


@pytest.mark.parametrize("options", [{"width": 3}, {"filters": 2}, {"width": 3, "filters": 1}])
def test_rubbish_in_the_padding_reaches_neither_values_nor_gradients(options):
    neck = Neck(4, **options).double().train()
    features = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    mask = torch.ones(2, 5, 6, dtype=torch.bool)
    mask[1, 3:] = False
    rubbish = features.clone()
    rubbish[1, :, 3:] = torch.nan
    results = []
    for x in (features, rubbish):
        neck.zero_grad()
        values = torch.where(mask[:, None], neck(x, mask), 0)
        values.square().sum().backward()
        results.append([values, *(parameter.grad.clone() for parameter in neck.parameters())])
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_messages_are_computed_from_what_leaves_the_neck():
    net = with_neck(width=5, filters=1)
    images = torch.rand(2, 3, 40, 52)
    features = net.forward_features(images)
    assert net.head.in_channels == 5
    assert features.shape[1] == 32
    torch.testing.assert_close(net(images), net.head(net.neck(features)))
    torch.testing.assert_close(net.forward_neck(features), net.neck(features))
    torch.testing.assert_close(net.forward_head(features), net(images))


def test_predicted_as_it_is():
    net = with_neck(width=6, filters=2)
    images = torch.rand(1, 3, 40, 52)
    predictor = Predictor(net)
    for factor in (1, 3):
        with torch.no_grad():
            net.neck.filters[0].project.convolution.weight.mul_(factor)
        with torch.inference_mode():
            torch.testing.assert_close(predictor.forward(images), net(images), rtol=1e-4, atol=1e-5)


def test_saved_and_loaded(tmp_path):
    net = with_neck(width=6, filters=2)
    images = torch.rand(1, 3, 40, 52)
    loaded = SegmentationModel.from_pretrained(net.save(tmp_path))
    assert loaded.config["neck"] == {"kind": "separable", "width": 6, "filters": 2}
    torch.testing.assert_close(loaded(images), net(images))


TAKES_NECK = [kind for kind in kinds("head") if getattr(find("head", kind), "takes_neck", True)]


@pytest.mark.parametrize("kind", TAKES_NECK)
def test_every_head_can_have_one(kind, tmp_path):
    spec = next(system.head for system in SYSTEMS.values() if system.head["kind"] == kind)
    torch.manual_seed(0)
    neck = {"kind": "separable", "width": 5, "filters": 1}
    net = SegmentationModel({"kind": "tiny", "width": 6}, 3, spec, neck=neck).double()
    assert net.head.in_channels == 5
    (batch,) = random_batch([(24, 32)])
    CrossEntropy()(net.train(), batch).total.backward()
    assert all(p.grad is not None for p in net.neck.parameters())
    net.eval()
    again = SegmentationModel.from_pretrained(net.save(tmp_path))
    with torch.no_grad():
        torch.testing.assert_close(again(batch.images), net(batch.images))


def test_those_that_cannot_say_so():
    assert set(kinds("head")) - set(TAKES_NECK) == {"fcn8s", "inference_machine"}
    for kind in ("fcn8s", "inference_machine"):
        with pytest.raises(InputError, match="takes no neck; leave it out"):
            SegmentationModel("efficientnet_lite0", 3, kind, neck="separable")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"neck": {"kind": "separable", "filter": 1}}, r'no setting "neck\.filter" .*did you mean "filters"'),
        ({"neck": {"kind": "separable", "filters": -1}}, "filters must be a whole number from 0"),
        ({"neck": {"kind": "separable", "width": 0}}, "width must be a whole number above zero"),
        ({"neck": {"kind": "seperable"}}, 'no neck "seperable": did you mean "separable"'),
        ({"neck": "separable", "separate_features": True}, "set separate_features=false"),
    ],
)
def test_bad_options(settings, says):
    with pytest.raises(InputError, match=says):
        MessageNet("tiny", 3, [surrounding(0.4)], **settings)


def test_it_is_built_from_its_settings():
    neck = build("neck", {"kind": "separable", "filters": 2}, in_channels=6)
    assert neck.config == component("neck", {"kind": "separable", "filters": 2})
    assert neck.channels == 6
