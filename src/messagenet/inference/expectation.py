"""Expected log-potentials under independent distributions, for all factors at once.

    m_{F→p}(y_p) = E_{q(y_F \\ y_p)} θ_F(y_p, ·) = Σ_{y_F \\ y_p} θ_F(y_F) Π_{r≠p} q_r(y_r)

Zeros (θ = −∞) are kept apart as an indicator whose expectation is the probability resting on them, so that
0·∞ never occurs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from messagenet.graph.factor_graph import FactorGroup
from messagenet.graph.grid_factors import GridFactorGraph
from messagenet.inference.incidence import by_position, collect, gather, rows_by_label, widen
from messagenet.inference.logspace import INF
from messagenet.inference.messages import contract
from messagenet.inference.problem import Problem


@dataclass(frozen=True, eq=False)
class _Slice:
    """Factors of one group that send to the variables of a class from one position."""

    group: int
    position: int
    finite: Tensor
    forbidden: Tensor | None
    scopes: Tensor
    target: Tensor  # (factors,) place of the receiving variable in its class


@dataclass(frozen=True, eq=False)
class ClassPlan:
    """The variables renewed together and who sends to them."""

    variables: Tensor
    slices: tuple[_Slice, ...]

    def take(self, values: Tensor) -> Tensor:
        """The rows of these variables."""
        return values[self.variables]

    def put(self, values: Tensor, rows: Tensor) -> Tensor:
        """All variables, these with new rows."""
        return values.index_copy(0, self.variables, rows)


@dataclass(frozen=True, eq=False)
class WholePlan:
    """Fields of all variables are computed, and those in the mask are renewed (None: all of them).

    On a grid, whose neighbours are slices, this costs less than looking up the members of a class.
    """

    mask: Tensor | None = None  # (variables, 1, 1)

    def take(self, values: Tensor) -> Tensor:
        """Every row."""
        return values

    def put(self, values: Tensor, rows: Tensor) -> Tensor:
        """All variables, those of the mask with new rows."""
        return rows if self.mask is None else torch.where(self.mask, rows, values)


class Expectations:
    """The factors of order two or more of a problem, ready to take expectations."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._groups: list[tuple[int, FactorGroup, Tensor, Tensor | None]] = []
        for number, (group, logs) in enumerate(zip(problem.graph.groups, problem.aligned, strict=True)):
            if group.order >= 2:
                zeros = logs == -INF if problem.has_zeros else None
                finite = logs if zeros is None else logs.masked_fill(zeros, 0)
                self._groups.append((number, group, finite, None if zeros is None else zeros.to(logs.dtype)))

    def plan(self, classes: Sequence[Sequence[int]]) -> list[ClassPlan]:
        """Which factors send to each class of variables."""
        graph = self._problem.graph
        device = graph.cardinalities.device
        label = torch.empty(graph.num_variables, dtype=torch.long, device=device)
        place = torch.empty_like(label)
        members = [torch.tensor(variables, device=device) for variables in classes]
        for number, variables in enumerate(members):
            label[variables] = number
            place[variables] = torch.arange(len(variables), device=device)
        slices: list[list[_Slice]] = [[] for _ in classes]
        for number, group, finite, forbidden in self._groups:
            for position in range(group.order):
                labels = label[group.scopes[:, position]]
                for owner, rows in rows_by_label(labels):
                    scopes = group.scopes[rows]
                    slices[owner].append(
                        _Slice(
                            number,
                            position,
                            _rows(finite, rows),
                            None if forbidden is None else _rows(forbidden, rows),
                            scopes,
                            place[scopes[:, position]],
                        )
                    )
        return [ClassPlan(own, tuple(part)) for own, part in zip(members, slices, strict=True)]

    def fields(self, q: Tensor, plan: ClassPlan | WholePlan) -> tuple[Tensor, Tensor | None]:
        """Expected log-potential of each state of the plan's variables, and the probability on zeros."""
        if isinstance(plan, WholePlan):
            finite = self._everywhere([(number, logs) for number, _, logs, _ in self._groups], q)
            zeros = [(number, mask) for number, _, _, mask in self._groups if mask is not None]
            return finite, self._everywhere(zeros, q) if self._problem.has_zeros else None
        field = q.new_zeros(len(plan.variables), *q.shape[1:])
        penalty = torch.zeros_like(field) if self._problem.has_zeros else None
        for part in plan.slices:
            near = self._marginals(q, part.scopes, self._problem.graph.groups[part.group].shape)
            sent = contract(part.finite, near, part.position)
            field = field.index_add(0, part.target, widen(sent, q.shape[-1]))
            if penalty is not None and part.forbidden is not None:
                sent = contract(part.forbidden, near, part.position)
                penalty = penalty.index_add(0, part.target, widen(sent, q.shape[-1]))
        return field, penalty

    def _everywhere(self, tables: Sequence[tuple[int, Tensor]], q: Tensor) -> Tensor:
        """(variables, batch, max_cardinality) expectations of the tables of some groups, added up."""
        graph = self._problem.graph
        if isinstance(graph, GridFactorGraph):
            return _on_grid(graph, tables, q)
        incoming = by_position(gather(q, graph), graph)
        sent = [
            widen(contract(table, incoming[number], position), q.shape[-1])
            for number, table in tables
            for position in range(len(incoming[number]))
        ]
        return collect(torch.cat(sent), graph) if sent else torch.zeros_like(q)

    def energy(self, q: Tensor) -> tuple[Tensor, Tensor | None]:
        """(batch,) E_q Σ_F θ_F over factors of order two or more, and the probability on zeros."""
        energy = q.new_zeros(q.shape[1])
        violation = torch.zeros_like(energy) if self._problem.has_zeros else None
        incoming = by_position(gather(q, self._problem.graph), self._problem.graph)
        for number, _, finite, forbidden in self._groups:
            near = incoming[number]
            energy = energy + (near[0] * contract(finite, near, 0)).sum((0, 2))
            if violation is not None and forbidden is not None:
                violation = violation + (near[0] * contract(forbidden, near, 0)).sum((0, 2))
        return energy, violation

    def log_joint(self, log_q: Tensor) -> list[Tensor]:
        """Per group (factors, batch, *shape) logs of the product of marginals."""
        joints: list[Tensor] = []
        for group in self._problem.graph.groups:
            joint = log_q.new_zeros(len(group), log_q.shape[1], *group.shape)
            for position, logs in enumerate(self._marginals(log_q, group.scopes, group.shape)):
                shape = [1] * group.order
                shape[position] = -1
                joint = joint + logs.reshape(*logs.shape[:2], *shape)
            joints.append(joint)
        return joints

    @staticmethod
    def _marginals(q: Tensor, scopes: Tensor, shape: Sequence[int]) -> list[Tensor]:
        return [q[scopes[:, position], :, :size] for position, size in enumerate(shape)]


def _on_grid(graph: GridFactorGraph, tables: Sequence[tuple[int, Tensor]], q: Tensor) -> Tensor:
    """The same by windows: a table that all pairs share meets the whole map, others their pairs."""
    size = (graph.grid.height, graph.grid.width)
    nodes = q.reshape(*size, *q.shape[1:])
    field = torch.zeros_like(nodes)
    for number, table in tables:
        block = graph.blocks[number - 1]
        for position, (here, there) in enumerate(((block.first, block.second), (block.second, block.first))):
            near = q if len(table) == 1 else nodes[there].flatten(0, 1)
            sent = contract(table, (near, near), position)
            field[here] += (
                sent.reshape(nodes.shape)[there] if len(table) == 1 else sent.reshape(field[here].shape)
            )
    return field.view(q.shape)


def _rows(table: Tensor, rows: Tensor) -> Tensor:
    return table if table.shape[0] == 1 else table[rows]
