"""Between frozen dataclasses and the plain values of a YAML file: strict about names and types.

`merged(base, values)` lays plain values over a dataclass; what they leave out keeps its value in `base`. An
unknown name is refused with the nearest known one, a value of the wrong type with the type that is wanted,
both by their full path, such as `run.epochs`. Where a class says that one setting `replaces` another, giving the
one resets the other to None.

Refusing numbers that make no sense, with the name of the setting.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from messagenet.errors import InputError, nearest

T = TypeVar("T")


class Mismatch(Exception):
    """A value that does not have the type of its setting."""


def merged(base: T, values: Mapping[str, Any], path: str = "") -> T:
    """The dataclass `base` with some settings replaced.

    >>> from messagenet.training.config import TrainConfig
    >>> merged(TrainConfig(), {"run": {"epochs": 3}}).run.epochs
    3
    >>> merged(TrainConfig(), {"run": {"epoch": 3}})
    Traceback (most recent call last):
    messagenet.errors.InputError: there is no setting "run.epoch": did you mean "run.epochs"?
    """
    if not isinstance(values, Mapping):
        raise InputError(f"{path or 'the configuration'} is {values!r}; give settings as name: value")
    hints = get_type_hints(type(base))
    known = {field.name for field in dataclasses.fields(base)}  # type: ignore[arg-type]
    changes: dict[str, Any] = {}
    for key, value in values.items():
        full = f"{path}.{key}" if path else str(key)
        if key not in known:
            raise InputError(f'there is no setting "{full}": {_suggestion(base, str(key), path)}')
        current = getattr(base, key)
        if dataclasses.is_dataclass(current):
            changes[key] = merged(current, {} if value is None else value, full)
            continue
        try:
            changes[key] = _converted(value, hints[key])
        except Mismatch:
            raise InputError(f"{full} is {value!r}; {_advice(value, hints[key])}") from None
    for key, other in getattr(base, "replaces", {}).items():
        if key in changes:
            changes.setdefault(other, None)
    try:
        return dataclasses.replace(base, **changes)  # type: ignore[type-var]
    except InputError as error:
        raise InputError(f"{path}: {error}" if path else str(error)) from None


def plain(value: Any) -> Any:
    """A dataclass as dictionaries, lists and scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """The settings of a dataclass by their full path.

    >>> from messagenet.training.config import TrainConfig
    >>> flat(TrainConfig())["run.accumulate"]
    1
    """
    if not dataclasses.is_dataclass(value):
        return {path: plain(value)}
    found: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        found |= flat(getattr(value, field.name), f"{path}.{field.name}" if path else field.name)
    return found


def _suggestion(base: Any, key: str, path: str) -> str:
    """The nearest setting here; or, at the top, one of that name in any section."""
    names = [f"{path}.{field.name}" if path else field.name for field in dataclasses.fields(base)]
    elsewhere = [] if path else [full for full in flat(base) if full.rpartition(".")[2] == key]
    return (
        nearest(f"{path}.{key}" if path else key, names)
        if not elsewhere
        else f'did you mean "{elsewhere[0]}"?'
    )


def _advice(value: Any, hint: Any) -> str:
    """The word that was probably meant, or what is wanted.

    >>> _advice("adam", Literal["sgd", "adamw"])
    'did you mean "adamw"?'
    """
    choices = [
        word for each in (hint, *get_args(hint)) if get_origin(each) is Literal for word in get_args(each)
    ]
    meant = nearest(value, choices) if isinstance(value, str) and choices else ""
    return meant if meant.startswith("did you mean") else f"give {_wanted(hint)}"


def _converted(value: Any, hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _first_fit(value, arguments)
    if origin is Literal:
        return _checked(value, value in arguments and isinstance(value, str))
    if origin is tuple:
        return _tuple(value, arguments)
    if origin is dict:
        _checked(value, isinstance(value, Mapping) and all(isinstance(key, str) for key in value))
        return {key: _converted(plain(entry), arguments[1]) for key, entry in value.items()}
    if hint is type(None):
        return _checked(None, value is None)
    if hint is float:
        return _number(value)
    return _checked(value, isinstance(value, hint) and (hint is bool or not isinstance(value, bool)))


def _checked(value: Any, fits: bool) -> Any:
    if not fits:
        raise Mismatch
    return value


def _first_fit(value: Any, hints: tuple[Any, ...]) -> Any:
    for hint in hints:
        try:
            return _converted(value, hint)
        except Mismatch:
            continue
    raise Mismatch


def _tuple(value: Any, hints: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise Mismatch
    each = (hints[0],) * len(value) if hints[-1] is Ellipsis else hints
    if len(each) != len(value):
        raise Mismatch
    return tuple(_converted(item, hint) for item, hint in zip(value, each, strict=True))


def _number(value: Any) -> float:
    """A float; YAML 1.1 reads 1e-3 as text, which nobody means."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise Mismatch
    try:
        return float(value)
    except ValueError:
        raise Mismatch from None


def _wanted(hint: Any) -> str:
    """The values a type admits, in words.

    >>> _wanted(int | None), _wanted(tuple[float, ...]), _wanted(Literal["sgd", "adamw"])
    ('a whole number or null', 'a list, each a number', '"sgd" or "adamw"')
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_wanted(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(f'"{argument}"' for argument in arguments)
    if origin is tuple:
        return (
            f"a list, each {_wanted(arguments[0])}"
            if arguments[-1] is Ellipsis
            else f"a list of {len(arguments)}, each {_wanted(arguments[0])}"
        )
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    return words.get(hint, "settings as {name: value}")


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
