"""Naive mean field: the best product of independent distributions, and a lower bound on log Z.

    q_p(y_p) ∝ exp[ θ_p(y_p) + Σ_{F∋p} E_{q(y_F \\ y_p)} θ_F(y_F) ]
    log Z ≥ E_q[ Σ_F θ_F ] + Σ_p H(q_p)                            for every q; equality only for independence

(Wainwright & Jordan, "Graphical models, exponential families, and variational inference", 2008, §5.) Renewing
variables that share no factor together is coordinate ascent, so the bound never falls; renewing all at once
is faster but may oscillate.

A zero potential makes an expectation −∞ as soon as any probability rests on it. Where every state of a variable
has such an expectation, the ones with least probability on zeros are kept: the limit of ever larger penalties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from messagenet.errors import InputError, nearest
from messagenet.graph.factor_graph import FactorGraph, Potentials
from messagenet.graph.grid_factors import GridFactorGraph
from messagenet.inference.expectation import ClassPlan, Expectations, WholePlan
from messagenet.inference.grid_colours import grid_colours
from messagenet.inference.logspace import INF, log_normalise, safe_log
from messagenet.inference.network import argmax_states
from messagenet.inference.ordering import neighbours
from messagenet.inference.problem import Problem, align
from messagenet.inference.result import Result

MeanFieldSchedule = Literal["parallel", "sequential"]
SCHEDULES: tuple[MeanFieldSchedule, ...] = ("parallel", "sequential")


@dataclass(frozen=True)
class MeanField:
    """Settings of mean field; `log_z` of its result is a lower bound, converged or not.

    Attributes:
        schedule: "sequential" (coordinate ascent, by classes of variables that share no factor) or "parallel".
            On a grid every class costs one pass over the map: two for a 4-connected one, many for large boxes.
        damping: how much of the old probabilities to keep.
        max_iterations: at most so many; a sequential iteration renews every variable once.
        tolerance: largest change of a probability at which to stop; None runs exactly `max_iterations`.
    """

    schedule: MeanFieldSchedule = "sequential"
    damping: float = 0.0
    max_iterations: int = 1000
    tolerance: float | None = 1e-6

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise InputError(f'schedule "{self.schedule}" is not known; {nearest(self.schedule, SCHEDULES)}')
        if not 0 <= self.damping < 1:
            raise InputError(f"damping is {self.damping}; it must be at least 0 and below 1")
        if self.max_iterations < 1:
            raise InputError(f"max_iterations is {self.max_iterations}; it must be at least 1")

    def run(self, graph: FactorGraph, potentials: Potentials, initial: Tensor | None = None) -> Result:
        """Renews the distributions from uniform ones, or from `initial` marginals, until they stay.

        Args:
            graph: the structure.
            potentials: one tensor of log-potentials per group.
            initial: (*batch, variables, max_cardinality) probabilities to start from.
        """
        problem = align(graph, potentials)
        state = _Fields(problem, problem.mask(problem.unary()), Expectations(problem))
        problem.require_possible(state.unary)
        q = state.start() if initial is None else _internal(problem, initial)
        log_q = safe_log(q)
        plans = self._plans(graph, state.expectations)
        history: list[float] = []
        converged = False
        iterations = 0
        while iterations < self.max_iterations and not converged:
            before = q
            for plan in plans:
                q, log_q = state.renew(q, log_q, plan, self.damping)
            iterations += 1
            if self.tolerance is not None:
                history.append(float((q - before).detach().abs().amax()))
                converged = history[-1] <= self.tolerance
        return Result(
            log_marginals=problem.publish(log_q),
            iterations=iterations,
            converged=converged,
            history=tuple(history),
            compute_log_z=lambda: problem.publish_batch(state.bound(q)),
            compute_log_factor_marginals=lambda: tuple(
                problem.publish(table) for table in state.expectations.log_joint(log_q)
            ),
            compute_map_state=lambda: problem.publish(argmax_states(log_q)),
        )

    def _plans(self, graph: FactorGraph, expectations: Expectations) -> Sequence[ClassPlan | WholePlan]:
        """What an iteration renews, one after another."""
        if self.schedule == "parallel":
            return [WholePlan()]
        if isinstance(graph, GridFactorGraph):
            return grid_plans(graph)
        return expectations.plan(colour_classes(graph))


def _internal(problem: Problem, initial: Tensor) -> Tensor:
    graph = problem.graph
    if initial.shape[-2:] != (graph.num_variables, graph.max_cardinality):
        raise InputError(
            f"initial has shape {tuple(initial.shape)}; it must end with "
            f"({graph.num_variables}, {graph.max_cardinality})"
        )
    batched = initial if initial.ndim == 3 else initial[None]
    return batched.to(**problem.options).transpose(0, 1).expand(-1, problem.batch_size, -1)


@dataclass(frozen=True, eq=False)
class _Fields:
    """The mean-field equations on one problem; q is (variables, batch, max_cardinality) probabilities."""

    problem: Problem
    unary: Tensor
    expectations: Expectations

    def start(self) -> Tensor:
        """Uniform over each variable's states."""
        valid = self.problem.graph.valid_states[:, None].to(self.unary.dtype)
        return (valid / valid.sum(-1, keepdim=True)).expand(self.unary.shape)

    def renew(
        self, q: Tensor, log_q: Tensor, plan: ClassPlan | WholePlan, damping: float
    ) -> tuple[Tensor, Tensor]:
        """The distributions of one class of variables, given all others, and their logs."""
        field, penalty = self.expectations.fields(q, plan)
        logits = field + plan.take(self.unary)
        if penalty is not None:
            weight = penalty.detach().masked_fill(logits == -INF, INF)
            least = weight.amin(-1, keepdim=True)
            logits = logits.masked_fill(weight > least * (1 + 1e-6), -INF)
        log_new = log_normalise(logits) if self.problem.has_zeros else logits.log_softmax(-1)
        new = log_new.exp()
        if damping > 0:
            new = (1 - damping) * new + damping * plan.take(q)
            log_new = safe_log(new)
        return plan.put(q, new), plan.put(log_q, log_new)

    def bound(self, q: Tensor) -> Tensor:
        """(batch,) E_q[θ] + H(q)."""
        on_states = (q * self.unary.masked_fill(q == 0, 0)).sum((0, 2))
        entropy = -(q * safe_log(q).masked_fill(q == 0, 0)).sum((0, 2))
        energy, violation = self.expectations.energy(q)
        total = self.problem.constant() + on_states + entropy + energy
        return total if violation is None else total.masked_fill(violation > 0, -INF)


def colour_classes(graph: FactorGraph) -> list[list[int]]:
    """Variables by greedy colour: no two of a class share a factor.

    >>> from messagenet.graph.builders import chain_graph
    >>> colour_classes(chain_graph([2, 2, 2]))
    [[0, 2], [1]]
    """
    colour: dict[int, int] = {}
    classes: list[list[int]] = []
    adjacency: Sequence[set[int]] = neighbours(graph.num_variables, graph.scopes())
    for variable, near in enumerate(adjacency):
        taken = {colour[other] for other in near if other in colour}
        choice = next(index for index in range(len(taken) + 1) if index not in taken)
        colour[variable] = choice
        if choice == len(classes):
            classes.append([])
        classes[choice].append(variable)
    return classes


def grid_plans(graph: GridFactorGraph) -> list[WholePlan]:
    """The same classes on a grid, as masks."""
    offsets = tuple(block.offset for block in graph.blocks)
    colours = torch.from_numpy(grid_colours(graph.grid.height, graph.grid.width, offsets))
    masks = [colours == colour for colour in range(int(colours.max()) + 1)]
    return [WholePlan(mask.reshape(-1, 1, 1).to(graph.cardinalities.device)) for mask in masks]
