r"""Messages from a group of factors to their variables, all at once.

    β_{F→p}(y_p) = log Σ_{y_F \ y_p} exp[ θ_F(y_F) + Σ_{q≠p} β_{q→F}(y_q) ]          (max instead of log Σ exp: MAP)

The sum is taken in the linear domain: subtract the maxima, exponentiate each incoming message once, multiply by exp θ
(computed once per run), take the log. Factors whose sum comes near underflow are recomputed by log-sum-exp, so zeros
and any range of potentials are handled. Two maps, each the other's gradient, connect variables and message rows:

    gather:  x_v            → x at every row (factor, position)
    collect: m at every row → Σ over the rows of each variable

On a grid both are slices, since the rows of a block at one position are a window of the map. Elsewhere `collect` sums
rows sorted by variable: on the CPU in float32 an order of magnitude faster than a scattered addition.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from messagenet.graph.factor_graph import FactorGraph
from messagenet.graph.grid import GridFactorGraph
from messagenet.inference.log_math import centre, exp_fresh, log_normalise, logsumexp, peak

_AXES = "".join(sorted(set(string.ascii_letters) - {"f", "b"}))  # class axes; f, b: factor and batch


def contract(table: Tensor, weights: Sequence[Tensor], position: int) -> Tensor:
    """Σ over all axes but `position` of a table times the weights of those axes, each (factors, batch, states)."""
    if table.ndim == 4:
        right = table.transpose(2, 3) if position == 0 else table
        left = weights[1 - position]
        if table.shape[0] == table.shape[1] == 1:
            return left @ right.squeeze(0).squeeze(0)
        if table.shape[1] == 1:
            return torch.bmm(left, right.squeeze(1))
    axes = _AXES[: table.ndim - 2]
    terms = [f"fb{axis}" for other, axis in enumerate(axes) if other != position]
    operands = [weight for other, weight in enumerate(weights) if other != position]
    return torch.einsum(f"fb{axes},{','.join(terms)}->fb{axes[position]}", table, *operands)


class _BothDirections(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(table, first, second)
        return torch.bmm(second, table.transpose(1, 2)), torch.bmm(first, table)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        table, first, second = ctx.saved_tensors
        to_first, to_second = grads
        of_table = None
        if ctx.needs_input_grad[0]:
            rows, columns = torch.cat([to_first, first], 1), torch.cat([second, to_second], 1)
            of_table = torch.bmm(rows.transpose(1, 2), columns)
        return of_table, torch.bmm(to_second, table.transpose(1, 2)), torch.bmm(to_first, table)


def both_directions(table: Tensor, first: Tensor, second: Tensor) -> list[Tensor]:
    """A table per pairwise factor (factors, K1, K2) times the weights (factors, batch, K) of either end."""
    return list(_BothDirections.apply(table, first, second))  # type: ignore[no-untyped-call]


def add_on_axes(tables: Tensor, messages: Sequence[Tensor], skip: int = -1) -> Tensor:
    """Tables (factors, batch, *shape) plus, along the axis of each position but `skip`, its messages."""
    for position, message in enumerate(messages):
        if position != skip:
            shape = [1] * len(messages)
            shape[position] = message.shape[-1]
            tables = tables + message.reshape(*message.shape[:2], *shape)
    return tables


@dataclass(frozen=True, eq=False)
class FactorTable:
    """Log-potentials of a group, ready to send messages."""

    logs: Tensor  # (factors or 1, batch or 1, *shape)
    scaled: Tensor | None  # exp(logs - offset); None when maximising
    offset: Tensor  # (factors or 1, batch or 1) largest entry of each table

    @classmethod
    def prepare(cls, logs: Tensor, *, maximise: bool = False) -> FactorTable:
        """Subtracts each table's maximum and exponentiates, once for all iterations."""
        top = peak(logs, range(2, logs.ndim))
        scaled = None if maximise else exp_fresh(logs - top)
        return cls(logs, scaled, top.flatten(1))

    @property
    def order(self) -> int:
        """Number of variables per factor."""
        return self.logs.ndim - 2

    def select(self, rows: Tensor) -> FactorTable:
        """The tables of some of the factors; a shared table stays shared."""
        if self.logs.shape[0] == 1:
            return self
        scaled = None if self.scaled is None else self.scaled[rows]
        return FactorTable(self.logs[rows], scaled, self.offset[rows])

    def messages(self, incoming: Sequence[Tensor]) -> list[Tensor]:
        """To the variable at every position, from (factors, batch, states) messages at all of them."""
        shifted = [centre(logs) for logs in incoming]
        if self.scaled is None:
            return [self._maximum(position, shifted) for position in range(self.order)]
        weights = [logs.exp() for logs in shifted]
        if self.order == 2 and self.scaled.shape[0] > 1 and self.scaled.shape[1] == 1:
            sums = both_directions(self.scaled.squeeze(1), *weights)
        else:
            sums = [contract(self.scaled, weights, position) for position in range(self.order)]
        return [self._log(position, total, shifted) for position, total in enumerate(sums)]

    def log_partition(self, incoming: Sequence[Tensor]) -> Tensor:
        """(factors, batch) log Σ_{y_F} exp[θ_F + Σ_q β_{q→F}], or the maximum."""
        tops = [peak(logs, [-1])[..., 0] for logs in incoming]
        shifted = [logs - top[..., None] for logs, top in zip(incoming, tops, strict=True)]
        if self.scaled is None:
            total = (shifted[0] + self._maximum(0, shifted)).amax(-1)
        else:
            sums = contract(self.scaled, [logs.exp() for logs in shifted], 0)
            total = logsumexp(shifted[0] + self._log(0, sums, shifted), [-1])[..., 0]
        return total + self.offset + sum(tops)

    def log_beliefs(self, incoming: Sequence[Tensor]) -> Tensor:
        """(factors, batch, *shape) logs of the joint distribution of each factor's scope."""
        return log_normalise(add_on_axes(self.logs, incoming), range(2, self.logs.ndim))

    def _others(self, position: int) -> list[int]:
        return [2 + other for other in range(self.order) if other != position]

    def _maximum(self, position: int, shifted: Sequence[Tensor]) -> Tensor:
        best = add_on_axes(self.logs, shifted, position).amax(self._others(position))
        return best - self.offset[..., None]

    def _log(self, position: int, total: Tensor, shifted: Sequence[Tensor]) -> Tensor:
        """The log of a sum, computed otherwise for factors where it came near underflow."""
        limits = torch.finfo(total.dtype)
        floor = limits.tiny / limits.eps * math.prod(self.logs.shape[2:])
        if total.numel() == 0 or float(total.detach().amin()) > floor:
            return total.log()
        return self._recompute(position, total.clamp_min(floor).log(), total.detach() <= floor, shifted)

    def _recompute(self, position: int, message: Tensor, doubtful: Tensor, shifted: Sequence[Tensor]) -> Tensor:
        rows = doubtful.flatten(1).any(1).nonzero()[:, 0]
        few = self.select(rows)
        joint = add_on_axes(few.logs, [logs[rows] for logs in shifted], position)
        sums = logsumexp(joint, self._others(position)).reshape(len(rows), *message.shape[1:])
        return message.index_copy(0, rows, sums - few.offset[..., None])


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


class _Transfer(torch.autograd.Function):
    """Rows from the values of their variables, or the sum of rows at each variable; each is the other's gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, graph: FactorGraph, to_rows: bool) -> Tensor:
        ctx.graph, ctx.to_rows = graph, to_rows
        return _spread_rows(values, graph) if to_rows else _sum_rows(values, graph)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Transfer.apply(grad, ctx.graph, not ctx.to_rows), None, None  # type: ignore[no-untyped-call]


def gather(values: Tensor, graph: FactorGraph) -> Tensor:
    """(variables, ...) to (rows, ...): each row gets the value of its variable."""
    rows: Tensor = _Transfer.apply(values, graph, True)  # type: ignore[no-untyped-call]
    return rows


def collect(rows: Tensor, graph: FactorGraph) -> Tensor:
    """(rows, ...) to (variables, ...): each variable gets the sum of its rows."""
    total: Tensor = _Transfer.apply(rows, graph, False)  # type: ignore[no-untyped-call]
    return total


def by_position(rows: Tensor, graph: FactorGraph) -> list[list[Tensor]]:
    """Rows cut by group and position, each (factors, ..., states); none for groups of order below two."""
    sizes = [len(group) for group in graph.groups if group.order >= 2 for _ in group.shape]
    parts = iter(rows.split(sizes))
    return [[] if group.order < 2 else [next(parts)[..., :states] for states in group.shape] for group in graph.groups]


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
