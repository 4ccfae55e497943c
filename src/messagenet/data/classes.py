"""Class lists: a name and a colour for each label id, and the id that means "not labelled".

A mask contains ids 0 … K−1, and `VOID` = 255 where the target is unknown; loss and scores ignore void pixels. Colours
default to PASCAL VOC's map: bits 3j, 3j+1 and 3j+2 of the id become bit 7−j of red, green and blue (Everingham et al.,
VOC devkit, `VOClabelcolormap`).

A class list is a JSON list of names, a JSON object `{"road": "#804080"}`, `{"road": [128, 64, 128]}`, `{"0": "road"}`
or `{"road": 0}`, or text with one `road`, `road #804080` or `road 128 64 128` per line, in the order of the ids. In
text, blank lines and lines that begin with `#` are skipped. A last entry named `void` is not a class: it sets the
colour of pixels without a label in painted masks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from messagenet.errors import InputError, nearest

VOID = 255
BACKGROUND = "background"  # the class of this name, if there is one, is everything between objects
VOID_COLOUR = (224, 224, 192)
MAX_CLASSES = 255
Colour = tuple[int, int, int]
VOC_NAMES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train"),
    "tvmonitor",
)


def voc_palette(count: int) -> tuple[Colour, ...]:
    """The first `count` colours of PASCAL VOC's colour map; all 256 are different.

    >>> voc_palette(4)
    ((0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0))
    """

    def spread(bits: int) -> int:
        return sum(((bits >> (3 * level)) & 1) << (7 - level) for level in range(3))

    return tuple((spread(label), spread(label >> 1), spread(label >> 2)) for label in range(count))


@dataclass(frozen=True)
class Classes:
    """Names and colours of the classes, in the order of their ids.

    Attributes:
        names: One name per id.
        colours: One RGB colour per id; VOC's map when left empty.
        void_colour: Colour of pixels without a label.

    >>> classes = Classes(("background", "cat"))
    >>> classes.num_classes, classes.colours[1], classes.index("cat")
    (2, (128, 0, 0), 1)
    """

    names: tuple[str, ...]
    colours: tuple[Colour, ...] = ()
    void_colour: Colour = VOID_COLOUR

    def __post_init__(self) -> None:
        names = tuple(self.names)
        colours = tuple((int(r), int(g), int(b)) for r, g, b in self.colours) or voc_palette(len(names))
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "colours", colours)
        if len(names) < 2:
            raise InputError(f"a class list needs at least 2 classes, this one has {len(names)}: {list(names)}")
        if len(names) > MAX_CLASSES:
            raise InputError(f"{len(names)} classes do not fit in 8-bit masks; use at most {MAX_CLASSES}")
        if repeated := _duplicates(names):
            raise InputError(f'class name "{repeated[0]}" occurs twice; give each class its own name')
        if len(colours) != len(names):
            raise InputError(f"{len(names)} class names but {len(colours)} colours; give every class one or none")
        if wrong := [colour for colour in (*colours, self.void_colour) if not all(0 <= v <= 255 for v in colour)]:
            raise InputError(f"colour {wrong[0]} is outside 0..255; write it as r g b or #rrggbb")
        if repeated := _duplicates(colours):
            owners = [name for name, colour in zip(names, colours, strict=True) if colour == repeated[0]]
            raise InputError(f"classes {', '.join(owners)} share the colour {repeated[0]}; give each its own")

    @property
    def num_classes(self) -> int:
        """K, without void."""
        return len(self.names)

    def index(self, which: str | int) -> int:
        """The id of a class given by name or by id (as a number or a decimal string)."""
        if which in self.names:
            return self.names.index(str(which))
        if isinstance(which, str) and not which.isdecimal():
            raise InputError(f'there is no class "{which}"; {nearest(which, self.names)}')
        if not 0 <= int(which) < self.num_classes:
            raise InputError(f"there is no class {which}; ids run from 0 to {self.num_classes - 1}")
        return int(which)

    def palette(self) -> list[int]:
        """The 768 values of a palette PNG that shows ids, and void at 255, in their colours."""
        table = [*self.colours, *voc_palette(256)[self.num_classes :]]
        table[VOID] = self.void_colour
        return [value for colour in table for value in colour]

    def colour_table(self) -> dict[Colour, int]:
        """The id of each colour in a painted mask, including the void colour."""
        return {self.void_colour: VOID} | {colour: label for label, colour in enumerate(self.colours)}


def _duplicates(items: Sequence[Any]) -> list[Any]:
    return [item for position, item in enumerate(items) if item in items[:position]]


VOC_CLASSES = Classes(VOC_NAMES)


def read_classes(path: str | Path) -> Classes:
    """Reads a class list, JSON if the suffix is `.json` and text otherwise; see `messagenet.data.classes`."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read the class list {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"the class list {path} is not UTF-8 text; save it as UTF-8, one class per line") from None
    try:
        return _from_entries(list(_json_entries(text) if path.suffix.lower() == ".json" else _text_entries(text)))
    except InputError as error:
        raise InputError(f"class list {path}: {error}") from None


Entry = tuple[str, Colour | None]
_HEX = re.compile(r"#([0-9a-fA-F]{6})")
_LINE = re.compile(r"(?P<name>.+?)(?:[\s,]+(?P<colour>#\w*|\d+[\s,]+\d+[\s,]+\d+))?[\s,]*")


def _from_entries(named: list[Entry]) -> Classes:
    void = VOID_COLOUR
    if named and named[-1][0].lower() == "void" and (last := named[-1][1]):
        named, void = named[:-1], last
    if any(name.lower() == "void" for name, _ in named):
        raise InputError(
            '"void" is not a class: put it last and give it a colour, or, where masks hold ids,'
            " call it unlabelled and name its id with --void"
        )
    colours = [colour for _, colour in named if colour is not None]
    if colours and len(colours) < len(named):
        bare = next(name for name, colour in named if colour is None)
        raise InputError(f'class "{bare}" has no colour while others have; give every class one or none')
    return Classes(tuple(name for name, _ in named), tuple(colours), void)


def _text_entries(text: str) -> Iterator[Entry]:
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        assert match is not None, "the pattern matches any line that is not blank"
        colour = match["colour"]
        if colour and not colour.startswith("#"):
            colour = [int(value) for value in re.split(r"[\s,]+", colour)]
        yield match["name"], _parse_colour(colour) if colour else None


def _json_entries(text: str) -> Iterator[Entry]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"line {error.lineno} is not JSON ({error.msg})") from None
    if isinstance(content, list) and all(isinstance(name, str) for name in content):
        yield from ((name, None) for name in content)
    elif isinstance(content, dict) and content and all(isinstance(value, int) for value in content.values()):
        yield from _numbered({value: name for name, value in content.items()})
    elif isinstance(content, dict) and content and all(key.isdecimal() for key in content):
        yield from _numbered({int(key): str(name) for key, name in content.items()})
    elif isinstance(content, dict):
        yield from ((name, _parse_colour(value)) for name, value in content.items())
    else:
        raise InputError('expected a list of names or an object such as {"road": "#804080"}')


def _numbered(names: dict[int, str]) -> Iterator[Entry]:
    if sorted(names) != list(range(len(names))):
        raise InputError(f"ids must run from 0 without a gap, not {sorted(names)}")
    yield from ((names[label], None) for label in range(len(names)))


def _parse_colour(value: object) -> Colour:
    if isinstance(value, str) and (match := _HEX.fullmatch(value)):
        r, g, b = bytes.fromhex(match[1])
        return r, g, b
    if isinstance(value, list) and len(value) == 3 and all(isinstance(v, int) for v in value):
        return value[0], value[1], value[2]
    raise InputError(f"{value!r} is not a colour; write #rrggbb or three numbers from 0 to 255")


ClassesLike = Classes | Sequence[str] | int | Path


def as_classes(classes: ClassesLike) -> Classes:
    """A class list from a class list, from names, from their number, or from a file (see `read_classes`).

    >>> as_classes(["ground", "sky"]).num_classes
    2
    """
    given: Any = classes
    if isinstance(given, Classes):
        return given
    if isinstance(given, int):
        return numbered_classes(given)
    if isinstance(given, str | Path):
        return read_classes(given)
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        text = " ".join(repr(given).split())
        raise InputError(f"{text:.60} are not class names; give names, their count, or a class list's file")
    return Classes(tuple(given))


def numbered_classes(count: int) -> Classes:
    """Classes named by their ids.

    >>> numbered_classes(3).names
    ('class 0', 'class 1', 'class 2')
    """
    if count < 2:
        raise InputError(f"num_classes is {count}; a labelling needs at least 2 classes")
    return Classes(tuple(f"class {i}" for i in range(count)))
