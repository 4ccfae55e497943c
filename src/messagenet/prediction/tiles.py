"""Very large images, a tile at a time, without seams.

Tiles overlap, and their corners lie on the node grid. Logits are joined at the nodes, by a weighted mean whose weights
fall off linearly towards the edges of a tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor


class Tile(NamedTuple):
    """A window of the image in pixels, and of the node map."""

    top: int
    left: int
    bottom: int
    right: int
    node_top: int
    node_left: int


def tile_spans(length: int, size: int, overlap: int, unit: int) -> list[tuple[int, int]]:
    """Windows that cover `length` and overlap by at least `overlap`, starting at multiples of `unit`.

    All have the same size but for less than a unit, because range boxes are sized by the tile.

    >>> tile_spans(100, 48, 16, 16)
    [(0, 48), (32, 80), (64, 100)]
    >>> tile_spans(40, 48, 16, 16)
    [(0, 40)]
    """
    if length <= size:
        return [(0, length)]
    size, overlap = (max(unit, value // unit * unit) for value in (size, overlap))
    last = -(-(length - size) // unit) * unit
    step = max(unit, size - overlap)
    starts = [*range(0, last, step), last]
    return [(start, min(start + size, length)) for start in starts]


def tiles(height: int, width: int, size: int, overlap: int, stride: float) -> Iterator[Tile]:
    """The tiles of an image, row by row."""
    exact = Fraction(stride).limit_denominator(64)
    unit = exact.numerator  # the fewest pixels that are a whole number of nodes
    for top, bottom in tile_spans(height, size, overlap, unit):
        for left, right in tile_spans(width, size, overlap, unit):
            yield Tile(top, left, bottom, right, round(top / exact), round(left / exact))


def _ramp(nodes: int, before: bool, after: bool, device: torch.device) -> Tensor:
    """Weights along one axis, falling to nothing at the edges that have a neighbour."""
    positions = torch.arange(nodes, device=device, dtype=torch.float32)
    far = torch.full_like(positions, float(nodes))
    return torch.minimum(positions if before else far, nodes - 1 - positions if after else far) + 1e-6


def join_tiles(images: Tensor, forward: Callable[[Tensor], Tensor], size: int, overlap: int, stride: float) -> Tensor:
    """Node logits (B, K, h, w) of images (B, 3, H, W), by `forward` on tiles of at most `size` pixels a side."""
    height, width = images.shape[2:]
    high, wide = (math.ceil(side / stride) + 1 for side in (height, width))
    total = weight = torch.zeros(())
    bottom = right = 0
    for tile in tiles(height, width, size, overlap, stride):
        logits = forward(images[:, :, tile.top : tile.bottom, tile.left : tile.right])
        if not bottom:
            total = logits.new_zeros(*logits.shape[:2], high, wide)
            weight = logits.new_zeros(1, 1, high, wide)
        h, w = logits.shape[2:]
        rows = _ramp(h, tile.top > 0, tile.bottom < height, logits.device)
        columns = _ramp(w, tile.left > 0, tile.right < width, logits.device)
        share = torch.outer(rows, columns)
        window = (..., slice(tile.node_top, tile.node_top + h), slice(tile.node_left, tile.node_left + w))
        total[window] += logits * share
        weight[window] += share
        bottom, right = max(bottom, tile.node_top + h), max(right, tile.node_left + w)
    return (total / weight.clamp(min=1e-12))[:, :, :bottom, :right]
