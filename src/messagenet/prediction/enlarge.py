"""Node logits at pixels, some rows at a time, so that a large image never has K values per pixel in memory.

Bilinear, corners not aligned: pixel y reads the nodes around (y + ½)/stride − ½, clamped to the map. Row by
row this gives the values of `messagenet.learning.upsample`, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from messagenet.learning.marginal import upsample


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
