"""Potentials laid out for inference, checked once.

Inside an engine the factor or variable axis leads and the batch follows, (factors, batch, *shape): gathering
and summing rows is then contiguous, and one table serves all items of a batch as one matrix product. Unary
factors collapse into one log-potential per variable, since the message of a unary factor never changes;
constants (order 0) collapse into one number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph.factor_graph import FactorGraph, FactorGroup, Potentials
from messagenet.inference.logspace import INF


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph with its potentials, aligned.

    Attributes:
        graph: the structure.
        aligned: per group, (factors or 1, batch or 1, *shape) log-potentials.
        batch: number of items, or None when no potential has a batch axis.
        has_zeros: whether some log-potential is -inf.
    """

    graph: FactorGraph
    aligned: tuple[Tensor, ...]
    batch: int | None
    has_zeros: bool

    @property
    def batch_size(self) -> int:
        """Size of the internal batch axis, which always exists."""
        return 1 if self.batch is None else self.batch

    @property
    def options(self) -> dict[str, Any]:
        """The dtype and device of everything computed."""
        return {"dtype": self.aligned[0].dtype, "device": self.aligned[0].device} if self.aligned else {}

    @property
    def requires_grad(self) -> bool:
        """Whether autograd is recording any of the potentials."""
        return torch.is_grad_enabled() and any(table.requires_grad for table in self.aligned)

    def unary(self) -> Tensor:
        """(variables, batch, max_cardinality) sum of each variable's own factors; 0 beyond its states."""
        graph = self.graph
        total = torch.zeros(graph.num_variables, self.batch_size, graph.max_cardinality, **self.options)
        for group, table in zip(graph.groups, self.aligned, strict=True):
            if group.order == 1:
                rows = table.expand(len(group), self.batch_size, group.shape[0])
                rows = torch.nn.functional.pad(rows, (0, graph.max_cardinality - group.shape[0]))
                everyone = torch.equal(group.scopes[:, 0], torch.arange(len(total), device=total.device))
                total = total + rows if everyone else total.index_add(0, group.scopes[:, 0], rows)
        return total

    def constant(self) -> Tensor:
        """(batch,) sum of the factors that touch no variable."""
        total = torch.zeros(self.batch_size, **self.options)
        for group, table in zip(self.graph.groups, self.aligned, strict=True):
            if group.order == 0:
                total = total + table.expand(len(group), self.batch_size).sum(0)
        return total

    def mask(self, values: Tensor) -> Tensor:
        """(variables, batch, max_cardinality) with -inf where a variable has no such state."""
        if bool((self.graph.cardinalities == self.graph.max_cardinality).all()):
            return values
        return values.masked_fill(~self.graph.valid_states[:, None], -INF)

    def publish(self, values: Tensor) -> Tensor:
        """(rows, batch, ...) to the user's (*batch, rows, ...)."""
        return values[:, 0] if self.batch is None else values.transpose(0, 1)

    def publish_batch(self, values: Tensor) -> Tensor:
        """(batch,) to the user's (*batch,)."""
        return values[0] if self.batch is None else values

    def require_possible(self, beliefs: Tensor) -> None:
        """Refuses beliefs (variables, batch, states) that give some variable no possible state."""
        if not self.has_zeros:
            return
        lost = (beliefs == -INF).all(-1).nonzero()
        if len(lost):
            raise InputError(
                f"variable {int(lost[0, 0])} has no possible state: zero potentials (or the evidence) contradict"
                " each other; give some joint state a positive potential"
            )


def align(graph: FactorGraph, potentials: Potentials, temperature: float = 1.0) -> Problem:
    """Checks shapes and values and brings every tensor to (factors or 1, batch or 1, *shape).

    A positive temperature divides the log-potentials; 0 (maximisation) leaves them alone.
    """
    if temperature < 0:
        raise InputError(f"temperature is {temperature}; use 1 for sum-product, 0 for max-product")
    if len(potentials) != len(graph.groups):
        raise InputError(
            f"{len(potentials)} potential tensors were given for {len(graph.groups)} groups of factors; give one each"
        )
    sizes = {_batch_size(group, table) for group, table in zip(graph.groups, potentials, strict=True)}
    batches = sorted(size for size in sizes if size is not None)
    if len(set(batches) - {1}) > 1:
        raise InputError(f"potentials have different batch sizes {batches}; use one size, or 1 to share")
    dtypes = {table.dtype for table in potentials}
    if len(dtypes) > 1 or not all(dtype.is_floating_point for dtype in dtypes):
        raise InputError(f"potentials must have one floating-point dtype; got {sorted(map(str, dtypes))}")
    aligned: list[Tensor] = []
    has_zeros = False
    for group, table in zip(graph.groups, potentials, strict=True):
        has_zeros |= _check_values(group, table)
        unbatched = table.ndim == group.order + 1
        leading = _collapse(table[:, None] if unbatched else table.transpose(0, 1))
        aligned.append(leading if temperature in (0.0, 1.0) else leading / temperature)
    return Problem(graph, tuple(aligned), max(batches) if batches else None, has_zeros)


def _collapse(table: Tensor) -> Tensor:
    """An expanded tensor back to the one table it repeats, along the factor and the batch axis."""
    for axis in range(2):
        if table.shape[axis] > 1 and table.stride(axis) == 0:
            table = table.narrow(axis, 0, 1)
    return table


def _batch_size(group: FactorGroup, table: Tensor) -> int | None:
    lead, tail = table.shape[: table.ndim - group.order], table.shape[table.ndim - group.order :]
    if tuple(tail) != group.shape or len(lead) not in (1, 2) or lead[-1] not in (1, len(group)):
        raise InputError(
            f"factor {int(group.factor_ids[0])}: its group needs log-potentials of shape "
            f"({len(group)} or 1, {', '.join(map(str, group.shape))}), with at most one batch axis before; "
            f"got {tuple(table.shape)}"
        )
    return lead[0] if len(lead) == 2 else None


def _check_values(group: FactorGroup, table: Tensor) -> bool:
    """Whether a -inf is there; NaN and +inf are refused with the factor they are in."""
    least, most = (float(value) for value in torch.aminmax(table.detach()))
    if most == INF or most != most:
        bad = (table.isnan() | (table == INF)).nonzero()[0]
        factor = int(group.factor_ids[int(bad[table.ndim - group.order - 1])])
        raise InputError(
            f"factor {factor}: log-potential {most} is not finite; only -inf (probability 0) may be"
        )
    return least == -INF
