"""What cached features depend on, in words and digests: change any of it, and other entries are looked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from messagenet.data import Augment, Joined, PairedFiles, Restricted, SegmentationData, Subset
from messagenet.models import SegmentationNet
from messagenet.training.config import LossConfig
from messagenet.training.settings import plain

FORMAT = 1


@dataclass(frozen=True)
class CacheSettings:
    """What entries hold.

    Attributes:
        loss: Where and how the truth is read.
        augment: What versions 1, 2, … draw.
        versions: Versions of every image.
        seed: Of the draws.
        precision: Of the features.
        masks: Whether to keep the labels of all pixels, for scoring.
    """

    loss: LossConfig
    augment: Augment
    versions: int = 1
    seed: int = 0
    precision: str = "fp16"
    masks: bool = False


def describe(net: SegmentationNet, data: SegmentationData, settings: CacheSettings) -> dict[str, Any]:
    """All that entries depend on, in words and digests."""
    weights = hashlib.sha256()
    for name, values in net.backbones.state_dict().items():
        weights.update(name.encode())
        weights.update(values.detach().cpu().contiguous().numpy().tobytes())
    return {
        "format": FORMAT,
        "backbone": plain({key: net.settings[key] for key in ("backbone", "backbone_options")}),
        "weights": weights.hexdigest(),
        "data": data.name,
        "samples": len(data),
        "content": _content(data),
        "loss": [settings.loss.resolution, settings.loss.cell_label],
        "versions": settings.versions,
        "augment": [plain(settings.augment), settings.seed] if settings.versions > 1 else None,
        "precision": settings.precision,
        "masks": settings.masks,
    }


def _content(data: SegmentationData) -> str:
    """A digest of names, files' sizes and times, and a few samples."""
    digest = hashlib.sha256()
    for index in range(len(data)):
        digest.update(f"{data.sample_name(index)}\n".encode())
    for path in _files(data):
        status = path.stat()
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    for index in sorted({0, len(data) // 2, len(data) - 1}):
        sample = data[index]
        digest.update(sample.image.tobytes())
        digest.update(b"" if sample.mask is None else sample.mask.tobytes())
    return digest.hexdigest()


def _files(data: SegmentationData) -> Iterator[Path]:
    """The files that a data set reads, where it reads any."""
    if isinstance(data, PairedFiles):
        for pair in data.pairs:
            yield pair.image
            if pair.mask is not None:
                yield pair.mask
    elif isinstance(data, (Restricted, Subset)):
        yield from _files(data.data)
    elif isinstance(data, Joined):
        for part in data.parts:
            yield from _files(part)
