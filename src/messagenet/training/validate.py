"""Validation and tuning: a model scored on whole images at their own size, as VOC does, by one confusion matrix.

Neighbours of equal size form a batch; images are never padded, because padding changes the features at the border.
Tuning is a grid search over what training does not learn: a pairwise scale, or the kernels of a dense CRF (Chen et al.,
ICLR 2015, section 4). Its images must be neither trained on, where a model is overconfident, nor scored on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice, product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor

from messagenet.data import SegmentationData, Subset, open_data, takes
from messagenet.data.classes import ClassesLike
from messagenet.errors import InputError
from messagenet.evaluation import Confusion, iou_per_class, mean_iou, pixel_accuracy
from messagenet.geometry import Features, map_size
from messagenet.models import SegmentationModel
from messagenet.models.base import head_trait
from messagenet.prediction import PredictOptions, Predictor
from messagenet.prediction.scoring import require_same_classes
from messagenet.training.batches import make_loader, only
from messagenet.training.feature_cache import FeatureCache, collate_features

MAX_GROUP = 8


class Validation:
    """A data set, ready to score models on: shared by all processes, from cached features if there are any."""

    def __init__(
        self, data: SegmentationData, accelerator: Accelerator, workers: int, cache: FeatureCache | None = None
    ) -> None:
        self.data, self.accelerator, self.workers, self.cache = data, accelerator, workers, cache

    def score(self, model: SegmentationModel) -> Confusion:
        """The confusion matrix over all processes' shares; leaves the model in evaluation mode."""
        predictor = Predictor(model)
        confusion = Confusion(self.data.classes.num_classes)
        for labels, target in self._predictions(predictor):
            confusion.update(labels, target)
        matrix = torch.from_numpy(confusion.matrix).to(self.accelerator.device)
        confusion.matrix = self.accelerator.reduce(matrix, "sum").cpu().numpy()
        if not confusion.matrix.any():
            raise InputError(
                f"{self.data.name} has no labelled pixel to score; check its masks, or set val_split: null"
            )
        return confusion

    def _predictions(self, predictor: Predictor) -> Iterator[tuple[Any, Any]]:
        """Labels and targets, each (H, W), of this process's share of the images."""
        share = range(self.accelerator.process_index, len(self.data), self.accelerator.num_processes)
        items: Iterator[tuple[Any, Any]]  # images or features, with their target
        if self.cache is None:
            samples = make_loader(self.data, [[index] for index in share], only, self.workers)
            items = ((sample.image, sample.mask) for sample in samples if sample.mask is not None)
        else:
            entries = make_loader(self.cache, [[(0, index)] for index in share], only, self.workers)
            items = ((entry, entry.target.numpy()) for entry in entries)
        for group in equal_sizes(items, lambda item: item[1].shape):
            inputs, targets = zip(*group, strict=True)
            with self.accelerator.autocast():
                logits = self._node_logits(predictor, inputs, targets[0].shape)
            for nodes, target in zip(logits, targets, strict=True):
                yield predictor.pixel_labels(nodes, (target.shape[0], target.shape[1])), target

    def _node_logits(self, predictor: Predictor, inputs: Sequence[Any], size: tuple[int, int]) -> Tensor:
        if self.cache is None:
            return predictor.node_logits(inputs)
        features = collate_features(inputs).to(self.accelerator.device).features
        assert features is not None
        return predictor.from_features(features, size)


def score_record(confusion: Confusion, class_names: Iterable[str]) -> dict[str, Any]:
    """The figures of a confusion matrix for the log; null for a class that does not occur."""
    each = iou_per_class(confusion.matrix).tolist()
    return {
        "mean_iou": mean_iou(confusion.matrix),
        "pixel_accuracy": pixel_accuracy(confusion.matrix),
        "class_iou": {name: None if math.isnan(iou) else iou for name, iou in zip(class_names, each, strict=True)},
    }


def equal_sizes(items: Iterable[Any], size: Callable[[Any], Any]) -> Iterator[list[Any]]:
    """Neighbours of one size, a few at a time.

    >>> list(equal_sizes(["ab", "cd", "e"], len))
    [['ab', 'cd'], ['e']]
    """
    for _, same in groupby(items, size):
        while group := list(islice(same, MAX_GROUP)):
            yield group


class TuneResult(NamedTuple):
    """Values that were tried, and the mean IoU that they gave."""

    values: dict[str, float]
    mean_iou: float


def tune(
    model: str | Path | SegmentationModel | None = None,
    data: Any = None,
    candidates: Mapping[str, Sequence[float]] | None = None,
    *,
    split: str = "val",
    classes: ClassesLike | None = None,
    void_values: Sequence[int] | None = None,
    keep: Sequence[str] | None = None,
    rest: Literal["void", "background"] = "void",
    options: PredictOptions | None = None,
    limit: int = 100,
    out: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[TuneResult]:
    """Sets a model to the best values of what training does not learn; all results, best first, the earlier of equals.

    Args:
        model: A model, which is put into evaluation mode, a saved model's folder, or a bundled model's name (default).
        data: Labelled images that are neither trained nor scored on, as for `evaluate`.
        candidates: Values to try for each setting. Default: those of `model.head.tunable`.
        split, classes, void_values, keep, rest: How to open the data, as for `evaluate_models`.
        options: How to predict.
        limit: Use at most this many images.
        out: Where to save the tuned model. Default: beside a saved model, with "-tuned" added to its name.
        progress: Called with (images done, images in all).
    """
    out = f"{Path(model)}-tuned" if out is None and isinstance(model, str | Path) else out
    predictor = Predictor(model, options)
    model = predictor.model
    candidates = head_trait(model.head, "tunable") if candidates is None else candidates
    if not candidates:
        raise InputError(
            "the model has nothing to tune: it learns everything in training; "
            "context_crf, crf_pseudo, crf_likelihood and deeplab_crf have settings to search"
        )
    void_values = model.input.void_values if void_values is None and takes(data, "void_values") else void_values
    data = open_data(data, split, classes, void_values or None, keep, rest)
    require_same_classes(model, data)
    data = Subset(data, range(min(limit, len(data))))
    if len(data) == 0:
        raise InputError("there are no held-out images to tune on; give at least one")
    grid = [dict(zip(candidates, values, strict=True)) for values in product(*candidates.values())]
    confusions = [Confusion(data.classes.num_classes) for _ in grid]
    for done, sample in enumerate(data, start=1):
        if sample.mask is None:
            raise InputError(f"{sample.name} has no mask to tune with; use a split with masks")
        replay = _FeatureReplay(model)
        for values, confusion in zip(grid, confusions, strict=True):
            model.set_tunable(**values)
            (nodes,) = predictor.node_logits([sample.image], forward=replay.restart())
            labels = predictor.pixel_labels(nodes, (sample.mask.shape[0], sample.mask.shape[1]), sample.image)
            confusion.update(labels, sample.mask)
        if progress:
            progress(done, len(data))
    found = [TuneResult(values, mean_iou(each.matrix)) for values, each in zip(grid, confusions, strict=True)]
    results = sorted(found, key=lambda result: -result.mean_iou)
    model.set_tunable(**results[0].values)
    if out is not None:
        model.save(out)
    return results


class _FeatureReplay:
    """The forward of a model that computes the features of each view and tile of an image once."""

    def __init__(self, model: SegmentationModel) -> None:
        self.model = model
        self.features: list[Features] = []
        self.position = 0

    def restart(self) -> _FeatureReplay:
        """Starts over with the first view and tile."""
        self.position = 0
        return self

    def __call__(self, images: Tensor) -> Tensor:
        if self.position == len(self.features):
            self.features.append(self.model.forward_features(images))
        features = self.features[self.position]
        self.position += 1
        return self.model.forward_head(features, size=map_size(images), images=images)
