r"""Loopy belief propagation: sum-product, max-product and everything between.

    temperature 1: marginals;  0: max-marginals and the most probable state;  T: those of P(y)^{1/T}

Exact on trees; on loopy graphs a fixed point is a stationary point of the Bethe free energy (Yedidia, Freeman
& Weiss 2005; Kschischang, Frey & Loeliger, "Factor graphs and the sum-product algorithm", 2001). The
equations are in `network`, the orders of updating in `schedule`. On a `GridFactorGraph` neighbours are windows of a
map, and where potentials allow messages are passed without logarithms (`linear_grid`): same answers, less time.

Weighted message passing: belief propagation and its tree-reweighted form are one set of equations.

Give each factor F a weight ρ_F (1: belief propagation; the probability of appearing in a random spanning
tree: tree-reweighted, Wainwright, Jaakkola & Willsky, "A new class of upper bounds on the log partition
function", IEEE Trans. Information Theory 2005). With B_p the belief and n_{p→F} the message to a factor,

    B_p      = θ_p + Σ_F ρ_F β_{F→p}                       P(y_p) ∝ exp B_p
    n_{p→F}  = B_p − β_{F→p}
    β_{F→p}  = log Σ_{y_F \ y_p} exp[ θ_F / ρ_F + Σ_{q≠p} n_{q→F} ]
    log Z    ≈ Σ_F ρ_F log Z_F + Σ_p (1 − Σ_{F∋p} ρ_F) log Z_p
    Z_F      = Σ_{y_F} exp[ θ_F / ρ_F + Σ_p n_{p→F} ],     Z_p = Σ_{y_p} exp B_p

At a fixed point the last expression is the (reweighted) Bethe free energy; it is stationary in the messages
(Yedidia, Freeman & Weiss, "Constructing free-energy approximations", 2005), so its gradient in θ is the
factor marginals. It never meets 0·log 0, and adding a constant to a message leaves it unchanged.

In which order messages are renewed.

- **synchronous** ("flooding"): all from the previous iteration's. On a grid without zeros and within range this is
  `linear_grid`, the same messages without a logarithm.
- **sequential**: factor after factor in their listed order, then back, each using the newest messages. Factors
  that share no variable with an earlier one still waiting can go together without changing the outcome, so
  the order is cut into waves; a wave is one tensor operation per group. Waves are index lists on grids, too.
- **residual**: all candidates are computed, those that would change most are accepted, the rest wait (Elidan,
  McGraw & Koller, "Residual belief propagation", UAI 2006; accepting a fraction at once: Van der Merwe, Joseph
  & Gopalakrishnan, "Message scheduling for performant, many-core belief propagation", HPEC 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph.factor_graph import FactorGraph, Potentials
from messagenet.inference.engine import (
    Outcome,
    PassingSettings,
    Problem,
    Progress,
    Result,
    Schedule,
    align,
    iterate,
)
from messagenet.inference.factors import FactorTable, by_position, collect, gather, num_rows, widen
from messagenet.inference.grid_propagation import LinearGrid
from messagenet.inference.log_math import INF, change, log_normalise, logsumexp, subtract


@dataclass(frozen=True, eq=False)
class Network:
    """A problem ready for message passing. Messages are (rows, batch, max_cardinality), 0 beyond the states.

    Attributes:
        problem: the graph and its potentials.
        unary: (variables, batch, max_cardinality) log-potentials of the variables themselves.
        tables: per group, θ_F / ρ_F; None for groups of order below two.
        weights: ρ_F at every row, (rows, 1, 1), or None when all are one.
        maximise: max-product instead of sum-product.
    """

    problem: Problem
    unary: Tensor
    tables: tuple[FactorTable | None, ...]
    weights: Tensor | None
    maximise: bool

    @classmethod
    def build(cls, problem: Problem, *, maximise: bool, factor_weights: Tensor | None = None) -> Network:
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
        """All zero: every state equally likely."""
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
            raise InputError("messages to begin with must be finite; leave them out to begin with zeros")
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
        """Takes messages off beliefs, minding zeros only where there are any."""
        return subtract(beliefs, messages) if self.problem.has_zeros else beliefs - messages

    def incoming(self, cavities: Tensor) -> list[list[Tensor]]:
        """The cavities by group and position, (factors, batch, states); none for groups of order below two."""
        return by_position(cavities, self.problem.graph)

    def update(self, messages: Tensor, spare: Tensor | None = None) -> Tensor:
        """Every β_{F→p} at once, from the messages of the previous iteration.

        Written into `spare` if given: memory reused is several times faster than memory asked for anew.
        """
        cavities = self.cavities(self.beliefs(messages), messages)
        parts = [
            self.widen(part)
            for table, incoming in zip(self.tables, self.incoming(cavities), strict=True)
            if table is not None
            for part in table.messages(incoming)
        ]
        return torch.cat(parts) if spare is None else torch.cat(parts, out=spare)

    def widen(self, message: Tensor) -> Tensor:
        """Fills the states a variable does not have with zeros."""
        return widen(message, self.unary.shape[-1])

    def log_marginals(self, beliefs: Tensor) -> Tensor:
        """(variables, batch, max_cardinality) normalised beliefs."""
        beliefs = self.problem.mask(beliefs)
        self.problem.require_possible(beliefs)
        return log_normalise(beliefs)

    def log_factor_marginals(self, messages: Tensor) -> list[Tensor]:
        """Per group (factors, batch, *shape) logs of joint probabilities, consistent at a fixed point."""
        beliefs = self.beliefs(messages)
        incoming = self.incoming(self.cavities(beliefs, messages))
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
        incoming = self.incoming(self.cavities(beliefs, messages))
        valid = self.problem.mask(beliefs)
        per_variable = valid.amax(-1) if self.maximise else logsumexp(valid, [-1])[..., 0]
        total = self.problem.constant() + ((1 - self._degrees()) * per_variable).sum(0)
        for number, table in enumerate(self.tables):
            if table is not None:
                per_factor = table.log_partition(incoming[number])
                total = total + (self._group_weights(number) * per_factor).sum(0)
        return total

    def _degrees(self) -> Tensor:
        """(variables, 1) Σ_{F∋p} ρ_F."""
        graph = self.problem.graph
        ones = self.unary.new_ones(num_rows(graph), 1, 1)
        return collect(self.weigh(ones), graph)[..., 0]

    def _group_weights(self, number: int) -> Tensor | float:
        if self.weights is None:
            return 1.0
        start = self.problem.graph.incidence.starts[number][0]
        return self.weights[start : start + len(self.problem.graph.groups[number]), :, 0]


def damp(new: Tensor, old: Tensor, damping: float) -> Tensor:
    """(1 − damping)·new + damping·old in the log domain."""
    return new if damping == 0 else (1 - damping) * new + damping * old


def argmax_states(log_marginals: Tensor) -> Tensor:
    """(variables, batch) each variable's most probable state."""
    return log_marginals.argmax(-1)


def waves(scopes: Iterable[Sequence[int]]) -> list[list[int]]:
    """Cuts a list of scopes into waves: within one no variable occurs twice, and the order is kept.

    >>> waves([(0, 1), (2, 3), (1, 2)])
    [[0, 1], [2]]
    """
    last: dict[int, int] = {}
    cut: list[list[int]] = []
    for number, scope in enumerate(scopes):
        wave = 1 + max((last.get(variable, -1) for variable in scope), default=-1)
        last.update(dict.fromkeys(scope, wave))
        if wave == len(cut):
            cut.append([])
        cut[wave].append(number)
    return cut


@dataclass(frozen=True, eq=False)
class WavePart:
    """The factors of one group in one wave: their table, and rows and variables of all positions in turn."""

    table: FactorTable
    shape: tuple[int, ...]
    rows: Tensor
    variables: Tensor


def plan_waves(network: Network) -> list[WavePart]:
    """The parts of every wave over all factors of order two or more, in the user's order."""
    graph: FactorGraph = network.problem.graph
    place = sorted(
        (factor, number, index)
        for number, group in enumerate(graph.groups)
        if group.order >= 2
        for index, factor in enumerate(group.factor_ids.tolist())
    )
    scopes = [group.scopes.tolist() for group in graph.groups]
    plan: list[WavePart] = []
    for wave in waves(scopes[number][index] for _, number, index in place):
        members: dict[int, list[int]] = {}
        for item in wave:
            members.setdefault(place[item][1], []).append(place[item][2])
        plan.extend(_part(network, number, indices) for number, indices in members.items())
    return plan


def _part(network: Network, number: int, indices: list[int]) -> WavePart:
    graph, table = network.problem.graph, network.tables[number]
    assert table is not None
    group = graph.groups[number]
    chosen = torch.tensor(indices, device=group.scopes.device)
    rows = torch.cat([chosen + start for start in graph.incidence.starts[number]])
    return WavePart(table.select(chosen), group.shape, rows, group.scopes[chosen].T.reshape(-1))


def sweep(
    network: Network, plan: Sequence[WavePart], messages: Tensor, damping: float
) -> tuple[Tensor, Tensor]:
    """One pass over the waves; returns the new messages and the largest change of any."""
    beliefs = network.beliefs(messages)
    largest = messages.new_zeros(())
    for part in plan:
        before = messages[part.rows]
        cavities = network.cavity(beliefs[part.variables], before).chunk(len(part.shape))
        incoming = [cavity[..., :size] for cavity, size in zip(cavities, part.shape, strict=True)]
        new = torch.cat([network.widen(message) for message in part.table.messages(incoming)])
        after = damp(new, before, damping)
        moved = after - before
        if network.problem.has_zeros:
            moved = moved.masked_fill((after == -INF) & (before == -INF), 0)
        largest = torch.maximum(largest, moved.detach().abs().amax())
        weighted = moved if network.weights is None else network.weights[part.rows] * moved
        if network.problem.requires_grad:
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


Step = Callable[[Tensor], tuple[Tensor, Tensor | None]]  # messages to newer ones and the largest change


def synchronous(network: Network, settings: PassingSettings) -> Step:
    """All messages from the previous ones; the change is measured only if there is a tolerance."""
    tracked = network.problem.requires_grad
    spare: Tensor | None = None

    def step(messages: Tensor) -> tuple[Tensor, Tensor | None]:
        nonlocal spare
        candidates = damp(network.update(messages, spare), messages, settings.damping)
        largest = None if settings.tolerance is None else change(candidates, messages).detach().amax()
        spare = None if tracked else messages
        return candidates, largest

    return step


def sequential(network: Network, settings: PassingSettings) -> Step:
    """Through the waves and back."""
    plan = plan_waves(network)

    def step(messages: Tensor) -> tuple[Tensor, Tensor | None]:
        messages, forth = sweep(network, plan, messages, settings.damping)
        messages, back = sweep(network, plan[::-1], messages, settings.damping)
        return messages, torch.maximum(forth, back)

    return step


def residual(network: Network, settings: PassingSettings) -> Step:
    """Only the messages that would change most."""

    def step(messages: Tensor) -> tuple[Tensor, Tensor | None]:
        candidates = damp(network.update(messages), messages, settings.damping)
        return accept_largest(candidates, messages, settings.residual_fraction)

    return step


SCHEDULES: dict[Schedule, Callable[[Network, PassingSettings], Step]] = {
    "synchronous": synchronous,
    "sequential": sequential,
    "residual": residual,
}


def propagate(network: Network, settings: PassingSettings, start: Tensor | None = None) -> Outcome:
    """Renews messages until none changes by more than the tolerance, or the iterations are used up.

    Args:
        network: the problem.
        settings: of the run.
        start: messages to begin with; None for zeros.
    """
    linear = LinearGrid.build(network) if settings.schedule == "synchronous" else None
    if linear is not None:
        return linear.propagate(settings, start)
    messages = network.initial_messages() if start is None else start
    progress = Progress(0, True, ())
    if len(messages):
        messages, progress = iterate(SCHEDULES[settings.schedule](network, settings), messages, settings)
    return Outcome(progress, network.beliefs(messages), lambda: messages)


@dataclass(frozen=True)
class BeliefPropagation(PassingSettings):
    """Settings of belief propagation; `log_z` of its result is the Bethe approximation.

    >>> import torch
    >>> from messagenet.graph.builders import chain_graph
    >>> graph = chain_graph([2, 2])
    >>> potentials = [torch.tensor([[0.0, 1.0], [0.0, 0.0]]), 2.0 * torch.eye(2)[None]]
    >>> BeliefPropagation().run(graph, potentials).marginals
    tensor([[0.2689, 0.7311], [0.3240, 0.6760]])
    """

    def run(self, graph: FactorGraph, potentials: Potentials, messages: Tensor | None = None) -> Result:
        """Passes messages and reads off beliefs.

        Args:
            graph: The structure.
            potentials: One tensor of log-potentials per group.
            messages: What to begin with, such as `Result.messages` of a run on similar potentials; None for messages
                that say nothing. No gradient flows into them.
        """
        return pass_messages(graph, potentials, self, messages=messages)


def pass_messages(
    graph: FactorGraph,
    potentials: Potentials,
    settings: PassingSettings,
    factor_weights: Tensor | None = None,
    messages: Tensor | None = None,
) -> Result:
    """Runs the schedule and reads the answers off the final messages.

    Args:
        graph: the structure.
        potentials: one tensor of log-potentials per group.
        settings: of the run.
        factor_weights: (factors,) ρ_F in the user's order; None for ones.
        messages: (*batch, rows, max_cardinality) to begin with; None for zeros.
    """
    problem = align(graph, potentials, settings.temperature)
    network = Network.build(problem, maximise=settings.temperature == 0, factor_weights=factor_weights)
    start = None if messages is None else network.as_messages(messages)
    outcome = propagate(network, settings, start)
    log_marginals = network.log_marginals(outcome.beliefs)
    scale = settings.temperature if settings.temperature > 0 else 1.0
    return Result(
        log_marginals=problem.publish(log_marginals),
        iterations=outcome.progress.iterations,
        converged=outcome.progress.converged,
        history=outcome.progress.history,
        compute_log_z=lambda: problem.publish_batch(scale * network.log_z(outcome.messages)),
        compute_log_factor_marginals=lambda: tuple(
            problem.publish(table) for table in network.log_factor_marginals(outcome.messages)
        ),
        compute_map_state=lambda: problem.publish(argmax_states(log_marginals)),
        compute_messages=lambda: problem.publish(outcome.messages),
    )
