"""In which order messages are renewed.

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

from messagenet.graph.factor_graph import FactorGraph
from messagenet.inference.linear_grid import LinearGrid
from messagenet.inference.logspace import INF, change
from messagenet.inference.messages import FactorTable
from messagenet.inference.network import Network, damp
from messagenet.inference.passing import Outcome, PassingSettings, Progress, Schedule, iterate


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
