r"""Relations: which neighbours send messages to a node.

A relation is a named, ordered set of offsets O ⊂ Z² \ {0}. On a grid, node p receives messages from every node p + o
inside the image, o ∈ O. With a the short edge of the feature map and s the size of the range box (`fraction` · a, or
`cells`), R = ⌊s/2⌋ and H = ⌊s⌋, the built-in ones are

    surrounding   {o ≠ 0 : |dy| ≤ R, |dx| ≤ R}
    above         {dy ∈ [−H, −1], |dx| ≤ R}          below = −above
    left          {dx ∈ [−H, −1], |dy| ≤ R}          right = −left

(Lin, Shen, Reid, van den Hengel, NIPS 2015, use surrounding, above and below with s = 0.4 a.) Factors have two forms:

    pairwise   one factor for every pair (p, p + o): |O| messages reach a node
    box        one high-order factor per node over its box: one message, from the mean of the senders' features

Configuration files and the command line write a relation as one word, [name=]shape[:size][:form]:

    surrounding                 the paper's range, 0.4 of the short edge of the feature map
    above:0.25                  another fraction of it
    surrounding:13cells         a range box of 13 nodes
    below:0.4:box               one high-order factor per node
    near=surrounding:3cells     a name of its own, for a second relation of the same shape
    four_neighbours             no size

A relation given by its offsets has no short form: write the mapping that `Relation.to_dict` gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from messagenet.errors import InputError, nearest

Offset = tuple[int, int]
Form = Literal["pairwise", "box"]

_MIRROR = {"surrounding": "surrounding", "above": "below", "below": "above", "left": "right", "right": "left"}
DEFAULT_FRACTION = 0.4


@dataclass(frozen=True)
class Relation:
    """A named set of offsets and the form of the factors that carry it.

    `surrounding`, `above`, `below`, `left`, `right` and `four_neighbours` build the usual ones. Define your own from
    offsets (dy, dx), where (−1, 0) is the node directly above the receiver:

    >>> knight = Relation("knight", offsets=[(-2, -1), (-2, 1), (2, -1), (2, 1)])
    >>> knight.offsets_on(10, 10)
    ((-2, -1), (-2, 1), (2, -1), (2, 1))

    Attributes:
        name: Unique within a head; names the relation's parameters and its messages in inspection.
        shape: One of the built-in shapes, or "offsets".
        fraction: Size of the range box as a fraction of the map's short edge.
        cells: Size of the range box in cells. Exactly one of `fraction` and `cells` is given for a shape.
        offsets: The offsets themselves, for shape "offsets".
        form: "pairwise" or "box".
    """

    name: str
    shape: str = "offsets"
    fraction: float | None = None
    cells: int | None = None
    offsets: tuple[Offset, ...] | None = None
    form: Form = "pairwise"

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name == "unary":
            raise InputError(
                f"relation name {self.name!r} cannot be used: take a word of letters, digits and "
                'underscores other than "unary"'
            )
        if not isinstance(self.shape, str):
            raise InputError(f"relation {self.name!r}: its shape is {self.shape!r}; write offsets=[(dy, dx), …]")
        if self.form not in get_args(Form):
            raise InputError(
                f"relation {self.name!r}: unknown form {self.form!r}; {nearest(self.form, get_args(Form))}"
            )
        if self.shape == "offsets":
            object.__setattr__(self, "offsets", _checked_offsets(self.name, self.offsets or ()))
            if self.fraction is not None or self.cells is not None:
                raise InputError(f"relation {self.name!r}: give either offsets or a size, not both")
        else:
            self._check_shape()

    def _check_shape(self) -> None:
        if self.shape not in _MIRROR:
            choices = [*_MIRROR, "offsets"]
            raise InputError(f"relation {self.name!r}: unknown shape {self.shape!r}; {nearest(self.shape, choices)}")
        if self.offsets is not None or (self.fraction is None) == (self.cells is None):
            raise InputError(
                f"relation {self.name!r}: give its size either as a fraction of the short edge, such as 0.4, "
                "or in cells, such as cells=13"
            )
        if isinstance(self.fraction, bool) or not isinstance(self.fraction, (int, float, type(None))):
            raise InputError(f"relation {self.name!r}: its fraction is {self.fraction!r}; give a number such as 0.4")
        if isinstance(self.cells, bool) or not isinstance(self.cells, (int, type(None))):
            raise InputError(f"relation {self.name!r}: cells is {self.cells!r}; give a whole number such as 13")
        if self.fraction is not None and not 0 < self.fraction <= 2:
            raise InputError(
                f"relation {self.name!r} would have no offsets or too many: its fraction of the short "
                f"edge is {self.fraction:g}; take one above 0 and at most 2, such as 0.4"
            )
        if self.cells is not None and not self._box(self.cells):
            raise InputError(
                f"relation {self.name!r} has no offsets with cells={self.cells}; use at least "
                f"cells={2 if self.shape == 'surrounding' else 1}"
            )

    def offsets_on(self, height: int, width: int) -> tuple[Offset, ...]:
        """The ordered offsets on a map of this size; empty where the fraction is too small for the map."""
        if self.offsets is not None:
            return self.offsets
        if self.cells is not None:
            return self._box(self.cells)
        assert self.fraction is not None
        # A hair more than the product, so that 0.29 · 100 = 28.999… is 29; ⌊⌊s⌋/2⌋ = ⌊s/2⌋.
        return self._box(math.floor(self.fraction * min(height, width) + 1e-9))

    def _box(self, size: int) -> tuple[Offset, ...]:
        around, before, after = range(-(size // 2), size // 2 + 1), range(-size, 0), range(1, size + 1)
        rows = {"above": before, "below": after}.get(self.shape, around)
        columns = {"left": before, "right": after}.get(self.shape, around)
        return tuple((dy, dx) for dy in rows for dx in columns if (dy, dx) != (0, 0))

    def is_mirror_of(self, other: Relation) -> bool:
        """Whether the other's offsets are this one's negated, on every map.

        >>> above(0.4).is_mirror_of(below(0.4)), above(0.4).is_mirror_of(below(0.2))
        (True, False)
        """
        if self.form != other.form:
            return False
        if self.offsets is not None and other.offsets is not None:
            return {(-dy, -dx) for dy, dx in self.offsets} == set(other.offsets)
        same_size = (self.fraction, self.cells) == (other.fraction, other.cells)
        return same_size and _MIRROR.get(self.shape) == other.shape

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a json or yaml file; `Relation.from_dict` reads them back."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_setting(cls, given: str | Mapping[str, Any]) -> Relation:
        """The relation that a word, or a mapping of `Relation`'s settings, describes.

        >>> Relation.from_setting("above:0.25").fraction
        0.25
        >>> Relation.from_setting("near=surrounding:3cells:box")
        Relation(name='near', shape='surrounding', fraction=None, cells=3, offsets=None, form='box')
        >>> Relation.from_setting("abve:0.4")
        Traceback (most recent call last):
        messagenet.errors.InputError: relation "abve:0.4" has the shape "abve": did you mean "above"?
        """
        if isinstance(given, Mapping):
            try:
                return cls.from_dict(dict(given))
            except (TypeError, ValueError) as error:
                if isinstance(error, InputError):
                    raise
                raise InputError(
                    f"relation {dict(given)} is incomplete or misshapen; give a name and either shape and size, or "
                    "offsets such as [[-1, 0], [1, 0]]"
                ) from error
        if not isinstance(given, str):
            raise InputError(f"relation {given!r} is neither a word nor settings; write it as surrounding:0.4")
        given = " ".join(given.split())  # an error is one line
        name, equals, rest = given.rpartition("=")
        shape, *parts = (part.strip() for part in rest.split(":"))
        if shape not in SHAPES:
            raise InputError(f'relation "{given}" has the shape "{shape}": {nearest(shape, SHAPES)}')
        form = parts.pop() if parts and parts[-1] in get_args(Form) else "pairwise"
        if len(parts) == 2 and parts[-1] not in get_args(Form):
            raise InputError(f'relation "{given}" has the form "{parts[-1]}": {nearest(parts[-1], get_args(Form))}')
        if len(parts) > 1:
            raise InputError(f'relation "{given}" has too many parts; write shape:size:form, as surrounding:0.4:box')
        values: dict[str, Any] = {"name": name.strip() if equals else shape, "form": form}
        if shape == "four_neighbours":
            if parts:
                raise InputError(f'relation "{given}" has a size; four_neighbours takes none')
            return cls.from_dict(values | {"offsets": four_neighbours().offsets})
        return cls.from_dict(values | {"shape": shape} | _size(given, parts[0] if parts else None))

    def to_setting(self) -> str | dict[str, Any]:
        """The shortest form that `from_setting` reads back.

        >>> Relation.from_setting("surrounding:0.4:pairwise").to_setting()
        'surrounding:0.4'
        """
        form = "" if self.form == "pairwise" else f":{self.form}"
        if self.offsets is not None:
            if self.offsets != four_neighbours().offsets:
                return self.to_dict() | {"offsets": [list(offset) for offset in self.offsets]}
            shape, size = "four_neighbours", ""
        else:
            shape = self.shape
            size = f":{self.fraction!r}" if self.cells is None else f":{self.cells}{CELLS}"
        name = "" if self.name == shape else f"{self.name}="
        return f"{name}{shape}{size}{form}"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Relation:
        """Reads what `to_dict` wrote; an unknown key is an error that names the nearest one."""
        known = set(cls.__dataclass_fields__)
        for key in values:
            if key not in known:
                raise InputError(f"relation has no setting {key!r}; {nearest(key, known)}")
        offsets = values.get("offsets")
        return cls(**{**values, "offsets": None if offsets is None else tuple(tuple(o) for o in offsets)})


def _checked_offsets(name: str, offsets: Iterable[Offset]) -> tuple[Offset, ...]:
    checked = tuple(tuple(offset) for offset in offsets)
    if not all(len(offset) == 2 and all(type(step) is int for step in offset) for offset in checked):
        raise InputError(f"relation {name!r}: every offset must be two whole numbers (dy, dx), such as (-1, 0)")
    if not checked:
        raise InputError(f"relation {name!r} has no offsets: give at least one (dy, dx), such as (-1, 0)")
    if (0, 0) in checked:
        raise InputError(f"relation {name!r} contains (0, 0): a node sends itself no message; remove it")
    if len(set(checked)) < len(checked):
        raise InputError(f"relation {name!r} lists an offset twice; remove the repetition")
    return tuple((dy, dx) for dy, dx in checked)


def _sized(shape: str, fraction: float | None, cells: int | None, form: Form, name: str | None) -> Relation:
    if fraction is None and cells is None:
        fraction = DEFAULT_FRACTION
    return Relation(name or shape, shape, fraction=fraction, cells=cells, form=form)


def surrounding(
    fraction: float | None = None, *, cells: int | None = None, form: Form = "pairwise", name: str | None = None
) -> Relation:
    """Every node in a square box around the receiver, the receiver excluded.

    >>> len(surrounding(0.4).offsets_on(32, 48))         # R = ⌊0.2 · 32⌋ = 6
    168
    """
    return _sized("surrounding", fraction, cells, form, name)


def above(
    fraction: float | None = None, *, cells: int | None = None, form: Form = "pairwise", name: str | None = None
) -> Relation:
    """Every node in a box that stands on top of the receiver.

    >>> above(cells=2).offsets_on(9, 9)
    ((-2, -1), (-2, 0), (-2, 1), (-1, -1), (-1, 0), (-1, 1))
    """
    return _sized("above", fraction, cells, form, name)


def below(
    fraction: float | None = None, *, cells: int | None = None, form: Form = "pairwise", name: str | None = None
) -> Relation:
    """Every node in a box that hangs under the receiver: the mirror image of `above`."""
    return _sized("below", fraction, cells, form, name)


def left(
    fraction: float | None = None, *, cells: int | None = None, form: Form = "pairwise", name: str | None = None
) -> Relation:
    """Every node in a box to the left of the receiver."""
    return _sized("left", fraction, cells, form, name)


def right(
    fraction: float | None = None, *, cells: int | None = None, form: Form = "pairwise", name: str | None = None
) -> Relation:
    """Every node in a box to the right of the receiver: the mirror image of `left`."""
    return _sized("right", fraction, cells, form, name)


def four_neighbours(*, form: Form = "pairwise", name: str = "four_neighbours") -> Relation:
    """The nodes directly above, left, right and below.

    >>> four_neighbours().offsets_on(5, 5)
    ((-1, 0), (0, -1), (0, 1), (1, 0))
    """
    return Relation(name, offsets=((-1, 0), (0, -1), (0, 1), (1, 0)), form=form)


PAPER_RELATIONS = (surrounding(0.4), above(0.4), below(0.4))
"""The relations of Lin, Shen, Reid, van den Hengel (NIPS 2015)."""

SHAPES = ("surrounding", "above", "below", "left", "right", "four_neighbours")
CELLS = "cells"


def _size(given: str, size: str | None) -> dict[str, Any]:
    if size is None:
        return {"fraction": DEFAULT_FRACTION}
    number = size.removesuffix(CELLS).strip()
    try:
        return {"cells": int(number)} if size.endswith(CELLS) else {"fraction": float(number)}
    except ValueError:
        raise InputError(
            f'relation "{given}" has the size "{size}"; write a fraction of the short edge, such as 0.4, or a '
            "number of nodes, such as 13cells"
        ) from None
