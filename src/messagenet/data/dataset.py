"""The contract of a data set, data sets made from others, and batches.

A data set is a finite map from index to sample: `data[i]` is a `Sample`, an image x of (H, W) pixels with a target
y ∈ {0 … K−1, 255}^(H×W), and `data.classes` names the K ids. Masks are validated when they are read: uint8, the size of
the image, every value an id below K or `VOID`.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from messagenet.data.classes import BACKGROUND, VOID, Classes, voc_palette
from messagenet.data.images import IMAGENET_MEAN, ImageArray, LabelArray, RawMask, read_image, read_mask
from messagenet.errors import InputError

MAX_ID = 65535  # of a 16-bit mask
_NUMBER = re.compile(r"#[\da-f]{6}|\d+")


@dataclass(frozen=True, eq=False)
class Sample:
    """One image with its target.

    Attributes:
        image: uint8 RGB, (height, width, 3).
        mask: uint8 ids and void, (height, width); None where there is no target.
        name: Identifies the image within its data set, in reports and in exported files.
    """

    image: ImageArray
    mask: LabelArray | None
    name: str


class DataIssue(str):
    """One line: what is wrong with a data set and how to fix it. `files` are those it names, the one at fault first.

    >>> DataIssue("b.png is empty (0 bytes)", "b.png").kind
    '… is empty (… bytes)'
    """

    files: tuple[str, ...]

    def __new__(cls, text: str, *files: str | Path | None) -> DataIssue:
        """An issue about these files; None is skipped."""
        issue = super().__new__(cls, text)
        issue.files = tuple(str(file) for file in files if file is not None and str(file) in text)
        return issue

    @property
    def kind(self) -> str:
        """The line with file names and numbers elided: the same for every file with this issue."""
        text = str(self)
        for file in sorted(self.files, key=len, reverse=True):
            text = text.replace(file, "…")
        return _NUMBER.sub("…", text)


class UnknownIds(InputError):
    """A mask contains `ids` that belong to no class."""

    def __init__(self, text: str, ids: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.ids = tuple(ids)


class SegmentationData(Dataset[Sample], ABC):
    """A finite, random-access set of samples; reading the same index twice gives the same bytes.

    Attributes:
        name: The data set's name in reports.
        classes: The classes of the ids in its masks.
        issues: Problems found on opening it, whose samples were skipped, one line each.
    """

    name: str
    classes: Classes
    issues: Sequence[str] = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def sample_name(self, index: int) -> str:
        """The name of a sample; reads no file."""

    @abstractmethod
    def load(self, index: int) -> Sample:
        """Reads sample `index`, 0 ≤ index < len."""

    def read_labels(self, index: int) -> LabelArray | None:
        """The mask of a sample alone; None when it has none."""
        return self.load(index).mask

    def __getitem__(self, index: int) -> Sample:
        return self.load(range(len(self))[index])

    def __iter__(self) -> Iterator[Sample]:
        return (self.load(index) for index in range(len(self)))


class FilePair(NamedTuple):
    """The files of one sample."""

    name: str
    image: Path
    mask: Path | None


class PairedFiles(SegmentationData):
    """Samples stored as an image file and a mask file each."""

    def __init__(
        self, name: str, classes: Classes, pairs: Sequence[FilePair], void_values: Sequence[int] = (VOID,)
    ) -> None:
        self.name = name
        self.classes = classes
        self.pairs = list(pairs)
        self.void_values = check_void_values(void_values)
        self._colours = classes.colour_table()
        if all(r == g == b for r, g, b in classes.colours):
            # Grey masks are then looked up by colour, so void values are greys too; classes take precedence.
            self._colours = {(value, value, value): VOID for value in self.void_values if value <= 255} | self._colours

    def __len__(self) -> int:
        return len(self.pairs)

    def sample_name(self, index: int) -> str:
        """The name that image and mask share."""
        return self.pairs[index].name

    def read_labels(self, index: int) -> LabelArray | None:
        """Reads and validates the mask of a sample; None when it has none."""
        path = self.pairs[index].mask
        if path is None:
            return None
        return raw_to_labels(self.read_raw_mask(path), self.classes.num_classes, self.void_values, str(path))

    def read_raw_mask(self, path: Path) -> RawMask:
        """A mask file's raw values; readers of other formats override this."""
        return read_mask(path, self._colours)

    def load(self, index: int) -> Sample:
        """Reads both files of a sample and checks that their sizes match."""
        pair = self.pairs[index]
        image, mask = read_image(pair.image), self.read_labels(index)
        return Sample(image, None if mask is None else require_same_size(image, mask, pair), pair.name)


def check_void_values(values: Sequence[int]) -> tuple[int, ...]:
    """Mask values that mean "not labelled", as a tuple; raises for values that no mask can contain.

    >>> check_void_values([11, 1000])
    (11, 1000)
    """
    for value in values:
        if not 0 <= value <= MAX_ID:
            raise InputError(f"no mask holds the void value {value}; give 0..255, or up to {MAX_ID} for 16-bit masks")
    return tuple(values)


def raw_to_labels(raw: RawMask, num_classes: int, void_values: Sequence[int], name: str) -> LabelArray:
    """Raw mask values as labels: `void_values` and 255 become `VOID`; any other value must be an id.

    >>> raw_to_labels(np.array([[0, 1, 11, 255]], np.uint8), 2, (11,), "a.png")
    array([[  0,   1, 255, 255]], dtype=uint8)
    """
    void = np.isin(raw, [*void_values, VOID])
    wrong = ~void & ((raw < 0) | (raw >= num_classes))
    if wrong.any():
        ids, counts = np.unique(raw[wrong], return_counts=True)
        listed = ", ".join(f"{label} ({count} pixels)" for label, count in list(zip(ids, counts, strict=True))[:5])
        more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
        raise UnknownIds(
            f"mask {name} holds ids outside 0..{num_classes - 1}: {listed}{more};"
            f" name them in the class list, or mark them as unlabelled ({' '.join(f'--void {i}' for i in ids[:5])})",
            ids.tolist(),
        )
    labels = raw.astype(np.uint8)
    labels[void] = VOID
    return labels


def require_same_size(image: ImageArray, mask: LabelArray, files: FilePair) -> LabelArray:
    """The mask; raises if it is not of its image's size."""
    if image.shape[:2] == mask.shape:
        return mask
    fix = (
        "turn the mask upright as the image's EXIF orientation does"
        if image.shape[:2] == mask.shape[::-1]
        else "save the mask at the image's size, without interpolation"
    )
    raise InputError(f"image {files.image} is {size_text(image)} but its mask {files.mask} is {size_text(mask)}; {fix}")


def size_text(pixels: NDArray[Any]) -> str:
    """Width and height, such as 640x480."""
    return f"{pixels.shape[1]}x{pixels.shape[0]}"


class DataView(SegmentationData):
    """Samples of other data sets: `sources` has, for each of them, its data set and its index there."""

    def __init__(
        self, name: str, classes: Classes, sources: Sequence[tuple[SegmentationData, int]], issues: Sequence[str]
    ) -> None:
        self.name, self.classes, self.sources, self.issues = name, classes, sources, issues

    def __len__(self) -> int:
        return len(self.sources)

    def sample_name(self, index: int) -> str:
        """The sample's name in its own data set."""
        data, position = self.sources[index]
        return data.sample_name(position)

    def load(self, index: int) -> Sample:
        """Reads a sample from its own data set."""
        data, position = self.sources[index]
        return data.load(position)

    def read_labels(self, index: int) -> LabelArray | None:
        """Reads a mask from the sample's own data set."""
        data, position = self.sources[index]
        return data.read_labels(position)


class Subset(DataView):
    """Some samples of a data set, in the given order."""

    def __init__(self, data: SegmentationData, indices: Sequence[int], name: str | None = None) -> None:
        self.data = data
        every = range(len(data))
        super().__init__(name or data.name, data.classes, [(data, every[index]) for index in indices], data.issues)


class ClassSubset(DataView):
    """The classes `keep` (names or ids) of a data set, renumbered in this order.

    With `rest="void"`, loss and score ignore the other classes; with "background", they are merged into the class of
    that name, which is added as id 0 if it is not kept.
    """

    def __init__(
        self, data: SegmentationData, keep: Sequence[str | int], rest: Literal["void", "background"] = "void"
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
        self.data = data
        self._new_id = np.full(256, VOID, np.uint8)
        if rest == "background":
            self._new_id[: old.num_classes] = names.index(BACKGROUND)
        self._new_id[kept] = [names.index(old.names[label]) for label in kept]
        classes = Classes(tuple(names), tuple(colours), old.void_colour)
        super().__init__(data.name, classes, [(data, index) for index in range(len(data))], data.issues)

    def load(self, index: int) -> Sample:
        """Reads a sample and renumbers its mask."""
        sample = super().load(index)
        return sample if sample.mask is None else replace(sample, mask=self._new_id[sample.mask])

    def read_labels(self, index: int) -> LabelArray | None:
        """Reads a mask and renumbers it."""
        labels = super().read_labels(index)
        return None if labels is None else self._new_id[labels]


class ConcatData(DataView):
    """Data sets with the same classes, one after the other; by default named after all of them."""

    def __init__(self, parts: Sequence[SegmentationData], name: str | None = None) -> None:
        if not parts:
            raise InputError("an empty list of data sets; give at least one")
        if any(part.classes.names != parts[0].classes.names for part in parts):
            raise InputError(
                "data sets with different classes cannot be concatenated; choose common classes with keep first"
            )
        self.parts = list(parts)
        name = name or " + ".join(part.name for part in parts)
        sources = [(part, index) for part in parts for index in range(len(part))]
        super().__init__(name, parts[0].classes, sources, [issue for part in parts for issue in part.issues])


def unique_indices(data: SegmentationData) -> list[int]:
    """The first index of every sample name: concatenated data sets may contain an image twice."""
    first: dict[str, int] = {}
    for index in range(len(data)):
        first.setdefault(data.sample_name(index), index)
    return list(first.values())


def hold_out(ids: Sequence[str], fraction: float = 0.2) -> tuple[list[int], list[int]]:
    """Indices of the training and the held-out samples, split by a hash of their ids; neither is empty.

    Adding or removing samples moves no other sample to the other side, and no seed is needed.

    >>> hold_out(["000", "001", "002", "003", "004", "005", "006", "007"], 0.4)
    ([1, 2, 3, 4, 6], [0, 5, 7])
    """
    if not 0 < fraction < 1:
        raise InputError(f"the held-out fraction is {fraction}; use a number between 0 and 1, such as 0.2")
    if len(ids) < 2:
        raise InputError(f"{len(ids)} sample cannot be split into training and validation; add samples")
    values = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64 for name in ids]
    ranked = sorted(range(len(ids)), key=values.__getitem__)
    count = sum(value < fraction for value in values)
    held = set(ranked[: min(max(count, 1), len(ids) - 1)])
    return [index for index in range(len(ids)) if index not in held], sorted(held)


def hold_out_val(data: SegmentationData) -> tuple[Subset, Subset]:
    """The data for training, and one sample in five for validation, by its name."""
    train, val = hold_out([data.sample_name(index) for index in range(len(data))])
    return Subset(data, train), Subset(data, val)


class Batch(NamedTuple):
    """Samples stacked into tensors, smaller ones padded at the bottom and on the right.

    Attributes:
        images: (B, 3, H, W) float32 RGB in 0..1; None if features are given instead.
        features: One map (B, r, h, w), or one per factor type or level; None if images are given.
        target: (B, H, W) int64 class ids and 255 per pixel; None when no sample has a mask.
        sizes: (B, 2) int64 height and width of each image before padding, in pixels; stays on the CPU.
        ids: The names of the samples.
    """

    images: Tensor | None
    features: Tensor | dict[str, Tensor] | None
    target: Tensor | None
    sizes: Tensor
    ids: tuple[str, ...]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The batch on another device."""

        def move(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: move(each) for key, each in value.items()}
            return value.to(device, non_blocking=non_blocking) if isinstance(value, Tensor) else value

        return Batch(*map(move, self))._replace(sizes=self.sizes)


def to_tensor(sample: Sample) -> tuple[Tensor, Tensor | None]:
    """A sample's image as float32 (3, H, W) in 0..1 and its mask as int64 (H, W)."""
    image = torch.from_numpy(np.array(sample.image.transpose(2, 0, 1), order="C"))  # (3, H, W)
    mask = None if sample.mask is None else torch.from_numpy(sample.mask.astype(np.int64))
    return image.float().div_(255), mask


def collate(samples: Sequence[Sample]) -> Batch:
    """Stacks samples, padded to the largest with mean colour and void; a missing mask is void if others have one."""
    if not samples:
        raise InputError("an empty batch; give at least one sample")
    sizes = torch.tensor([sample.image.shape[:2] for sample in samples])
    height, width = sizes.amax(0).tolist()
    images = torch.empty(len(samples), 3, height, width)
    target = torch.full((len(samples), height, width), VOID)
    for index, (sample, (rows, columns)) in enumerate(zip(samples, sizes.tolist(), strict=True)):
        if (rows, columns) != (height, width):
            images[index] = torch.tensor(IMAGENET_MEAN)[:, None, None]
        image, mask = to_tensor(sample)
        images[index, :, :rows, :columns] = image
        if mask is not None:
            target[index, :rows, :columns] = mask
    labelled = any(sample.mask is not None for sample in samples)
    return Batch(images, None, target if labelled else None, sizes, tuple(sample.name for sample in samples))
