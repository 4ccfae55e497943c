"""From variables to the ends of their factors and back: one gather and one sum, each the other's gradient.

    gather:  x_v            → x at every (factor, position) row
    collect: m at every row → Σ over the rows of each variable

On a grid the rows of one block at one position are a window of the map, so both are slices. Elsewhere `collect`
sums rows in the order of their variables, which on the CPU in single precision is an order of magnitude faster
than a scattered addition. As gradients of each other the pair stays fast in both directions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from messagenet.graph.factor_graph import FactorGraph
from messagenet.graph.grid_factors import GridFactorGraph


def num_rows(graph: FactorGraph) -> int:
    """How many messages go from factors of order two or more to variables."""
    return sum(group.order * len(group) for group in graph.groups if group.order >= 2)


def _windows(rows: Tensor, maps: Tensor, graph: GridFactorGraph) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of views of equal shape: the rows of a block at one position, and their nodes' window of the map."""
    on_grid = maps.view(graph.grid.height, graph.grid.width, *maps.shape[1:])
    areas = [area for block in graph.blocks for area in (block.first, block.second)]
    sizes = [len(block) for block in graph.blocks for _ in range(2)]
    for part, area in zip(rows.split(sizes), areas, strict=True):
        window = on_grid[area]
        yield part.view(window.shape), window


def _spread_rows(values: Tensor, graph: FactorGraph) -> Tensor:
    if not isinstance(graph, GridFactorGraph):
        return values.index_select(0, graph.incidence.variables)
    rows = values.new_empty(num_rows(graph), *values.shape[1:])
    for part, window in _windows(rows, values.contiguous(), graph):
        part.copy_(window)
    return rows


def _sum_rows(rows: Tensor, graph: FactorGraph) -> Tensor:
    total = rows.new_zeros(graph.num_variables, *rows.shape[1:])
    if len(rows) == 0:
        return total
    if isinstance(graph, GridFactorGraph):
        for part, window in _windows(rows.contiguous(), total, graph):
            window.add_(part)
        return total
    incidence = graph.incidence
    if rows.dtype != torch.float32:
        return total.index_add_(0, incidence.variables, rows)
    flat = rows.reshape(len(incidence), -1)
    summed = torch.nn.functional.embedding_bag(incidence.by_variable, flat, incidence.offsets, mode="sum")
    return summed.reshape(total.shape)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, graph: FactorGraph) -> Tensor:
        ctx.graph = graph
        return _spread_rows(values, graph)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Collect.apply(grad, ctx.graph), None  # type: ignore[no-untyped-call]


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, graph: FactorGraph) -> Tensor:
        ctx.graph = graph
        return _sum_rows(rows, graph)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Gather.apply(grad, ctx.graph), None  # type: ignore[no-untyped-call]


def gather(values: Tensor, graph: FactorGraph) -> Tensor:
    """(variables, ...) to (rows, ...): each row gets the value of its variable."""
    rows: Tensor = _Gather.apply(values, graph)  # type: ignore[no-untyped-call]
    return rows


def collect(rows: Tensor, graph: FactorGraph) -> Tensor:
    """(rows, ...) to (variables, ...): each variable gets the sum of its rows."""
    total: Tensor = _Collect.apply(rows, graph)  # type: ignore[no-untyped-call]
    return total


def by_position(rows: Tensor, graph: FactorGraph) -> list[list[Tensor]]:
    """Rows cut by group and position, each (factors, ..., states); none for groups of order below two."""
    sizes = [len(group) for group in graph.groups if group.order >= 2 for _ in group.shape]
    parts = iter(rows.split(sizes))
    return [
        [] if group.order < 2 else [_narrow(next(parts), states) for states in group.shape]
        for group in graph.groups
    ]


def _narrow(rows: Tensor, states: int) -> Tensor:
    return rows if rows.shape[-1] == states else rows[..., :states]


def widen(rows: Tensor, states: int) -> Tensor:
    """Fills the states a variable does not have with zeros."""
    return rows if rows.shape[-1] == states else pad(rows, (0, states - rows.shape[-1]))


def rows_by_label(labels: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each label that occurs, with the rows that have it in ascending order.

    >>> [(label, rows.tolist()) for label, rows in rows_by_label(torch.tensor([4, 0, 4]))]
    [(0, [1]), (4, [0, 2])]
    """
    ordered, rows = labels.sort(stable=True)
    distinct, counts = torch.unique_consecutive(ordered, return_counts=True)
    yield from zip(distinct.tolist(), rows.split(counts.tolist()), strict=True)
