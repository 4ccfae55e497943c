"""Whole models: sizes, padding, separate features, the neck, what they are for, what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from messagenet import InputError, above, four_neighbours, settings, surrounding
from messagenet.data import Classes
from messagenet.losses import CrossEntropy
from messagenet.models import Head, InputSpec, MessageNet, SegmentationModel
from messagenet.models.base import Neck, at_least_float32, ignore_padding, zero_padding
from messagenet.prediction import PredictOptions, Predictor
from messagenet.settings import build, component, find, kinds, register
from oracles.systems import SYSTEMS, random_batch

CLASSES = Classes(("ground", "sky", "tree"), ((1, 2, 3), (4, 5, 6), (7, 8, 9)))


def small(**options) -> MessageNet:
    torch.manual_seed(0)
    relations = options.pop("relations", [four_neighbours(), surrounding(cells=5, form="box")])
    return MessageNet("tiny", CLASSES, relations, **{"hidden": 8, **options}).eval()


class Patches(nn.Module):
    """A user's own backbone: one linear map per 8×8 patch."""

    channels, stride = 5, 8

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, 5, 8, 8)

    def forward(self, images):
        return self.project(images)


@pytest.mark.parametrize("size", [(1, 1), (4, 4), (33, 50), (40, 17)])
@pytest.mark.parametrize("kind", ["tiny", "efficientnet_lite0", "own"])
def test_any_image_size_gives_marginals_at_its_pixels(size, kind):
    options = {"width": 8, "levels": [2]} if kind == "efficientnet_lite0" else {}
    backbone = Patches() if kind == "own" else {"kind": kind, **options}
    net = MessageNet(backbone, CLASSES, [four_neighbours()], hidden=4).eval()
    marginals = net.marginals(torch.rand(2, 3, *size))
    assert marginals.shape == (2, 3, *size)
    torch.testing.assert_close(marginals.sum(1), torch.ones(2, *size))
    nodes = net(torch.rand(1, 3, *size)).shape[2:]
    assert tuple(nodes) == tuple(-(-side // net.feature_stride) for side in size)


def test_vgg16_at_several_scales_passes_messages():
    backbone = {"kind": "vgg16", "fc6_channels": 4, "fc6_kernel": 3, "scales": [1.2, 0.4]}
    net = MessageNet(backbone, CLASSES, [four_neighbours()], hidden=4).eval()
    with torch.no_grad():
        assert net.marginals(torch.rand(1, 3, 50, 61)).shape == (1, 3, 50, 61)


def test_a_padded_image_of_a_local_network_is_as_if_alone():
    net = small(relations=[surrounding(0.4), above(0.4)])
    image, larger = torch.rand(1, 3, 40, 36), torch.rand(1, 3, 48, 52)
    batch = larger.repeat(2, 1, 1, 1)
    batch[0] = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    batch[0, :, :40, :36] = image[0]
    logits = net(batch, torch.tensor([[40, 36], [48, 52]]))
    torch.testing.assert_close(logits[1], net(larger)[0], rtol=1e-4, atol=1e-5)
    inner = (slice(None), slice(0, 5), slice(0, 4))  # the last cells see one pixel of the padding
    torch.testing.assert_close(logits[0, :, :10, :9][inner], net(image)[0][inner], rtol=0.2, atol=0.05)
    assert (logits[0, :, 10:] == 0).all()
    assert (logits[0, :, :, 9:] == 0).all()


def test_images_are_normalised_and_padded_with_the_mean_colour():
    net = small()
    images = torch.rand(1, 3, 6, 7)
    spec = net.input
    mean, std = (torch.tensor(values)[:, None, None] for values in (spec.mean, spec.std))
    padded = torch.zeros(1, 3, 8, 8)
    padded[:, :, :6, :7] = (images - mean) / std
    expected = net.backbones["shared"](padded)
    torch.testing.assert_close(net.forward_features(images), expected)
    other = SegmentationModel("tiny", InputSpec(CLASSES, mean=(0.0,) * 3, std=(1.0,) * 3), "unary")
    torch.testing.assert_close(other.normalise(images), images)


def test_images_may_have_other_channels_than_three():
    class Bands(Patches):
        def __init__(self):
            super().__init__()
            self.project = nn.Conv2d(4, 5, 8, 8)

    spec = InputSpec(CLASSES, mean=(0.5,) * 4, std=(0.25,) * 4)
    model = SegmentationModel(Bands(), spec, {"kind": "unary", "hidden": 4})
    assert model.marginals(torch.rand(1, 4, 20, 30)).shape == (1, 3, 20, 30)
    assert Predictor(model, PredictOptions(longest_side=20)).labels(np.zeros((20, 30, 4), np.uint8)).shape == (20, 30)
    with pytest.raises(InputError, match=r"must be bytes \(height, width, 4\), .* not uint8 \(20, 30, 3\)"):
        Predictor(model).labels(np.zeros((20, 30, 3), np.uint8))
    with pytest.raises(InputError, match=r"\(batch, 4, height, width\)"):
        model(torch.rand(1, 3, 20, 30))


def test_separate_features_have_a_backbone_each():
    net = small(separate_features=True)
    assert list(net.backbones) == ["unary", "four_neighbours", "surrounding"]
    net(torch.rand(1, 3, 16, 16)).sum().backward()
    for backbone in net.backbones.values():
        assert all(parameter.grad is not None for parameter in backbone.parameters())
    crf = SegmentationModel("tiny", 3, {"kind": "crf", "relations": ["above:0.4", "below:0.4"]}, separate_features=True)
    assert list(crf.backbones) == ["unary", "above"]


def test_how_many_numbers_a_factor_has():
    for kind in kinds("head"):
        backbone = "efficientnet_lite0" if kind in ("fcn8s", "deconvnet") else "tiny"
        model = SegmentationModel(backbone, 4, kind)
        if kind != "message":
            assert model.head.outputs_per_factor == (16 if kind == "crf" else 4)
        assert bool(model.relations) == (kind in ("message", "crf"))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: MessageNet("tinny", 3), 'did you mean "tiny"'),
        (lambda: MessageNet("tiny", 1), "at least 2 classes"),
        (lambda: MessageNet(nn.Conv2d(3, 4, 1), 3), "channels"),
        (lambda: MessageNet(Patches(), 3, separate_features=True), "give its kind"),
        (lambda: SegmentationModel("tiny", 3, "mesage"), 'no head "mesage": did you mean "message"'),
        (
            lambda: SegmentationModel("tiny", 3, {"kind": "unary", "relations": []}),
            r'no setting "head\.relations" for unary',
        ),
        (lambda: SegmentationModel("tiny", 3, {"hidden": 3}), "head has no kind"),
        (lambda: SegmentationModel("tiny", 3, 7), "head is 7; give a kind"),
        (lambda: SegmentationModel("tiny", 3, "unary", separate_features=True), "reads one feature map"),
        (lambda: SegmentationModel("tiny", 3, "inference_machine", neck="separable"), "takes no neck"),
        (lambda: small()(torch.rand(3, 8, 8)), r"give \(batch, 3, height, width\)"),
        (lambda: small()(torch.rand(1, 4, 8, 8)), r"\(batch, 3, height, width\)"),
        (lambda: small()(torch.zeros(1, 3, 8, 8, dtype=torch.uint8)), r"images\.float\(\) / 255"),
        (lambda: small()(torch.full((1, 3, 8, 8), torch.nan)), "NaN"),
        (lambda: InputSpec(CLASSES, longest_side=0), "longest_side is 0; give a number of pixels"),
        (lambda: InputSpec(CLASSES, void_values=(-3,)), "void value -3"),
        (lambda: InputSpec(CLASSES, mean=(0.5,)), "mean and std have 1 and 3 values; give one per channel"),
    ],
)
def test_bad_models_name_the_fix(build, words):
    with pytest.raises(InputError, match=words):
        build()


def test_the_check_of_features_can_be_left_out():
    images = torch.full((1, 3, 16, 16), torch.nan)
    with pytest.raises(InputError, match="NaN or infinity"):
        MessageNet("tiny", 3, hidden=4)(images)
    skipped = MessageNet("tiny", 3, hidden=4)
    skipped.skip_finite_checks()
    assert skipped(images).isnan().any()


def test_a_head_of_ones_own_is_named_in_configurations(tmp_path, monkeypatch):
    monkeypatch.setitem(settings._REGISTRY, "head", dict(settings._REGISTRY["head"]))

    @register("head", "nearest colour")
    class NearestColour(Head):
        def __init__(self, in_channels, num_classes, *, sharpness: float = 1.0):
            super().__init__(in_channels, num_classes)
            self.colours = nn.Parameter(torch.randn(num_classes, in_channels))
            self.sharpness = sharpness

        def forward(self, features, mask=None):
            distance = (features[:, None] - self.colours[:, :, None, None]).square().sum(2)
            return zero_padding(-self.sharpness * distance, mask)

    model = SegmentationModel("tiny", 3, {"kind": "nearest colour", "sharpness": 2}).eval()
    assert model.config["head"] == {"kind": "nearest colour", "sharpness": 2.0}
    images = torch.rand(1, 3, 20, 24)
    assert torch.equal(SegmentationModel.from_pretrained(model.save(tmp_path))(images), model(images))


def test_padding_is_void_in_targets_and_zero_in_maps():
    mask = torch.tensor([[[True, False]]])
    assert ignore_padding(torch.tensor([[[1, 2]]]), mask).tolist() == [[[1, 255]]]
    assert zero_padding(torch.tensor([[[[1.0, torch.nan]]]]), mask).tolist() == [[[[1.0, 0.0]]]]
    values = torch.ones(1, 1, 1, 2)
    assert zero_padding(values, None) is values
    assert at_least_float32(values.bfloat16()).dtype == torch.float32
    assert at_least_float32(values.double()).dtype == torch.float64


class Collision(nn.Module):
    """A plain module whose attributes are called as those of our heads, and mean something else."""

    def __init__(self) -> None:
        super().__init__()
        self.classify = nn.Conv2d(32, 3, 1)
        self.context = ("left", "right")
        self.relations = [1, 2]
        self.num_classes = 7
        self.level_strides = (4, 2)
        self.needs_images = frozenset({"loss"})
        self.takes_neck = False
        self.tunable = {"temperature": (1, 2)}
        self.check_finite = lambda: True
        self.forward_train = "off"

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        assert callable(self.check_finite)
        return self.classify(features)


def test_attributes_of_a_plain_head_are_its_own() -> None:
    head = Collision()
    model = SegmentationModel("tiny", 3, head, neck={"kind": "separable", "width": 32})
    images = torch.rand(1, 3, 12, 12)
    model.skip_finite_checks()
    assert model(images).shape == (1, 3, 3, 3)
    assert model.forward_train(model.forward_features(images))[1] == 4
    assert (model.relations, model.needs_images) == ((), frozenset())
    with pytest.raises(InputError, match="no setting 'temperature' to tune"):
        model.set_tunable(temperature=1)


@pytest.mark.parametrize(
    ("head", "values", "words"),
    [
        ("crf", {"pairwise_scale": "x"}, "head.pairwise_scale is 'x'; give a number"),
        ("crf", {"pairwise_scale": -1}, "head: pairwise_scale is -1.0; give at least 0"),
        ("crf", {"pairwise_scale": float("nan")}, "head.pairwise_scale is nan; give a number"),
        ("crf", {"inference_iterations": 0}, "head: inference_iterations is 0; give at least 1"),
        ("crf", {"pairwise_scale": 2, "inference_iterations": 2.5}, "head.inference_iterations is 2.5; give a whole"),
        ("deeplab_crf", {"bilateral_position": 0}, "head: bilateral_position is 0.0; give a number above 0"),
    ],
)
def test_tuned_values_are_checked(head: str, values: dict[str, Any], words: str) -> None:
    model = SegmentationModel("tiny", 3, head)
    before = dict(model.head.config)
    with pytest.raises(InputError, match=f"^{words}"):
        model.set_tunable(**values)
    assert model.head.config == before
    assert all(getattr(model.head, name) == before[name] for name in values)


@pytest.mark.parametrize("shape", [(1, 3, 0, 4), (2, 3, 4, 0)])
def test_images_without_a_pixel_are_refused(shape: tuple[int, ...]) -> None:
    model = SegmentationModel("tiny", 3, "unary")
    for call in (model, model.marginals):
        with pytest.raises(InputError, match=r"^images have shape \(.*\), without a pixel; give at least one$"):
            call(torch.zeros(shape))


def with_neck(**neck):
    torch.manual_seed(0)
    net = MessageNet("tiny", 3, [surrounding(0.4)], hidden=8, neck={"kind": "separable", **neck})
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
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


def test_channels_are_standardised_by_the_nodes_that_exist():
    neck = Neck(4, normalise=True).double().train()
    features = 3 * torch.randn(2, 4, 5, 6, dtype=torch.float64) + 7
    mask = torch.ones(2, 5, 6, dtype=torch.bool)
    mask[1, 3:] = False
    nodes = features.permute(0, 2, 3, 1)[mask]
    values = neck(features, mask).permute(0, 2, 3, 1)
    torch.testing.assert_close(
        values[mask], (nodes - nodes.mean(0)) / (nodes.var(0, correction=0) + neck.normalise.eps).sqrt()
    )
    assert not values[~mask].any()
    neck.normalise.running_mean.copy_(nodes.mean(0))
    neck.normalise.running_var.copy_(nodes.var(0, correction=0))
    torch.testing.assert_close(neck.eval()(features).permute(0, 2, 3, 1)[mask], values[mask])


def test_dropout_leaves_out_whole_channels_in_training_only():
    neck = Neck(64, dropout=0.5)
    features = torch.rand(2, 64, 3, 4) + 1
    torch.testing.assert_close(neck.eval()(features), features)
    dropped = neck.train()(features)
    present = (dropped > 0).flatten(2)
    assert torch.equal(present.any(2), present.all(2))
    assert 0.2 < present.float().mean() < 0.8
    torch.testing.assert_close(dropped[dropped > 0], 2 * features[dropped > 0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernel": 2, "width": 4}, "kernel is 2; give an odd number"),
        ({"kernel": 3}, "and the width with it"),
        ({"dropout": 1.0}, r"dropout is 1\.0; give a number from 0 to below 1"),
    ],
)
def test_bad_options_of_a_neck_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        Neck(4, **options)


NECKS = [
    {"width": 3},
    {"width": 3, "kernel": 3},
    {"filters": 2},
    {"width": 3, "filters": 1},
    {"width": 3, "normalise": True},
]


@pytest.mark.parametrize("options", NECKS)
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
    net = with_neck(width=6, filters=2, kernel=3, normalise=True, dropout=0.3)
    images = torch.rand(1, 3, 40, 52)
    predictor = Predictor(net)
    for factor in (1, 3):
        with torch.no_grad():
            net.neck.filters[0].project.convolution.weight.mul_(factor)
        with torch.inference_mode():
            torch.testing.assert_close(predictor.forward(images), net(images), rtol=1e-4, atol=1e-5)


def test_saved_and_loaded(tmp_path):
    net = with_neck(width=6, filters=2, normalise=True)
    images = torch.rand(1, 3, 40, 52)
    loaded = SegmentationModel.from_pretrained(net.save(tmp_path))
    assert loaded.config["neck"] == net.config["neck"] | {"width": 6, "filters": 2, "normalise": True}
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
    assert set(kinds("head")) - set(TAKES_NECK) == {"fcn8s", "deconvnet", "inference_machine"}
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
