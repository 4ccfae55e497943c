"""Scores a network on whole images at their own size, as VOC does: one confusion matrix over the set.

Images are not padded, because padding changes what a backbone sees at the border; neighbours of equal size go
through the network together.

What training does not learn, searched on held-out images: the values with the highest mean IoU.

A pairwise scale, the kernels of a dense CRF: a few numbers that are set after training, by trying all combinations of
a few values (Chen et al., ICLR 2015, section 4, search their CRF's so). The images must be neither those of the
training, on which a network is too sure of itself, nor those that it will be scored on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor

from messagenet.data import Sample, SegmentationData, collate, to_tensor
from messagenet.errors import InputError
from messagenet.evaluation import Confusion, iou_per_class, mean_iou, pixel_accuracy
from messagenet.losses import upsample
from messagenet.models import SegmentationNet
from messagenet.prediction.scoring import require_same_classes
from messagenet.training.batches import make_loader
from messagenet.training.feature_cache import Entry, FeatureCache, collate_entries

TOGETHER = 8


class Validation:
    """A data set, ready to score networks on.

    Args:
        data: The images.
        accelerator: The processes to share them with.
        workers: Processes that prepare images.
        cache: Their features and masks, if they are cached.
    """

    def __init__(
        self,
        data: SegmentationData,
        accelerator: Accelerator,
        workers: int,
        cache: FeatureCache | None = None,
    ) -> None:
        self.data, self.accelerator, self.workers, self.cache = data, accelerator, workers, cache

    @torch.no_grad()
    def score(self, net: SegmentationNet) -> Confusion:
        """The confusion matrix over all processes' shares; leaves the network in evaluation mode."""
        net.eval()
        confusion = Confusion(self.data.classes.num_classes)
        for group in equal_sizes(item for item in self._items() if item.mask is not None):
            with self.accelerator.autocast():
                logits, masks = self._predicted(net, group)
            confusion.update(logits.argmax(1).cpu().numpy(), masks.numpy())
        matrix = torch.from_numpy(confusion.matrix).to(self.accelerator.device)
        confusion.matrix = self.accelerator.reduce(matrix, "sum").cpu().numpy()
        if not confusion.matrix.any():
            raise InputError(
                f"{self.data.name} has no labelled pixel to score; check its masks, or set val_split: null"
            )
        return confusion

    def _items(self) -> Iterable[Sample | Entry]:
        share = range(self.accelerator.process_index, len(self.data), self.accelerator.num_processes)
        if self.cache is None:
            return make_loader(self.data, [[index] for index in share], _only, self.workers)
        return make_loader(self.cache, [[(0, index)] for index in share], _only, self.workers)

    def _predicted(self, net: SegmentationNet, group: list[Any]) -> tuple[Tensor, Tensor]:
        """Logits (B, K, H, W) and truth (B, H, W) of images of one size."""
        device = self.accelerator.device
        if self.cache is None:
            batch = collate(group)
            assert batch.masks is not None
            return net.pixel_logits(batch.images.to(device)), batch.masks
        masks = torch.stack([entry.mask for entry in group])
        nodes = net.decided(collate_entries(group).to(device).features)  # (B, K, h, w)
        return upsample(nodes, (masks.shape[1], masks.shape[2]), net.stride), masks


def score_record(confusion: Confusion, class_names: Iterable[str]) -> dict[str, Any]:
    """The figures of a confusion matrix for the log; null for a class that does not occur."""
    each = iou_per_class(confusion.matrix).tolist()
    return {
        "mean_iou": mean_iou(confusion.matrix),
        "pixel_accuracy": pixel_accuracy(confusion.matrix),
        "class_iou": {
            name: None if math.isnan(iou) else iou for name, iou in zip(class_names, each, strict=True)
        },
    }


def equal_sizes(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Neighbours whose masks are of one size, a few at a time."""
    group: list[Any] = []
    for item in items:
        if group and (len(group) == TOGETHER or item.mask.shape != group[0].mask.shape):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _only(items: list[Any]) -> Any:
    return items[0]


class Trial(NamedTuple):
    """Values that were tried, and the mean IoU that they gave."""

    values: dict[str, float]
    mean_iou: float


def tune(
    net: SegmentationNet,
    data: SegmentationData,
    candidates: Mapping[str, Sequence[float]] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[Trial]:
    """Sets the network to the best values and returns all trials, the best one first.

    The earlier of equally good ones wins. A network without such values is left as it is.

    Args:
        net: The network; it is put into evaluation mode.
        data: Held-out images with masks.
        candidates: Values to try for each setting; `net.adjustable` unless told.
        progress: Called with (images done, images in all).
    """
    candidates = net.adjustable if candidates is None else candidates
    if not candidates:
        return []
    require_same_classes(net, data)
    if len(data) == 0:
        raise InputError("there are no held-out images to tune on; give at least one")
    grid = [dict(zip(candidates, values, strict=True)) for values in product(*candidates.values())]
    confusions = [Confusion(data.classes.num_classes) for _ in grid]
    net.eval()
    for done, sample in enumerate(data, start=1):
        _count(net, sample, grid, confusions)
        if progress:
            progress(done, len(data))
    found = [Trial(values, mean_iou(each.matrix)) for values, each in zip(grid, confusions, strict=True)]
    trials = sorted(found, key=lambda trial: -trial.mean_iou)
    net.adjust(**trials[0].values)
    return trials


@torch.inference_mode()
def _count(
    net: SegmentationNet,
    sample: Sample,
    grid: Sequence[Mapping[str, float]],
    confusions: Sequence[Confusion],
) -> None:
    """Predicts a sample with all values, which its features do not depend on, and counts what is right."""
    image, mask = to_tensor(sample)
    if mask is None:
        raise InputError(f"{sample.name} has no mask to tune with; use a split with masks")
    images = image[None].to(net.device)
    features = net.features(images)
    for values, confusion in zip(grid, confusions, strict=True):
        net.adjust(**values)
        logits = upsample(net.logits_of(images, features), (images.shape[2], images.shape[3]), net.stride)
        confusion.update(logits.argmax(1).cpu().numpy(), mask[None].numpy())
