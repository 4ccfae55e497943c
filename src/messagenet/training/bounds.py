"""Refusing numbers that make no sense, with the name of the setting."""

from __future__ import annotations

from messagenet.errors import InputError


def at_least(least: int, **settings: float) -> None:
    """Refuses settings below a bound, by name."""
    for name, value in settings.items():
        if value < least:
            raise InputError(f"{name} is {value}; give at least {least}")


def at_most(most: float, **settings: float) -> None:
    """Refuses settings above a bound, by name."""
    for name, value in settings.items():
        if value > most:
            raise InputError(f"{name} is {value}; give at most {most}")


def between(low: float, high: float, **settings: float) -> None:
    """Refuses settings outside low ≤ value < high, by name."""
    for name, value in settings.items():
        if not low <= value < high:
            raise InputError(f"{name} is {value}; give a number from {low} to below {high}")
