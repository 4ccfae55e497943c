"""The contract every data set meets: `data[i]` is a `Sample`, `data.classes` says what its labels mean.

Masks are checked where they are read, so everything after this package may trust them: uint8, the size of the
image, every value either an id below `num_classes` or `VOID`.

Data sets made of other data sets: fewer classes, fewer samples, or several sets end to end.

From samples to tensors: images in 0..1, masks as int64, smaller samples padded below and on the right.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from messagenet.data.classes import BACKGROUND, VOID, Classes, voc_palette
from messagenet.data.images import MEAN_COLOUR, ImageArray, LabelArray, RawMask, read_image, read_mask
from messagenet.data.issues import StrayIds
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


class Batch(NamedTuple):
    """Samples stacked into tensors.

    Attributes:
        images: Float32 RGB in 0..1, (B, 3, H, W).
        masks: Int64 ids and void, (B, H, W); None when no sample has a mask.
        valid: Which pixels are picture and not padding, (B, H, W); None when all are.
        names: What the samples are called.
    """

    images: Tensor
    masks: Tensor | None
    valid: Tensor | None
    names: tuple[str, ...]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The batch on another device."""
        images, masks, valid = (
            None if part is None else part.to(device, non_blocking=non_blocking) for part in self[:3]
        )
        assert images is not None
        return Batch(images, masks, valid, self.names)


def to_tensor(sample: Sample) -> tuple[Tensor, Tensor | None]:
    """A sample's image as float32 (3, H, W) in 0..1 and its mask as int64 (H, W)."""
    image = torch.from_numpy(np.array(sample.image.transpose(2, 0, 1), order="C"))  # (3, H, W)
    mask = None if sample.mask is None else torch.from_numpy(sample.mask.astype(np.int64))
    return image.float().div_(255), mask


def collate(samples: Sequence[Sample]) -> Batch:
    """Stacks samples, padding to the largest with the mean colour and void.

    A sample without a mask among others that have one counts as void everywhere.
    """
    if not samples:
        raise InputError("an empty batch; give at least one sample")
    sizes = [sample.image.shape[:2] for sample in samples]
    height, width = (max(sides) for sides in zip(*sizes, strict=True))
    images = torch.empty(len(samples), 3, height, width)
    masks = torch.full((len(samples), height, width), VOID)
    valid = torch.zeros(len(samples), height, width, dtype=torch.bool)
    for place, (sample, (rows, columns)) in enumerate(zip(samples, sizes, strict=True)):
        if (rows, columns) != (height, width):
            images[place] = torch.tensor(MEAN_COLOUR)[:, None, None]
        image, mask = to_tensor(sample)
        images[place, :, :rows, :columns] = image
        valid[place, :rows, :columns] = True
        if mask is not None:
            masks[place, :rows, :columns] = mask
    return Batch(
        images,
        None if all(sample.mask is None for sample in samples) else masks,
        None if len(set(sizes)) == 1 else valid,
        tuple(sample.name for sample in samples),
    )
