"""Torch data sets, or sequences, of (image, mask) pairs as data sets of this package.

    image    PIL image of any mode; uint8 array (H, W, 3); tensor (3, H, W), float in 0..1 or uint8
    mask     PIL image, array or tensor (H, W) or (1, H, W) of integer ids, 255 for void; None where there is no target

Images become uint8; masks are validated like those of files. Samples are named by their index, such as "00012"; subsets
of a `SegmentationData`, such as those of `torch.utils.data.random_split`, keep its names and classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils import data as torch_data

from messagenet.data.classes import VOID, ClassesLike, as_classes
from messagenet.data.dataset import (
    ConcatData,
    Sample,
    SegmentationData,
    Subset,
    check_void_values,
    raw_to_labels,
    size_text,
)
from messagenet.data.images import ImageArray, RawMask, to_rgb
from messagenet.errors import InputError


def as_data(data: Any, classes: ClassesLike | None = None, void_values: Sequence[int] = (VOID,)) -> SegmentationData:
    """A torch data set or a sequence of (image, mask) pairs as `SegmentationData`, which is returned as it is.

    Args:
        data: The pairs.
        classes: Names, their number, or a class list. Default: the attribute `classes` of the data.
        void_values: Mask values that mean "not labelled", besides 255.

    >>> pairs = [(np.zeros((4, 6, 3), np.uint8), np.ones((4, 6), np.uint8))]
    >>> as_data(pairs, classes=["ground", "sky"])[0].mask.shape
    (4, 6)
    """
    if isinstance(data, SegmentationData):
        if classes is not None and as_classes(classes).names != data.classes.names:
            raise InputError(f"{data.name} has classes of its own; choose among them with keep")
        if set(void_values) - {VOID}:
            raise InputError(f"{data.name} reads its own masks; give it the void values when it is made")
        return data
    if isinstance(data, torch_data.Subset):
        if classes is None:
            classes = getattr(data, "classes", None)
        return Subset(as_data(data.dataset, classes, void_values), data.indices)
    if isinstance(data, torch_data.ConcatDataset) and all(isinstance(part, SegmentationData) for part in data.datasets):
        return ConcatData([as_data(part, classes) for part in data.datasets])
    return PairData(data, classes, void_values)


class PairData(SegmentationData):
    """The (image, mask) pairs of any object with a length and items; arguments as of `as_data`."""

    def __init__(self, pairs: Any, classes: ClassesLike | None = None, void_values: Sequence[int] = (VOID,)) -> None:
        self.name = type(pairs).__name__
        if not (hasattr(pairs, "__len__") and hasattr(pairs, "__getitem__")):
            raise InputError(
                f"{self.name} is not a data set with a length and items; give a torch data set of (image, mask) pairs"
            )
        if len(pairs) == 0:
            raise InputError(f"{self.name} is empty; give at least one (image, mask) pair")
        self.pairs = pairs
        classes = getattr(pairs, "classes", None) if classes is None else classes
        if classes is None:
            raise InputError(f"{self.name} does not name its classes; give classes=: names, their count, or a file")
        self.classes = as_classes(classes)
        self.void_values = check_void_values(void_values)

    def __len__(self) -> int:
        return len(self.pairs)

    def sample_name(self, index: int) -> str:
        """The index in five digits."""
        return f"{index:05d}"

    def load(self, index: int) -> Sample:
        """Reads and validates one pair."""
        item, where = self.pairs[index], f"{self.name}[{index}]"
        if not isinstance(item, tuple | list) or len(item) != 2:
            size = f" of {len(item)}" if isinstance(item, tuple | list) else ""
            raise InputError(
                f"{where} is a {type(item).__name__}{size}, not an (image, mask) pair; return both, None for no mask"
            )
        image, name = _image(item[0], where), self.sample_name(index)
        if item[1] is None:
            return Sample(image, None, name)
        raw = _raw_mask(item[1], where)
        if raw.shape != image.shape[:2]:
            raise InputError(
                f"the image of {where} is {size_text(image)} but its mask is {size_text(raw)};"
                " transform both alike, the mask without interpolation"
            )
        return Sample(image, raw_to_labels(raw, self.classes.num_classes, self.void_values, f"of {where}"), name)


def _image(image: Any, where: str) -> ImageArray:
    """An image of any accepted kind as uint8 RGB, (height, width, 3)."""
    if isinstance(image, Image.Image):
        return to_rgb(image, f"the image of {where}")
    if isinstance(image, torch.Tensor):
        if image.ndim != 3 or image.shape[0] != 3:
            raise InputError(f"the image of {where} is a tensor {tuple(image.shape)}; give RGB as (3, height, width)")
        if image.is_floating_point():
            if not bool(((image >= 0) & (image <= 1)).all()):
                low, high = image.min().item(), image.max().item()
                raise InputError(
                    f"the image of {where} has values from {low:.3g} to {high:.3g}; give 0..1, without normalisation"
                )
            image = (image * 255).round().to(torch.uint8)
        image = image.detach().cpu().permute(1, 2, 0).numpy()
    if not isinstance(image, np.ndarray):
        raise InputError(f"the image of {where} is a {type(image).__name__}; give a PIL image, an array or a tensor")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise InputError(
            f"the image of {where} is {image.dtype} {image.shape}; give uint8 (height, width, 3) or a tensor"
        )
    return np.ascontiguousarray(image)


def _raw_mask(mask: Any, where: str) -> RawMask:
    """A mask of any accepted kind as integers, (height, width)."""
    if isinstance(mask, torch.Tensor):
        values = mask.detach().cpu().numpy()
    elif isinstance(mask, np.ndarray | Image.Image):
        values = np.asarray(mask)
    else:
        raise InputError(f"the mask of {where} is a {type(mask).__name__}; give a PIL image, an array or a tensor")
    if values.ndim == 3 and values.shape[0] == 1:
        values = values[0]
    if values.ndim != 2:
        raise InputError(f"the mask of {where} has the shape {values.shape}; give ids (height, width), not colours")
    if values.dtype.kind not in "bui":
        raise InputError(f"the mask of {where} is {values.dtype}; give integer ids, 255 for void, without scaling")
    return values.astype(np.int64)
