"""The truth at the nodes: one label per cell of the feature map, from a mask of pixels.

    centre     the label of the pixel at the centre of the cell
    majority   the label that covers most of the cell; void (255) only where the whole cell is void

A cell that reaches over the edge of the image, because its size is not a multiple of the stride, is judged by
the part that lies inside.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from messagenet.data.classes import VOID
from messagenet.errors import InputError, nearest

CellLabel = Literal["centre", "majority"]


def node_labels(
    masks: Tensor, size: tuple[int, int], stride: float, cell_label: CellLabel = "centre"
) -> Tensor:
    """Labels of the nodes, (B, h, w), from masks (B, H, W).

    >>> masks = torch.tensor([[[0, 0, 1, 255], [0, 2, 2, 2], [3, 3, 3, 3]]])
    >>> node_labels(masks, (2, 2), 2, "centre").tolist()
    [[[2, 2], [3, 3]]]
    >>> node_labels(masks, (2, 2), 2, "majority").tolist()
    [[[0, 2], [3, 3]]]

    Args:
        masks: Class ids and 255 for void.
        size: (h, w) of the feature map.
        stride: Image pixels per node.
        cell_label: Which pixel speaks for a cell.
    """
    rows, columns = (
        _centres(nodes, stride, pixels, masks.device)
        for nodes, pixels in zip(size, masks.shape[1:], strict=True)
    )
    if cell_label == "centre":
        return masks[:, rows[:, None], columns[None, :]]
    if cell_label == "majority":
        return _majority(masks, size, stride)
    raise InputError(f"unknown cell_label {cell_label!r}; {nearest(cell_label, get_args(CellLabel))}")


def _centres(nodes: int, stride: float, pixels: int, device: torch.device) -> Tensor:
    centres = ((torch.arange(nodes, device=device) + 0.5) * stride).long()
    return centres.clamp(max=pixels - 1)


def _majority(masks: Tensor, size: tuple[int, int], stride: float) -> Tensor:
    height, width = masks.shape[1:]
    present = [int(label) for label in masks.unique() if label != VOID]
    cells = _cell_of(height, size[0], stride, masks.device)[:, None] * size[1]
    cells = (cells + _cell_of(width, size[1], stride, masks.device)[None, :]).flatten()  # (H·W,)
    votes = torch.zeros(len(present) + 1, len(masks), size[0] * size[1], device=masks.device)
    for i, label in enumerate(present):
        votes[i].index_add_(1, cells, (masks == label).flatten(1).float())
    votes[-1] = 0.5  # void wins only where nothing else has a pixel
    table = torch.tensor([*present, VOID], device=masks.device)
    return table[votes.argmax(0)].reshape(len(masks), *size)


def _cell_of(pixels: int, nodes: int, stride: float, device: torch.device) -> Tensor:
    cells = ((torch.arange(pixels, device=device) + 0.5) / stride).long()
    return cells.clamp(max=nodes - 1)
