"""The paper's feature network: VGG-16 at several scales, one node every 16 pixels of the enlarged image.

As Lin et al. (NIPS 2015, section 4) take it over from their ContextDCRF (arXiv 1504.01013 v2):

    blocks 1–5   the 13 convolutions of VGG-16 (Simonyan & Zisserman, arXiv 1409.1556), weights shared by all scales;
                 2×2 pooling of stride 2 after blocks 1–4, 3×3 pooling of stride 1 after block 5
    block 6      VGG's first fully connected layer as a 7×7 convolution of 4096 channels, then two 3×3 convolutions of
                 512 channels; weights of its own at every scale

The image enters at 1.2, 0.8 and 0.4 times its size; the smaller maps are upsampled to the largest and concatenated. All
sizes are rounded up, so no image is too small. The 7×7 convolutions hold 308 of the 387 million parameters;
`fc6_channels` and `fc6_kernel` reduce them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from messagenet.errors import InputError
from messagenet.models.backbones.base import check_state_dict, fill, positive_integer, read_state_dict
from messagenet.settings import register

VGG16_URL = "https://download.pytorch.org/models/vgg16-397923af.pth"  # 528 MB, for mean/std-normalised RGB
_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
_TRUNK_STRIDE = 16
_TRUNK_CHANNELS = 512
_SCALE_CHANNELS = 512


@register("backbone", "vgg16")
class VGG16(nn.Module):
    """VGG-16 blocks 1–5 shared by all scales, block 6 for each scale, maps concatenated.

    Args:
        scales: Sizes at which the image is looked at, relative to the image given.
        fc6_channels: Channels of block 6's first convolution; torchvision's fc6 fits 4096 only.
        fc6_kernel: Side of its kernel, odd; torchvision's fc6 fits 7 only.
        block6: Whether there is a block 6; without it, block 5 gives the features, and no weight is random.

    >>> vgg = VGG16(scales=(1.0, 0.5), fc6_channels=8, fc6_kernel=3)
    >>> vgg(torch.zeros(1, 3, 33, 16)).shape
    torch.Size([1, 1024, 3, 1])
    >>> vgg.stride
    16.0
    """

    def __init__(
        self,
        scales: Sequence[float] = (1.2, 0.8, 0.4),
        fc6_channels: int = 4096,
        fc6_kernel: int = 7,
        block6: bool = True,
    ) -> None:
        super().__init__()
        self.scales = _checked_scales(scales)
        self.fc6_channels = positive_integer("fc6_channels", fc6_channels)
        self.fc6_kernel = positive_integer("fc6_kernel", fc6_kernel)
        if fc6_kernel % 2 == 0:
            raise InputError(f"fc6_kernel must be odd, so that the kernel has a centre, not {fc6_kernel}")
        self.channels = _SCALE_CHANNELS * len(self.scales)
        self.stride = _TRUNK_STRIDE / max(self.scales)
        self.features = _trunk()
        if not isinstance(block6, bool):
            raise InputError(f"block6 must be true or false, not {block6!r}")
        self.block6 = nn.ModuleList(_block6(fc6_channels, fc6_kernel) if block6 else nn.Identity() for _ in self.scales)

    def load_pretrained(self, source: str | Path) -> list[str]:
        """Fills blocks 1–5, and block 6 where it fits, with published weights: see `load_vgg16`."""
        return load_vgg16(self, source)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (B, 3, H, W) to features (B, 512·scales, ⌈H/stride⌉, ⌈W/stride⌉)."""
        maps = [
            head(self.features(_resized(images, scale)))  # (B, 512, h_s, w_s)
            for scale, head in zip(self.scales, self.block6, strict=True)
        ]
        largest = maps[self.scales.index(max(self.scales))].shape[-2:]
        enlarged = [
            map_ if map_.shape[-2:] == largest else F.interpolate(map_, largest, mode="bilinear") for map_ in maps
        ]
        return torch.cat(enlarged, dim=1)  # (B, 512·scales, h, w)


class _Convolution(nn.Conv2d):
    """A convolution that keeps the size, initialised for the ReLU after it (He et al., arXiv 1502.01852)."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)

    def reset_parameters(self) -> None:
        """Draws the weights so that activations keep their scale from layer to layer."""
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def _trunk() -> nn.Sequential:
    """Builds blocks 1–5, numbered as in torchvision's `features` so that its weights need no renaming."""
    layers: list[nn.Module] = []
    inputs = 3
    for block, widths in enumerate(_BLOCKS, start=1):
        for width in widths:
            layers += [_Convolution(inputs, width), nn.ReLU(inplace=True)]
            inputs = width
        last = block == len(_BLOCKS)
        layers.append(nn.MaxPool2d(3, 1, padding=1) if last else nn.MaxPool2d(2, 2, ceil_mode=True))
    return nn.Sequential(*layers)


def _block6(fc6_channels: int, fc6_kernel: int) -> nn.Sequential:
    return nn.Sequential(
        _Convolution(_TRUNK_CHANNELS, fc6_channels, fc6_kernel),
        nn.ReLU(inplace=True),
        _Convolution(fc6_channels, _SCALE_CHANNELS),
        nn.ReLU(inplace=True),
        _Convolution(_SCALE_CHANNELS, _SCALE_CHANNELS),
        nn.ReLU(inplace=True),
    )


def _checked_scales(scales: Sequence[float]) -> tuple[float, ...]:
    values = tuple(scales) if isinstance(scales, (list, tuple)) else ()
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    if not values or not numbers or not all(0 < v < math.inf for v in values):
        raise InputError(f"scales must be a list of numbers above zero such as [1.2, 0.8, 0.4], not {scales!r}")
    return values


def _resized(images: Tensor, scale: float) -> Tensor:
    """Resizes images to ⌈scale · size⌉, with smoothing where they shrink."""
    if scale == 1:
        return images
    # In binary 1.1 · 50 is a little above 55: without the inner rounding that would give 56 pixels.
    size = [math.ceil(round(scale * side, 9)) for side in images.shape[-2:]]
    return F.interpolate(images, size, mode="bilinear", antialias=scale < 1)


def load_vgg16(backbone: nn.Module, source: str | Path) -> list[str]:
    """Fills a `VGG16` with torchvision's ImageNet weights; returns the names of parameters that keep random values.

    `source` is a file, or "torch.hub" to download `VGG16_URL`. Blocks 1–5 must be complete. torchvision's fc6, if it
    has the backbone's size (4096 channels, 7×7), becomes the first convolution of block 6 at every scale.
    """
    if not isinstance(backbone, VGG16):
        raise InputError(f"VGG-16 weights need the vgg16 backbone, not {type(backbone).__name__}")
    tensors = _download() if source == "torch.hub" else read_state_dict(source)
    names = {f"features.{name}": f"features.{name}" for name in backbone.features.state_dict()}
    fc6 = tensors.get("classifier.0.weight")
    shape = (backbone.fc6_channels, _TRUNK_CHANNELS, backbone.fc6_kernel, backbone.fc6_kernel)
    has_fc6 = isinstance(backbone.block6[0], nn.Sequential) and backbone.fc6_kernel == 7
    if fc6 is not None and has_fc6 and fc6.shape == (shape[0], math.prod(shape[1:])):
        tensors["classifier.0.weight"] = fc6.reshape(shape)
        for index in range(len(backbone.scales)):
            for kind in ("weight", "bias"):
                names[f"block6.{index}.0.{kind}"] = f"classifier.0.{kind}"
    return fill(backbone, tensors, names, ignored=("classifier.",), origin=str(source))


def _download() -> dict[str, Tensor]:
    try:
        content = torch.hub.load_state_dict_from_url(VGG16_URL, map_location="cpu", check_hash=True, weights_only=True)
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"cannot download {VGG16_URL} ({error}): fetch it elsewhere and give the file's path"
        ) from error
    return check_state_dict(content, VGG16_URL)
