"""The arithmetic of each feature network, what a node sees, and what is refused."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from messagenet.data.images import IMAGENET_MEAN
from messagenet.errors import InputError
from messagenet.models.backbones import IMAGENET_STD, VGG16, Backbone, EfficientNetLite0, Tiny, kernels
from messagenet.models.backbones.efficientnet_lite import ConvolutionNorm, InvertedResidual, dilated, kernel_gradient
from messagenet.models.backbones.vgg16 import _resized
from messagenet.models.base import check_backbone
from oracles.systems import build_backbone


def test_a_network_of_ones_own_qualifies() -> None:
    class Pixels(nn.Module):
        channels = 3
        stride = 1

        def forward(self, images: Tensor) -> Tensor:
            return images

    own: Backbone = Pixels()
    check_backbone(own)


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({"stride": 4}, "channels"),
        ({"channels": 4}, "stride"),
        ({"channels": 4.5, "stride": 4}, "channels"),
        ({"channels": True, "stride": 4}, "channels"),
        ({"channels": 4, "stride": 0}, "stride"),
        ({"channels": 4, "stride": "four"}, "stride"),
    ],
)
def test_check_names_what_is_missing(attributes: dict[str, object], named: str) -> None:
    module = nn.Identity()
    for attribute, value in attributes.items():
        setattr(module, attribute, value)
    with pytest.raises(InputError, match=named):
        check_backbone(module)


def test_check_refuses_what_is_no_module() -> None:
    with pytest.raises(InputError, match=r"nn\.Module, not function"):
        check_backbone(lambda images: images)


# Building by name.


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vgg19", {}, 'did you mean "vgg16"'),
        ("tiny", {"with": 8}, 'did you mean "width"'),
        ("tiny", {"width": {1, 2}}, "give a whole number"),
        ("tiny", {"width": 0}, "width"),
        ("tiny", {"width": "8"}, "width"),
        ("tiny", {"stride": 5}, "4 or 8"),
        ("tiny", {"stride": 4.0}, "stride"),
        ("vgg16", {"fc6_kernel": 4}, "odd"),
        ("vgg16", {"block6": 1}, "block6"),
        ("vgg16", {"fc6_channels": -1}, "fc6_channels"),
        ("vgg16", {"scales": []}, "scales"),
        ("vgg16", {"scales": 1.0}, "scales"),
        ("vgg16", {"scales": [1.0, -0.5]}, "scales"),
        ("vgg16", {"scales": [1.0, "half"]}, "scales"),
        ("efficientnet_lite0", {"levels": [3, 8]}, "levels"),
        ("efficientnet_lite0", {"levels": [3, 3]}, "levels"),
        ("efficientnet_lite0", {"levels": [3.0]}, "levels"),
        ("efficientnet_lite0", {"levels": []}, "levels"),
        ("efficientnet_lite0", {"levels": 5}, "levels"),
        ("efficientnet_lite0", {"output_stride": 8}, "16 or 32"),
        ("efficientnet_lite0", {"frozen_norm": "yes"}, "frozen_norm"),
        ("efficientnet_lite0", {"node_stride": 4}, "8, 16, 32 or null"),
        ("efficientnet_lite0", {"join": "stack"}, "concat"),
    ],
)
def test_bad_requests_are_refused_in_one_line(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        build_backbone(name, **options)
    assert "\n" not in str(caught.value)


# VGG-16.

TORCHVISION_FEATURES = {
    0: (64, 3), 2: (64, 64), 5: (128, 64), 7: (128, 128), 10: (256, 128), 12: (256, 256), 14: (256, 256),
    17: (512, 256), 19: (512, 512), 21: (512, 512), 24: (512, 512), 26: (512, 512), 28: (512, 512),
}  # fmt: skip
TORCHVISION_POOLS = (4, 9, 16, 23, 30)


def test_vgg16_numbers_its_layers_as_torchvision_does() -> None:
    shapes = {
        name: tuple(t.shape)
        for name, t in VGG16(fc6_channels=8, fc6_kernel=3).state_dict().items()
        if "features" in name
    }
    expected: dict[str, tuple[int, ...]] = {}
    for n, (outputs, inputs) in TORCHVISION_FEATURES.items():
        expected |= {f"features.{n}.weight": (outputs, inputs, 3, 3), f"features.{n}.bias": (outputs,)}
    assert shapes == expected


def test_vgg16_at_one_scale_is_the_published_sequence_of_layers() -> None:
    torch.manual_seed(3)
    network = VGG16(scales=[1.0], fc6_channels=8, fc6_kernel=3)
    values = network.state_dict()
    images = torch.randn(1, 3, 35, 50)

    def convolved(x: Tensor, layer: str) -> Tensor:
        weight = values[f"{layer}.weight"]
        return F.conv2d(x, weight, values[f"{layer}.bias"], padding=weight.shape[-1] // 2).relu()

    x = images
    for index in range(31):
        if index in TORCHVISION_FEATURES:
            x = convolved(x, f"features.{index}")
        elif index == 30:
            x = F.max_pool2d(x, 3, 1, 1)
        elif index in TORCHVISION_POOLS:
            bottom, right = x.shape[-2] % 2, x.shape[-1] % 2
            x = F.max_pool2d(F.pad(x, (0, right, 0, bottom), value=-torch.inf), 2)
    for index in (0, 2, 4):
        x = convolved(x, f"block6.0.{index}")
    with torch.no_grad():
        torch.testing.assert_close(network(images), x)


def test_vgg16_without_block_6_gives_block_5() -> None:
    network = build_backbone("vgg16", scales=[1.0, 0.5], block6=False).double()
    images = torch.randn(1, 3, 64, 48, dtype=torch.float64)
    with torch.no_grad():
        features = network(images)
        torch.testing.assert_close(features[:, :512], network.features(images))
    assert features.shape == (1, network.channels, 4, 3)
    assert {name.split(".")[0] for name in network.state_dict()} == {"features"}


def test_vgg16_shares_the_trunk_and_concatenates_the_scales() -> None:
    torch.manual_seed(4)
    both = VGG16(scales=[0.5, 1.0], fc6_channels=8, fc6_kernel=1)
    images = torch.randn(1, 3, 64, 96)
    maps = []
    for index, scale in enumerate(both.scales):
        single = VGG16(scales=[scale], fc6_channels=8, fc6_kernel=1)
        single.features.load_state_dict(both.features.state_dict())
        single.block6[0].load_state_dict(both.block6[index].state_dict())
        with torch.no_grad():
            maps.append(single(images))
    assert [tuple(m.shape[-2:]) for m in maps] == [(2, 3), (4, 6)]
    small = F.interpolate(maps[0], (4, 6), mode="bilinear", align_corners=False)
    with torch.no_grad():
        torch.testing.assert_close(both(images), torch.cat([small, maps[1]], dim=1))


@given(side=st.integers(1, 400), tenths=st.integers(1, 20))
@example(side=50, tenths=11)
@settings(max_examples=30, deadline=None)
def test_vgg16_sizes_are_exact_whatever_binary_fractions_do(side: int, tenths: int) -> None:
    with torch.device("meta"):
        network = VGG16(scales=[tenths / 10], fc6_channels=1, fc6_kernel=1)
        images = torch.empty(1, 3, side, 1)
        assert _resized(images, tenths / 10).shape[-2] == ceil(Fraction(side * tenths, 10))
        assert network(images).shape[-2] == ceil(Fraction(side * tenths, 160))


def test_vgg16_has_the_size_of_the_paper() -> None:
    trunk = 14_714_688
    block6 = 4096 * (512 * 49 + 1) + 512 * (4096 * 9 + 1) + 512 * (512 * 9 + 1)
    with torch.device("meta"):
        network = build_backbone("vgg16")
    assert network.channels == 3 * 512
    assert network.get_parameter("block6.2.0.weight").shape == (4096, 512, 7, 7)
    assert sum(p.numel() for p in network.parameters()) == trunk + 3 * block6


# EfficientNet-Lite.


@pytest.mark.parametrize(
    ("name", "published"),
    [("efficientnet_lite0", 4_652_008), ("efficientnet_lite1", 5_416_680), ("efficientnet_lite2", 6_092_072)],
)
def test_efficientnet_lite_has_the_published_number_of_weights(name: str, published: int) -> None:
    with torch.device("meta"):
        network = build_backbone(name, width=8)
    trunk = sum(p.numel() for part in (network.stem, network.blocks) for p in part.parameters())
    last = network.blocks[-1].project.convolution.out_channels
    classifier = last * 1280 + 2 * 1280 + 1280 * 1000 + 1000
    assert trunk + classifier == published


def _seeded(network: EfficientNetLite0) -> EfficientNetLite0:
    """Gives the norms statistics that are not the trivial ones, the same for every network of one shape."""
    generator = torch.Generator().manual_seed(5)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2, generator=generator)  # type: ignore[union-attr]
            module.running_var.uniform_(0.3, 1.2, generator=generator)  # type: ignore[union-attr]
            nn.init.uniform_(module.bias, -0.3, 0.3, generator=generator)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, generator=generator)
    return network.double().eval()


def _tensorflow_same(x: Tensor, weight: Tensor, stride: int, groups: int) -> Tensor:
    """Convolution with the padding rule of TensorFlow's "SAME", as its documentation states it."""
    pads = []
    for side in (x.shape[-1], x.shape[-2]):
        total = max((ceil(side / stride) - 1) * stride + weight.shape[-1] - side, 0)
        pads += [total // 2, total - total // 2]
    return F.conv2d(F.pad(x, pads), weight, stride=stride, groups=groups)


def test_efficientnet_lite0_at_stride_32_is_the_classifier_trunk() -> None:
    network = _seeded(EfficientNetLite0(levels=[7], output_stride=32))
    values = network.state_dict()
    images = torch.randn(1, 3, 64, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(6))

    def layer(x: Tensor, name: str, stride: int = 1, groups: int = 1) -> Tensor:
        x = _tensorflow_same(x, values[f"{name}.convolution.weight"], stride, groups)
        mean, var, scale, shift = (
            values[f"{name}.norm.{entry}"].view(-1, 1, 1) for entry in ("running_mean", "running_var", "weight", "bias")
        )
        normalised: Tensor = (x - mean) / (var + 1e-3).sqrt() * scale + shift
        return normalised

    x = layer(images * network.scale + network.offset, "stem", stride=2).clamp(0, 6)
    strides = {1: 2, 3: 2, 5: 2, 11: 2}
    for block in range(16):
        inputs = x
        if block > 0:
            x = layer(x, f"blocks.{block}.expand").clamp(0, 6)
        x = layer(x, f"blocks.{block}.depthwise", strides.get(block, 1), groups=x.shape[1]).clamp(0, 6)
        x = layer(x, f"blocks.{block}.project")
        if x.shape == inputs.shape:
            x = x + inputs
    with torch.no_grad():
        (deepest,) = network.level_maps(images)
    assert deepest.shape == (1, 320, 2, 3)
    torch.testing.assert_close(deepest, x)


def test_efficientnet_lite0_takes_colours_to_the_range_of_its_weights() -> None:
    network = EfficientNetLite0(width=4, levels=[1])
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    rgb = torch.rand(3, 5, 5)
    received = (rgb - mean) / std
    torch.testing.assert_close(received * network.scale + network.offset, (255 * rgb - 127) / 128)


def test_dilation_keeps_the_classifier_features_at_one_node_in_four() -> None:
    strided = _seeded(EfficientNetLite0(width=4, levels=[7], output_stride=32))
    dilated = EfficientNetLite0(width=4, levels=[7]).double().eval()
    dilated.load_state_dict(strided.state_dict())
    images = torch.randn(1, 3, 96, 64, dtype=torch.float64)
    with torch.no_grad():
        (coarse,), (fine,) = strided.level_maps(images), dilated.level_maps(images)
    torch.testing.assert_close(fine[..., 1::2, 1::2], coarse)


@given(size=st.tuples(st.integers(1, 9), st.integers(1, 9)), kernel=st.sampled_from([3, 5]), d=st.integers(2, 3))
@settings(max_examples=25, deadline=None)
def test_phases_convolve_as_a_dilated_kernel_does(size: tuple[int, int], kernel: int, d: int) -> None:
    plain = nn.Conv2d(4, 4, kernel, padding=kernel // 2, groups=4, bias=False, dtype=torch.float64)
    x = torch.randn(2, 4, *size, dtype=torch.float64, requires_grad=True)
    ours = dilated(x, plain.weight, None, kernel // 2, 4, d)
    theirs = F.conv2d(x, plain.weight, padding=kernel // 2 * d, dilation=d, groups=4)
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(ours)
    for gradient, expected in zip(
        torch.autograd.grad(ours, (x, plain.weight), upstream),
        torch.autograd.grad(theirs, (x, plain.weight), upstream),
        strict=True,
    ):
        torch.testing.assert_close(gradient, expected)


def test_a_kernel_for_each_channel_is_applied_in_full_precision_on_a_processor() -> None:
    torch.manual_seed(0)
    layer = ConvolutionNorm(6, 6, kernel=5, groups=6).eval()
    x = torch.randn(2, 6, 9, 8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        lower = layer(x)
    assert lower.dtype == torch.bfloat16
    assert torch.equal(lower, layer(x.float()).bfloat16())


def test_incomplete_cells_are_filled_so_that_other_nodes_do_not_move() -> None:
    network = _seeded(EfficientNetLite0(width=8, levels=[3]))
    images = torch.randn(1, 3, 160, 160, dtype=torch.float64)
    with torch.no_grad():
        whole, cut = network(images), network(images[..., :145, :145])
    assert whole.shape == cut.shape == (1, 8, 10, 10)
    torch.testing.assert_close(cut[..., :7, :7], whole[..., :7, :7])


@pytest.mark.parametrize("levels", [[2], [7, 1], [3, 5]])
@pytest.mark.parametrize("output_stride", [16, 32])
def test_levels_are_averaged_projected_and_summed(levels: list[int], output_stride: int) -> None:
    network = _seeded(EfficientNetLite0(width=8, levels=levels, output_stride=output_stride))
    assert len(network.blocks) == {2: 3, 7: 16, 5: 11}[max(levels)]
    images = torch.randn(1, 3, 70, 40, dtype=torch.float64)
    with torch.no_grad():
        expected: Tensor | float = 0.0
        for number, level in zip(sorted(levels), network.level_maps(images), strict=True):
            nodes = (ceil(70 / output_stride), ceil(40 / output_stride))
            expected = expected + network.fusion[str(number)](F.adaptive_avg_pool2d(level, nodes))
        assert isinstance(expected, Tensor)
        torch.testing.assert_close(network(images), expected.relu())


@pytest.mark.parametrize("node_stride", [8, 16, 32])
@pytest.mark.parametrize("output_stride", [16, 32])
def test_nodes_have_a_stride_of_their_own(node_stride: int, output_stride: int) -> None:
    """Each level is averaged or interpolated, cell by cell, to the nodes; cells beyond the image are cut off."""
    options = {"output_stride": output_stride, "node_stride": node_stride}
    network = _seeded(EfficientNetLite0(width=8, levels=[3, 7], **options))  # type: ignore[arg-type]
    images = torch.randn(1, 3, 70, 40, dtype=torch.float64)
    assert network.stride == node_stride
    with torch.no_grad():
        expected: Tensor | float = 0.0
        for number, level in zip((3, 7), network.level_maps(images), strict=True):
            projected = network.fusion[str(number)](level)
            cell = max(node_stride, output_stride)
            whole = ceil(70 / cell) * cell // node_stride, ceil(40 / cell) * cell // node_stride
            if projected.shape[-1] >= whole[1]:
                expected = expected + F.adaptive_avg_pool2d(projected, whole)
            else:
                expected = expected + F.interpolate(projected, size=whole, mode="bilinear")
        assert isinstance(expected, Tensor)
        nodes = expected.relu()[..., : ceil(70 / node_stride), : ceil(40 / node_stride)]
        torch.testing.assert_close(network(images), nodes)


def test_levels_side_by_side_are_the_levels_themselves() -> None:
    network = _seeded(EfficientNetLite0(levels=[3, 5], join="concat", output_stride=32))
    assert network.channels == 40 + 112
    images = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        fine, coarse = network.level_maps(images)
        features = network(images)
    torch.testing.assert_close(features[:, :40], F.avg_pool2d(fine, 4))
    torch.testing.assert_close(features[:, 40:], F.avg_pool2d(coarse, 2))
    assert not [name for name, _ in network.named_parameters() if name.startswith("fusion")]


def test_frozen_norms_keep_their_statistics_in_training() -> None:
    def drift(frozen: bool) -> tuple[bool, bool]:
        network = EfficientNetLite0(width=8, levels=[2], frozen_norm=frozen).train()
        before = {name: value.clone() for name, value in network.named_buffers()}
        network(torch.randn(2, 3, 64, 64))
        moved = {name for name, value in network.named_buffers() if not torch.equal(value, before[name])}
        return any("fusion" not in name for name in moved), any("fusion" in name for name in moved)

    assert drift(frozen=True) == (False, True)
    assert drift(frozen=False) == (True, True)


# Tiny.


@pytest.mark.parametrize("stride", [4, 8])
def test_tiny_sees_exactly_its_receptive_field(stride: int) -> None:
    torch.manual_seed(7)
    network = Tiny(width=16, stride=stride).double()
    images = torch.randn(1, 3, 5 * stride, 4 * stride, dtype=torch.float64, requires_grad=True)
    margin = (network.receptive_field - stride) // 2
    for row, column in itertools.product(range(5), range(4)):
        (gradient,) = torch.autograd.grad(network(images)[0, :, row, column].sum(), images)
        seen = gradient.abs().sum((0, 1)) > 0
        expected = torch.zeros_like(seen)
        top, left = max(row * stride - margin, 0), max(column * stride - margin, 0)
        expected[top : (row + 1) * stride + margin, left : (column + 1) * stride + margin] = True
        assert torch.equal(seen, expected)


@pytest.mark.parametrize("stride", [4, 8])
def test_tiny_ignores_what_happens_outside_its_receptive_field(stride: int) -> None:
    torch.manual_seed(8)
    network = Tiny(stride=stride)
    images = torch.randn(1, 3, 6 * stride, 6 * stride)
    disturbed = 100 * torch.randn_like(images)
    field = slice(2 * stride - 1, 3 * stride + 1)
    disturbed[..., field, field] = images[..., field, field]
    with torch.no_grad():
        assert torch.equal(network(images)[..., 2, 2], network(disturbed)[..., 2, 2])
        assert not torch.equal(network(images)[..., 2, 3], network(disturbed)[..., 2, 3])


def test_tiny_does_not_know_where_it_is_nor_whether_it_trains() -> None:
    network = Tiny()
    flat = torch.randn(1, 3, 1, 1).expand(1, 3, 22, 31)
    with torch.no_grad():
        features = network.train()(flat)
        assert torch.equal(features, network.eval()(flat))
    torch.testing.assert_close(features, features[..., :1, :1].expand_as(features))


def test_lite0_frozen_stages_keep_their_weights_and_statistics() -> None:
    network = EfficientNetLite0(width=8, levels=[2, 3], frozen_stages=2).train()
    before = {name: values.clone() for name, values in network.state_dict().items()}
    optimiser = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=1.0)
    network(torch.randn(2, 3, 32, 32)).square().sum().backward()
    optimiser.step()
    changed = {name for name, values in network.state_dict().items() if not torch.equal(values, before[name])}
    frozen = ("stem.", "blocks.0.", "blocks.1.", "blocks.2.")
    assert not [name for name in changed if name.startswith(frozen)]
    assert [name for name in changed if name.startswith("blocks.3.")]
    with pytest.raises(InputError, match="from 0 to 3"):
        EfficientNetLite0(levels=[2, 3], frozen_stages=4)


def test_a_block_drop_path_adds_nothing_and_one_that_stays_adds_more() -> None:
    block = InvertedResidual(8, 8, 3, expansion=2, residual=True).double().eval()
    images = torch.randn(64, 8, 4, 4, dtype=torch.float64)
    whole = block(images)
    block.drop_path = 0.25
    torch.testing.assert_close(block(images), whole)
    block.train()
    for module in block.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    torch.manual_seed(0)
    added = block(images) - images
    stayed = added.flatten(1).any(1)
    assert 32 < stayed.sum() < 64
    torch.testing.assert_close(added[stayed], (whole - images)[stayed] / 0.75)


def test_lite_leaves_out_deeper_blocks_more_often_and_frozen_ones_never() -> None:
    network = EfficientNetLite0(width=8, levels=[2, 3], frozen_stages=2, stochastic_depth=0.2)
    assert [block.drop_path for block in network.blocks] == pytest.approx([0, 0, 0, 0.16, 0.2])
    torch.manual_seed(0)
    images = torch.randn(32, 3, 32, 32)
    network.frozen_norm = True
    assert not torch.equal(network.train()(images), network(images))
    assert torch.equal(network.eval()(images), network(images))
    for wrong in (1, -0.1, "0.2", True):
        with pytest.raises(InputError, match="stochastic_depth must be from 0 to below 1"):
            EfficientNetLite0(stochastic_depth=wrong)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 11), st.integers(1, 11)),
    stride=st.sampled_from([1, 2, 3]),
    padding=st.integers(0, 3),
    seed=st.integers(0, 2**31),
)
def test_gradient_of_a_depthwise_kernel(shape: tuple[int, int, int, int], stride: int, padding: int, seed: int) -> None:
    torch.manual_seed(seed)
    padding = max(padding, *((5 - side + 1) // 2 for side in shape[2:]))  # the kernel fits the padded map
    maps = torch.randn(shape, dtype=torch.float64)
    kernel = torch.randn(shape[1], 1, 5, 5, dtype=torch.float64, requires_grad=True)
    result = F.conv2d(maps, kernel, None, stride, padding, groups=shape[1])
    upstream = torch.randn_like(result)
    (expected,) = torch.autograd.grad(result, kernel, upstream)
    torch.testing.assert_close(kernel_gradient(upstream, maps, stride, padding), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("frozen_norm", [False, True])
def test_all_gradients_of_a_depthwise_layer(stride: int, frozen_norm: bool) -> None:
    torch.manual_seed(0)
    layer = ConvolutionNorm(6, 6, 5, stride, groups=6).double()
    layer.norm.train(not frozen_norm)
    maps = torch.randn(2, 6, 8, 10, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *_: layer(maps), (maps, *layer.parameters()))
    convolved = layer._convolved(maps, layer.convolution.weight, None)
    assert type(convolved.grad_fn).__name__ == "_DepthwiseBackward"


def test_a_kernel_gradient_by_parts_of_the_channels() -> None:
    grad, maps = torch.randn(2, 4, 5, 7, dtype=torch.float64), torch.randn(2, 8, 10, 7, dtype=torch.float64)
    whole, parts = (np.empty(25 * 7) for _ in range(2))
    given = (grad.view(-1).numpy(), maps.view(-1).numpy(), 2, 4, 5, 8, 10, 7, 2, 2)
    kernels.sum_over_nodes(*given, whole, 0, 7)
    for bounds in ((0, 3), (3, 4), (4, 7)):
        kernels.sum_over_nodes(*given, parts, *bounds)
    np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize(("outputs", "groups"), [(6, 2), (12, 6)])
def test_other_groups_keep_the_usual_gradient(outputs: int, groups: int) -> None:
    layer = ConvolutionNorm(6, outputs, 5, groups=groups)
    maps = torch.randn(1, 6, 7, 7)
    layer(maps).sum().backward()
    assert layer.convolution.weight.grad is not None


def test_a_network_is_differentiated_by_function_transforms() -> None:
    layer = ConvolutionNorm(4, 4, 5, groups=4).eval()
    parameters = {name: values.detach() for name, values in layer.named_parameters()}
    maps = torch.randn(2, 4, 6, 6)

    def loss(given: dict[str, Tensor]) -> Tensor:
        result: Tensor = torch.func.functional_call(layer, given, (maps,))
        return result.square().sum()

    gradients = torch.func.grad(loss)(parameters)
    layer(maps).square().sum().backward()
    for name, values in layer.named_parameters():
        torch.testing.assert_close(gradients[name], values.grad, rtol=1e-4, atol=1e-4)
