"""Exact inference: the reference for every other engine.

Either the joint table is written out (`enumerate`), or variables are summed out one by one (`eliminate`), which costs
as much as the largest intermediate table: exponential in the treewidth. Both are passes over a tree of cliques, the
first with a single clique. Both are differentiable: the gradient of log Z is the factor marginals.

Upwards, every clique C sums its own variables out of the product of its factors and its children's messages, which
leaves a message over the separator S shared with its parent; the roots' messages are log Z. Downwards

    P(y_C) = P(y_C | y_S) P(y_S),        log P(y_C | y_S) = table_C − message_S,

so nothing is divided by a number that may be zero (Lauritzen & Spiegelhalter 1988; Dechter, "Bucket elimination",
1999). With max for Σ the same steps give max-marginals, and a walk down with every maximiser fixed the MAP state.

The elimination order decides the cost; the best is NP-hard to find. The cheaper of two is taken: min-fill (Kjaerulff
1990), good on irregular graphs, and a breadth-first sweep from the rim (Cuthill & McKee 1969), good on grids.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Literal, get_args

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph.factor_graph import FactorGraph, Potentials
from messagenet.inference.engine import IMPOSSIBLE, Problem, Result, align, check_settings
from messagenet.inference.evidence import ConditionalEngine, possible_states, restrict
from messagenet.inference.log_math import INF, add_fresh, exp_fresh, log_normalise, logsumexp, peak, subtract
from messagenet.settings import register


@dataclass(frozen=True, eq=False)
class Table:
    """A function of some variables: (batch or 1, *states in the order of the scope)."""

    scope: tuple[int, ...]
    logs: Tensor


@dataclass(frozen=True, eq=False)
class Clique:
    """Variables handled together: first its own, then those shared with its parent."""

    own: tuple[int, ...]  # summed out here
    separator: tuple[int, ...]  # shared with the parent
    parent: int | None  # index of a later clique; None at a root
    factors: tuple[int, ...]  # indices of the tables multiplied in here

    @property
    def scope(self) -> tuple[int, ...]:
        """All its variables."""
        return self.own + self.separator


def bucket_tree(cliques: Sequence[tuple[int, ...]], scopes: Sequence[tuple[int, ...]]) -> list[Clique]:
    """One clique per eliminated variable; each factor goes to its first variable to be eliminated."""
    step = {clique[0]: index for index, clique in enumerate(cliques)}
    factors: list[list[int]] = [[] for _ in cliques]
    for index, scope in enumerate(scopes):
        if scope:
            factors[min(step[variable] for variable in scope)].append(index)
    return [
        Clique(clique[:1], clique[1:], step[clique[-1]] if len(clique) > 1 else None, tuple(factors[index]))
        for index, clique in enumerate(cliques)
    ]


def combine(tables: Sequence[Table], scope: Sequence[int], logs: Tensor) -> Table:
    """Adds tables to a fresh `logs` on the axes of `scope`, small ones first so that little is written twice."""
    axis = {variable: position for position, variable in enumerate(scope)}
    for table in sorted(tables, key=lambda item: item.logs.numel()):
        ranks = sorted(range(len(table.scope)), key=lambda position: axis[table.scope[position]])
        shape = [1] * len(scope)
        for position, variable in enumerate(table.scope):
            shape[axis[variable]] = table.logs.shape[position + 1]
        ordered = table.logs.permute(0, *(rank + 1 for rank in ranks))
        logs = add_fresh(logs, ordered.reshape(table.logs.shape[0], *shape))
    return Table(tuple(scope), logs)


@dataclass(frozen=True, eq=False)
class JunctionTree:
    """Cliques (children before parents), the factor tables, and the operation that eliminates."""

    cliques: Sequence[Clique]  # a tree or forest; scopes are in one common order
    tables: Sequence[Table]  # one per factor
    cardinalities: Sequence[int]
    maximise: bool  # max instead of sum
    has_zeros: bool  # whether some table has a -inf

    @cached_property
    def children(self) -> list[list[int]]:
        """Indices of each clique's children."""
        children: list[list[int]] = [[] for _ in self.cliques]
        for index, clique in enumerate(self.cliques):
            if clique.parent is not None:
                children[clique.parent].append(index)
        return children

    def _inputs(self, index: int, messages: Sequence[Table]) -> list[Table]:
        factors = [self.tables[factor] for factor in self.cliques[index].factors]
        return factors + [messages[child] for child in self.children[index]]

    def _product(self, index: int, messages: Sequence[Table], ref: Tensor, ratio: Tensor | None = None) -> Table:
        """The table of a clique; times P(separator) / message, the ratio, it is P(clique)."""
        clique = self.cliques[index]
        sizes = [self.cardinalities[variable] for variable in clique.own]
        blank = ref.new_zeros(1, *sizes, *[1] * len(clique.separator))
        product = combine(self._inputs(index, messages), clique.scope, blank)
        return product if ratio is None else Table(product.scope, add_fresh(product.logs, ratio))

    def collect(self, ref: Tensor) -> list[Table]:
        """Upward pass: every clique's message over its separator; a root's is its share of log Z."""
        messages: list[Table] = []
        for index, clique in enumerate(self.cliques):
            messages += self.project(partial(self._product, index, messages, ref), [clique.separator])
        return messages

    def project(self, build: Callable[[], Table], targets: Sequence[tuple[int, ...]]) -> list[Table]:
        """Sums (or maximises) a freshly built table down to each of several scopes.

        Exponentiates once, in place. With zeros, or near underflow, the table is rebuilt and summed in the log domain.
        """
        table = build()
        if self.maximise:
            return _peel(table, targets, lambda logs, dims: logs.amax(dims))
        if not self.has_zeros:
            top = peak(table.logs, range(1, table.logs.ndim))
            plain = Table(table.scope, exp_fresh(add_fresh(table.logs, -top)))
            sums = _peel(plain, targets, lambda values, dims: values.sum(dims))
            limits = torch.finfo(top.dtype)
            floor = limits.tiny / limits.eps * plain.logs.numel()
            if all(float(total.logs.detach().amin()) > floor for total in sums):
                shifts = (top.reshape(-1, *[1] * len(total.scope)) for total in sums)
                return [Table(total.scope, total.logs.log() + shift) for total, shift in zip(sums, shifts, strict=True)]
            table = build()
        return _peel(table, targets, lambda logs, dims: logsumexp(logs, dims).squeeze(dims))

    def log_z(self, messages: Sequence[Table]) -> Tensor:
        """(batch or 1,) sum of the roots' messages."""
        return reduce(torch.add, [message.logs for message in messages if not message.scope])

    def distribute(self, messages: Sequence[Table], ref: Tensor) -> tuple[dict[int, Tensor], dict[int, Table]]:
        """Downward pass: normalised (batch or 1, states) logs per variable, and a table per factor."""
        variables: dict[int, Tensor] = {}
        factors: dict[int, Table] = {}
        separators: dict[int, Tensor] = {}
        for clique_index in reversed(range(len(self.cliques))):
            clique = self.cliques[clique_index]
            message = messages[clique_index].logs
            ratio = subtract(separators.pop(clique_index, torch.zeros_like(message)), message)
            ratio = ratio.reshape(ratio.shape[0], *[1] * len(clique.own), *ratio.shape[1:])
            targets: dict[tuple[str, int], tuple[int, ...]] = {}
            targets |= {("variable", variable): (variable,) for variable in clique.own}
            targets |= {("factor", factor): self.tables[factor].scope for factor in clique.factors}
            targets |= {("child", child): self.cliques[child].separator for child in self.children[clique_index]}
            joint = partial(self._product, clique_index, messages, ref, ratio)
            answers = self.project(joint, list(targets.values()))
            for (kind, index), answer in zip(targets, answers, strict=True):
                if kind == "variable":
                    variables[index] = answer.logs
                elif kind == "factor":
                    factors[index] = combine([answer], targets[kind, index], ref.new_zeros(1))
                else:
                    separators[index] = combine([answer], targets[kind, index], ref.new_zeros(1)).logs
        return variables, factors

    def decode(self, messages: Sequence[Table], batch: int) -> Tensor:
        """The maximising joint state, (batch, variables), after a maximising upward pass."""
        device = messages[0].logs.device
        states = torch.zeros(batch, len(self.cardinalities), dtype=torch.long, device=device)
        for index in reversed(range(len(self.cliques))):
            own = self.cliques[index].own
            sizes = [self.cardinalities[variable] for variable in own]
            total = torch.zeros(batch, *sizes, device=device)
            for table in self._inputs(index, messages):
                total = total + _fix(table, own, states)
            best = torch.unravel_index(total.flatten(1).argmax(1), sizes)
            for variable, choice in zip(own, best, strict=True):
                states[:, variable] = choice
        return states


def _fix(table: Table, free: Sequence[int], states: Tensor) -> Tensor:
    """The table with every variable but the free ones set to its state: (batch, *free states or 1)."""
    fixed = [axis + 1 for axis, variable in enumerate(table.scope) if variable not in free]
    loose = [axis + 1 for axis, variable in enumerate(table.scope) if variable in free]
    logs = table.logs.expand(len(states), *table.logs.shape[1:]).permute(0, *fixed, *loose)
    items = torch.arange(len(states), device=logs.device)
    picks = [items, *(states[:, table.scope[axis - 1]] for axis in fixed)]
    chosen = Table(tuple(table.scope[axis - 1] for axis in loose), logs[tuple(picks)])
    return combine([chosen], tuple(free), chosen.logs.new_zeros(1)).logs


def _peel(
    table: Table, targets: Sequence[tuple[int, ...]], operation: Callable[[Tensor, list[int]], Tensor]
) -> list[Table]:
    """Reduces to each target, largest first, keeping each time what the remaining ones need."""
    answers: dict[int, Table] = {}
    waiting = sorted(range(len(targets)), key=lambda index: len(targets[index]))
    while waiting:
        index = waiting.pop()
        answers[index] = _reduce(table, set(targets[index]), operation)
        if waiting:
            table = _reduce(table, {variable for other in waiting for variable in targets[other]}, operation)
    return [answers[index] for index in range(len(targets))]


def _reduce(table: Table, keep: set[int], operation: Callable[[Tensor, list[int]], Tensor]) -> Table:
    dims = [axis + 1 for axis, variable in enumerate(table.scope) if variable not in keep]
    if not dims:
        return table
    return Table(tuple(variable for variable in table.scope if variable in keep), operation(table.logs, dims))


Adjacency = list[set[int]]


@dataclass(frozen=True)
class Elimination:
    """Tables met when summing variables out in order."""

    cliques: list[tuple[int, ...]]  # per step, the variable and its neighbours, the last to go first
    largest: int  # entries of the largest table
    total: int  # entries of all tables
    complete: bool  # False if a table exceeded the limit

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
            fill = _fill(graph, other)
            if fill != current[other]:
                current[other] = fill
                heapq.heappush(heap, (fill, other))


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


ExactMethod = Literal["auto", "enumerate", "eliminate"]


@register("engine", "exact")
@dataclass(frozen=True)
class Exact(ConditionalEngine):
    """Settings of exact inference.

    >>> from messagenet.graph.builders import chain_graph
    >>> result = Exact().run(chain_graph([2, 2]), [torch.zeros(2, 2), torch.tensor([[[2.0, 0.0], [0.0, 0.0]]])])
    >>> result.map_state, round(float(result.log_z), 4)
    (tensor([0, 0]), 2.3408)

    Attributes:
        method: "enumerate", "eliminate", or "auto" for the cheaper one.
        temperature: 1 for marginals and log Z; 0 for max-marginals and the largest score.
        memory_limit: GiB above which a run is refused, with the size it would need.
    """

    method: ExactMethod = "auto"
    temperature: float = 1.0
    memory_limit: float = 8.0

    def __post_init__(self) -> None:
        check_settings(self, method=get_args(ExactMethod))

    def _infer(self, graph: FactorGraph, potentials: Potentials) -> Result:
        """Answers exactly, or refuses and reports how large the tables would be."""
        problem = align(graph, potentials, self.temperature)
        if problem.has_zeros or bool((graph.cardinalities == 1).any()):
            smaller = restrict(graph, potentials, possible_states(graph, problem.potentials))
            return smaller.restore(self._solve(align(smaller.graph, smaller.potentials, self.temperature)))
        return self._solve(problem)

    def _solve(self, problem: Problem) -> Result:
        scopes = problem.graph.scopes()
        cliques = self._cliques(problem, scopes)
        tables = _factor_tables(problem, scopes)
        cardinalities = problem.graph.cardinalities.tolist()
        ref = problem.constant()
        tree = JunctionTree(cliques, tables, cardinalities, self.temperature == 0, problem.has_zeros)
        messages = tree.collect(ref)
        log_z = tree.log_z(messages) + problem.constant()
        if bool((log_z == -INF).any()):
            raise InputError(IMPOSSIBLE)
        variables, factors = tree.distribute(messages, ref)
        scale = self.temperature if self.temperature > 0 else 1.0

        def decode() -> Tensor:
            with torch.no_grad():
                best = JunctionTree(cliques, tables, cardinalities, True, problem.has_zeros)
                upward = messages if tree.maximise else best.collect(ref)
                return problem.to_user_layout(best.decode(upward, problem.batch_size).T)

        return Result(
            log_marginals=problem.to_user_layout(_variable_marginals(problem, variables)),
            iterations=0,
            converged=True,
            history=(),
            compute_log_z=lambda: problem.to_user_batch(scale * log_z),
            compute_log_factor_marginals=lambda: problem.to_user_factors(_group_marginals(problem, factors)),
            compute_map_state=decode,
        )

    def _cliques(self, problem: Problem, scopes: Sequence[tuple[int, ...]]) -> list[Clique]:
        cardinalities = problem.graph.cardinalities.tolist()
        entry = problem.batch_size * problem.constant().element_size()
        limit = int(self.memory_limit * 2**30) // (3 * entry)
        states = math.prod(cardinalities)
        if self.method == "enumerate" or (self.method == "auto" and states <= 4096):
            if states > limit:
                raise self._too_large("a joint table", len(cardinalities), states, entry, at_least=False)
            everything = tuple(range(len(cardinalities)))
            touching = tuple(factor for factor, scope in enumerate(scopes) if scope)
            return [Clique(everything, (), None, touching)]
        plan = best_elimination(cardinalities, neighbours(len(cardinalities), scopes), limit)
        if not plan.complete:
            raise self._too_large("a table", plan.width, plan.largest, entry, at_least=True)
        stored = plan.total if problem.requires_grad else plan.total // 2
        if stored > 3 * limit:
            raise self._too_large("tables", plan.width, stored, entry, at_least=False)
        return bucket_tree(plan.cliques, scopes)

    def _too_large(self, what: str, width: int, entries: int, entry: int, *, at_least: bool) -> InputError:
        return InputError(
            f"exact inference would need {what} over {width} variables: {'at least ' if at_least else ''}"
            f"{_rounded(entries)} entries, about {_rounded(entries * entry // 2**30)} GiB each time it is written, "
            f"which memory_limit = {self.memory_limit:g} GiB does not allow; use BeliefPropagation or another "
            "approximate engine, add evidence, or raise memory_limit"
        )


def _rounded(number: int) -> str:
    """A whole number of any size in three digits."""
    return f"{number:.3g}" if number < 10**300 else f"10^{len(str(number)) - 1}"


def _factor_tables(problem: Problem, scopes: Sequence[tuple[int, ...]]) -> list[Table]:
    tables: list[Table] = [Table((), torch.empty(0))] * len(scopes)
    for group, logs in zip(problem.graph.groups, problem.aligned, strict=True):
        members = logs.expand(len(group), *logs.shape[1:]).unbind(0)
        for factor, member in zip(group.factor_ids.tolist(), members, strict=True):
            tables[factor] = Table(scopes[factor], member)
    return tables


def _variable_marginals(problem: Problem, variables: dict[int, Tensor]) -> Tensor:
    """(variables, batch, max_cardinality), padded with -inf."""
    width, batch = problem.graph.max_cardinality, problem.batch_size
    rows = [
        torch.nn.functional.pad(logs.expand(batch, logs.shape[1]), (0, width - logs.shape[1]), value=-INF)
        for _, logs in sorted(variables.items())
    ]
    return log_normalise(torch.stack(rows))


def _group_marginals(problem: Problem, factors: dict[int, Table]) -> Iterator[Tensor]:
    """Per group (factors, batch, *shape) normalised logs."""
    for group in problem.graph.groups:
        if group.order == 0:
            yield problem.constant().new_zeros(len(group), problem.batch_size)
            continue
        logs = torch.stack(
            [factors[n].logs.expand(problem.batch_size, *group.shape) for n in group.factor_ids.tolist()]
        )
        yield log_normalise(logs, range(2, logs.ndim))
