r"""Loopy belief propagation: sum-product, max-product and everything between.

    temperature 1: marginals;  0: max-marginals and the most probable state;  T: those of P(y)^{1/T}

Give each factor F a weight ρ_F: 1 for belief propagation, the probability of appearing in a random spanning tree for
the tree-reweighted form (Wainwright, Jaakkola & Willsky, "A new class of upper bounds on the log partition function",
IEEE Trans. Information Theory 2005). With B_p the belief and n_{p→F} the message to a factor,

    B_p      = θ_p + Σ_F ρ_F β_{F→p}                       P(y_p) ∝ exp B_p
    n_{p→F}  = B_p − β_{F→p}
    β_{F→p}  = log Σ_{y_F \ y_p} exp[ θ_F / ρ_F + Σ_{q≠p} n_{q→F} ]
    log Z    ≈ Σ_F ρ_F log Z_F + Σ_p (1 − Σ_{F∋p} ρ_F) log Z_p
    Z_F      = Σ_{y_F} exp[ θ_F / ρ_F + Σ_p n_{p→F} ],     Z_p = Σ_{y_p} exp B_p

Belief propagation is exact on trees (Kschischang, Frey & Loeliger 2001). On loopy graphs a fixed point is a stationary
point of the (reweighted) Bethe free energy, the expression for log Z (Yedidia, Freeman & Weiss 2005). It is stationary
in the messages, so its gradient in θ is the factor marginals. Schedules:

- **synchronous**: all messages from those of the previous iteration; on a `GridFactorGraph` by `grid_propagation`
  where the potentials allow it.
- **sequential**: factor after factor in the user's order, then back, each from the newest messages. Factors that
  need not wait for each other, as they share no variable, form a wave: one tensor operation per group.
- **residual**: all candidates are computed, the fraction with the largest changes is accepted (Elidan, McGraw & Koller,
  UAI 2006; Van der Merwe, Joseph & Gopalakrishnan, HPEC 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph.factor_graph import FactorGraph, Potentials
from messagenet.inference.engine import PassingSettings, Problem, Propagation, Result, Trace, align, iterate
from messagenet.inference.evidence import observe
from messagenet.inference.factors import FactorTable, by_position, collect, gather, num_rows, widen
from messagenet.inference.grid_propagation import LinearGrid
from messagenet.inference.log_math import INF, change, log_normalise, logsumexp, subtract
from messagenet.settings import register


@dataclass(frozen=True, eq=False)
class Propagator:
    """A problem ready for message passing. Messages are (rows, batch, max_cardinality), 0 beyond the states."""

    problem: Problem
    unary: Tensor  # (variables, batch, max_cardinality)
    tables: tuple[FactorTable | None, ...]  # per group, θ_F / ρ_F; None below order two
    weights: Tensor | None  # (rows, 1, 1) ρ_F; None when all are one
    maximise: bool  # max-product instead of sum-product

    @classmethod
    def build(cls, problem: Problem, *, maximise: bool, factor_weights: Tensor | None = None) -> Propagator:
        """Prepares the tables, given ρ_F for each factor in the user's order."""
        tables: list[FactorTable | None] = []
        rows: list[Tensor] = []
        for group, logs in zip(problem.graph.groups, problem.aligned, strict=True):
            if group.order < 2:
                tables.append(None)
                continue
            if factor_weights is not None:
                weights = factor_weights.to(**problem.options)[group.factor_ids]
                rows.append(weights.repeat(group.order))
                logs = logs / weights.reshape(-1, *[1] * (logs.ndim - 1))
            tables.append(FactorTable.prepare(logs, maximise=maximise))
        row_weights = torch.cat(rows)[:, None, None] if rows else None
        return cls(problem, problem.unary(), tuple(tables), row_weights, maximise)

    def initial_messages(self) -> Tensor:
        """Zeros: every state equally likely."""
        return self.unary.new_zeros(num_rows(self.problem.graph), *self.unary.shape[1:])

    def as_messages(self, given: Tensor) -> Tensor:
        """A user's messages, (*batch, rows, max_cardinality), checked and laid out."""
        expected = self.initial_messages()
        rows, batch, states = expected.shape
        shape = (rows, states) if self.problem.batch is None else (batch, rows, states)
        if given.shape != shape:
            raise InputError(
                f"messages have shape {tuple(given.shape)}; this graph's are {shape}, as in Result.messages"
            )
        possible = torch.isfinite(given) | ((given == -INF) & self.problem.has_zeros)
        if not bool(possible.all()):
            raise InputError("initial messages must be finite; leave them out to start with zeros")
        return given.detach().reshape(-1, rows, states).movedim(0, 1).to(expected)

    def weigh(self, rows: Tensor) -> Tensor:
        """ρ_F times each row."""
        return rows if self.weights is None else rows * self.weights

    def beliefs(self, messages: Tensor) -> Tensor:
        """B_p, unnormalised: (variables, batch, max_cardinality)."""
        return self.unary + collect(self.weigh(messages), self.problem.graph)

    def cavities(self, beliefs: Tensor, messages: Tensor) -> Tensor:
        """n_{p→F} at every row."""
        return self.cavity(gather(beliefs, self.problem.graph), messages)

    def cavity(self, beliefs: Tensor, messages: Tensor) -> Tensor:
        """Beliefs less messages; the slower way that is safe at zeros only where there are any."""
        return subtract(beliefs, messages) if self.problem.has_zeros else beliefs - messages

    def update(self, messages: Tensor, spare: Tensor | None = None) -> Tensor:
        """Every β_{F→p} at once, written into `spare` if given (several times faster than new memory)."""
        cavities = self.cavities(self.beliefs(messages), messages)
        parts = [
            widen(part, self.unary.shape[-1])
            for table, incoming in zip(self.tables, by_position(cavities, self.problem.graph), strict=True)
            if table is not None
            for part in table.messages(incoming)
        ]
        return torch.cat(parts) if spare is None else torch.cat(parts, out=spare)

    def log_marginals(self, beliefs: Tensor) -> Tensor:
        """(variables, batch, max_cardinality) normalised beliefs."""
        beliefs = self.problem.mask(beliefs)
        self.problem.require_possible(beliefs)
        return log_normalise(beliefs)

    def log_factor_marginals(self, messages: Tensor) -> list[Tensor]:
        """Per group (factors, batch, *shape) logs of joint probabilities, consistent at a fixed point."""
        beliefs = self.beliefs(messages)
        incoming = by_position(self.cavities(beliefs, messages), self.problem.graph)
        marginals: list[Tensor] = []
        for group, table, received in zip(self.problem.graph.groups, self.tables, incoming, strict=True):
            if table is not None:
                marginals.append(table.log_beliefs(received))
            elif group.order == 1:
                marginals.append(log_normalise(beliefs[group.scopes[:, 0], :, : group.shape[0]]))
            else:
                marginals.append(self.unary.new_zeros(len(group), self.unary.shape[1]))
        return marginals

    def log_z(self, messages: Tensor) -> Tensor:
        """(batch,) the reweighted Bethe estimate of log Z; of the largest score when maximising."""
        beliefs = self.beliefs(messages)
        incoming = by_position(self.cavities(beliefs, messages), self.problem.graph)
        valid = self.problem.mask(beliefs)
        per_variable = valid.amax(-1) if self.maximise else logsumexp(valid, [-1])[..., 0]
        graph = self.problem.graph
        weights = self.weigh(self.unary.new_ones(num_rows(graph), 1, 1))
        degrees = collect(weights, graph)[..., 0]  # (variables, 1) Σ_{F∋p} ρ_F
        total = self.problem.constant() + ((1 - degrees) * per_variable).sum(0)
        for table, received, rho in zip(self.tables, incoming, by_position(weights, graph), strict=True):
            if table is not None:
                total = total + (rho[0][..., 0] * table.log_partition(received)).sum(0)
        return total


def damp(new: Tensor, old: Tensor, damping: float) -> Tensor:
    """(1 − damping)·new + damping·old in the log domain."""
    return new if damping == 0 else (1 - damping) * new + damping * old


def waves(scopes: Iterable[Sequence[int]]) -> list[list[int]]:
    """Cuts a list of scopes into waves: within one no variable occurs twice, and the order is kept.

    >>> waves([(0, 1), (2, 3), (1, 2)])
    [[0, 1], [2]]
    """
    last: dict[int, int] = {}
    cut: list[list[int]] = []
    for index, scope in enumerate(scopes):
        wave = 1 + max((last.get(variable, -1) for variable in scope), default=-1)
        last.update(dict.fromkeys(scope, wave))
        if wave == len(cut):
            cut.append([])
        cut[wave].append(index)
    return cut


@dataclass(frozen=True, eq=False)
class WavePart:
    """The factors of one group in one wave: their table, and rows and variables of all positions in turn."""

    table: FactorTable
    shape: tuple[int, ...]
    rows: Tensor
    variables: Tensor


def plan_waves(propagator: Propagator) -> list[WavePart]:
    """The parts of every wave over all factors of order two or more, in the user's order."""
    graph: FactorGraph = propagator.problem.graph
    listed = sorted(
        (factor, group_index, row)
        for group_index, group in enumerate(graph.groups)
        if group.order >= 2
        for row, factor in enumerate(group.factor_ids.tolist())
    )
    scopes = [group.scopes.tolist() for group in graph.groups]
    plan: list[WavePart] = []
    for wave in waves(scopes[group_index][row] for _, group_index, row in listed):
        members: dict[int, list[int]] = {}
        for item in wave:
            members.setdefault(listed[item][1], []).append(listed[item][2])
        for group_index, factors in members.items():
            group, table = graph.groups[group_index], propagator.tables[group_index]
            assert table is not None
            chosen = torch.tensor(factors, device=group.scopes.device)
            rows = torch.cat([chosen + start for start in graph.incidence.starts[group_index]])
            plan.append(WavePart(table.select(chosen), group.shape, rows, group.scopes[chosen].T.reshape(-1)))
    return plan


def sweep(propagator: Propagator, plan: Sequence[WavePart], messages: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """One pass over the waves; returns the new messages and the largest change of any."""
    beliefs = propagator.beliefs(messages)
    largest = messages.new_zeros(())
    for part in plan:
        before = messages[part.rows]
        cavities = propagator.cavity(beliefs[part.variables], before).chunk(len(part.shape))
        incoming = [cavity[..., :size] for cavity, size in zip(cavities, part.shape, strict=True)]
        new = torch.cat([widen(message, messages.shape[-1]) for message in part.table.messages(incoming)])
        after = damp(new, before, damping)
        moved = after - before
        if propagator.problem.has_zeros:
            moved = moved.masked_fill((after == -INF) & (before == -INF), 0)
        largest = torch.maximum(largest, moved.detach().abs().amax())
        weighted = moved if propagator.weights is None else propagator.weights[part.rows] * moved
        if propagator.problem.requires_grad:
            beliefs = beliefs.index_add(0, part.variables, weighted)
            messages = messages.index_copy(0, part.rows, after)
        else:
            beliefs.index_add_(0, part.variables, weighted)
            messages.index_copy_(0, part.rows, after)
    return messages, largest


def accept_largest(candidates: Tensor, messages: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
    """Replaces, in each item of the batch, the fraction of messages that would change most."""
    moved = change(candidates, messages).detach().amax(-1)  # (rows, batch)
    count = max(1, math.ceil(fraction * len(moved)))
    threshold = moved.topk(count, dim=0).values[-1]
    return torch.where((moved >= threshold)[..., None], candidates, messages), moved.amax()


Step = Callable[[Tensor], tuple[Tensor, Tensor | None]]  # messages to the next ones and the largest change


def make_step(propagator: Propagator, settings: PassingSettings) -> Step:
    """One iteration of the schedule; the synchronous one measures its change only if there is a tolerance."""
    tracked = propagator.problem.requires_grad
    plan = plan_waves(propagator) if settings.schedule == "sequential" else []
    spare: Tensor | None = None

    def synchronous(messages: Tensor) -> tuple[Tensor, Tensor | None]:
        nonlocal spare
        candidates = damp(propagator.update(messages, spare), messages, settings.damping)
        largest = None if settings.tolerance is None else change(candidates, messages).detach().amax()
        spare = None if tracked else messages
        return candidates, largest

    def sequential(messages: Tensor) -> tuple[Tensor, Tensor | None]:
        messages, forward = sweep(propagator, plan, messages, settings.damping)
        messages, backward = sweep(propagator, plan[::-1], messages, settings.damping)
        return messages, torch.maximum(forward, backward)

    def residual(messages: Tensor) -> tuple[Tensor, Tensor | None]:
        candidates = damp(propagator.update(messages), messages, settings.damping)
        return accept_largest(candidates, messages, settings.residual_fraction)

    return {"synchronous": synchronous, "sequential": sequential, "residual": residual}[settings.schedule]


def propagate(propagator: Propagator, settings: PassingSettings, start: Tensor | None = None) -> Propagation:
    """Runs the schedule from initial messages `start`; None for zeros."""
    linear = LinearGrid.build(propagator) if settings.schedule == "synchronous" else None
    if linear is not None:
        return linear.propagate(settings, start)
    messages = propagator.initial_messages() if start is None else start
    trace = Trace(0, True, ())
    if len(messages):
        messages, trace = iterate(
            make_step(propagator, settings), messages, settings.max_iterations, settings.tolerance
        )
    return Propagation(trace, propagator.beliefs(messages), lambda: messages)


@register("engine", "bp")
@dataclass(frozen=True)
class BeliefPropagation(PassingSettings):
    """Settings of belief propagation; `log_z` of its result is the Bethe approximation.

    >>> from messagenet.graph.builders import chain_graph
    >>> potentials = [torch.tensor([[0.0, 1.0], [0.0, 0.0]]), 2.0 * torch.eye(2)[None]]
    >>> BeliefPropagation().run(chain_graph([2, 2]), potentials).marginals
    tensor([[0.2689, 0.7311], [0.3240, 0.6760]])
    """

    def run(
        self,
        graph: FactorGraph,
        potentials: Potentials,
        messages: Tensor | None = None,
        *,
        evidence: Mapping[int, int] | None = None,
    ) -> Result:
        """Passes messages and computes beliefs.

        Args:
            graph: the structure.
            potentials: one table of log-potentials per factor, or one tensor per group.
            messages: initial messages (without gradient), such as `Result.messages` of a similar run; None for zeros.
            evidence: observed {variable: state}.
        """
        if evidence is not None:
            return observe(graph, potentials, evidence).run(self, messages)
        problem = align(graph, potentials, self.temperature)
        weights = self.factor_weights(graph)
        propagator = Propagator.build(problem, maximise=self.temperature == 0, factor_weights=weights)
        start = None if messages is None else propagator.as_messages(messages)
        final = propagate(propagator, self, start)
        log_marginals = propagator.log_marginals(final.beliefs)
        scale = self.temperature if self.temperature > 0 else 1.0
        return Result(
            problem.to_user_layout(log_marginals),
            *final.trace,
            compute_log_z=lambda: problem.to_user_batch(scale * propagator.log_z(final.messages)),
            compute_log_factor_marginals=lambda: problem.to_user_factors(
                propagator.log_factor_marginals(final.messages)
            ),
            compute_map_state=lambda: problem.to_user_layout(log_marginals.argmax(-1)),
            compute_messages=lambda: problem.to_user_layout(final.messages),
        )

    def factor_weights(self, graph: FactorGraph) -> Tensor | None:
        """ρ_F of each factor, (factors,); None for ones."""
        return None
