"""Passing messages until they stay: settings, the loop, and how it went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar, get_args

from torch import Tensor

from messagenet.errors import InputError, nearest

Schedule = Literal["synchronous", "sequential", "residual"]
Messages = TypeVar("Messages")


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
        if self.schedule not in get_args(Schedule):
            raise InputError(
                f'schedule "{self.schedule}" is not known; {nearest(self.schedule, get_args(Schedule))}'
            )
        if not 0 <= self.damping < 1:
            raise InputError(f"damping is {self.damping}; it must be at least 0 and below 1")
        if self.max_iterations < 1:
            raise InputError(f"max_iterations is {self.max_iterations}; it must be at least 1")
        if not 0 < self.residual_fraction <= 1:
            raise InputError(
                f"residual_fraction is {self.residual_fraction}; it must be above 0 and at most 1"
            )


@dataclass(frozen=True)
class Progress:
    """How a run went."""

    iterations: int
    converged: bool
    history: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run leaves.

    Attributes:
        progress: how it went.
        beliefs: (variables, batch, max_cardinality) logs, up to a constant for each variable.
        compute_messages: makes the (rows, batch, max_cardinality) messages; most answers need beliefs only.
    """

    progress: Progress
    beliefs: Tensor
    compute_messages: Callable[[], Tensor]

    @cached_property
    def messages(self) -> Tensor:
        """The messages after the last iteration."""
        return self.compute_messages()


def iterate(
    step: Callable[[Messages], tuple[Messages, Tensor | None]], messages: Messages, settings: PassingSettings
) -> tuple[Messages, Progress]:
    """Renews messages until none changes by more than the tolerance, or the iterations are used up.

    Args:
        step: makes newer messages, and says the largest change of any if it measured that.
        messages: to begin with.
        settings: of the run.
    """
    history: list[float] = []
    for iteration in range(settings.max_iterations):
        messages, largest = step(messages)
        if settings.tolerance is not None and largest is not None:
            history.append(float(largest))
            if history[-1] <= settings.tolerance:
                return messages, Progress(iteration + 1, True, tuple(history))
    return messages, Progress(settings.max_iterations, False, tuple(history))
