"""Between a backbone and a head: fewer channels, and convolutions over neighbouring nodes.

    features (B, r, h, w) ─ 1×1, norm, ReLU ─ [5×5 depthwise, 1×1, residual] × filters ─ head

The convolutions sharpen what interpolation and large cells have blurred. A neck is trained with the head; feature
caches hold the map before it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from messagenet.errors import InputError
from messagenet.models.backbones.base import positive_integer
from messagenet.models.backbones.efficientnet_lite import ConvolutionNorm, InvertedResidual
from messagenet.settings import register

KERNEL = 5


@register("neck", "separable")
class Neck(nn.Module):
    """A projection and separable filters.

    >>> Neck(40, width=16, filters=1)(torch.randn(2, 40, 6, 7)).shape
    torch.Size([2, 16, 6, 7])

    Args:
        in_channels: r, channels of the backbone's map.
        width: Channels of the result; null for those of the backbone, without a projection.
        filters: How many separable 5×5 filters.
    """

    def __init__(self, in_channels: int, width: int | None = None, filters: int = 0) -> None:
        super().__init__()
        if type(filters) is not int or filters < 0:
            raise InputError(f"a neck's filters must be a whole number from 0, not {filters!r}")
        self.project = None if width is None else ConvolutionNorm(in_channels, positive_integer("width", width))
        self.channels = width or in_channels
        self.filters = nn.Sequential(
            *(InvertedResidual(self.channels, self.channels, KERNEL, residual=True) for _ in range(filters))
        )

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Maps (B, r, h, w) to (B, width, h, w); nodes outside the mask (B, h, w) are zero to every filter."""
        x = features if self.project is None else F.relu(self.project(_zero_padding(features, mask)))
        for block in self.filters:
            x = block(_zero_padding(x, mask))
        return x


def _zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else torch.where(mask[:, None], x, 0)
