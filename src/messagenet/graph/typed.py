"""Graphs whose factors and variables have types: the structure that learned messages are passed over.

All factors of one type share their estimators, as the edges of one relation do on a grid: "next" joins each word of a
sentence to the following one, "parity" each check of a code to its bits.

    TypedGraph.build(5, {"next": [[0, 1], [1, 2]], "triple": [[0, 2, 4]]})

Every variable also has a unary factor, which is not listed. A factor's variables have a fixed order, its *positions*.

A *message slot* is a (factor, position) that receives a message: β_{F→p}, p the variable at that position of F. Slots
of one estimator are contiguous and sorted by receiver: a variable's messages are a segment. A slot's index holds

    receivers   p
    senders     the other variables of F, in the order of their positions
    reverse     the slots of F's messages to those senders, −1 where it sends none: a cavity leaves them out
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph.factor_graph import FactorGraph, check_members


@dataclass(frozen=True, eq=False)
class Slots:
    """Slots of one estimator and one factor order: rows `first` to `first + len` of the type's messages."""

    first: int
    estimator: int  # which of the type's estimators makes these messages
    block: int  # which of the type's blocks of factors they belong to
    receivers: Tensor  # (slots,) variables, ascending
    senders: Tensor  # (slots, order − 1) variables
    reverse: Tensor  # (slots, order − 1) rows, −1 where the factor sends that variable no message
    factors: Tensor  # (slots,) index of the factor in the user's list
    origin: Tensor  # (slots,) position · factors of the block + index of the factor in it

    def __len__(self) -> int:
        return len(self.receivers)

    @property
    def order(self) -> int:
        """Number of variables of each factor."""
        return self.senders.shape[1] + 1

    @property
    def rows(self) -> slice:
        """The rows of these slots among the type's messages."""
        return slice(self.first, self.first + len(self))


@dataclass(frozen=True, eq=False)
class MessageIndex:
    """Every slot of a factor type."""

    slots: tuple[Slots, ...]  # parts of one estimator and one order, one after another
    receivers: Tensor  # (rows,) the variable that each message goes to
    counts: tuple[Tensor, ...]  # by estimator, (variables,) messages that each variable gets from it
    row_of: tuple[Tensor, ...]  # by block, (factors, order) row of each (factor, position), −1 where none is sent

    def __len__(self) -> int:
        return len(self.receivers)


def index_messages(
    blocks: Sequence[tuple[Tensor, Tensor]],
    num_variables: int,
    *,
    ordered: bool,
    sends_to: tuple[int, ...] | None = None,
) -> MessageIndex:
    """The message slots of one factor type, from (factors, order) blocks of scopes with their (factors,) ids.

    There is one estimator per receiving position if `ordered`, else one. `sends_to` lists the receiving positions.

    >>> index = index_messages([(torch.tensor([[1, 0], [0, 2]]), torch.arange(2))], 3, ordered=False)
    >>> (part,) = index.slots
    >>> part.receivers.tolist(), part.senders[:, 0].tolist(), part.reverse[:, 0].tolist()
    ([0, 0, 1, 2], [2, 1, 0, 0], [3, 2, 1, 0])
    """
    parts: list[Slots] = []
    row_of: list[Tensor] = []
    first = 0
    for block, (scopes, factor_ids) in enumerate(blocks):
        count, order = scopes.shape
        positions = tuple(range(order)) if sends_to is None else sends_to
        others = torch.tensor([[j for j in range(order) if j != i] for i in range(order)], device=scopes.device)
        rows = torch.full_like(scopes, -1)
        own: list[tuple[int, Tensor, Tensor, Tensor]] = []
        for group in [(i,) for i in positions] if ordered else [positions]:
            receivers = torch.cat([scopes[:, i] for i in group])
            origin = torch.cat([torch.arange(i * count, (i + 1) * count) for i in group]).to(scopes.device)
            origin = origin[receivers.argsort(stable=True)]
            position, factor = origin // max(count, 1), origin % max(count, 1)
            rows[factor, position] = torch.arange(first, first + len(origin), device=scopes.device)
            own.append((first, origin, position, factor))
            first += len(origin)
        for estimator, (start, origin, position, factor) in enumerate(own):
            sending = others[position]  # (slots, order − 1)
            parts.append(
                Slots(
                    start,
                    estimator,
                    block,
                    receivers=scopes[factor, position],
                    senders=scopes[factor[:, None], sending],
                    reverse=rows[factor[:, None], sending],
                    factors=factor_ids[factor],
                    origin=origin,
                )
            )
        row_of.append(rows)
    estimators = 1 + max((part.estimator for part in parts), default=-1)
    counts = tuple(
        torch.bincount(
            torch.cat([part.receivers for part in parts if part.estimator == estimator]), minlength=num_variables
        )
        for estimator in range(estimators)
    )
    receivers = torch.cat([part.receivers for part in parts]) if parts else torch.zeros(0, dtype=torch.long)
    return MessageIndex(tuple(parts), receivers, counts, tuple(row_of))


Scopes = Tensor | Sequence[Sequence[int]]
Indices = Tensor | Sequence[int]


class FactorBlock(NamedTuple):
    """Factors of one type and one order."""

    scopes: Tensor  # (factors, order) variable indices by position
    factor_ids: Tensor  # (factors,) index of each factor in the user's list of the type


@dataclass(frozen=True, eq=False)
class TypedGraph:
    """Variables, and factors of order two or more by type; structure only, no values.

    >>> graph = TypedGraph.build(4, {"next": [[0, 1], [1, 2], [2, 3]]})
    >>> graph.num_variables, graph.num_factors("next"), graph.orders
    (4, 3, {'next': 2})

    Attributes:
        sizes: Number of variables of each of the joined graphs; a single entry for one graph.
        factors: For each type, its factors in blocks of equal order.
        type_names: Names of the variables' types; empty if there is only one.
        variable_types: (variables,) which of them each variable has; None if there is only one.
    """

    sizes: tuple[int, ...]
    factors: Mapping[str, tuple[FactorBlock, ...]]
    type_names: tuple[str, ...] = ()
    variable_types: Tensor | None = None
    _message_indices: dict[object, MessageIndex] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def build(
        cls, num_variables: int, factors: Mapping[str, Scopes], variable_types: Mapping[str, Indices] | None = None
    ) -> TypedGraph:
        """A graph from the scopes of each factor type.

        Args:
            num_variables: How many variables there are, indexed from 0; some may have no factor.
            factors: For each type a (factors, order) tensor, or a list of scopes of any orders.
            variable_types: For each type of variable the indices of those that have it, if there are several.
        """
        if type(num_variables) is not int or num_variables < 0:
            raise InputError(f"num_variables is {num_variables!r}; give the number of variables")
        if not isinstance(factors, Mapping):
            raise InputError(f'factors is a {type(factors).__name__}; name their type, as in {{"next": [[0, 1]]}}')
        blocks = {name: _blocks(name, scopes, num_variables) for name, scopes in factors.items()}
        if variable_types is None:
            return cls((num_variables,), blocks)
        return cls((num_variables,), blocks, tuple(variable_types), _codes(variable_types, num_variables))

    @classmethod
    def from_factor_graph(cls, graph: FactorGraph, names: Sequence[str] | None = None) -> TypedGraph:
        """The structure of a factor graph without its unary factors and constants.

        Args:
            graph: The factor graph. Variables of several cardinalities become types "states_2", "states_3", …
            names: The type of each factor, in the order of the list. By default a factor is called by its order,
                "order_2", or by its cardinalities, "states_2_3", where these differ.

        >>> typed = TypedGraph.from_factor_graph(FactorGraph([2, 2, 2], [[0], [0, 1], [2, 1, 0]]))
        >>> typed.orders
        {'order_2': 2, 'order_3': 3}
        """
        if names is not None and len(names) != graph.num_factors:
            raise InputError(f"{len(names)} names were given for {graph.num_factors} factors; give one each")
        states = graph.cardinalities.unique().tolist()
        scopes: dict[str, list[tuple[int, list[int]]]] = {}
        for group in graph.groups:
            if group.order < 2:
                continue
            own = f"order_{group.order}" if len(states) == 1 else "_".join(map(str, ("states", *group.shape)))
            for factor, scope in zip(group.factor_ids.tolist(), group.scopes.tolist(), strict=True):
                scopes.setdefault(own if names is None else names[factor], []).append((factor, scope))
        listed = {name: [scope for _, scope in sorted(members)] for name, members in scopes.items()}
        kinds = {f"states_{k}": (graph.cardinalities == k).nonzero()[:, 0] for k in states}
        return cls.build(graph.num_variables, listed, kinds if len(states) > 1 else None)

    @property
    def num_variables(self) -> int:
        """Number of variables of all joined graphs."""
        return sum(self.sizes)

    @property
    def orders(self) -> dict[str, int | None]:
        """The order of each factor type; None for a type whose factors differ in order."""
        return {
            name: blocks[0].scopes.shape[1] if len(blocks) == 1 else None
            for name, blocks in self.factors.items()
            if blocks
        }

    def num_factors(self, name: str) -> int:
        """Number of factors of a type; 0 for an unknown type."""
        return sum(len(block.factor_ids) for block in self.factors.get(name, ()))

    def message_index(self, name: str, *, ordered: bool, sends_to: tuple[int, ...] | None) -> MessageIndex:
        """The message slots of a factor type, computed once; see `index_messages`."""
        key = (name, ordered, sends_to)
        if key not in self._message_indices:
            blocks = self.factors.get(name, ())
            self._message_indices[key] = index_messages(blocks, self.num_variables, ordered=ordered, sends_to=sends_to)
        return self._message_indices[key]

    def split(self, values: Tensor) -> list[Tensor]:
        """Values of all variables, (variables, …), as one tensor for each of the joined graphs."""
        return list(values.split(self.sizes))

    def to(self, device: torch.device | str) -> TypedGraph:
        """The same graph with its index tensors on another device."""
        factors = {
            name: tuple(FactorBlock(block.scopes.to(device), block.factor_ids.to(device)) for block in blocks)
            for name, blocks in self.factors.items()
        }
        types = None if self.variable_types is None else self.variable_types.to(device)
        return TypedGraph(self.sizes, factors, self.type_names, types)


def batch_graphs(graphs: Sequence[TypedGraph]) -> TypedGraph:
    """Joins graphs of any shapes into one without links between them, in the order of the graphs.

    Features of variables and of factors are joined by `torch.cat`; `split` takes results apart again.

    >>> pair = TypedGraph.build(2, {"next": [[0, 1]]})
    >>> both = batch_graphs([pair, pair])
    >>> both.factors["next"][0].scopes.tolist(), [len(part) for part in both.split(torch.zeros(4, 3))]
    ([[0, 1], [2, 3]], [2, 2])
    """
    if not graphs:
        raise InputError("a batch needs at least one graph")
    names = graphs[0].type_names
    if any(graph.type_names != names for graph in graphs):
        raise InputError("the graphs of a batch name different types of variables; build all with the same")
    parts: dict[tuple[str, int], list[FactorBlock]] = {}
    seen: dict[str, int] = {}
    first = 0
    for graph in graphs:
        for name, blocks in graph.factors.items():
            start = seen.setdefault(name, 0)
            for scopes, factor_ids in blocks:
                moved = FactorBlock(scopes + first, factor_ids + start)
                parts.setdefault((name, scopes.shape[1]), []).append(moved)
            seen[name] += graph.num_factors(name)
        first += graph.num_variables
    factors: dict[str, tuple[FactorBlock, ...]] = dict.fromkeys(seen, ())
    for (name, _), members in sorted(parts.items(), key=lambda item: item[0]):
        joined = FactorBlock(torch.cat([m.scopes for m in members]), torch.cat([m.factor_ids for m in members]))
        factors[name] += (joined,)
    types = [graph.variable_types for graph in graphs if graph.variable_types is not None]
    return TypedGraph(
        tuple(size for graph in graphs for size in graph.sizes), factors, names, torch.cat(types) if types else None
    )


def _blocks(name: str, scopes: Scopes, num_variables: int) -> tuple[FactorBlock, ...]:
    if isinstance(scopes, Tensor):
        if scopes.ndim != 2:
            raise InputError(f"factors {name!r}: scopes have shape {tuple(scopes.shape)}; give (factors, order)")
        blocks = [FactorBlock(scopes.long(), torch.arange(len(scopes), device=scopes.device))]
    else:
        by_order: dict[int, list[int]] = {}
        for index, scope in enumerate(scopes):
            if not hasattr(scope, "__len__"):
                raise InputError(f"factors {name!r}: a scope is {scope!r}; give a list of scopes, as in [[0, 1]]")
            by_order.setdefault(len(scope), []).append(index)
        blocks = [
            FactorBlock(
                torch.tensor([list(scopes[i]) for i in own], dtype=torch.long).reshape(-1, order), torch.tensor(own)
            )
            for order, own in sorted(by_order.items())
        ]
    for block in blocks:
        _check(name, block, num_variables)
    return tuple(blocks)


def _check(name: str, block: FactorBlock, num_variables: int) -> None:
    scopes, factor_ids = block
    if scopes.shape[1] < 2:
        raise InputError(
            f"factors {name!r}: factor {int(factor_ids[0]) if len(factor_ids) else 0} has order {scopes.shape[1]}; "
            "list factors of order 2 or more only, every variable has its unary factor anyway"
        )
    check_members(scopes, factor_ids, num_variables, f"factors {name!r}: ")


def _codes(variable_types: Mapping[str, Indices], num_variables: int) -> Tensor:
    codes = torch.full((num_variables,), -1)
    for code, (name, indices) in enumerate(variable_types.items()):
        own = torch.as_tensor(indices, dtype=torch.long)
        if len(own) and not 0 <= int(own.min()) <= int(own.max()) < num_variables:
            raise InputError(
                f"variable type {name!r} names a variable outside 0 to {num_variables - 1}; correct its list"
            )
        if bool((codes[own] >= 0).any()) or len(own.unique()) < len(own):
            raise InputError(f"variable type {name!r} names a variable twice or one of another type")
        codes[own] = code
    missing = (codes < 0).nonzero()
    if len(missing):
        raise InputError(f"variable {int(missing[0])} has no type; list it under one of variable_types")
    return codes
