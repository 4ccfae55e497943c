"""Exact marginals and maxima on a tree of cliques.

Upwards every clique C sums its own variables out of the product of its factors and its children's messages,
leaving a message over the separator S it shares with its parent; the last ones are log Z. Downwards

    P(y_C) = P(y_C | y_S) P(y_S),        log P(y_C | y_S) = table_C − message_S,

so every step is a normalised distribution and nothing is divided by what may be zero (Lauritzen &
Spiegelhalter 1988; Dechter, "Bucket elimination", 1999). With max in place of Σ the same steps give
max-marginals, and walking down with every maximiser fixed gives the most probable state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from messagenet.inference.logspace import add_fresh, exp_fresh, logsumexp, peak, subtract


@dataclass(frozen=True, eq=False)
class Table:
    """A function of some variables: (batch or 1, *states in the order of the scope)."""

    scope: tuple[int, ...]
    logs: Tensor


@dataclass(frozen=True, eq=False)
class Clique:
    """Variables handled together: first its own, then those shared with its parent.

    Attributes:
        own: variables summed out here.
        separator: variables shared with the parent.
        parent: index of the parent, which comes later; None at a root.
        factors: indices of the factor tables multiplied in here.
    """

    own: tuple[int, ...]
    separator: tuple[int, ...]
    parent: int | None
    factors: tuple[int, ...]

    @property
    def scope(self) -> tuple[int, ...]:
        """All its variables."""
        return self.own + self.separator


def bucket_tree(cliques: Sequence[tuple[int, ...]], scopes: Sequence[tuple[int, ...]]) -> list[Clique]:
    """One clique per eliminated variable; each factor goes to its first variable to be eliminated."""
    step = {clique[0]: index for index, clique in enumerate(cliques)}
    factors: list[list[int]] = [[] for _ in cliques]
    for number, scope in enumerate(scopes):
        if scope:
            factors[min(step[variable] for variable in scope)].append(number)
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
    """Cliques (children before parents), the factor tables, and which operation eliminates.

    Attributes:
        cliques: the tree, or forest; scopes are in one common order.
        tables: one per factor.
        cardinalities: states of every variable.
        maximise: max instead of sum.
        has_zeros: whether some table has a -inf.
    """

    cliques: Sequence[Clique]
    tables: Sequence[Table]
    cardinalities: Sequence[int]
    maximise: bool
    has_zeros: bool

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

    def _product(
        self, index: int, messages: Sequence[Table], like: Tensor, ratio: Tensor | None = None
    ) -> Table:
        """The table of a clique; times P(separator) / message, the ratio, it is P(clique)."""
        clique = self.cliques[index]
        sizes = [self.cardinalities[variable] for variable in clique.own]
        blank = like.new_zeros(1, *sizes, *[1] * len(clique.separator))
        product = combine(self._inputs(index, messages), clique.scope, blank)
        return product if ratio is None else Table(product.scope, add_fresh(product.logs, ratio))

    def _project(self, build: Callable[[], Table], targets: Sequence[tuple[int, ...]]) -> list[Table]:
        return project(build, targets, maximise=self.maximise, has_zeros=self.has_zeros)

    def collect(self, like: Tensor) -> list[Table]:
        """Upward pass: every clique's message over its separator; a root's is its share of log Z."""
        messages: list[Table] = []
        for index, clique in enumerate(self.cliques):
            messages += self._project(partial(self._product, index, messages, like), [clique.separator])
        return messages

    def log_z(self, messages: Sequence[Table]) -> Tensor:
        """(batch or 1,) sum of the roots' messages."""
        roots = [message.logs for message in messages if not message.scope]
        total = roots[0]
        for root in roots[1:]:
            total = total + root
        return total

    def distribute(
        self, messages: Sequence[Table], like: Tensor
    ) -> tuple[dict[int, Tensor], dict[int, Table]]:
        """Downward pass: normalised (batch or 1, states) logs per variable, and a table per factor."""
        variables: dict[int, Tensor] = {}
        factors: dict[int, Table] = {}
        separators: dict[int, Tensor] = {}
        for index in reversed(range(len(self.cliques))):
            clique = self.cliques[index]
            message = messages[index].logs
            ratio = subtract(separators.pop(index, torch.zeros_like(message)), message)
            ratio = ratio.reshape(ratio.shape[0], *[1] * len(clique.own), *ratio.shape[1:])
            targets: dict[tuple[str, int], tuple[int, ...]] = {}
            targets |= {("variable", variable): (variable,) for variable in clique.own}
            targets |= {("factor", factor): self.tables[factor].scope for factor in clique.factors}
            targets |= {("child", child): self.cliques[child].separator for child in self.children[index]}
            joint = partial(self._product, index, messages, like, ratio)
            answers = self._project(joint, list(targets.values()))
            for (kind, number), answer in zip(targets, answers, strict=True):
                if kind == "variable":
                    variables[number] = answer.logs
                elif kind == "factor":
                    factors[number] = combine([answer], targets[kind, number], like.new_zeros(1))
                else:
                    separators[number] = combine([answer], targets[kind, number], like.new_zeros(1)).logs
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
    chosen = Table(
        tuple(table.scope[axis - 1] for axis in loose),
        logs[tuple(picks)],
    )
    return combine([chosen], tuple(free), chosen.logs.new_zeros(1)).logs


def project(
    build: Callable[[], Table], targets: Sequence[tuple[int, ...]], *, maximise: bool, has_zeros: bool
) -> list[Table]:
    """Sums (or maximises) a freshly built table down to each of several scopes.

    Probabilities are summed as they are, after exponentiating once in place; with zeros, or should a sum come
    near underflow, the table is built again and summed in the log domain.
    """
    table = build()
    if maximise:
        return _peel(table, targets, lambda logs, dims: logs.amax(dims))
    if not has_zeros:
        top = peak(table.logs, range(1, table.logs.ndim))
        plain = Table(table.scope, exp_fresh(add_fresh(table.logs, -top)))
        sums = _peel(plain, targets, lambda values, dims: values.sum(dims))
        limits = torch.finfo(top.dtype)
        floor = limits.tiny / limits.eps * plain.logs.numel()
        if all(float(total.logs.detach().amin()) > floor for total in sums):
            shifts = (top.reshape(-1, *[1] * len(total.scope)) for total in sums)
            return [
                Table(total.scope, total.logs.log() + shift)
                for total, shift in zip(sums, shifts, strict=True)
            ]
        table = build()
    return _peel(table, targets, lambda logs, dims: logsumexp(logs, dims).squeeze(dims))


def _peel(
    table: Table, targets: Sequence[tuple[int, ...]], operation: Callable[[Tensor, list[int]], Tensor]
) -> list[Table]:
    """Reduces to one target after another, largest first, each time to what the remaining ones still need."""
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
