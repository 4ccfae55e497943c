"""From samples to tensors: images in 0..1, masks as int64, smaller samples padded below and on the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from messagenet.data.classes import VOID
from messagenet.data.dataset import Sample
from messagenet.data.transforms import MEAN_COLOUR
from messagenet.errors import InputError


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
