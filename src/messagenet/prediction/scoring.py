"""A model against the truth: every labelled image of a data set, predicted at its own size and scored."""

from __future__ import annotations

from collections.abc import Callable

from messagenet.data import SegmentationData
from messagenet.errors import InputError
from messagenet.evaluation import Evaluator, Scores
from messagenet.prediction.predictor import Predictor


def score(
    predictor: Predictor, data: SegmentationData, *, progress: Callable[[int, int], None] | None = None
) -> Scores:
    """Every score of a model on a data set.

    Args:
        predictor: The model and how to predict with it.
        data: Images with masks, in the model's classes.
        progress: Called with (images done, images in all).
    """
    ours, theirs = predictor.net.classes.names, data.classes.names
    if len(ours) != len(theirs):
        raise InputError(
            f"the model has {len(ours)} classes, the data {len(theirs)}; choose the model's classes with "
            f"--keep {','.join(ours[:3])}…"
        )
    evaluator = Evaluator(data.classes)
    for done, sample in enumerate(data, start=1):
        if sample.mask is None:
            raise InputError(f"image {sample.name!r} has no mask to score against; use a split with masks")
        evaluator.add(sample.name, predictor.marginals(sample.image), sample.mask)
        if progress:
            progress(done, len(data))
    return evaluator.scores()
