r"""How messages are passed: the settings of a head, checked when it is built.

What a graph head is made of: its types of factors and variables, and how messages are passed.

C2, the message estimator: two fully connected layers on [receiver; sender; dependent], K outputs.

    β_{F→p} = W₂ relu( A f_p + B f_q + D d_pF + b ) + b₂

The first layer of a network on a concatenation is the sum of three layers on its parts, so it is stored as
three: the products A f and B f are made once per node, never per edge (see `aggregate`). A unary factor has
no sender and no dependent message. K outputs, whatever the order of the factor.

C2 on a factor of any order: two fully connected layers on [receiver; senders; dependent; local], K outputs.

    β_{F→p} = W₂ relu( A f_p + B mean_{q∈F\p} f_q + D d_pF + C x_pF + b ) + b₂

As on the grid, the first layer is stored in parts, so that A f and B f are made once per variable and never per
factor. x_pF is what belongs to the factor itself: its features, and its computed message where that is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from messagenet.errors import InputError, nearest

Aggregation = Literal["fixed", "sum", "mean", "sqrt"]
CavityMode = Literal["factor", "none"]
Initial = Literal["zero", "unary"]
Dependent = Literal["sum", "mean"]


@dataclass(frozen=True)
class Rules:
    """The settings of message passing; `MessagePassing` says what each means."""

    num_classes: int
    hidden: int
    iterations: int
    tied: bool
    cavity: CavityMode
    initial: Initial
    aggregation: Aggregation
    dependent: Dependent

    def __post_init__(self) -> None:
        for name in ("num_classes", "hidden", "iterations"):
            if type(getattr(self, name)) is not int:
                raise InputError(f"{name} is {getattr(self, name)!r}; give a whole number")
        if self.num_classes < 2:
            raise InputError(f"num_classes is {self.num_classes}; a labelling needs at least 2 classes")
        for name in ("hidden", "iterations"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; give at least 1")
        for name, kind in (
            ("cavity", CavityMode),
            ("initial", Initial),
            ("aggregation", Aggregation),
            ("dependent", Dependent),
        ):
            if getattr(self, name) not in get_args(kind):
                raise InputError(
                    f"unknown {name} {getattr(self, name)!r}; {nearest(getattr(self, name), get_args(kind))}"
                )

    @property
    def has_dependent(self) -> bool:
        """Whether any iteration sees messages that carry information."""
        return self.iterations > 1 or self.initial == "unary"


GraphDependent = Literal["sum", "mean", "concat"]
ONLY_TYPE = "variable"  # the type of all variables where no types are named


@dataclass(frozen=True)
class FactorType:
    """A kind of factor: all of a kind share their estimators.

    Attributes:
        order: Variables per factor; None where factors of this type differ in order.
        ordered: Whether positions differ in meaning. If so each position that receives has an estimator of its
            own ("before" and "after" in a sentence); otherwise one estimator serves all (a parity check).
        sends_to: The positions that are sent messages; None for all. (0,) makes factors that speak to their
            first variable only, such as a directed edge.
        variable_types: The type of the variable at each position, where a head has several.
        features: Length of the feature vector that every factor of this type comes with; 0 for none.
        degree: How many of these messages a variable typically gets: the constant of aggregation "fixed"
            (messages are divided by it) and "sqrt" (by its root).
    """

    order: int | None = 2
    ordered: bool = True
    sends_to: tuple[int, ...] | None = None
    variable_types: tuple[str, ...] | None = None
    features: int = 0
    degree: float = 1.0

    def check(self, name: str, classes: Mapping[str, int], dependent: GraphDependent) -> None:
        """Refuses what does not fit together."""
        where = f"factor type {name!r}"
        if not name.isidentifier() or name == "unary":
            raise InputError(f'{where}: take a word of letters, digits and underscores other than "unary"')
        if self.order is not None and (type(self.order) is not int or self.order < 2):
            raise InputError(
                f"{where}: order is {self.order!r}; give 2 or more, the unary factor is there anyway"
            )
        if self.order is None and self.ordered and self.sends_to != (0,):
            raise InputError(f"{where}: factors of any order have no positions in common; use ordered=False")
        if self.order is None and dependent == "concat":
            raise InputError(f'{where}: dependent="concat" needs factors of one order; give it, or use "sum"')
        positions = self.sends_to
        if positions is not None and (
            not positions
            or len(set(positions)) < len(positions)
            or not all(0 <= i < (self.order or 2) for i in positions)
        ):
            raise InputError(f"{where}: sends_to is {positions}; name positions from 0, each once")
        if type(self.features) is not int or self.features < 0:
            raise InputError(
                f"{where}: features is {self.features!r}; give the length of a factor's features"
            )
        if not self.degree > 0:
            raise InputError(f"{where}: degree is {self.degree!r}; give a number above 0")
        self._check_variable_types(where, classes)

    def _check_variable_types(self, where: str, classes: Mapping[str, int]) -> None:
        if self.variable_types is None:
            if len(classes) > 1:
                raise InputError(
                    f"{where}: say with variable_types which of {', '.join(classes)} stands at each position"
                )
            return
        for kind in self.variable_types:
            if kind not in classes:
                raise InputError(f"{where}: unknown variable type {kind!r}; {nearest(kind, classes)}")
        if self.order is None and len(set(self.variable_types)) > 1:
            raise InputError(f"{where}: factors of any order need one type of variable; name it once")
        if self.order is not None and len(self.variable_types) != self.order:
            raise InputError(
                f"{where}: {len(self.variable_types)} variable_types for {self.order} positions; give one each"
            )
        if not self.ordered and len(set(self.variable_types)) > 1:
            raise InputError(f"{where}: positions of several variable types differ; leave ordered=True")

    def kind_at(self, position: int) -> str:
        """The type of the variable at a position."""
        if self.variable_types is None:
            return ONLY_TYPE
        return self.variable_types[0 if self.order is None else position]

    @property
    def has_cavity(self) -> bool:
        """Whether two variables of a factor talk to each other, so that each has something to leave out."""
        return self.sends_to is None or len(self.sends_to) > 1

    @property
    def one_way(self) -> bool:
        """Whether some position speaks but is sent nothing."""
        return self.sends_to is not None and len(self.sends_to) != self.order

    @property
    def receivers(self) -> tuple[int, ...]:
        """The position that each estimator of this type sends to; the first of them if it serves several."""
        if self.sends_to is not None:
            return self.sends_to if self.ordered else self.sends_to[:1]
        return tuple(range(self.order)) if self.ordered and self.order is not None else (0,)


@dataclass(frozen=True)
class Columns:
    """How the messages of a factor's other variables make the input d: sender j adds to its own columns.

    Attributes:
        places: First column of each sender.
        sizes: Number of columns of each sender: the classes of its variable.
        weights: What its message is multiplied with.
        width: Columns in all.
    """

    places: tuple[int, ...]
    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    width: int

    @property
    def alike(self) -> bool:
        """Whether all senders add to the same columns, so that their order does not matter."""
        return len(set(self.places)) == 1 and len(set(self.weights)) == 1


def columns(
    kind: FactorType, position: int, order: int, classes: Mapping[str, int], dependent: GraphDependent
) -> Columns:
    """The columns of d for messages to a position: one set for each type of variable, or for each sender.

    >>> columns(FactorType(4), 0, 4, {"variable": 3}, "mean").weights
    (0.3333333333333333, 0.3333333333333333, 0.3333333333333333)
    >>> mixed = FactorType(3, variable_types=("a", "b", "b"))
    >>> columns(mixed, 1, 3, {"a": 2, "b": 5}, "sum")
    Columns(places=(0, 2), sizes=(2, 5), weights=(1.0, 1.0), width=7)
    """
    kinds = [kind.kind_at(other) for other in range(order) if other != position]
    keys = list(range(order - 1)) if dependent == "concat" else kinds
    first: dict[object, int] = {}
    width = 0
    for key, name in zip(keys, kinds, strict=True):
        if key not in first:
            first[key] = width
            width += classes[name]
    return Columns(
        places=tuple(first[key] for key in keys),
        sizes=tuple(classes[name] for name in kinds),
        weights=tuple(1 / kinds.count(name) if dependent == "mean" else 1.0 for name in kinds),
        width=width,
    )


@dataclass(frozen=True)
class GraphRules:
    """The settings of message passing over a graph; `GraphMessagePassing` says what each means."""

    num_classes: Mapping[str, int]
    factors: Mapping[str, FactorType]
    hidden: int
    iterations: int
    tied: bool
    cavity: CavityMode
    initial: Initial
    aggregation: Aggregation
    dependent: GraphDependent
    known: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        for kind, classes in self.num_classes.items():
            if type(classes) is not int or classes < 2:
                of = "" if kind == ONLY_TYPE else f" of {kind!r}"
                raise InputError(f"num_classes{of} is {classes!r}; give a whole number, at least 2")
        for name in ("hidden", "iterations"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)!r}; give a whole number, at least 1")
        for name, choices in (
            ("cavity", CavityMode),
            ("initial", Initial),
            ("aggregation", Aggregation),
            ("dependent", GraphDependent),
        ):
            value = getattr(self, name)
            if value not in get_args(choices):
                raise InputError(f"unknown {name} {value!r}; {nearest(str(value), get_args(choices))}")
        for name, factor_type in self.factors.items():
            factor_type.check(name, self.num_classes, self.dependent)
        for name in self.known:
            if name not in {"unary", *self.factors}:
                raise InputError(f"known names {name!r}; {nearest(name, ['unary', *self.factors])}")

    @property
    def has_dependent(self) -> bool:
        """Whether any iteration sees messages that carry information."""
        return self.iterations > 1 or self.initial == "unary"

    @property
    def most_classes(self) -> int:
        """The classes of the variable type with most: the width of beliefs."""
        return max(self.num_classes.values())


class MessageEstimator(nn.Module):
    """One estimator M_F, shared by all factors of a type.

    Args:
        in_channels: r, the length of a node's feature vector.
        hidden: Units of the hidden layer.
        num_classes: K.
        has_sender: False for the unary factor.
        has_dependent: Whether messages of the previous iteration are an input (more than one iteration).
    """

    def __init__(
        self, in_channels: int, hidden: int, num_classes: int, *, has_sender: bool, has_dependent: bool
    ) -> None:
        super().__init__()
        self.receiver = nn.Linear(in_channels, hidden)
        self.sender = nn.Linear(in_channels, hidden, bias=False) if has_sender else None
        self.dependent = nn.Linear(num_classes, hidden, bias=False) if has_dependent and has_sender else None
        self.output = nn.Linear(hidden, num_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """He initialisation of the first layer, as if its parts were one matrix on the concatenation."""
        parts = [part for part in (self.receiver, self.sender, self.dependent) if part is not None]
        std = math.sqrt(2 / sum(part.in_features for part in parts))
        for part in parts:
            nn.init.normal_(part.weight, std=std)
        nn.init.zeros_(self.receiver.bias)
        nn.init.normal_(self.output.weight, std=1 / math.sqrt(self.output.in_features))
        nn.init.zeros_(self.output.bias)

    def forward(
        self, receiver: Tensor, sender: Tensor | None = None, dependent: Tensor | None = None
    ) -> Tensor:
        """Messages from features and dependent messages with equal leading axes: (…, r), (…, r), (…, K)."""
        hidden = self.receiver(receiver)
        if self.sender is not None and sender is not None:
            hidden = hidden + self.sender(sender)
        if self.dependent is not None and dependent is not None:
            hidden = hidden + self.dependent(dependent)
        message: Tensor = self.output(torch.relu(hidden))
        return message


class FactorEstimator(nn.Module):
    """One estimator M_F, shared by all factors of a type (by all messages to one position, if these differ).

    Args:
        in_channels: r, the length of a variable's feature vector.
        hidden: Units of the hidden layer.
        num_classes: K of the receiver.
        has_sender: False for the unary factor.
        dependent: Length of d; 0 if messages of the previous iteration are no input.
        local: Length of x; 0 for none.
        correction: Start with messages of zero, to be added to computed ones.
    """

    def __init__(
        self,
        in_channels: int,
        hidden: int,
        num_classes: int,
        *,
        has_sender: bool = True,
        dependent: int = 0,
        local: int = 0,
        correction: bool = False,
    ) -> None:
        super().__init__()
        self.receiver = nn.Linear(in_channels, hidden)
        self.sender = nn.Linear(in_channels, hidden, bias=False) if has_sender else None
        self.dependent = nn.Linear(dependent, hidden, bias=False) if dependent else None
        self.local = nn.Linear(local, hidden, bias=False) if local else None
        self.output = nn.Linear(hidden, num_classes)
        self.correction = correction
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """He initialisation of the first layer, as if its parts were one matrix on the concatenation."""
        parts = [
            part for part in (self.receiver, self.sender, self.dependent, self.local) if part is not None
        ]
        std = math.sqrt(2 / sum(part.in_features for part in parts))
        for part in parts:
            nn.init.normal_(part.weight, std=std)
        nn.init.zeros_(self.receiver.bias)
        nn.init.normal_(self.output.weight, std=0 if self.correction else self.output.in_features**-0.5)
        nn.init.zeros_(self.output.bias)

    def forward(
        self,
        receiver: Tensor,
        sender: Tensor | None = None,
        dependent: Tensor | None = None,
        local: Tensor | None = None,
    ) -> Tensor:
        """Messages, one by one, from inputs with equal leading axes; `sender` is the senders' average."""
        hidden = self.receiver(receiver)
        for part, values in ((self.sender, sender), (self.dependent, dependent), (self.local, local)):
            if part is not None and values is not None:
                hidden = hidden + part(values)
        message: Tensor = self.output(torch.relu(hidden))
        return message


def build_stage(rules: GraphRules, in_channels: int) -> nn.ModuleDict:
    """The estimators of one iteration: the unary ones, one per type of variable, then those of each factor type."""
    corrected = "unary" in rules.known
    unary = [
        FactorEstimator(in_channels, rules.hidden, size, has_sender=False, correction=corrected)
        for size in rules.num_classes.values()
    ]
    stage = {"unary": nn.ModuleList(unary)}
    for name, kind in rules.factors.items():
        stage[name] = nn.ModuleList(
            _estimator(rules, in_channels, name, kind, position) for position in kind.receivers
        )
    return nn.ModuleDict(stage)


def _estimator(
    rules: GraphRules, in_channels: int, name: str, kind: FactorType, position: int
) -> FactorEstimator:
    classes = rules.num_classes[kind.kind_at(position)]
    width = columns(kind, position, kind.order or 2, rules.num_classes, rules.dependent).width
    known = name in rules.known
    return FactorEstimator(
        in_channels,
        rules.hidden,
        classes,
        dependent=width if rules.has_dependent else 0,
        local=kind.features + (classes if known else 0),
        correction=known,
    )
