"""What may stand between a backbone and a head: fewer channels, and convolutions over neighbouring nodes.

    features (B, r, h, w) ─ 1×1, norm, ReLU ─ [5×5 in each channel, 1×1, added to its input] × filters ─ head

Messages bring context from afar in one step; a few convolutions before them let neighbouring nodes settle what
interpolation and large cells have blurred. A neck belongs to the head: it is trained with it where the backbone is
frozen, and cached features are those before it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from messagenet.errors import InputError, nearest
from messagenet.models.backbones.base import positive_integer
from messagenet.models.backbones.efficientnet_lite import ConvolutionNorm, InvertedResidual

KERNEL = 5


class Neck(nn.Module):
    """A projection and separable filters.

    Args:
        in_channels: r, channels of the backbone's map.
        width: Channels of the result; those of the backbone, without a projection, unless told.
        filters: How many separable 5×5 filters.

    >>> import torch
    >>> Neck(40, width=16, filters=1)(torch.randn(2, 40, 6, 7)).shape
    torch.Size([2, 16, 6, 7])
    """

    def __init__(self, in_channels: int, width: int | None = None, filters: int = 0) -> None:
        super().__init__()
        if type(filters) is not int or filters < 0:
            raise InputError(f"a neck's filters must be a whole number from 0, not {filters!r}")
        self.project = (
            None if width is None else ConvolutionNorm(in_channels, positive_integer("width", width))
        )
        self.channels = width or in_channels
        self.filters = nn.Sequential(
            *(InvertedResidual(self.channels, self.channels, KERNEL, residual=True) for _ in range(filters))
        )

    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        """Maps (B, r, h, w) to (B, width, h, w); nodes that are not valid, (B, h, w), say nothing to others."""
        x = features if self.project is None else F.relu(self.project(features))
        for block in self.filters:
            x = block(x if valid is None else x * valid[:, None])
        return x


def build_neck(in_channels: int, options: Mapping[str, Any]) -> Neck:
    """Builds a neck from its settings, refusing those it does not know.

    >>> build_neck(40, {"filter": 1})
    Traceback (most recent call last):
    messagenet.errors.InputError: a neck has no option "filter"; did you mean "filters"?
    """
    known = [name for name in inspect.signature(Neck).parameters if name != "in_channels"]
    for name in options:
        if name not in known:
            raise InputError(f'a neck has no option "{name}"; {nearest(name, known)}')
    return Neck(in_channels, **options)
