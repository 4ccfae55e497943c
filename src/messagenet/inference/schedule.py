"""In which order messages are renewed.

- **synchronous** ("flooding"): all from the previous iteration's.
- **sequential**: factor after factor in their listed order, then back, each using the newest messages. Factors
  that share no variable with an earlier one still waiting can go together without changing the outcome, so
  the order is cut into waves; a wave is one tensor operation per group.
- **residual**: all candidates are computed, those that would change most are accepted, the rest wait (Elidan,
  McGraw & Koller, "Residual belief propagation", UAI 2006; accepting a fraction at once: Van der Merwe, Joseph
  & Gopalakrishnan, "Message scheduling for performant, many-core belief propagation", HPEC 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from messagenet.errors import InputError, nearest
from messagenet.graph.factor_graph import FactorGraph
from messagenet.inference.logspace import INF, change
from messagenet.inference.messages import FactorTable
from messagenet.inference.network import Network, damp

Schedule = Literal["synchronous", "sequential", "residual"]


@dataclass(frozen=True)
class PassingSettings:
    """What belief propagation and its tree-reweighted form have in common.

    Attributes:
        temperature: 1 for sum-product, 0 for max-product.
        schedule: "synchronous", "sequential" or "residual".
        damping: how much of the old message to keep, in the log domain.
        max_iterations: at most so many; a sequential iteration goes through the factors and back.
        tolerance: largest change of a message at which to stop; None runs exactly `max_iterations` and
            measures nothing, which is fastest.
        residual_fraction: share of the messages the residual schedule accepts in an iteration.
    """

    temperature: float = 1.0
    schedule: Schedule = "synchronous"
    damping: float = 0.0
    max_iterations: int = 500
    tolerance: float | None = 1e-5
    residual_fraction: float = 0.1

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise InputError(f'schedule "{self.schedule}" is not known; {nearest(self.schedule, SCHEDULES)}')
        if not 0 <= self.damping < 1:
            raise InputError(f"damping is {self.damping}; it must be at least 0 and below 1")
        if self.max_iterations < 1:
            raise InputError(f"max_iterations is {self.max_iterations}; it must be at least 1")
        if not 0 < self.residual_fraction <= 1:
            raise InputError(
                f"residual_fraction is {self.residual_fraction}; it must be above 0 and at most 1"
            )


@dataclass(frozen=True)
class Outcome:
    """Messages after the last iteration and how the run went."""

    messages: Tensor
    iterations: int
    converged: bool
    history: tuple[float, ...]


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


SCHEDULES: dict[str, Callable[[Network, PassingSettings], Step]] = {
    "synchronous": synchronous,
    "sequential": sequential,
    "residual": residual,
}


def propagate(network: Network, settings: PassingSettings) -> Outcome:
    """Renews messages until none changes by more than the tolerance, or the iterations are used up."""
    messages = network.initial_messages()
    if len(messages) == 0:
        return Outcome(messages, 0, True, ())
    step = SCHEDULES[settings.schedule](network, settings)
    history: list[float] = []
    for iteration in range(settings.max_iterations):
        messages, largest = step(messages)
        if settings.tolerance is not None and largest is not None:
            history.append(float(largest))
            if history[-1] <= settings.tolerance:
                return Outcome(messages, iteration + 1, True, tuple(history))
    return Outcome(messages, settings.max_iterations, False, tuple(history))
