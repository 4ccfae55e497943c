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
from torch.nn.functional import pad

from messagenet.graph.factor_graph import FactorGroup
from messagenet.inference.incidence import rows_by_label
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

    def fields(self, q: Tensor, plan: ClassPlan) -> tuple[Tensor, Tensor | None]:
        """Expected log-potential of each state of the variables of a class, and the probability on zeros."""
        field = q.new_zeros(len(plan.variables), *q.shape[1:])
        penalty = torch.zeros_like(field) if self._problem.has_zeros else None
        for part in plan.slices:
            near = self._marginals(q, part.scopes, self._problem.graph.groups[part.group].shape)
            sent = contract(part.finite, near, part.position)
            field = field.index_add(0, part.target, pad(sent, (0, q.shape[-1] - sent.shape[-1])))
            if penalty is not None and part.forbidden is not None:
                sent = contract(part.forbidden, near, part.position)
                penalty = penalty.index_add(0, part.target, pad(sent, (0, q.shape[-1] - sent.shape[-1])))
        return field, penalty

    def energy(self, q: Tensor) -> tuple[Tensor, Tensor | None]:
        """(batch,) E_q Σ_F θ_F over factors of order two or more, and the probability on zeros."""
        energy = q.new_zeros(q.shape[1])
        violation = torch.zeros_like(energy) if self._problem.has_zeros else None
        for _, group, finite, forbidden in self._groups:
            near = self._marginals(q, group.scopes, group.shape)
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


def _rows(table: Tensor, rows: Tensor) -> Tensor:
    return table if table.shape[0] == 1 else table[rows]
