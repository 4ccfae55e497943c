"""Node logits at pixels, some rows at a time, so that a large image never has K values per pixel in memory.

Bilinear, corners not aligned: pixel y reads the nodes around (y + ½)/stride − ½, clamped to the map. Row by
row this gives the values of `messagenet.losses.upsample`, up to rounding.

Very large images, a tile at a time, without seams.

Tiles overlap, and lie on the node grid: their corners are whole numbers of nodes. What is joined are logits at
the *nodes* — a map some 256 times smaller than the image — as a weighted mean whose weights fall off linearly
towards the edges of a tile, so nothing jumps where one tile ends. One bilinear enlargement of the joined map
then gives the pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from messagenet.losses.cross_entropy import upsample


def sampled(values: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Values (…, h, w) between the nodes, bilinear, at fractional rows and columns clamped to the map.

    >>> sampled(torch.tensor([[0.0, 4.0]]), torch.tensor([0.0]), torch.tensor([-1.0, 0.25, 1.0]))
    tensor([[0., 1., 4.]])
    """
    above, below, down = _neighbours(rows, values.shape[-2])
    left, right, across = _neighbours(columns, values.shape[-1])
    strip = torch.lerp(values[..., above, :], values[..., below, :], down[:, None].to(values.dtype))
    return torch.lerp(strip[..., left], strip[..., right], across.to(values.dtype))


def _neighbours(places: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """The node before each place, the node after it, and the share of the latter."""
    places = places.clamp(0, nodes - 1)
    before = places.floor().long()
    return before, (before + 1).clamp(max=nodes - 1), places - before


def node_places(pixels: Tensor, stride: float) -> Tensor:
    """Where points of the image, in pixels from its edge, lie on the node grid: node i is at (i + ½)·stride."""
    return pixels / stride - 0.5


def pixel_strips(logits: Tensor, size: tuple[int, int], stride: float, rows: int = 256) -> Iterator[Tensor]:
    """Logits (K, up to `rows`, W) of successive strips of an image of `size`, from node logits (K, h, w).

    >>> [tuple(strip.shape) for strip in pixel_strips(torch.zeros(3, 2, 2), (5, 7), 4, rows=4)]
    [(3, 4, 7), (3, 1, 7)]
    """
    height, width = size
    aligned = stride == int(stride) and rows % stride == 0
    strip = _cut_strip if aligned else _sampled_strip
    for start in range(0, height, rows):
        yield strip(logits, start, min(start + rows, height), width, stride)


def _sampled_strip(logits: Tensor, start: int, stop: int, width: int, stride: float) -> Tensor:
    """Pixel rows `start` to `stop`, wherever they lie between the nodes."""
    down, across = (
        torch.arange(first, end, device=logits.device, dtype=torch.float64) + 0.5
        for first, end in ((start, stop), (0, width))
    )
    return sampled(logits, node_places(down, stride), node_places(across, stride))


def _cut_strip(logits: Tensor, start: int, stop: int, width: int, stride: float) -> Tensor:
    """The same where `start` is the edge of a cell: those cells and one more on either side, enlarged and cut."""
    first = min(max(0, round(start / stride) - 1), logits.shape[1] - 1)
    # Contiguous cells give contiguous pixels of a class, which are faster to compare.
    cells = logits[None, :, first : math.ceil(stop / stride) + 1].contiguous()
    top = round(first * stride)
    return upsample(cells, (stop - top, width), stride)[0, :, start - top :]


def most_probable(values: Tensor) -> npt.NDArray[np.uint8]:
    """The class with the largest logit or probability at every pixel of (K, rows, W), uint8 (rows, W).

    >>> most_probable(torch.tensor([[[0.2, 0.7]], [[0.8, 0.3]]]))
    array([[1, 0]], dtype=uint8)
    """
    best = values[0]
    labels = torch.zeros_like(best, dtype=torch.uint8)
    for number, each in enumerate(values[1:], start=1):  # twice as fast as max over the first dimension
        better = (each > best).view(torch.uint8)
        labels = torch.maximum(labels, better * number)
        best = torch.maximum(best, each)
    found: npt.NDArray[np.uint8] = labels.cpu().numpy()
    return found


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
