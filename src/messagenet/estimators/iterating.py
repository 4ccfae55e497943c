"""T iterations: what heads on grids and on graphs have in common, whatever one iteration is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from torch import nn

from messagenet.estimators.beliefs import Beliefs

FieldT = TypeVar("FieldT")


class Budget(Protocol):
    """The rules that concern iterations."""

    @property
    def iterations(self) -> int:
        """T."""
        ...

    @property
    def tied(self) -> bool:
        """Whether all iterations have the same estimators."""
        ...


class Iterating(Generic[FieldT]):
    """A head whose beliefs are made in iterations, each from those before it.

    Attributes:
        rules: How many, and with which estimators.
        estimators: One set of estimators for all iterations, or one for each.
    """

    rules: Budget
    estimators: nn.ModuleList

    @abstractmethod
    def initial_beliefs(self, field: FieldT) -> Beliefs:
        """β⁰: nothing but, if asked for, the unary factors' messages."""

    @abstractmethod
    def step(self, field: FieldT, number: int, previous: Beliefs, *, keep: bool = True) -> Beliefs:
        """One synchronous iteration: every factor sends, then every node sums.

        Args:
            field: The graph and its features.
            number: Which iteration, counted from 0; it chooses untied estimators.
            previous: The beliefs before it.
            keep: Keep single messages where a next iteration needs them for its cavities.
        """

    def iterate(
        self, field: FieldT, iterations: int | None = None, *, open_end: bool = False
    ) -> Iterator[Beliefs]:
        """The beliefs after each iteration, T of them unless told otherwise.

        Args:
            field: The graph and its features.
            iterations: How many, for tied estimators.
            open_end: Keep single messages in the last iteration too, so that passing can go on from there.
        """
        count = self.rules.iterations if iterations is None else iterations
        beliefs = self.initial_beliefs(field)
        for number in range(count):
            beliefs = self.step(field, number, beliefs, keep=open_end or number + 1 < count)
            yield beliefs
