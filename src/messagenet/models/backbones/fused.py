"""A feature network prepared for prediction on a CPU: convolution, norm and ReLU6 in one call.

In prediction these are one function with fixed weights. oneDNN computes it in one pass over the map, with kernels in
its own layout, which is prepared here once. Values are equal up to rounding. With bfloat16 as the working type, kernels
and maps inside have 8 significant bits and take half the memory; input and output stay float32. Networks stay as they
are on another device, in another precision, or in a PyTorch without these operators.

Frozen stages of a network in training are such a function too (`FrozenTrunk`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from messagenet.models.backbones.efficientnet_lite import ConvolutionNorm, EfficientNetLite, InvertedResidual

State = tuple[tuple[int, int, int], ...]
_OPERATORS = ("_convolution_pointwise", "_linear_pointwise", "_reorder_convolution_weight")
_RELU6: tuple[str, list[float], str] = ("hardtanh", [0.0, 6.0], "")


def fused(network: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A copy of a network for prediction, fused where possible; the network itself if nothing can be fused.

    Args:
        network: A backbone or a neck.
        dtype: Working type of the fused layers.
    """
    if not _applies(network):
        return network
    ready = _replaced(copy.deepcopy(network).eval(), dtype)
    if isinstance(ready, EfficientNetLite):
        ready.frozen = []  # they would be kept beside what has replaced them
    if dtype != torch.float32:
        ready.register_forward_hook(lambda module, given, result: result.float())
    return ready


def has_bf16_instructions() -> bool:
    """Whether this processor multiplies bfloat16 numbers: without, they are slower than float32."""
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def tensor_state(module: nn.Module) -> State:
    """Changes whenever a parameter or buffer is replaced, moved or written to, except through `.data` or NumPy."""
    return tuple(
        (id(values), values.data_ptr(), 0 if values.is_inference() else values._version)
        for values in (*module.parameters(), *module.buffers())
    )


def _applies(network: nn.Module) -> bool:
    available = torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS)
    parameters = [p for p in network.parameters() if p.is_floating_point()]
    fits = all(p.device.type == "cpu" and p.dtype == torch.float32 for p in parameters)
    return available and fits and any(isinstance(part, ConvolutionNorm) for part in network.modules())


class FrozenTrunk:
    """The stem and the first blocks of a network whose weights do not change, fused.

    Not an `nn.Module`, so it adds nothing to the state dict; copies start empty and rebuild on first use.
    """

    def __init__(self) -> None:
        self._parts: list[nn.Module] = []
        self._state: tuple[State, ...] = ()
        self._dtype = torch.float32

    def parts(self, frozen: Sequence[nn.Module]) -> list[nn.Module]:
        """What to call for stem and blocks; empty where they cannot be fused, need gradients or have hooks."""
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
        supported = dtype == torch.float32 or (dtype == torch.bfloat16 and has_bf16_instructions())
        if torch.compiler.is_compiling() or not supported or not all(map(_applies, frozen)):
            return []
        modules = [module for part in frozen for module in part.modules()]
        if any(p.requires_grad for part in frozen for p in part.parameters()) or any(map(_has_hooks, modules)):
            return []
        state = tuple(map(tensor_state, frozen))
        if (state, dtype) != (self._state, self._dtype):
            self._parts = [_replaced(part, dtype, relu6=True) for part in frozen]
            self._state, self._dtype = state, dtype
        return self._parts

    def __deepcopy__(self, memo: object) -> FrozenTrunk:
        return FrozenTrunk()

    def __reduce__(self) -> tuple[type[FrozenTrunk], tuple[()]]:
        return FrozenTrunk, ()


def _replaced(module: nn.Module, dtype: torch.dtype, relu6: bool = False) -> nn.Module:
    if isinstance(module, InvertedResidual):
        return FusedResidual(module, dtype)
    if isinstance(module, ConvolutionNorm):
        one_by_one = module.convolution.kernel_size == (1, 1)
        return FusedProjection(module, dtype) if one_by_one else FusedConvolution(module, dtype, relu6)
    for name, child in module.named_children():
        setattr(module, name, _replaced(child, dtype))
    return module


class FusedConvolution(nn.Module):
    """A convolution with its norm and ReLU6, in one pass."""

    kernel: Tensor
    bias: Tensor

    def __init__(self, source: ConvolutionNorm, dtype: torch.dtype = torch.float32, relu6: bool = True) -> None:
        super().__init__()
        plain, d = source.convolution, source.dilation
        kernel, bias = source.folded()
        padding = d * (plain.kernel_size[0] // 2) if d > 1 else int(plain.padding[0])
        if any(source.odd_pixel):
            # Zeros in front of the kernel make the padding equal on both sides, which saves a copy of the map.
            kernel, padding = F.pad(kernel, (1, 0, 1, 0)), padding + 1
        self.where = ([padding, padding], list(plain.stride), [d, d], plain.groups)
        self.activation: tuple[Any, ...] = _RELU6 if relu6 else ("none", [], "")
        packed = torch.ops.mkldnn._reorder_convolution_weight(kernel.detach().contiguous().to(dtype), *self.where, None)
        self.register_buffer("kernel", packed, persistent=False)
        self.register_buffer("bias", bias.detach().to(dtype, copy=True), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, inputs, H, W) to (B, outputs, H/stride, W/stride)."""
        result: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x.to(self.bias.dtype), self.kernel, self.bias, *self.where, *self.activation
        )
        return result


class FusedProjection(nn.Module):
    """A 1×1 convolution with its norm, and ReLU6 if asked, as one matrix product; with channels last, no data moves.

    In bf16, oneDNN's 1×1 convolution is thirty times slower for some sizes of maps.
    """

    kernel: Tensor
    bias: Tensor

    def __init__(self, source: ConvolutionNorm, dtype: torch.dtype = torch.float32, relu6: bool = False) -> None:
        super().__init__()
        self.relu6 = relu6
        kernel, bias = source.folded()
        self.register_buffer("kernel", kernel.detach()[:, :, 0, 0].to(dtype, copy=True), persistent=False)
        self.register_buffer("bias", bias.detach().to(dtype, copy=True), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, inputs, H, W) to (B, outputs, H, W)."""
        nodes = x.to(self.kernel.dtype).permute(0, 2, 3, 1).contiguous()
        if self.relu6:
            result: Tensor = torch.ops.mkldnn._linear_pointwise(nodes, self.kernel, self.bias, *_RELU6)
        else:
            result = F.linear(nodes, self.kernel, self.bias)
        return result.permute(0, 3, 1, 2)


class FusedResidual(nn.Module):
    """An inverted residual block in three passes."""

    def __init__(self, source: InvertedResidual, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.residual = source.residual
        self.expand = None if source.expand is None else FusedProjection(source.expand, dtype, relu6=True)
        self.depthwise = FusedConvolution(source.depthwise, dtype)
        self.project = FusedProjection(source.project, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, inputs, H, W) to (B, outputs, H/stride, W/stride)."""
        narrow: Tensor = self.project(self.depthwise(x if self.expand is None else self.expand(x)))
        return narrow.add_(x) if self.residual else narrow
