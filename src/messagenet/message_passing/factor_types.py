"""Factor types of a graph head, and whether a graph fits them.

All factors of a type share their estimators. An ordered type has one estimator for each receiving position ("before"
and "after" in a sentence), an unordered type one for all (a parity check). A factor's variables may have several types
with K classes of their own; the dependent input d then has one set of columns for each type, side by side:

    sum, mean   d = Σ_j or mean_j of β_{q_j→F}, over the senders of each variable type
    concat      d = [ β_{q_1→F} ; β_{q_2→F} ; … ] in the order of positions
    gate        d = mean_j of √K (exp β_{q_j→F} − 1/K), over the senders of each variable type

For pairwise factors the first three are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from messagenet.errors import InputError, nearest
from messagenet.graph.typed import TypedGraph

GraphDependent = Literal["sum", "mean", "concat", "gate"]
SINGLE_TYPE = "variable"  # the type of all variables where no types are named


@dataclass(frozen=True)
class FactorType:
    """A type of factors, which share their estimators.

    Attributes:
        order: Variables per factor; None where factors of this type differ in order.
        ordered: Whether positions differ in meaning, so that each receiving position has its own estimator.
        sends_to: The positions that receive messages; None for all. (0,) acts like a directed edge.
        variable_types: The type of the variable at each position, where a head has several.
        features: Length of the feature vector that every factor of this type comes with; 0 for none.
        degree: How many of these messages a variable typically receives: the constant that aggregation "fixed"
            divides them by.
    """

    order: int | None = 2
    ordered: bool = True
    sends_to: tuple[int, ...] | None = None
    variable_types: tuple[str, ...] | None = None
    features: int = 0
    degree: float = 1.0

    def check(self, name: str, num_classes: Mapping[str, int], dependent: GraphDependent) -> None:
        """Refuses attributes that do not fit together."""
        where, order, positions = f"factor type {name!r}", self.order, self.sends_to
        if not name.isidentifier() or name == "unary":
            raise InputError(f'{where}: take a word of letters, digits and underscores other than "unary"')
        if order is not None and (type(order) is not int or order < 2):
            raise InputError(f"{where}: order is {order!r}; give 2 or more, the unary factor is there anyway")
        if order is None and self.ordered and positions != (0,):
            raise InputError(f"{where}: factors of any order have no positions in common; use ordered=False")
        if order is None and dependent == "concat":
            raise InputError(f'{where}: dependent="concat" needs factors of one order; give it, or use "sum"')
        if positions is not None:
            distinct = len(set(positions)) == len(positions) > 0
            if not distinct or not all(0 <= i < (order or 2) for i in positions):
                raise InputError(f"{where}: sends_to is {positions}; name positions from 0, each once")
        if type(self.features) is not int or self.features < 0:
            raise InputError(f"{where}: features is {self.features!r}; give the length of a factor's features")
        if not self.degree > 0:
            raise InputError(f"{where}: degree is {self.degree!r}; give a number above 0")
        self._check_variable_types(where, num_classes)

    def _check_variable_types(self, where: str, num_classes: Mapping[str, int]) -> None:
        types = self.variable_types
        if types is None:
            if len(num_classes) > 1:
                names = ", ".join(num_classes)
                raise InputError(f"{where}: say with variable_types which of {names} stands at each position")
            return
        for each in types:
            if each not in num_classes:
                raise InputError(f"{where}: unknown variable type {each!r}; {nearest(each, num_classes)}")
        if self.order is None and len(set(types)) > 1:
            raise InputError(f"{where}: factors of any order need one type of variable; name it once")
        if self.order is not None and len(types) != self.order:
            raise InputError(f"{where}: {len(types)} variable_types for {self.order} positions; give one each")
        if not self.ordered and len(set(types)) > 1:
            raise InputError(f"{where}: positions of several variable types differ; leave ordered=True")

    def variable_type(self, position: int) -> str:
        """The type of the variable at a position."""
        if self.variable_types is None:
            return SINGLE_TYPE
        return self.variable_types[0 if self.order is None else position]

    @property
    def has_cavity(self) -> bool:
        """Whether a factor sends to several variables, so that each has a message to leave out."""
        return self.sends_to is None or len(self.sends_to) > 1

    @property
    def one_way(self) -> bool:
        """Whether some position sends but does not receive."""
        return self.sends_to is not None and len(self.sends_to) != self.order

    @property
    def receivers(self) -> tuple[int, ...]:
        """The position that each estimator of this type sends to; the first one if it serves several."""
        if self.sends_to is not None:
            return self.sends_to if self.ordered else self.sends_to[:1]
        return tuple(range(self.order)) if self.ordered and self.order is not None else (0,)


@dataclass(frozen=True)
class Columns:
    """How the messages of a factor's other variables make d: sender j adds to its own columns."""

    starts: tuple[int, ...]  # first column of each sender
    sizes: tuple[int, ...]  # columns of each sender: its variable's classes
    weights: tuple[float, ...]  # factor of its message
    width: int  # columns in total

    @property
    def shared(self) -> bool:
        """Whether all senders add to the same columns, so that their order does not matter."""
        return len(set(self.starts)) == 1 and len(set(self.weights)) == 1


def columns(
    factor_type: FactorType, position: int, order: int, num_classes: Mapping[str, int], dependent: GraphDependent
) -> Columns:
    """The columns of d for messages to a position: one set for each variable type, or for each sender.

    >>> columns(FactorType(4), 0, 4, {"variable": 3}, "mean").weights
    (0.3333333333333333, 0.3333333333333333, 0.3333333333333333)
    >>> mixed = FactorType(3, variable_types=("a", "b", "b"))
    >>> columns(mixed, 1, 3, {"a": 2, "b": 5}, "sum")
    Columns(starts=(0, 2), sizes=(2, 5), weights=(1.0, 1.0), width=7)
    """
    types = [factor_type.variable_type(other) for other in range(order) if other != position]
    keys = list(range(order - 1)) if dependent == "concat" else types
    start: dict[object, int] = {}
    width = 0
    for key, variable_type in zip(keys, types, strict=True):
        if key not in start:
            start[key] = width
            width += num_classes[variable_type]
    return Columns(
        starts=tuple(start[key] for key in keys),
        sizes=tuple(num_classes[each] for each in types),
        weights=tuple(1 / types.count(each) if dependent in ("mean", "gate") else 1.0 for each in types),
        width=width,
    )


def check_graph(factors: Mapping[str, FactorType], num_classes: Mapping[str, int], graph: TypedGraph) -> None:
    """Refuses a graph with types, orders or positions that the head was not built for."""
    if not isinstance(graph, TypedGraph):
        raise InputError(f"graph is a {type(graph).__name__}; give a TypedGraph: TypedGraph.from_factor_graph(graph)")
    _check_variable_types(num_classes, graph)
    for name, blocks in graph.factors.items():
        if name not in factors:
            fix = nearest(name, factors) if factors else "name them when the head is built"
            raise InputError(f"the graph has factors {name!r}, which this head does not know; {fix}")
        for block in blocks:
            order, expected = block.scopes.shape[1], factors[name].order
            if expected is not None and order != expected:
                raise InputError(
                    f"factors {name!r} have order {order} in the graph but {expected} in the head; "
                    "build the head with the graph's order, or with order=None and ordered=False for any"
                )
            _check_positions(name, factors[name], graph, block.scopes)


def _check_variable_types(num_classes: Mapping[str, int], graph: TypedGraph) -> None:
    expected = set(num_classes)
    if graph.variable_types is None and expected != {SINGLE_TYPE}:
        names = ", ".join(sorted(expected))
        raise InputError(f"this head has variables of types {names}; build the graph with variable_types")
    for each in graph.type_names:
        if each not in expected:
            fix = "give num_classes for each type" if expected == {SINGLE_TYPE} else nearest(each, expected)
            raise InputError(f"the graph has variables of type {each!r}, which this head does not know; {fix}")


def _check_positions(name: str, factor_type: FactorType, graph: TypedGraph, scopes: Tensor) -> None:
    if graph.variable_types is None:
        return
    for position in range(scopes.shape[1]):
        expected = factor_type.variable_type(position)
        found = graph.variable_types[scopes[:, position]]
        code = graph.type_names.index(expected) if expected in graph.type_names else -1
        if len(wrong := found[found != code]):
            other = graph.type_names[int(wrong[0])]
            raise InputError(
                f"factors {name!r}: position {position} should hold a variable of type {expected!r}, one of "
                f"them holds a {other!r}; correct its scope or the head's variable_types"
            )
