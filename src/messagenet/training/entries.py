"""Cached features as the training loop sees them: entries of single images, stacked into batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from messagenet.data import VOID


class FeatureBatch(NamedTuple):
    """Entries stacked into tensors.

    Attributes:
        features: One map (B, r, h, w), or one for each factor type.
        truth: Labels of nodes (B, h, w), or of pixels if the loss is there.
        valid: Which nodes are not padding, (B, h, w); None when all are.
        names: What the images are called.
    """

    features: Tensor | dict[str, Tensor]
    truth: Tensor
    valid: Tensor | None
    names: tuple[str, ...]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> FeatureBatch:
        """The batch on another device."""

        def moved(values: Tensor) -> Tensor:
            return values.to(device, non_blocking=non_blocking)

        features = self.features
        return FeatureBatch(
            moved(features) if isinstance(features, Tensor) else {k: moved(v) for k, v in features.items()},
            moved(self.truth),
            None if self.valid is None else moved(self.valid),
            self.names,
        )


class Entry(NamedTuple):
    """One version of one image.

    Attributes:
        features: Maps (r, h, w) by factor type; "shared" is the one of all types.
        truth: What the loss compares with, uint8.
        mask: Labels of all pixels, uint8, where they are kept for scoring.
        name: What the image is called.
    """

    features: dict[str, Tensor]
    truth: Tensor
    mask: Tensor | None
    name: str


def collate_entries(entries: Sequence[Entry]) -> FeatureBatch:
    """Stacks entries in float32, padding smaller ones below and on the right."""
    sizes = [next(iter(entry.features.values())).shape[1:] for entry in entries]
    height, width = (max(sides) for sides in zip(*sizes, strict=True))
    features = {
        name: torch.stack([_padded(entry.features[name].float(), (height, width), 0) for entry in entries])
        for name in entries[0].features
    }
    extent = [max(sides) for sides in zip(*(entry.truth.shape for entry in entries), strict=True)]
    truth = torch.stack([_padded(entry.truth, (extent[0], extent[1]), VOID) for entry in entries]).long()
    valid = None
    if len(set(sizes)) > 1:
        ones = [torch.ones(size, dtype=torch.bool) for size in sizes]
        valid = torch.stack([_padded(flags, (height, width), 0) for flags in ones])
    shared = features.get("shared")
    return FeatureBatch(
        features if shared is None else shared, truth, valid, tuple(entry.name for entry in entries)
    )


def _padded(values: Tensor, size: tuple[int, int], fill: int) -> Tensor:
    down, across = size[0] - values.shape[-2], size[1] - values.shape[-1]
    return functional.pad(values, (0, across, 0, down), value=fill) if down or across else values
