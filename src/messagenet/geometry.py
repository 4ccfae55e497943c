"""Where nodes lie on pixels.

    node i of a map with stride s covers the pixels from i·s to (i + 1)·s and lies at their middle, (i + ½)·s
    pixel y lies at y + ½ on the image and therefore at (y + ½)/s − ½ on the map

The stride may be fractional. Images of several sizes in a batch are padded below and on the right; an image's size, in
pixels, says which nodes exist. A cell that reaches over the edge of its image is labelled by the part inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from messagenet.data.classes import VOID
from messagenet.errors import InputError, nearest

T = TypeVar("T", Tensor, npt.NDArray[np.floating[Any]])

CellLabel = Literal["centre", "majority"]
Features = Tensor | Mapping[str, Tensor]
"""One feature map (B, r, h, w), or several by name: of factor types, or of levels."""


def map_size(features: Features) -> tuple[int, int]:
    """(h, w) of maps or images, or of the first of several maps."""
    first = features if isinstance(features, Tensor) else next(iter(features.values()))
    return first.shape[2], first.shape[3]


def node_mask(sizes: Tensor | None, size: tuple[int, int], stride: float) -> Tensor | None:
    """Which nodes of padded maps lie on their image, (B, h, w) bool; None if all images have the same size.

    `sizes` are the images' heights and widths in pixels, (B, 2), `size` is the maps' (h, w).

    >>> node_mask(torch.tensor([[8, 8], [8, 4]]), (2, 2), 4)[:, 0].tolist()
    [[True, True], [True, False]]
    """
    if sizes is None or bool((sizes == sizes[:1]).all()):
        return None
    rows, columns = (
        (torch.arange(nodes, device=sizes.device) * stride).long() < pixels[:, None]  # (B, nodes)
        for nodes, pixels in zip(size, sizes.T, strict=True)
    )
    mask: Tensor = rows[:, :, None] & columns[:, None, :]
    return mask


def node_targets(
    target: Tensor, size: tuple[int, int], stride: float, cell_label: CellLabel = "centre", sizes: Tensor | None = None
) -> Tensor:
    """Labels of the nodes, (B, h, w), from labels of the pixels (B, H, W), 255 for void; sizes as for `node_mask`.

    "centre" takes the label of the pixel at the centre of the cell, "majority" the label that covers most of it; the
    latter gives void only where the whole cell is void.

    >>> target = torch.tensor([[[0, 0, 1, 255], [0, 2, 2, 2], [3, 3, 3, 3]]])
    >>> node_targets(target, (2, 2), 2, "centre").tolist()
    [[[2, 2], [3, 3]]]
    >>> node_targets(target, (2, 2), 2, "majority").tolist()
    [[[0, 2], [3, 3]]]
    """
    if cell_label == "majority":
        return _majority(target, size, stride)
    if cell_label != "centre":
        raise InputError(f"unknown cell_label {cell_label!r}; {nearest(cell_label, get_args(CellLabel))}")
    ends = target.new_tensor([target.shape[1:]]) if sizes is None else sizes.to(target.device)  # (B or 1, 2)
    rows, columns = (
        torch.minimum(((torch.arange(nodes, device=target.device) + 0.5) * stride).long(), end[:, None] - 1)
        for nodes, end in zip(size, ends.T, strict=True)
    )
    if len(rows) == 1:
        found = target[:, rows[0][:, None], columns[0][None, :]]
    else:
        images = torch.arange(len(target), device=target.device)[:, None, None]
        found = target[images, rows[:, :, None], columns[:, None, :]]
    mask = node_mask(sizes, size, stride)
    return found if mask is None else torch.where(mask.to(found.device), found, VOID)


def _majority(target: Tensor, size: tuple[int, int], stride: float) -> Tensor:
    height, width = target.shape[1:]
    present = [int(label) for label in target.unique() if label != VOID]
    cells = _cell_index(height, size[0], stride, target.device)[:, None] * size[1]
    cells = (cells + _cell_index(width, size[1], stride, target.device)[None, :]).flatten()  # (H·W,)
    votes = torch.zeros(len(present) + 1, len(target), size[0] * size[1], device=target.device)
    for i, label in enumerate(present):
        votes[i].index_add_(1, cells, (target == label).flatten(1).float())
    votes[-1] = 0.5  # void wins only where nothing else has a pixel
    table = torch.tensor([*present, VOID], device=target.device)
    return table[votes.argmax(0)].reshape(len(target), *size)


def _cell_index(pixels: int, nodes: int, stride: float, device: torch.device) -> Tensor:
    cells = ((torch.arange(pixels, device=device) + 0.5) / stride).long()
    return cells.clamp(max=nodes - 1)


def upsample(logits: Tensor, size: tuple[int, int], stride: float) -> Tensor:
    """Node values (B, K, h, w) at the pixels of the image, (B, K, H, W): bilinear, corners not aligned.

    The map is enlarged by exactly the stride, then cut: cells that reach over the edge do not shift the others.
    """
    whole = (round(logits.shape[2] * stride), round(logits.shape[3] * stride))
    enlarged = functional.interpolate(logits, size=whole, mode="bilinear", align_corners=False)
    height, width = size
    if whole[0] < height or whole[1] < width:
        missing = (0, max(0, width - whole[1]), 0, max(0, height - whole[0]))
        enlarged = functional.pad(enlarged, missing, mode="replicate")
    return enlarged[:, :, :height, :width]


def pixel_strips(logits: Tensor, size: tuple[int, int], stride: float, rows: int = 256) -> Iterator[Tensor]:
    """Logits (K, up to `rows`, W) of successive strips of an image of `size`, from node logits (K, h, w).

    >>> [tuple(strip.shape) for strip in pixel_strips(torch.zeros(3, 2, 2), (5, 7), 4, rows=4)]
    [(3, 4, 7), (3, 1, 7)]
    """
    height, width = size
    aligned = stride == int(stride) and rows % stride == 0
    strip = _cut_strip if aligned else _sample_strip
    for start in range(0, height, rows):
        yield strip(logits, start, min(start + rows, height), width, stride)


def _sample_strip(logits: Tensor, start: int, stop: int, width: int, stride: float) -> Tensor:
    """Pixel rows `start` to `stop`, wherever they lie between the nodes."""
    down, across = (
        torch.arange(first, end, device=logits.device, dtype=torch.float64) + 0.5
        for first, end in ((start, stop), (0, width))
    )
    return bilinear_sample(logits, pixel_to_node(down, stride), pixel_to_node(across, stride))


def _cut_strip(logits: Tensor, start: int, stop: int, width: int, stride: float) -> Tensor:
    """The same where `start` is the edge of a cell: those cells and one more on either side, upsampled and cut."""
    first = min(max(0, round(start / stride) - 1), logits.shape[1] - 1)
    # Contiguous cells give contiguous pixels of a class, which are faster to compare.
    cells = logits[None, :, first : math.ceil(stop / stride) + 1].contiguous()
    top = round(first * stride)
    return upsample(cells, (stop - top, width), stride)[0, :, start - top :]


def interpolation_matrix(nodes: int, pixels: int, stride: float, ref: Tensor) -> Tensor:
    """The matrix (pixels, nodes) of `upsample` along one axis, with the dtype and device of `ref`."""
    identity = torch.eye(nodes, dtype=ref.dtype, device=ref.device)[None]
    rows = functional.interpolate(identity, size=round(nodes * stride), mode="linear", align_corners=False)
    missing = max(0, pixels - rows.shape[2])
    return functional.pad(rows, (0, missing), mode="replicate")[0, :, :pixels].T


def node_centres(pixels: int, stride: float, device: torch.device) -> Tensor:
    """Positions of the nodes along an image side of so many pixels, in pixels from its edge, float64."""
    nodes = -int(-pixels // stride)
    return (torch.arange(nodes, device=device, dtype=torch.float64) + 0.5) * stride


def pixel_to_node(positions: T, stride: float) -> T:
    """Fractional node indices of positions in pixels from the edge of the image."""
    return positions / stride - 0.5


def bilinear_sample(values: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Values (…, h, w) between the nodes, at fractional rows and columns clamped to the map.

    >>> bilinear_sample(torch.tensor([[0.0, 4.0]]), torch.tensor([0.0]), torch.tensor([-1.0, 0.25, 1.0]))
    tensor([[0., 1., 4.]])
    """
    above, below, down = _neighbours(rows, values.shape[-2])
    left, right, across = _neighbours(columns, values.shape[-1])
    strip = torch.lerp(values[..., above, :], values[..., below, :], down[:, None].to(values.dtype))
    return torch.lerp(strip[..., left], strip[..., right], across.to(values.dtype))


def _neighbours(positions: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """The node before each position, the node after it, and the weight of the latter."""
    positions = positions.clamp(0, nodes - 1)
    before = positions.floor().long()
    return before, (before + 1).clamp(max=nodes - 1), positions - before
