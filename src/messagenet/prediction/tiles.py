"""Very large images, a tile at a time, without seams.

Tiles overlap, and lie on the node grid: their corners are whole numbers of nodes. What is joined are logits at
the *nodes* — a map some 256 times smaller than the image — as a weighted mean whose weights fall off linearly
towards the edges of a tile, so nothing jumps where one tile ends. One bilinear enlargement of the joined map
then gives the pixels.
"""

from __future__ import annotations

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


def spans(length: int, size: int, overlap: int, unit: int) -> list[tuple[int, int]]:
    """Windows that cover `length` and overlap by at least `overlap`, starting at multiples of `unit`.

    All have the same size but for less than a unit: range boxes are sized by the tile, so a sliver at the end
    would see another neighbourhood than the rest.

    >>> spans(100, 48, 16, 16)
    [(0, 48), (32, 80), (64, 100)]
    >>> spans(110, 96, 16, 16)
    [(0, 96), (16, 110)]
    >>> spans(40, 48, 16, 16)
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
    for top, bottom in spans(height, size, overlap, unit):
        for left, right in spans(width, size, overlap, unit):
            yield Tile(top, left, bottom, right, round(top / exact), round(left / exact))


def _ramp(nodes: int, before: bool, after: bool, device: torch.device) -> Tensor:
    """Weights along one axis, falling to nothing at the edges that have a neighbour."""
    places = torch.arange(nodes, device=device, dtype=torch.float32)
    far = torch.full_like(places, float(nodes))
    return torch.minimum(places if before else far, nodes - 1 - places if after else far) + 1e-6


def joined_logits(
    image: Tensor, run: Callable[[Tensor], Tensor], size: int, overlap: int, stride: float
) -> Tensor:
    """Node logits (1, K, h, w) of an image (1, 3, H, W), from a function that gives those of a tile."""
    height, width = image.shape[2:]
    total: Tensor | None = None
    weight: Tensor | None = None
    nodes = (-(-height // stride), -(-width // stride))
    nodes_high, nodes_wide = int(nodes[0]) + 1, int(nodes[1]) + 1
    reached = [0, 0]
    for tile in tiles(height, width, size, overlap, stride):
        logits = run(image[:, :, tile.top : tile.bottom, tile.left : tile.right])
        if total is None or weight is None:
            total = logits.new_zeros(1, logits.shape[1], nodes_high, nodes_wide)
            weight = logits.new_zeros(1, 1, nodes_high, nodes_wide)
        h, w = logits.shape[2:]
        rows = _ramp(h, tile.top > 0, tile.bottom < height, logits.device)
        columns = _ramp(w, tile.left > 0, tile.right < width, logits.device)
        share = torch.outer(rows, columns)
        window = (..., slice(tile.node_top, tile.node_top + h), slice(tile.node_left, tile.node_left + w))
        total[window] += logits * share
        weight[window] += share
        reached = [max(reached[0], tile.node_top + h), max(reached[1], tile.node_left + w)]
    assert total is not None
    assert weight is not None
    return (total / weight.clamp(min=1e-12))[:, :, : reached[0], : reached[1]]
