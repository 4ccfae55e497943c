"""In which order to sum variables out, and how large the tables then become.

Summing out a variable joins all its neighbours into one table, so the order decides the cost of exact
inference; the best order is NP-hard to find. Two heuristics are tried and the cheaper kept: min-fill (take the
variable whose neighbours lack the fewest edges; Kjaerulff 1990), which is good on irregular graphs, and a
breadth-first sweep from the rim (Cuthill & McKee 1969), which on grids keeps the frontier as short as a
diagonal.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Adjacency = list[set[int]]


@dataclass(frozen=True)
class Elimination:
    """Tables met when summing variables out in order.

    Attributes:
        cliques: per step, the variable summed out followed by its neighbours then, the last to go first.
        largest: entries of the largest table met.
        total: entries of all tables together.
        complete: False when it was given up because a table exceeded the limit.
    """

    cliques: list[tuple[int, ...]]
    largest: int
    total: int
    complete: bool

    @property
    def width(self) -> int:
        """Variables in the largest clique."""
        return max((len(clique) for clique in self.cliques), default=0)


def neighbours(num_variables: int, scopes: Iterable[Sequence[int]]) -> Adjacency:
    """Which variables share a factor."""
    adjacency: Adjacency = [set() for _ in range(num_variables)]
    for scope in scopes:
        for variable in scope:
            adjacency[variable].update(scope)
    for variable, near in enumerate(adjacency):
        near.discard(variable)
    return adjacency


def best_elimination(cardinalities: Sequence[int], adjacency: Adjacency, limit: int) -> Elimination:
    """The cheaper of the two orders; not complete when neither keeps every table within `limit` entries."""
    by_fill = eliminate(cardinalities, adjacency, None, limit)
    if by_fill.complete and by_fill.total <= 64 * sum(cardinalities):
        return by_fill
    by_sweep = eliminate(cardinalities, adjacency, breadth_first(adjacency), limit)
    return min(by_fill, by_sweep, key=lambda plan: (not plan.complete, plan.total))


def eliminate(
    cardinalities: Sequence[int], adjacency: Adjacency, order: Sequence[int] | None, limit: int
) -> Elimination:
    """Sums out in the given order (None: min-fill), stopping at the first table above `limit` entries.

    >>> ring = neighbours(4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    >>> eliminate([2] * 4, ring, None, limit=100).cliques
    [(0, 3, 1), (1, 3, 2), (2, 3), (3,)]
    """
    graph = [set(near) for near in adjacency]
    steps: list[tuple[int, list[int]]] = []
    largest = total = 0
    for variable in _by_fill(graph) if order is None else order:
        near = graph[variable]
        size = cardinalities[variable] * math.prod(cardinalities[other] for other in near)
        largest, total = max(largest, size), total + size
        steps.append((variable, list(near)))
        if size > limit:
            break
        for other in near:
            graph[other] |= near
            graph[other] -= {other, variable}
        graph[variable] = set()
    rank = {variable: step for step, (variable, _) in enumerate(steps)}
    last = len(steps)
    cliques = [(variable, *sorted(near, key=lambda v: (-rank.get(v, last), v))) for variable, near in steps]
    return Elimination(cliques, largest, total, len(steps) == len(adjacency))


def _by_fill(graph: Adjacency) -> Iterator[int]:
    """Yields variables by min-fill while the caller eliminates them from `graph`."""
    waiting = set(range(len(graph)))
    leaves = [variable for variable in waiting if len(graph[variable]) <= 1]
    while leaves:
        variable = leaves.pop()
        if variable in waiting:
            waiting.discard(variable)
            near = tuple(graph[variable])
            yield variable
            leaves.extend(other for other in near if len(graph[other]) <= 1)
    current = {variable: _fill(graph, variable) for variable in waiting}
    heap = [(fill, variable) for variable, fill in current.items()]
    heapq.heapify(heap)
    while heap:
        fill, variable = heapq.heappop(heap)
        if variable not in waiting or current[variable] != fill:
            continue
        waiting.discard(variable)
        near = tuple(graph[variable])
        yield variable
        for other in set(near).union(*(graph[other] for other in near)):
            renewed = _fill(graph, other)
            if renewed != current[other]:
                current[other] = renewed
                heapq.heappush(heap, (renewed, other))


def _fill(graph: Adjacency, variable: int) -> int:
    near = graph[variable]
    return sum(len(near - graph[other]) - 1 for other in near) // 2


def breadth_first(adjacency: Adjacency) -> list[int]:
    """Cuthill-McKee order of every component, from a variable at its rim."""
    order: list[int] = []
    seen: set[int] = set()
    for variable in sorted(range(len(adjacency)), key=lambda v: len(adjacency[v])):
        if variable not in seen:
            rim = _sweep(adjacency, variable)[-1]
            component = _sweep(adjacency, rim)
            seen.update(component)
            order.extend(component)
    return order


def _sweep(adjacency: Adjacency, start: int) -> list[int]:
    order, seen = [start], {start}
    for variable in order:
        for other in sorted(adjacency[variable] - seen, key=lambda v: (len(adjacency[v]), v)):
            seen.add(other)
            order.append(other)
    return order
