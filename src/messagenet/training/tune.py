"""What training does not learn, searched on held-out images: the values with the highest mean IoU.

A pairwise scale, the kernels of a dense CRF: a few numbers that are set after training, by trying all combinations of
a few values (Chen et al., ICLR 2015, section 4, search their CRF's so). The images must be neither those of the
training, on which a network is too sure of itself, nor those that it will be scored on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import torch

from messagenet.data import Sample, SegmentationData, to_tensor
from messagenet.errors import InputError
from messagenet.evaluation import Confusion, mean_iou
from messagenet.learning import upsample
from messagenet.models import SegmentationNet
from messagenet.prediction.scoring import require_same_classes


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
