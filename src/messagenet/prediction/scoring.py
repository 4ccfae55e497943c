"""Scores of a model on a labelled data set, every image predicted at its own size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from messagenet.data import SegmentationData
from messagenet.data.classes import numbered_classes
from messagenet.errors import InputError
from messagenet.evaluation import Evaluator, Scores
from messagenet.models import SegmentationModel
from messagenet.prediction.predictor import Predictor, most_probable
from messagenet.report import ReportExample, entropy


def score(
    predictor: Predictor, data: SegmentationData, *, progress: Callable[[int, int], None] | None = None
) -> Scores:
    """Every score of a model on images with masks; `progress` is called with (images done, images in all)."""
    require_same_classes(predictor.model, data)
    evaluator = Evaluator(data.classes)
    for done, sample in enumerate(data, start=1):
        if sample.mask is None:
            raise InputError(f"image {sample.name!r} has no mask to score against; use a split with masks")
        evaluator.add(sample.name, predictor.marginals(sample.image), sample.mask)
        if progress:
            progress(done, len(data))
    return evaluator.scores()


def require_same_classes(model: SegmentationModel, data: SegmentationData) -> None:
    """Refuses data whose classes differ from the model's."""
    ours, theirs = model.classes.names, data.classes.names
    numbered = any(names == numbered_classes(len(names)).names for names in (ours, theirs))
    if len(ours) != len(theirs) or (ours != theirs and not numbered):
        fix = (
            f"choose the model's, in its order, with --keep {','.join(ours)}"
            if set(ours) <= set(theirs)
            else "give data with the model's classes, or a model that was trained on these"
        )
        raise InputError(
            f"the model knows the {len(ours)} classes {_some(ours)}, the data the {len(theirs)} classes "
            f"{_some(theirs)}; {fix}"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + ("…" if len(names) > 3 else "")


def report_examples(
    predictors: Mapping[str, Predictor], data: SegmentationData, scores: Scores, count: int = 5
) -> list[ReportExample]:
    """Examples for `messagenet.report.write_report`: the `count` worst and best images by `scores`.

    The uncertainty shown is that of the last predictor.
    """
    ranked = [image.name for image in scores.ranked_images()]
    wanted = set(ranked[:count] + ranked[-count:])
    examples = []
    for index in (index for index in range(len(data)) if data.sample_name(index) in wanted):
        sample = data[index]
        assert sample.mask is not None
        marginals = {name: predictor.marginals(sample.image) for name, predictor in predictors.items()}
        labels = {name: most_probable(values) for name, values in marginals.items()}
        uncertainty = entropy(next(reversed(marginals.values())))
        examples.append(ReportExample(sample.name, sample.image, sample.mask, labels, uncertainty))
    return examples
