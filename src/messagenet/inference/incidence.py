"""From variables to the ends of their factors and back: one gather and one sum, each the other's gradient.

    gather:  x_v            → x at every (factor, position) row
    collect: m at every row → Σ over the rows of each variable

`collect` sums rows in the order of their variables, which on the CPU in single precision is an order of
magnitude faster than a scattered addition; as gradients of each other the pair stays fast in both directions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from messagenet.graph.factor_graph import Incidence


def _sum_rows(rows: Tensor, incidence: Incidence) -> Tensor:
    variables = len(incidence.offsets)
    if len(incidence) == 0:
        return rows.new_zeros(variables, *rows.shape[1:])
    if rows.dtype != torch.float32:
        return rows.new_zeros(variables, *rows.shape[1:]).index_add_(0, incidence.variables, rows)
    flat = rows.reshape(len(incidence), -1)
    total = torch.nn.functional.embedding_bag(incidence.by_variable, flat, incidence.offsets, mode="sum")
    return total.reshape(variables, *rows.shape[1:])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, incidence: Incidence) -> Tensor:
        ctx.incidence = incidence
        return values.index_select(0, incidence.variables)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Collect.apply(grad, ctx.incidence), None  # type: ignore[no-untyped-call]


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, incidence: Incidence) -> Tensor:
        ctx.incidence = incidence
        return _sum_rows(rows, incidence)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Gather.apply(grad, ctx.incidence), None  # type: ignore[no-untyped-call]


def gather(values: Tensor, incidence: Incidence) -> Tensor:
    """(variables, ...) to (rows, ...): each row gets the value of its variable."""
    rows: Tensor = _Gather.apply(values, incidence)  # type: ignore[no-untyped-call]
    return rows


def collect(rows: Tensor, incidence: Incidence) -> Tensor:
    """(rows, ...) to (variables, ...): each variable gets the sum of its rows."""
    total: Tensor = _Collect.apply(rows, incidence)  # type: ignore[no-untyped-call]
    return total


def rows_by_label(labels: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each label that occurs, with the rows that have it in ascending order.

    >>> [(label, rows.tolist()) for label, rows in rows_by_label(torch.tensor([4, 0, 4]))]
    [(0, [1]), (4, [0, 2])]
    """
    ordered, rows = labels.sort(stable=True)
    distinct, counts = torch.unique_consecutive(ordered, return_counts=True)
    yield from zip(distinct.tolist(), rows.split(counts.tolist()), strict=True)
