"""Node logits at pixels, some rows at a time, so that a large image never has K values per pixel in memory.

Bilinear, corners not aligned: pixel y reads the nodes around (y + ½)/stride − ½, clamped to the map. Row by
row this gives exactly the values of `messagenet.learning.upsample`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def _axis(pixels: Tensor, nodes: int, stride: float) -> tuple[Tensor, Tensor, Tensor]:
    """For pixels of one axis: the node before, the node after, and the share of the latter."""
    place = ((pixels + 0.5) / stride - 0.5).clamp(0, nodes - 1)
    before = place.floor().long()
    return before, (before + 1).clamp(max=nodes - 1), (place - before).to(torch.float32)


def pixel_strips(logits: Tensor, size: tuple[int, int], stride: float, rows: int = 256) -> Iterator[Tensor]:
    """Logits (K, up to `rows`, W) of successive strips of an image of `size`, from node logits (K, h, w).

    >>> [tuple(strip.shape) for strip in pixel_strips(torch.zeros(3, 2, 2), (5, 7), 4, rows=4)]
    [(3, 4, 7), (3, 1, 7)]
    """
    height, width = size
    across = torch.arange(width, device=logits.device, dtype=torch.float64)
    left, right, share = _axis(across, logits.shape[2], stride)
    for start in range(0, height, rows):
        down = torch.arange(start, min(start + rows, height), device=logits.device, dtype=torch.float64)
        above, below, part = _axis(down, logits.shape[1], stride)
        strip = torch.lerp(logits[:, above], logits[:, below], part[:, None].to(logits.dtype))
        yield torch.lerp(strip[:, :, left], strip[:, :, right], share.to(logits.dtype))
