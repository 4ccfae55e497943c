"""Fused networks compute what the networks do, and leave them alone."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from messagenet.models.backbones import Tiny, fused, has_bf16_instructions
from messagenet.models.backbones.efficientnet_lite import ConvolutionNorm, InvertedResidual
from messagenet.models.backbones.fused import FrozenTrunk, FusedConvolution, FusedProjection, FusedResidual
from oracles.systems import build_backbone

needs_bf16 = pytest.mark.skipif(not has_bf16_instructions(), reason="needs bf16 instructions")


def randomised(network: nn.Module, seed: int = 0) -> nn.Module:
    """Statistics as after a training, so that nothing is cancelled or scaled away by chance."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2, generator=generator)  # type: ignore[union-attr]
            module.running_var.uniform_(0.3, 1.2, generator=generator)  # type: ignore[union-attr]
            nn.init.uniform_(module.weight, 0.5, 1.5, generator=generator)
            nn.init.uniform_(module.bias, -0.3, 0.3, generator=generator)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, generator=generator)
    return network.eval()


@given(
    channels=st.integers(1, 20),
    outputs=st.integers(1, 20),
    kernel=st.sampled_from([1, 3, 5]),
    stride=st.sampled_from([1, 2]),
    dilation=st.sampled_from([1, 2]),
    size=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    depthwise=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_one_convolution(channels, outputs, kernel, stride, dilation, size, depthwise, seed) -> None:
    stride = 1 if dilation > 1 or kernel == 1 else stride
    groups, outputs = (channels, channels) if depthwise and kernel > 1 else (1, outputs)
    plain = randomised(ConvolutionNorm(channels, outputs, kernel, stride, dilation, groups), seed)
    batch, height, width = size
    x = torch.randn(batch, channels, height * stride, width * stride).to(memory_format=torch.channels_last)
    with torch.inference_mode():
        wanted = plain(x)
        torch.testing.assert_close(FusedConvolution(plain, relu6=False)(x), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(FusedConvolution(plain)(x), wanted.clamp(0, 6), rtol=1e-4, atol=1e-5)
        if kernel == 1 and groups == 1:
            torch.testing.assert_close(FusedProjection(plain)(x), wanted, rtol=1e-4, atol=1e-5)
            limited = FusedProjection(plain, relu6=True)(x.contiguous())
            torch.testing.assert_close(limited, wanted.clamp(0, 6), rtol=1e-4, atol=1e-5)


@needs_bf16
@pytest.mark.parametrize("kernel", [1, 3])
def test_bfloat16_rounds_what_it_reads_and_what_it_writes(kernel: int) -> None:
    plain = randomised(ConvolutionNorm(9, 7, kernel, 1, 1, 1))
    x = torch.randn(2, 9, 6, 5).to(memory_format=torch.channels_last)
    weight, bias = (values.detach().bfloat16().double() for values in plain.folded())
    exact = nn.functional.conv2d(x.bfloat16().double(), weight, bias, padding=kernel // 2)
    with torch.inference_mode():
        found = [FusedConvolution(plain, torch.bfloat16, relu6=False)(x)]
        found += [FusedProjection(plain, torch.bfloat16)(x)] if kernel == 1 else []
    for values in found:
        assert values.dtype == torch.bfloat16
        torch.testing.assert_close(values.double(), exact, rtol=2**-8, atol=1e-5)


@needs_bf16
def test_a_network_in_bfloat16_takes_and_gives_float32() -> None:
    network = randomised(build_backbone("efficientnet_lite0", width=24))
    images = torch.rand(1, 3, 64, 96)
    with torch.inference_mode():
        wanted, found = network(images), fused(network, torch.bfloat16)(images)
    assert found.dtype == torch.float32
    assert 0 < float((found - wanted).abs().mean() / wanted.abs().mean()) < 0.3  # random weights amplify errors


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("expansion", [1, 4])
def test_one_block(residual: bool, expansion: int) -> None:
    block = randomised(InvertedResidual(6, 6, 5, expansion=expansion, residual=residual))
    x = torch.randn(2, 6, 7, 9)
    given_x = x.clone()
    with torch.inference_mode():
        torch.testing.assert_close(FusedResidual(block)(x), block(x), rtol=1e-4, atol=1e-5)
    assert torch.equal(x, given_x)


@pytest.mark.parametrize(
    "options", [{}, {"output_stride": 32, "node_stride": 8, "frozen_stages": 2}, {"levels": [2, 4], "join": "concat"}]
)
def test_a_whole_network(options: dict[str, object]) -> None:
    network = randomised(build_backbone("efficientnet_lite0", width=24, **options))
    before = copy.deepcopy(network.state_dict())
    images = [torch.rand(2, 3, *size) for size in ((1, 1), (33, 17), (64, 96))]
    with torch.inference_mode():
        wanted = [network(batch) for batch in images]
    ready = fused(network)
    for batch, values in zip(images, wanted, strict=True):
        with torch.inference_mode():
            torch.testing.assert_close(ready(batch), values, rtol=1e-3, atol=1e-4)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in ready.modules())
    assert not list(ready.parameters())
    after = network.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(values, before[name]) for name, values in after.items())


def test_what_cannot_be_fused_stays() -> None:
    tiny, double = Tiny(), build_backbone("efficientnet_lite0", levels=[1]).double()
    assert fused(tiny) is tiny
    assert fused(double) is double


@pytest.mark.parametrize("bf16", [False, pytest.param(True, marks=needs_bf16)])
@pytest.mark.parametrize("stages", [1, 3])
def test_frozen_stages_are_fused_in_training(stages: int, bf16: bool) -> None:
    options = {"output_stride": 32, "node_stride": 8, "frozen_norm": True, "frozen_stages": stages}
    network = randomised(build_backbone("efficientnet_lite0", width=24, **options)).train()
    images = torch.rand(2, 3, 64, 96)

    def trained(plainly: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
        own = copy.deepcopy(network)
        if plainly:
            own.frozen = []
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            result = own(images)
        parts = own.frozen_trunk._parts  # type: ignore[union-attr, operator]
        assert [len(parts), *{part.bias.dtype for part in parts[:1]}] == (
            [0] if plainly else [len(own.frozen), torch.bfloat16 if bf16 else torch.float32]
        )
        weights = [p for p in own.parameters() if p.requires_grad]
        return result.detach(), list(torch.autograd.grad(result.square().sum(), weights))

    (wanted, exact), (values, gradients) = trained(True), trained(False)
    if bf16:  # random weights amplify errors
        assert 0 < float((values - wanted).abs().mean() / wanted.abs().mean()) < 0.5
        return
    torch.testing.assert_close(values, wanted, rtol=1e-3, atol=1e-4)
    for gradient, right in zip(gradients, exact, strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-2, atol=1e-3 * float(right.abs().max()))


def test_a_frozen_trunk_follows_its_weights_and_is_not_copied() -> None:
    network = randomised(build_backbone("efficientnet_lite0", width=24, frozen_norm=True, frozen_stages=2)).train()
    trunk = network.frozen_trunk
    before = trunk.parts(network.frozen)  # type: ignore[union-attr, operator]
    assert trunk.parts(network.frozen) is before  # type: ignore[union-attr, operator]
    with torch.no_grad():
        network.stem.convolution.weight.mul_(2)  # type: ignore[union-attr, operator]
    after = trunk.parts(network.frozen)  # type: ignore[union-attr, operator]
    assert after is not before
    with torch.no_grad():
        images = torch.rand(1, 3, 32, 32)
        assert not torch.allclose(after[0](images), before[0](images))
    assert copy.deepcopy(network).frozen_trunk is not trunk
    assert copy.deepcopy(network).state_dict().keys() == network.state_dict().keys()
    hook = network.blocks[0].register_forward_hook(lambda *_: None)  # type: ignore[index, operator, union-attr]
    assert trunk.parts(network.frozen) == []  # type: ignore[union-attr, operator]
    hook.remove()
    assert trunk.parts(network.frozen)  # type: ignore[union-attr, operator]
    network.stem.requires_grad_(True)
    assert trunk.parts(network.frozen) == []  # type: ignore[union-attr, operator]
    assert FrozenTrunk().parts(network.double().frozen) == []  # type: ignore[arg-type]
