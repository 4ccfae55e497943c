"""Sums over a node's range box at a cost that does not depend on the size of the box.

    sum_{o ∈ O} v_{p+o},     nothing outside the map is summed

For a rectangle O (with or without its centre) this is two differences of running totals, one per axis, as in
an integral image but separable, so that rounding grows with one edge of the map and not with its area. Any
other set of offsets is summed one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from messagenet.estimators.operators import remembered, working_dtype
from messagenet.graph import Offset, window


class Rectangle(NamedTuple):
    """The offsets top ≤ dy ≤ bottom, left ≤ dx ≤ right, less (0, 0) if it is left out."""

    top: int
    bottom: int
    left: int
    right: int
    without_centre: bool


@remembered
def as_rectangle(offsets: tuple[Offset, ...]) -> Rectangle | None:
    """The rectangle that the offsets fill, if they fill one.

    >>> as_rectangle(((0, -1), (0, 1)))
    Rectangle(top=0, bottom=0, left=-1, right=1, without_centre=True)
    >>> as_rectangle(((0, -1), (1, 1))) is None
    True
    """
    rows, columns = [dy for dy, _ in offsets], [dx for _, dx in offsets]
    top, bottom, left, right = min(rows), max(rows), min(columns), max(columns)
    full = {(dy, dx) for dy in range(top, bottom + 1) for dx in range(left, right + 1)}
    missing = full - set(offsets)
    return Rectangle(top, bottom, left, right, bool(missing)) if missing <= {(0, 0)} else None


def _running(values: Tensor, dim: int, low: int, high: int) -> Tensor:
    """Sums of values[i + low … i + high] along one axis, clipped to the map."""
    size = values.shape[dim]
    totals = values.cumsum(dim)
    totals = torch.cat([torch.zeros_like(totals.narrow(dim, 0, 1)), totals], dim)
    places = torch.arange(size, device=values.device)
    upper = totals.index_select(dim, (places + high + 1).clamp(0, size))
    return upper - totals.index_select(dim, (places + low).clamp(0, size))


def box_sum(values: Tensor, offsets: tuple[Offset, ...]) -> Tensor:
    """The sum of `values` (B, H, W, C) over the senders of every node.

    >>> box_sum(torch.ones(1, 2, 3, 1), ((-1, 0), (1, 0)))[0, :, :, 0].tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    if not offsets:
        return torch.zeros_like(values)
    working = values.to(working_dtype(values))
    box = as_rectangle(offsets)
    if box is None:
        total = torch.zeros_like(working)
        for offset in offsets:
            if (w := window(values.shape[1:3], offset)) is not None:
                total[w.receivers] += working[w.senders]
    else:
        total = _running(_running(working, 1, box.top, box.bottom), 2, box.left, box.right)
        if box.without_centre:
            total = total - working
    return total.to(values.dtype)
