"""Data sets made of other data sets: fewer classes, fewer samples, or several sets end to end."""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from messagenet.data.classes import BACKGROUND, VOID, Classes, voc_palette
from messagenet.data.dataset import Sample, SegmentationData
from messagenet.data.images import LabelArray
from messagenet.errors import InputError


class Restricted(SegmentationData):
    """Keeps chosen classes, renumbered in the order given.

    Args:
        data: Where the samples come from.
        keep: Names or ids of the classes to keep.
        rest: What becomes of the others: `void` leaves them out of loss and score; `background` makes them
            the class of that name, which is put first unless it is kept already.
    """

    def __init__(
        self,
        data: SegmentationData,
        keep: Sequence[str | int],
        rest: Literal["void", "background"] = "void",
    ) -> None:
        if rest not in ("void", "background"):
            raise InputError(f'rest is "{rest}"; use "void" or "background"')
        old = data.classes
        kept = [old.index(which) for which in keep]
        names = [old.names[label] for label in kept]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f'class "{repeated}" is kept twice; name each class once')
        colours = [old.colours[label] for label in kept]
        if rest == "background" and BACKGROUND not in names:
            names.insert(0, BACKGROUND)
            colours.insert(0, next(colour for colour in voc_palette(256) if colour not in colours))
        self.classes = Classes(tuple(names), tuple(colours), old.void_colour)
        self.name = data.name
        self.problems = data.problems
        self.data = data
        self._new_id = np.full(256, VOID, np.uint8)
        if rest == "background":
            self._new_id[: old.num_classes] = names.index(BACKGROUND)
        self._new_id[kept] = [names.index(old.names[label]) for label in kept]

    def __len__(self) -> int:
        return len(self.data)

    def sample_name(self, index: int) -> str:
        """The sample's name in the data set underneath."""
        return self.data.sample_name(index)

    def load(self, index: int) -> Sample:
        """Reads a sample and renumbers its mask."""
        sample = self.data[index]
        return sample if sample.mask is None else replace(sample, mask=self._new_id[sample.mask])

    def read_labels(self, index: int) -> LabelArray | None:
        """Reads a mask and renumbers it."""
        labels = self.data.read_labels(index)
        return None if labels is None else self._new_id[labels]


class Subset(SegmentationData):
    """Some samples of a data set, in the order given."""

    def __init__(self, data: SegmentationData, indices: Sequence[int], name: str | None = None) -> None:
        self.data = data
        self.indices = [range(len(data))[index] for index in indices]
        self.classes = data.classes
        self.name = name or data.name
        self.problems = data.problems

    def __len__(self) -> int:
        return len(self.indices)

    def sample_name(self, index: int) -> str:
        """The sample's name in the data set underneath."""
        return self.data.sample_name(self.indices[index])

    def load(self, index: int) -> Sample:
        """Reads a sample of the data set underneath."""
        return self.data.load(self.indices[index])

    def read_labels(self, index: int) -> LabelArray | None:
        """Reads a mask of the data set underneath."""
        return self.data.read_labels(self.indices[index])


class Joined(SegmentationData):
    """Data sets with the same classes, one after the other."""

    def __init__(self, parts: Sequence[SegmentationData], name: str) -> None:
        if any(part.classes.names != parts[0].classes.names for part in parts):
            raise InputError(
                "data sets with different classes cannot be joined; restrict them to common ones first"
            )
        self.parts = list(parts)
        self.classes = parts[0].classes
        self.name = name
        self.problems = [problem for part in parts for problem in part.problems]
        self._ends = list(itertools.accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        return self._ends[-1]

    def sample_name(self, index: int) -> str:
        """The sample's name in its part."""
        part, place = self._locate(index)
        return part.sample_name(place)

    def load(self, index: int) -> Sample:
        """Reads a sample of the part it is in."""
        part, place = self._locate(index)
        return part.load(place)

    def read_labels(self, index: int) -> LabelArray | None:
        """Reads a mask of the part it is in."""
        part, place = self._locate(index)
        return part.read_labels(place)

    def _locate(self, index: int) -> tuple[SegmentationData, int]:
        part = bisect.bisect_right(self._ends, index)
        return self.parts[part], index - (self._ends[part - 1] if part else 0)


def distinct(data: SegmentationData) -> list[int]:
    """The first of the samples of every name: joined sets may have an image twice."""
    first: dict[str, int] = {}
    for index in range(len(data)):
        first.setdefault(data.sample_name(index), index)
    return list(first.values())


def hold_out(names: Sequence[str], fraction: float = 0.2) -> tuple[list[int], list[int]]:
    """Divides samples into (training, held out) by a hash of their names.

    A sample never changes sides when others are added or removed, and no seed has to be remembered. Neither
    side is empty: the sample nearest to the dividing line is moved if it would be.

    >>> hold_out(["000", "001", "002", "003", "004", "005", "006", "007"], 0.4)
    ([1, 2, 3, 4, 6], [0, 5, 7])
    """
    if not 0 < fraction < 1:
        raise InputError(f"the held-out fraction is {fraction}; use a number between 0 and 1, such as 0.2")
    if len(names) < 2:
        raise InputError(f"{len(names)} sample cannot be divided into training and validation; add samples")
    digests = [hashlib.sha256(name.encode()).digest() for name in names]
    place = [int.from_bytes(digest[:8], "big") / 2**64 for digest in digests]
    ranked = sorted(range(len(names)), key=place.__getitem__)
    count = sum(value < fraction for value in place)
    held = set(ranked[: min(max(count, 1), len(names) - 1)])
    return [index for index in range(len(names)) if index not in held], sorted(held)


def split_data(data: SegmentationData, fraction: float = 0.2) -> tuple[Subset, Subset]:
    """A data set's (training, held-out) parts, divided as `hold_out` does."""
    train, held = hold_out([data.sample_name(index) for index in range(len(data))], fraction)
    return Subset(data, train, f"{data.name} (training part)"), Subset(data, held, f"{data.name} (held out)")
