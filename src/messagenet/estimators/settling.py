"""Passing messages with another budget than the one trained for, or until the beliefs have settled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Generic, TypeVar

from torch import Tensor

from messagenet.errors import InputError

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class Passed:
    """What came of passing messages.

    Attributes:
        logits: Of the marginals: (variables, K), −∞ at classes that a variable does not have; on a grid (B, K, H, W).
        iterations: How many were run.
        settled: Whether the beliefs changed by no more than the tolerance at the end; None without a tolerance.
        changes: The largest change of a probability in each iteration, if there is a tolerance.
        note: What to bear in mind when reading the result; empty if nothing.
    """

    logits: Tensor
    iterations: int
    settled: bool | None
    changes: tuple[float, ...]
    note: str


@dataclass(frozen=True, eq=False)
class Course(Generic[State]):
    """How passing went: the last state, and what `Passed` says of it."""

    state: State
    iterations: int
    settled: bool | None
    changes: tuple[float, ...]


def budget(trained: int, tied: bool, iterations: int | None, tolerance: float | None) -> int:
    """How many iterations a head may run: `iterations`, or as many as it was trained for.

    >>> budget(3, True, None, None), budget(3, True, 10, 1e-3)
    (3, 10)
    """
    most = trained if iterations is None else iterations
    if type(most) is not int or most < 1:
        raise InputError(f"iterations is {most!r}; give a whole number, at least 1")
    if not tied and (most != trained or tolerance is not None):
        raise InputError(
            f"this head has estimators of their own for each of {trained} iterations; run exactly these without "
            "a tolerance, or train it with tied=True"
        )
    return most


def follow(
    states: Iterable[State], marginals: Callable[[State], Tensor], before: Tensor, tolerance: float | None
) -> Course[State]:
    """Goes through the iterations until no probability changes by more than the tolerance.

    Args:
        states: What each iteration leaves; they are computed as they are asked for.
        marginals: The probabilities of a state.
        before: Those before the first iteration.
        tolerance: None goes through all of them, and measures nothing.
    """
    changes: list[float] = []
    used, settled = 0, None if tolerance is None else False
    for state in states:
        used += 1
        if tolerance is None:
            continue
        after = marginals(state)
        moved = (after - before).abs()
        changes.append(float(moved.amax()) if moved.numel() else 0.0)
        before = after
        if settled := changes[-1] <= tolerance:
            break
    return Course(state, used, settled, tuple(changes))


def passed(logits: Tensor, courses: Sequence[Course[State]], trained: int) -> Passed:
    """One account of everything that was passed side by side."""
    used = max(course.iterations for course in courses)
    flags = [course.settled for course in courses]
    changes = zip_longest(*(course.changes for course in courses), fillvalue=0.0)
    return Passed(
        logits,
        used,
        None if None in flags else all(flags),
        tuple(max(each) for each in changes),
        "" if used == trained else f"trained for {trained} iterations, run for {used}",
    )
