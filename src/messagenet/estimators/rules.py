"""How messages are passed: the settings of a head, checked when it is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

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
