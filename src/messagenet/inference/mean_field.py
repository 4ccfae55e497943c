r"""Naive mean field: the best product of independent distributions, and a lower bound on log Z.

    q_p(y_p) ∝ exp[ θ_p(y_p) + Σ_{F∋p} m_{F→p}(y_p) ]
    m_{F→p}(y_p) = E_{q(y_F \ y_p)} θ_F(y_p, ·) = Σ_{y_F \ y_p} θ_F(y_F) Π_{r≠p} q_r(y_r)
    log Z ≥ E_q[ Σ_F θ_F ] + Σ_p H(q_p)                            for every q; equality only for independence

(Wainwright & Jordan, "Graphical models, exponential families, and variational inference", 2008, §5.) Updating together
variables that share no factor is coordinate ascent: the bound never falls. Updating all is faster but may oscillate.

With a zero potential (θ = −∞) an expectation is −∞ as soon as a probability rests on it. Zeros are kept apart, as an
indicator whose expectation is the probability on them, so that 0·∞ never occurs. If that is positive for all states of
a variable, those with the least remain: the limit of ever larger penalties.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph.factor_graph import FactorGraph, FactorGroup, Potentials
from messagenet.graph.grid import GridFactorGraph
from messagenet.graph.relations import Offset
from messagenet.inference.engine import Problem, Result, align, check_settings, iterate
from messagenet.inference.evidence import observe
from messagenet.inference.exact import neighbours
from messagenet.inference.factors import add_on_axes, by_position, collect, contract, gather, rows_by_label, widen
from messagenet.inference.log_math import INF, log_normalise, safe_log
from messagenet.settings import register


@dataclass(frozen=True, eq=False)
class _Slice:
    """Factors of one group that send to the variables of a class from one position."""

    group: int
    position: int
    finite: Tensor
    forbidden: Tensor | None
    scopes: Tensor
    target: Tensor  # (factors,) index of the receiving variable in its class


@dataclass(frozen=True, eq=False)
class ClassPlan:
    """Variables that are updated together, and the factors that send to them."""

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
    """Computes all fields, updates the variables in the mask (None: all); on a grid cheaper than indexing a class."""

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
        for group_index, (group, logs) in enumerate(zip(problem.graph.groups, problem.aligned, strict=True)):
            if group.order >= 2:
                zeros = logs == -INF if problem.has_zeros else None
                finite = logs if zeros is None else logs.masked_fill(zeros, 0)
                self._groups.append((group_index, group, finite, None if zeros is None else zeros.to(logs.dtype)))

    def plan(self, classes: Sequence[Sequence[int]]) -> list[ClassPlan]:
        """Which factors send to each class of variables."""
        graph = self._problem.graph
        device = graph.cardinalities.device
        label = torch.empty(graph.num_variables, dtype=torch.long, device=device)
        index_in_class = torch.empty_like(label)
        members = [torch.tensor(variables, device=device) for variables in classes]
        for index, variables in enumerate(members):
            label[variables] = index
            index_in_class[variables] = torch.arange(len(variables), device=device)
        slices: list[list[_Slice]] = [[] for _ in classes]
        for group_index, group, finite, forbidden in self._groups:
            for position in range(group.order):
                for owner, rows in rows_by_label(label[group.scopes[:, position]]):
                    scopes = group.scopes[rows]
                    tables = finite, forbidden
                    if len(finite) > 1:  # a shared table stays shared
                        tables = finite[rows], None if forbidden is None else forbidden[rows]
                    slices[owner].append(
                        _Slice(group_index, position, *tables, scopes, index_in_class[scopes[:, position]])
                    )
        return [ClassPlan(own, tuple(part)) for own, part in zip(members, slices, strict=True)]

    def fields(self, q: Tensor, plan: ClassPlan | WholePlan) -> tuple[Tensor, Tensor | None]:
        """Expected log-potential of each state of the plan's variables, and the probability on zeros."""
        if isinstance(plan, WholePlan):
            finite = self._everywhere([(group_index, logs) for group_index, _, logs, _ in self._groups], q)
            zeros = [(group_index, mask) for group_index, _, _, mask in self._groups if mask is not None]
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
            widen(contract(table, incoming[group_index], position), q.shape[-1])
            for group_index, table in tables
            for position in range(len(incoming[group_index]))
        ]
        return collect(torch.cat(sent), graph) if sent else torch.zeros_like(q)

    def energy(self, q: Tensor) -> tuple[Tensor, Tensor | None]:
        """(batch,) E_q Σ_F θ_F over factors of order two or more, and the probability on zeros."""
        energy = q.new_zeros(q.shape[1])
        violation = torch.zeros_like(energy) if self._problem.has_zeros else None
        incoming = by_position(gather(q, self._problem.graph), self._problem.graph)
        for group_index, _, finite, forbidden in self._groups:
            near = incoming[group_index]
            energy = energy + (near[0] * contract(finite, near, 0)).sum((0, 2))
            if violation is not None and forbidden is not None:
                violation = violation + (near[0] * contract(forbidden, near, 0)).sum((0, 2))
        return energy, violation

    def log_joint(self, log_q: Tensor) -> list[Tensor]:
        """Per group (factors, batch, *shape) logs of the product of marginals."""
        joints = []
        for group in self._problem.graph.groups:
            blank = log_q.new_zeros(len(group), log_q.shape[1], *group.shape)
            joints.append(add_on_axes(blank, self._marginals(log_q, group.scopes, group.shape)))
        return joints

    @staticmethod
    def _marginals(q: Tensor, scopes: Tensor, shape: Sequence[int]) -> list[Tensor]:
        return [q[scopes[:, position], :, :size] for position, size in enumerate(shape)]


def _on_grid(graph: GridFactorGraph, tables: Sequence[tuple[int, Tensor]], q: Tensor) -> Tensor:
    """`_everywhere` by windows of the grid: a shared table is applied to the whole map, others to their pairs."""
    size = (graph.grid.height, graph.grid.width)
    nodes = q.reshape(*size, *q.shape[1:])
    field = torch.zeros_like(nodes)
    for group_index, table in tables:
        block = graph.blocks[group_index - 1]
        for position, (here, there) in enumerate(((block.first, block.second), (block.second, block.first))):
            near = q if len(table) == 1 else nodes[there].flatten(0, 1)
            sent = contract(table, (near, near), position)
            field[here] += sent.reshape(nodes.shape)[there] if len(table) == 1 else sent.reshape(field[here].shape)
    return field.view(q.shape)


MeanFieldSchedule = Literal["parallel", "sequential"]


@register("engine", "mf")
@dataclass(frozen=True)
class MeanField:
    """Settings of mean field; `log_z` of its result is a lower bound, converged or not.

    Attributes:
        schedule: "sequential" (coordinate ascent, by classes of variables that share no factor) or "parallel".
            On a grid every class costs one pass over the map: two for a 4-connected one, many for large boxes.
        damping: share of the old probabilities to keep.
        max_iterations: at most so many; a sequential iteration updates every variable once.
        tolerance: largest change of a probability at which to stop; None runs exactly `max_iterations`.
    """

    schedule: MeanFieldSchedule = "sequential"
    damping: float = 0.0
    max_iterations: int = 1000
    tolerance: float | None = 1e-6

    def __post_init__(self) -> None:
        check_settings(self, schedule=get_args(MeanFieldSchedule))

    def run(
        self,
        graph: FactorGraph,
        potentials: Potentials,
        initial: Tensor | None = None,
        *,
        evidence: Mapping[int, int] | None = None,
    ) -> Result:
        """Updates the distributions, from uniform or `initial` marginals, until they converge.

        Args:
            graph: the structure.
            potentials: one table of log-potentials per factor, or one tensor per group.
            initial: (*batch, variables, max_cardinality) probabilities to start from.
            evidence: observed {variable: state}.
        """
        if evidence is not None:
            if initial is not None:
                raise InputError("initial marginals belong to the graph without evidence; leave out one of the two")
            return observe(graph, potentials, evidence).run(self)
        problem = align(graph, potentials)
        state = _Fields(problem, problem.mask(problem.unary()), Expectations(problem))
        problem.require_possible(state.unary)
        start = state.start() if initial is None else _internal(problem, initial)
        plans: Sequence[ClassPlan | WholePlan] = [WholePlan()]
        if self.schedule == "sequential":
            if isinstance(graph, GridFactorGraph):
                plans = grid_plans(graph)
            else:
                plans = state.expectations.plan(colour_classes(graph))

        def step(before: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
            after = before
            for plan in plans:
                after = state.update(*after, plan, self.damping)
            return after, None if self.tolerance is None else (after[0] - before[0]).detach().abs().amax()

        (q, log_q), trace = iterate(step, (start, safe_log(start)), self.max_iterations, self.tolerance)
        return Result(
            problem.to_user_layout(log_q),
            *trace,
            compute_log_z=lambda: problem.to_user_batch(state.bound(q)),
            compute_log_factor_marginals=lambda: problem.to_user_factors(state.expectations.log_joint(log_q)),
            compute_map_state=lambda: problem.to_user_layout(log_q.argmax(-1)),
        )


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
        valid = self.problem.graph.valid_states[:, None].to(self.unary.dtype)
        return (valid / valid.sum(-1, keepdim=True)).expand(self.unary.shape)

    def update(self, q: Tensor, log_q: Tensor, plan: ClassPlan | WholePlan, damping: float) -> tuple[Tensor, Tensor]:
        """The distributions of one class of variables, given all others, and their logs."""
        field, penalty = self.expectations.fields(q, plan)
        logits = field + plan.take(self.unary)
        if penalty is not None:
            weight = penalty.detach().masked_fill(logits == -INF, INF)
            smallest = weight.amin(-1, keepdim=True)
            logits = logits.masked_fill(weight > smallest * (1 + 1e-6), -INF)
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


@lru_cache(maxsize=64)
def grid_colours(height: int, width: int, offsets: Sequence[Offset]) -> NDArray[np.int64]:
    """(height, width) the same colours on a grid, neighbours being p ± o for the offsets o.

    >>> grid_colours(2, 3, ((0, 1), (1, 0)))
    array([[0, 1, 0],
           [1, 0, 1]])
    """
    from messagenet.inference.kernels import colour_grid

    earlier = sorted({min((dy, dx), (-dy, -dx)) for dy, dx in offsets})
    colours = np.zeros((height, width), dtype=np.int64)
    colour_grid(colours, np.array(earlier, dtype=np.int64).reshape(-1, 2))
    return colours


def grid_plans(graph: GridFactorGraph) -> list[WholePlan]:
    """The same classes on a grid, as masks."""
    offsets = tuple(block.offset for block in graph.blocks)
    colours = torch.from_numpy(grid_colours(graph.grid.height, graph.grid.width, offsets))
    masks = [colours == colour for colour in range(int(colours.max()) + 1)]
    return [WholePlan(mask.reshape(-1, 1, 1).to(graph.cardinalities.device)) for mask in masks]
