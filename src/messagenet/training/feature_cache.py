"""Features of a frozen backbone, computed once and cached on disk, so that an epoch trains the head alone.

An entry holds one version of one image: the feature map (or maps) and the labels of the pixels. Version 0 is the image
itself, versions 1, 2, … are fixed draws of the augmentation; epoch e takes version (e + index) mod versions. Writing is
atomic, so building can be interrupted; missing or truncated entries are made anew.

    FOLDER/<key>/0-000017.safetensors        `<key>` is a digest of all that entries depend on: the backbone and
    FOLDER/<key>/about.json                  its weights, the data (names, sizes and times of files), the augmentation
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as dump_tensors
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from messagenet.data import VOID, Augment, Batch, PairedFiles, Sample, SegmentationData, augment_sample, generator
from messagenet.data.dataset import DataView
from messagenet.errors import InputError, write_atomically
from messagenet.geometry import map_size
from messagenet.models import SegmentationModel
from messagenet.models.base import SHARED, head_trait
from messagenet.prediction import Predictor
from messagenet.prediction.predictor import resize
from messagenet.settings import plain
from messagenet.training.batches import Key, make_loader, only
from messagenet.training.config import TrainConfig

CACHE_FORMAT = 2
FEATURES, TARGET = "features/", "target"
DTYPES = {"fp16": torch.float16, "fp32": torch.float32}


class CachedFeatures(NamedTuple):
    """One version of one image."""

    features: dict[str, Tensor]  # maps (r, h, w) by factor type or level; "shared" is the one of all types
    target: Tensor  # labels of the pixels, uint8 (H, W)
    id: str


def collate_features(entries: Sequence[CachedFeatures]) -> Batch:
    """Stacks entries in float32, padding smaller ones below and on the right."""
    features = {
        name: torch.stack(_pad_to_largest([entry.features[name].float() for entry in entries], 0))
        for name in entries[0].features
    }
    target = torch.stack(_pad_to_largest([entry.target for entry in entries], VOID)).long()
    sizes = torch.tensor([entry.target.shape for entry in entries])
    shared = features.get(SHARED)
    return Batch(None, features if shared is None else shared, target, sizes, tuple(entry.id for entry in entries))


def _pad_to_largest(values: Sequence[Tensor], fill: int) -> list[Tensor]:
    height, width = (max(value.shape[axis] for value in values) for axis in (-2, -1))
    return [
        functional.pad(value, (0, width - value.shape[-1], 0, height - value.shape[-2]), value=fill) for value in values
    ]


@dataclass(frozen=True)
class CacheSettings:
    """What entries hold."""

    augment: Augment  # of versions 1, 2, …
    versions: int = 1  # per image
    seed: int = 0  # of the draws
    precision: str = "fp16"  # of the features
    working_size: bool = False  # whether images are first reduced as in prediction; the target stays


def training_cache(model: SegmentationModel, data: SegmentationData, folder: Path, config: TrainConfig) -> FeatureCache:
    """The cache of the training images."""
    run = config.run
    settings = CacheSettings(config.augment, run.cache_variants, run.seed, run.cache_precision)
    return FeatureCache(model, data, folder, settings)


def scoring_cache(model: SegmentationModel, data: SegmentationData, folder: Path, config: TrainConfig) -> FeatureCache:
    """The cache of the validation images, as prediction sees them."""
    run = config.run
    settings = CacheSettings(config.augment, 1, run.seed, run.cache_precision, working_size=True)
    return FeatureCache(model, data, folder, settings)


class FeatureCache(Dataset[CachedFeatures]):
    """The entries of a data set on disk, by (epoch, index); several caches share a folder."""

    def __init__(self, model: SegmentationModel, data: SegmentationData, folder: Path, settings: CacheSettings) -> None:
        self.model: SegmentationModel | None = model
        self.data, self.settings = data, settings
        self.about = _describe(model, data, settings)
        key = hashlib.sha256(json.dumps(self.about, sort_keys=True).encode()).hexdigest()[:24]
        self.folder = folder / key

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, key: Key) -> CachedFeatures:
        epoch, index = key
        return self.read((epoch + index) % self.settings.versions, index)

    def path(self, version: int, index: int) -> Path:
        """Where an entry is."""
        return self.folder / f"{version}-{index:06d}.safetensors"

    def read(self, version: int, index: int) -> CachedFeatures:
        """Reads an entry."""
        path = self.path(version, index)
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"the cached features {path} cannot be read ({error}); delete the file and resume"
            ) from None
        features = {k.removeprefix(FEATURES): v for k, v in tensors.items() if k.startswith(FEATURES)}
        return CachedFeatures(features, tensors[TARGET], self.data.sample_name(index))

    def missing(self) -> list[tuple[int, int]]:
        """The (version, index) of entries that are absent or truncated."""
        wanted = ((v, index) for v in range(self.settings.versions) for index in range(len(self.data)))
        return [key for key in wanted if not _is_complete(self.path(*key))]

    def build(
        self,
        accelerator: Accelerator,
        workers: int = 0,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> int:
        """Makes the missing entries, together with the other processes; returns how many were missing."""
        missing = self.missing()
        accelerator.wait_for_everyone()
        if missing:
            write_atomically(self.folder / "about.json", (json.dumps(self.about, indent=2) + "\n").encode())
            mine = missing[accelerator.process_index :: accelerator.num_processes]
            for done, (key, tensors) in enumerate(self._make(mine, accelerator.device, workers), start=1):
                write_atomically(self.path(*key), dump_tensors(tensors))
                progress(done, len(mine))
        accelerator.wait_for_everyone()
        self.model = None  # the entries go to worker processes, which need no model
        return len(missing)

    def _make(
        self, keys: Sequence[tuple[int, int]], device: torch.device, workers: int
    ) -> Iterator[tuple[tuple[int, int], dict[str, Tensor]]]:
        model = self.model
        assert model is not None
        predictor = Predictor(model)
        data = _Versions(self.data, self.settings)
        samples = make_loader(data, [[key] for key in keys], only, workers)
        with torch.no_grad():
            for key, sample in zip(keys, samples, strict=True):
                yield key, self._tensors(predictor, sample, device)

    def _tensors(self, predictor: Predictor, sample: Sample, device: torch.device) -> dict[str, Tensor]:
        if sample.mask is None:
            raise InputError(f"{sample.name} has no mask; training and scoring need one for every image")
        pixels = torch.from_numpy(np.array(sample.image.transpose(2, 0, 1), order="C"))[None]  # (1, 3, H, W)
        size = map_size(pixels)
        if self.settings.working_size and predictor.working_size(size) != size:
            pixels = resize(pixels, predictor.working_size(size))
        maps = predictor.model.forward_features(pixels.to(device).float().div_(255))
        by_name = {SHARED: maps} if isinstance(maps, Tensor) else maps
        dtype = DTYPES[self.settings.precision]
        return {
            **{f"{FEATURES}{name}": each[0].to("cpu", dtype).contiguous() for name, each in by_name.items()},
            TARGET: torch.from_numpy(sample.mask.copy()),
        }


class _Versions(Dataset[Sample]):
    def __init__(self, data: SegmentationData, settings: CacheSettings) -> None:
        self.data, self.settings = data, settings

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        version, index = key
        rng = generator(self.settings.seed, version, index)
        if version == 0:
            reduced = None if self.settings.working_size else self.settings.augment.longest_side
            return Augment(longest_side=reduced)(self.data[index], rng)
        return augment_sample(self.data, index, self.settings.augment, rng)


def _is_complete(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with safe_open(path, "pt") as file:
            return TARGET in file.keys()  # noqa: SIM118 (it is no mapping)
    except (OSError, SafetensorError):
        return False


def _describe(model: SegmentationModel, data: SegmentationData, settings: CacheSettings) -> dict[str, Any]:
    weights = hashlib.sha256()
    for name, values in model.backbones.state_dict().items():
        weights.update(name.encode())
        weights.update(values.detach().cpu().contiguous().numpy().tobytes())
    return {
        "format": CACHE_FORMAT,
        "backbone": plain(model.config["backbone"]),
        "levels": plain(head_trait(model.head, "level_strides")),
        "weights": weights.hexdigest(),
        "data": data.name,
        "samples": len(data),
        "content": _content_digest(data),
        "versions": settings.versions,
        "augment": [plain(settings.augment), settings.seed] if settings.versions > 1 else None,
        "precision": settings.precision,
        "longest_side": model.input.longest_side if settings.working_size else settings.augment.longest_side,
    }


def _content_digest(data: SegmentationData) -> str:
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
    if isinstance(data, PairedFiles):
        for pair in data.pairs:
            yield pair.image
            if pair.mask is not None:
                yield pair.mask
    elif isinstance(data, DataView):
        for part in dict.fromkeys(part for part, _ in data.sources):
            yield from _files(part)
