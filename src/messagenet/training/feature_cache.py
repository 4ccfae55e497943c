"""Features of a frozen backbone, computed once and kept on disk.

A backbone that does not change gives an image the same features in every epoch, and takes nearly all of the time.
With its features kept, an epoch trains the head alone. An entry holds what the loss needs of one version of one
image: the feature map (or maps), and the truth. Version 0 is the image itself, versions 1, 2, … are fixed draws of
the augmentation; epoch e takes version (e + index) mod versions.

    FOLDER/<key>/0-000017.safetensors        `<key>` is a digest of all that entries depend on: the backbone and
    FOLDER/<key>/about.json                  its weights, the data (names, sizes and times of files), the
                                             augmentation, and how the truth is read

Entries are written atomically, so building can be interrupted; those that are missing or cut short are made anew.

What cached features depend on, in words and digests: change any of it, and other entries are looked for.

Cached features as the training loop sees them: entries of single images, stacked into batches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as dump_tensors
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from messagenet.data import (
    VOID,
    Augment,
    Joined,
    PairedFiles,
    Restricted,
    Sample,
    SegmentationData,
    Subset,
    augmented,
    generator,
    to_tensor,
)
from messagenet.errors import InputError, write_atomically
from messagenet.geometry import node_labels
from messagenet.models import SegmentationNet
from messagenet.settings import plain
from messagenet.training.batches import Key, make_loader
from messagenet.training.config import LossConfig, TrainConfig

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


FEATURES, TRUTH, MASK = "features/", "truth", "mask"
DTYPES = {"fp16": torch.float16, "fp32": torch.float32}


def scoring_cache(
    net: SegmentationNet, data: SegmentationData, folder: Path, config: TrainConfig
) -> FeatureCache:
    """The cache that a training with this configuration scores from: images as they are, and all their labels."""
    run = config.run
    settings = CacheSettings(config.loss, config.augment, 1, run.seed, run.cache_precision, masks=True)
    return FeatureCache(net, data, folder, settings)


class FeatureCache(Dataset[Entry]):
    """The entries of a data set on disk, by (epoch, index).

    Args:
        net: Whose backbone makes the features.
        data: The images.
        folder: Where caches are kept; several share it.
        settings: What entries hold.
    """

    def __init__(
        self, net: SegmentationNet, data: SegmentationData, folder: Path, settings: CacheSettings
    ) -> None:
        self.net: SegmentationNet | None = net
        self.data, self.settings = data, settings
        self.about = describe(net, data, settings)
        key = hashlib.sha256(json.dumps(self.about, sort_keys=True).encode()).hexdigest()[:24]
        self.folder = folder / key

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, key: Key) -> Entry:
        epoch, index = key
        return self.read((epoch + index) % self.settings.versions, index)

    def path(self, version: int, index: int) -> Path:
        """Where an entry is."""
        return self.folder / f"{version}-{index:06d}.safetensors"

    def read(self, version: int, index: int) -> Entry:
        """Reads an entry."""
        path = self.path(version, index)
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"the cached features {path} cannot be read ({error}); delete the file and resume"
            ) from None
        features = {k.removeprefix(FEATURES): v for k, v in tensors.items() if k.startswith(FEATURES)}
        return Entry(features, tensors[TRUTH], tensors.get(MASK), self.data.sample_name(index))

    def missing(self) -> list[tuple[int, int]]:
        """The (version, index) of entries that are absent or cut short."""
        wanted = ((v, index) for v in range(self.settings.versions) for index in range(len(self.data)))
        return [place for place in wanted if not _is_whole(self.path(*place))]

    def build(
        self,
        accelerator: Accelerator,
        workers: int = 0,
        told: Callable[[int, int], None] = lambda done, total: None,
    ) -> int:
        """Makes the missing entries, together with the other processes.

        Args:
            accelerator: The processes and the device.
            workers: Processes that prepare images.
            told: Called with (done, total) after every image.

        Returns:
            How many were missing.
        """
        missing = self.missing()
        accelerator.wait_for_everyone()
        if missing:
            write_atomically(self.folder / "about.json", (json.dumps(self.about, indent=2) + "\n").encode())
            mine = missing[accelerator.process_index :: accelerator.num_processes]
            for done, (place, tensors) in enumerate(self._make(mine, accelerator.device, workers), start=1):
                write_atomically(self.path(*place), dump_tensors(tensors))
                told(done, len(mine))
        accelerator.wait_for_everyone()
        self.net = None  # the entries go to worker processes, which need no network
        return len(missing)

    def _make(
        self, places: Sequence[tuple[int, int]], device: torch.device, workers: int
    ) -> Iterator[tuple[tuple[int, int], dict[str, Tensor]]]:
        """The content of entries, one after the other."""
        net = self.net
        assert net is not None
        net.eval()
        samples = make_loader(
            _Versions(self.data, self.settings), [[place] for place in places], _only, workers
        )
        with torch.no_grad():
            for place, sample in zip(places, samples, strict=True):
                yield place, self._tensors(net, sample, device)

    def _tensors(self, net: SegmentationNet, sample: Sample, device: torch.device) -> dict[str, Tensor]:
        image, mask = to_tensor(sample)
        if mask is None:
            raise InputError(f"{sample.name} has no mask; training and scoring need one for every image")
        maps = net.features(image[None].to(device))
        by_type = {"shared": maps} if isinstance(maps, Tensor) else maps
        height, width = next(iter(by_type.values())).shape[2:]
        loss, dtype = self.settings.loss, DTYPES[self.settings.precision]
        truth = mask
        if loss.resolution == "nodes":
            truth = node_labels(mask[None], (height, width), net.judged_stride, loss.cell_label)[0]
        tensors = {
            f"{FEATURES}{name}": values[0].to("cpu", dtype).contiguous() for name, values in by_type.items()
        }
        tensors[TRUTH] = truth.to(torch.uint8)
        return tensors | ({MASK: mask.to(torch.uint8)} if self.settings.masks else {})


class _Versions(Dataset[Sample]):
    """Samples by (version, index)."""

    def __init__(self, data: SegmentationData, settings: CacheSettings) -> None:
        self.data, self.settings = data, settings

    def __getitem__(self, place: tuple[int, int]) -> Sample:
        version, index = place
        if version == 0:
            return self.data[index]
        rng = generator(self.settings.seed, version, index)
        return augmented(self.data, index, self.settings.augment, rng)


def _only(samples: list[Sample]) -> Sample:
    return samples[0]


def _is_whole(path: Path) -> bool:
    """Whether a safetensors file is as long as its header says."""
    if not path.is_file():
        return False
    try:
        with safe_open(path, "pt") as file:
            return TRUTH in file.keys()  # noqa: SIM118 (it is no mapping)
    except (OSError, SafetensorError):
        return False
