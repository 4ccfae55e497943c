"""The contract every data set meets: `data[i]` is a `Sample`, `data.classes` says what its labels mean.

Masks are checked where they are read, so everything after this package may trust them: uint8, the size of the
image, every value either an id below `num_classes` or `VOID`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from messagenet.data.classes import VOID, Classes
from messagenet.data.images import ImageArray, LabelArray, RawMask, read_image, read_mask
from messagenet.data.problems import StrayIds
from messagenet.errors import InputError

LARGEST_ID = 65535  # of a 16-bit mask


@dataclass(frozen=True, eq=False)
class Sample:
    """One picture with its truth.

    Attributes:
        image: uint8 RGB, (height, width, 3).
        mask: uint8 ids and void, (height, width); None where the truth is not known.
        name: What reports and exported files call it; only the same image has the same name in a data set.
    """

    image: ImageArray
    mask: LabelArray | None
    name: str


class SegmentationData(ABC):
    """A finite, random-access set of samples; reading the same index twice gives the same bytes.

    Attributes:
        name: What reports call the data set.
        classes: What the ids in its masks mean.
        problems: What was found wrong on opening it and left out, one line each.
    """

    name: str
    classes: Classes
    problems: Sequence[str] = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def sample_name(self, index: int) -> str:
        """The name of a sample, without reading its files."""

    @abstractmethod
    def load(self, index: int) -> Sample:
        """Reads the sample at an index from 0 to len − 1."""

    def read_labels(self, index: int) -> LabelArray | None:
        """The mask of a sample alone; None when it has none."""
        return self.load(index).mask

    def __getitem__(self, index: int) -> Sample:
        return self.load(range(len(self))[index])

    def __iter__(self) -> Iterator[Sample]:
        return (self.load(index) for index in range(len(self)))


class FilePair(NamedTuple):
    """Where one sample lies on disk."""

    name: str
    image: Path
    mask: Path | None


class PairedFiles(SegmentationData):
    """Samples that are an image file and a mask file each."""

    def __init__(
        self, name: str, classes: Classes, pairs: Sequence[FilePair], void_values: Sequence[int] = (VOID,)
    ) -> None:
        self.name = name
        self.classes = classes
        self.pairs = list(pairs)
        self.void_values = checked_void_values(void_values)
        self._colours = classes.colour_table()
        if all(r == g == b for r, g, b in classes.colours):
            # Grey masks are looked up by colour then, so void values are greys too; a class wins over them.
            greys = {(value, value, value): VOID for value in self.void_values if value <= 255}
            self._colours = greys | self._colours

    def __len__(self) -> int:
        return len(self.pairs)

    def sample_name(self, index: int) -> str:
        """The name of a sample, without reading its files."""
        return self.pairs[index].name

    def read_image(self, index: int) -> ImageArray:
        """The image of a sample alone."""
        return read_image(self.pairs[index].image)

    def read_labels(self, index: int) -> LabelArray | None:
        """The checked mask of a sample alone; None when it has none."""
        path = self.pairs[index].mask
        if path is None:
            return None
        return as_labels(self.read_raw_mask(path), self.classes.num_classes, self.void_values, str(path))

    def read_raw_mask(self, path: Path) -> RawMask:
        """A mask file's values before they are checked; formats that are not pictures override this."""
        return read_mask(path, self._colours)

    def load(self, index: int) -> Sample:
        """Reads both files of a sample and checks that they fit each other."""
        image, mask = self.read_image(index), self.read_labels(index)
        if mask is not None:
            require_same_size(image, mask, self.pairs[index])
        return Sample(image, mask, self.pairs[index].name)


def checked_void_values(values: Sequence[int]) -> tuple[int, ...]:
    """Mask values that mean "not labelled", refused unless a mask can hold them.

    >>> checked_void_values([11, 1000])
    (11, 1000)
    """
    for value in values:
        if not 0 <= value <= LARGEST_ID:
            raise InputError(
                f"no mask holds the void value {value}; give 0..255, or up to {LARGEST_ID} for 16-bit masks"
            )
    return tuple(values)


def as_labels(raw: RawMask, num_classes: int, void_values: Sequence[int], name: str) -> LabelArray:
    """Turns raw mask values into labels: `void_values` and 255 become `VOID`; any other must be an id.

    >>> as_labels(np.array([[0, 1, 11, 255]], np.uint8), 2, (11,), "a.png")
    array([[  0,   1, 255, 255]], dtype=uint8)
    """
    void = np.isin(raw, [*void_values, VOID])
    wrong = ~void & ((raw < 0) | (raw >= num_classes))
    if wrong.any():
        ids, counts = np.unique(raw[wrong], return_counts=True)
        listed = ", ".join(
            f"{label} ({count} pixels)" for label, count in list(zip(ids, counts, strict=True))[:5]
        )
        more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
        raise StrayIds(
            f"mask {name} holds ids outside 0..{num_classes - 1}: {listed}{more};"
            f" name them in the class list, or mark them as unlabelled (--void {ids[0]})",
            ids.tolist(),
        )
    labels = raw.astype(np.uint8)
    labels[void] = VOID
    return labels


def require_same_size(image: ImageArray, mask: LabelArray, files: FilePair) -> None:
    """Refuses a mask that does not cover its image pixel for pixel."""
    if image.shape[:2] == mask.shape:
        return
    (height, width), (mask_height, mask_width) = image.shape[:2], mask.shape
    turned = (height, width) == (mask_width, mask_height)
    fix = (
        "turn the mask upright as the image's EXIF orientation does"
        if turned
        else "save the mask at the image's size, without interpolation"
    )
    raise InputError(
        f"image {files.image} is {width}x{height} but its mask {files.mask} is"
        f" {mask_width}x{mask_height}; {fix}"
    )
