"""Settings: a keyword of a registered class, written once.

The signature is the schema. Parameters with a default value are the settings of a class or function; their annotations
are the types, the lines under `Args:` (or `Attributes:`) the help. `**options` stands for those of the base class. YAML
files, `--set`, `messagenet settings`, `config.json` and Python keywords all read `options(make)`. Parameters without a
default are given by the program.

A *component* (backbone, neck, head, loss, optimiser, engine, data reader) is chosen by its kind, which `register`
enters into the registry of its group:

    @register("head", "mine")
    class MyHead(nn.Module):
        def __init__(self, in_channels, num_classes, *, width: int = 64): ...

    {"kind": "mine", "width": 32}         a component as plain values; "mine" alone means its defaults

Settings are checked before anything is built. An unknown name is refused with the nearest known one, a value of the
wrong type with the type that is wanted, both by full path, such as `model.head.hidden`. When a component's kind
changes, options that were set and that the new kind has keep their value; the others are dropped.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import functools
import importlib
import inspect
import math
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from messagenet.errors import InputError, nearest

T = TypeVar("T")
Factory = TypeVar("Factory", bound=Callable[..., Any])
Spec = Mapping[str, Any]
KIND = "kind"
_HOMES = {"loss": "losses", "optimiser": "training", "method": "training", "engine": "inference", "data": "data"}
GROUPS = ("backbone", "neck", "head", "loss", "optimiser", "engine", "data", "method")
_BLOCK = re.compile(r"^(?:Args|Attributes):\n((?: {4}.*\n?)*)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {8}.*)*)", re.MULTILINE)  # deeper lines continue a text
_OPTIONS: dict[Callable[..., Any], dict[str, Option]] = {}
_REGISTRY: dict[str, dict[str, Callable[..., Any]]] = {group: {} for group in GROUPS}


class Option(NamedTuple):
    """One setting: its name, annotation, default value and help text."""

    name: str
    type: Any
    default: Any
    help: str


class Component(NamedTuple):
    """Marks a setting as a component of a group: `Annotated[dict, Component("head")]`."""

    group: str


class Mismatch(Exception):
    """A value that does not have the type of its setting."""


def options(make: Callable[..., Any]) -> dict[str, Option]:
    """The settings of a class or function, by name.

    >>> def resize(image, size: int = 384, *, antialias: bool = True):
    ...     '''Resizes.
    ...
    ...     Args:
    ...         size: Pixels of the longest side.
    ...     '''
    >>> options(resize)["size"]
    Option(name='size', type=<class 'int'>, default=384, help='Pixels of the longest side.')
    """
    if make in _OPTIONS:
        return _OPTIONS[make]
    parameters, documented = inspect.signature(make).parameters, help_texts(make)
    source: Any = make if dataclasses.is_dataclass(make) or inspect.isroutine(make) else getattr(make, "__init__", make)
    hints = get_type_hints(inspect.unwrap(source), include_extras=True)
    found: dict[str, Option] = {}
    if inspect.isclass(make) and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        found |= {n: o._replace(help=documented.get(n, o.help)) for n, o in options(make.__mro__[1]).items()}
    fields = dataclasses.fields(make) if dataclasses.is_dataclass(make) else ()
    made = {each.name: each.default_factory() for each in fields if each.default_factory is not dataclasses.MISSING}
    for name, parameter in parameters.items():
        default = made.get(name, parameter.default)
        if default is not parameter.empty:
            found[name] = Option(name, hints.get(name, Any), default, documented.get(name, ""))
    return _OPTIONS.setdefault(make, found)


def help_texts(make: Callable[..., Any]) -> dict[str, str]:
    """The entries under "Args:" or "Attributes:" in a docstring, by name; those of base classes come first."""
    found: dict[str, str] = {}
    for source in reversed(inspect.getmro(make)) if inspect.isclass(make) else (make,):
        for block in _BLOCK.findall(inspect.cleandoc(source.__doc__ or "")):
            for names, text in _ENTRY.findall(block):
                found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


def register(group: str, kind: str) -> Callable[[Factory], Factory]:
    """Enters a class or function into the registry of a group.

    An instance of a registered class, unless it is a dataclass, has `config`: the plain values that build it again.

    Args:
        group: "backbone", "neck", "head", "loss", "optimiser", "engine", "data" or "method".
        kind: Its name in configurations. The same class or function may be registered again, as a notebook does.
    """
    if group not in _REGISTRY:
        raise InputError(f'there is no group "{group}" of components: {nearest(str(group), _REGISTRY)}')

    def enter(make: Factory) -> Factory:
        if not make.__module__.startswith("messagenet."):  # the kinds of the library come first
            importlib.import_module(f"messagenet.{_HOMES.get(group, 'models')}")
        known = _REGISTRY[group].get(kind, make)
        if _qualified(known) != _qualified(make):
            raise InputError(
                f'the {group} "{kind}" is {_qualified(known)}; register {_qualified(make)} as another kind'
            )
        _REGISTRY[group][kind] = make
        if inspect.isclass(make) and not dataclasses.is_dataclass(make):
            _record_config(make, kind)
        return make

    return enter


def import_components(source: str) -> None:
    """Imports a module by its name, or a file `.py`, which registers components; both may import their neighbours."""
    path = Path(source)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise InputError(f"there is no file {source} to import; check the path")
    folder = str(path.resolve().parent if is_file else Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        module = importlib.import_module(path.stem if is_file else source)
    except Exception as error:  # whatever the user's module raises
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{source} cannot be imported ({what}); correct it, or the name of the module") from error
    if is_file and Path(module.__file__ or "").resolve() != path.resolve():
        raise InputError(f'another module is called "{path.stem}"; rename {source}')


def _qualified(make: Callable[..., Any]) -> str:
    return f"{make.__module__}.{getattr(make, '__qualname__', type(make).__qualname__)}"


def _record_config(make: type, kind: str) -> None:
    """Wraps `__init__` to store the values of all settings in `self.config`."""
    initialise = make.__init__  # type: ignore[misc]
    signature = inspect.signature(initialise)

    @functools.wraps(initialise)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        if type(self) is make:
            given = {**signature.bind(self, *args, **kwargs).arguments, **kwargs}
            values = {name: given.get(name, option.default) for name, option in options(make).items()}
            object.__setattr__(self, "config", {KIND: kind, **plain(values)})

    make.__init__ = recorded  # type: ignore[misc]


def kinds(group: str) -> tuple[str, ...]:
    """The kinds of a group, in the order in which they were registered."""
    return tuple(_REGISTRY[group])


def find(group: str, kind: str, path: str = "") -> Callable[..., Any]:
    """The class or function that was registered under a kind."""
    known = _REGISTRY[group]
    if not isinstance(kind, str):
        raise InputError(f"the kind of {path or group} is {kind!r}; give one text; {nearest('', known)}")
    if kind not in known:
        raise InputError(f'there is no {group} "{kind}": {nearest(kind, known)}' + (f" ({path})" if path else ""))
    return known[kind]


def component(group: str, spec: str | Spec, base: Spec | None = None, path: str = "") -> dict[str, Any]:
    """A component's kind and the values of all its settings, checked.

    `spec` is a kind or a mapping of settings; what it leaves out comes from `base`, a checked component.
    """
    path = path or group
    given = {KIND: spec} if isinstance(spec, str) else spec
    if not isinstance(given, Mapping):
        raise InputError(f"{path} is {spec!r}; give a kind, or settings as {{kind: …, name: value}}")
    (kind,) = kinds(group) if len(kinds(group)) == 1 else (None,)
    kind = given.get(KIND, kind if base is None else base[KIND])
    if kind is None:
        raise InputError(f"{path} has no kind; {nearest('', kinds(group))}")
    known = options(find(group, kind, path))
    values = {name: plain(option.default) for name, option in known.items()}
    if base is not None:
        before = {} if base[KIND] == kind else options(find(group, base[KIND], path))
        changed = (n for n, v in base.items() if n not in before or v != plain(before[n].default))
        values |= {name: base[name] for name in changed if name in known}
    for name, value in ((name, value) for name, value in given.items() if name != KIND):
        if name not in known:
            others = [each for each in kinds(group) if name in options(find(group, each))]
            hint = f"it is one of {', '.join(others)}" if others else nearest(str(name), known)
            raise InputError(f'there is no setting "{path}.{name}" for {kind}: {hint}')
        values[name] = plain(convert(value, known[name].type, f"{path}.{name}"))
    return {KIND: kind, **values}


def build(group: str, spec: str | Spec, *, path: str = "", **given: Any) -> Any:
    """Builds a component; `given` are values for its parameters without a default, others are ignored."""
    checked = component(group, spec, path=path)
    make = find(group, checked[KIND])
    known, wanted = options(make), inspect.signature(make).parameters
    values = {n: convert(v, known[n].type, f"{path or group}.{n}") for n, v in checked.items() if n != KIND}
    try:
        built = make(**{name: value for name, value in given.items() if name in wanted}, **values)
    except InputError as error:
        raise InputError(f"{path}: {error}" if path else str(error)) from None
    if not inspect.isclass(make):
        built.config = checked
    return built


def merge(base: T, values: Mapping[str, Any], path: str = "", root: tuple[Any, Spec] | None = None) -> T:
    """A dataclass of settings with some of them replaced; sections and components keep what `values` does not name.

    A class may drop in `adapt(values)` what does not fit the values, before they are applied. `root`: all of both.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"{path or 'the configuration'} is {values!r}; give settings as name: value")
    known, root = options(type(base)), root or (base, values)
    base = base.adapt(values) if hasattr(base, "adapt") else base
    changes: dict[str, Any] = {}
    for key, value in values.items():
        full = f"{path}.{key}" if path else str(key)
        if key not in known:
            asked = next(iter(flat(value, full)))
            raise InputError(f'there is no setting "{asked}": {_suggestion(root, asked, known)}')
        current = getattr(base, key)
        if dataclasses.is_dataclass(current):
            changes[key] = merge(current, {} if value is None else value, full, root)
        elif (group := component_group(known[key].type)) and value is not None:
            changes[key] = component(group, value, current, full)
        else:
            changes[key] = convert(value, known[key].type, full)
    try:
        return dataclasses.replace(base, **changes)  # type: ignore[type-var]
    except InputError as error:
        raise InputError(f"{path}: {error}" if path else str(error)) from None


def component_group(hint: Any) -> str | None:
    """The group of components that an annotation asks for, if it does."""
    return next((part.group for part in get_args(hint) if isinstance(part, Component)), None)


def plain(value: Any) -> Any:
    """A value as dictionaries, lists and scalars; a class may define its own form in `to_setting`."""
    if hasattr(value, "to_setting"):
        return value.to_setting()
    if getattr(value, "shape", None) == ():  # a NumPy scalar
        return value.item()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by section, from settings by path; a later one wins.

    >>> nested({"model.head": "unary", "model.head.hidden": 8, "run.steps": 3})
    {'model': {'head': {'kind': 'unary', 'hidden': 8}}, 'run': {'steps': 3}}
    """
    found: dict[str, Any] = {}
    for path, value in values.items():
        if not isinstance(path, str):
            raise InputError(f"a setting is named {path!r}; give its path as text, such as run.epochs")
        *sections, name = path.split(".")
        section = found
        for each in sections:
            inner = section.setdefault(each, {})
            if isinstance(inner, str):  # a component by its kind alone
                inner = section[each] = {KIND: inner}
            if not isinstance(inner, dict):
                raise InputError(f'"{path}" goes into {each}, which another setting has replaced by {inner!r}')
            section = inner
        section[name] = _over(section.get(name), value)
    return found


def _over(before: Any, value: Any) -> Any:
    """A later value over an earlier one; a later kind keeps what was set before."""
    if isinstance(before, dict) and isinstance(value, str):
        return {**before, KIND: value}
    if isinstance(before, dict) and isinstance(value, dict):
        return {**before, **{name: _over(before.get(name), each) for name, each in value.items()}}
    return value


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Settings by their full path, those of components too.

    >>> flat({"head": {"kind": "message", "hidden": 64}})
    {'head.kind': 'message', 'head.hidden': 64}
    """
    value = vars(value) if dataclasses.is_dataclass(value) else value
    if not isinstance(value, Mapping) or not value:
        return {path: plain(value)}
    inner = (flat(item, f"{path}.{name}" if path else name) for name, item in value.items())
    return {full: each for found in inner for full, each in found.items()}


def _suggestion(root: tuple[Any, Spec], asked: str, names: Iterable[str]) -> str:
    """The setting that was probably meant: the nearest path among those that end with the nearest name."""
    paths, chosen = _every_setting(root[0]), {**flat(root[0]), **flat(root[1])}

    def lacks(path: str) -> str:
        """The kinds that have an option, if the chosen one has not."""
        slot = path.rpartition(".")[0]
        has = not paths[path] or (chosen.get(slot) or chosen.get(f"{slot}.{KIND}")) in paths[path]
        return "" if has else f", of the {slot.rpartition('.')[2]} {' or '.join(paths[path])}"

    near = difflib.get_close_matches(asked.rpartition(".")[2], {path.rpartition(".")[2] for path in paths}, n=1)
    if not near:
        return nearest("", names)
    same = [path for path in paths if path.rpartition(".")[2] == near[0]]
    same = [path for path in same if not lacks(path)] or same
    (path,) = difflib.get_close_matches(asked, same, n=1, cutoff=0)
    return f'did you mean "{path}"{lacks(path)}?'


def _every_setting(section: Any, path: str = "") -> dict[str, list[str]]:
    """Full paths, those of sections and of components of any kind too, and the kinds that have them."""
    found: dict[str, list[str]] = {}
    for name, option in options(type(section)).items():
        full = f"{path}.{name}" if path else name
        value, group = getattr(section, name), component_group(option.type)
        found |= {full: [], **(_every_setting(value, full) if dataclasses.is_dataclass(value) else {})}
        for kind, make in _REGISTRY[group].items() if group else ():
            for each in (KIND, *options(make)):
                found.setdefault(f"{full}.{each}", []).append(kind)
    return found


def convert(value: Any, hint: Any, path: str) -> Any:
    """A plain value as an annotation wants it, or an error that names the setting.

    >>> convert([1, 2], tuple[float, ...], "augment.scales")
    (1.0, 2.0)
    >>> convert("many", int, "run.epochs")
    Traceback (most recent call last):
    messagenet.errors.InputError: run.epochs is 'many'; give a whole number
    """
    try:
        return _converted(value, hint)
    except Mismatch:
        raise InputError(f"{path} is {value!r}; {_advice(value, hint)}") from None
    except InputError as error:  # of a class that reads its own settings
        raise InputError(f"{path}: {error}") from None


def _converted(value: Any, hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if getattr(value, "shape", None) == ():  # a NumPy scalar
        value = value.item()
    if hint is Any:
        return value
    if origin is Annotated:
        return _converted(value, arguments[0])
    if origin in (Union, types.UnionType):
        return _first_fit(value, arguments)
    if origin is Literal:
        return _require(value, value in arguments and not isinstance(value, bool))
    if origin in (tuple, list, collections.abc.Sequence):
        return _sequence(value, arguments if origin is tuple else (*arguments, Ellipsis))
    if origin in (dict, collections.abc.Mapping):
        _require(value, isinstance(value, Mapping) and all(isinstance(key, str) for key in value))
        return {key: _converted(entry, arguments[1]) for key, entry in value.items()}
    if hint in (type(None), None):
        return _require(None, value is None)
    if hint is float:
        return _number(value)
    if hasattr(hint, "from_setting"):
        return value if isinstance(value, hint) else hint.from_setting(value)
    return _require(value, isinstance(value, hint) and (hint is bool or not isinstance(value, bool)))


def _require(value: Any, fits: bool) -> Any:
    if not fits:
        raise Mismatch
    return value


def _first_fit(value: Any, hints: tuple[Any, ...]) -> Any:
    refused: Exception = Mismatch()
    for hint in hints:
        try:
            return _converted(value, hint)
        except Mismatch:
            continue
        except InputError as error:
            refused = error
            if isinstance(value, str):  # which another hint, `str`, would take as it is
                break
    raise refused


def _sequence(value: Any, hints: tuple[Any, ...]) -> tuple[Any, ...]:
    _require(value, isinstance(value, Sequence) and not isinstance(value, str))
    each = (hints[0],) * len(value) if hints[-1] is Ellipsis else hints
    _require(value, len(each) == len(value))
    return tuple(_converted(item, hint) for item, hint in zip(value, each, strict=True))


def _number(value: Any) -> float:
    _require(value, isinstance(value, int | float | str) and not isinstance(value, bool))
    try:
        number = float(value)  # YAML 1.1 reads 1e-3 as text
    except ValueError:
        raise Mismatch from None
    return float(_require(number, math.isfinite(number)))


def _advice(value: Any, hint: Any) -> str:
    literals = [get_args(each) for each in (hint, *get_args(hint)) if get_origin(each) is Literal]
    choices = [word for words in literals for word in words if isinstance(word, str)]
    near = difflib.get_close_matches(value, choices) if isinstance(value, str) else []
    return f'did you mean "{near[0]}"?' if len(near) == 1 else f"give {_wanted(hint)}"


def _wanted(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _wanted(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(_wanted(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(f'"{argument}"' if isinstance(argument, str) else str(argument) for argument in arguments)
    if origin in (tuple, list, collections.abc.Sequence):
        if origin is tuple and arguments[-1] is not Ellipsis:
            return f"a list of {len(arguments)}, each {_wanted(arguments[0])}"
        return f"a list, each {_wanted(arguments[0])}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    return words.get(hint, "settings as {name: value}")


def at_least(minimum: float, **settings: float | None) -> None:
    """Refuses settings below a bound, by name; None is not checked."""
    for name, value in settings.items():
        if value is not None and not value >= minimum:
            raise InputError(f"{name} is {value}; give at least {minimum}")


def between(low: float, high: float, **settings: float) -> None:
    """Refuses settings outside low ≤ value < high, by name."""
    for name, value in settings.items():
        if not low <= value < high:
            raise InputError(f"{name} is {value}; give a number from {low} to below {high}")
