"""The worst and the best images of a scored set, predicted once more to be looked at side by side."""

from __future__ import annotations

from collections.abc import Mapping

from messagenet.data import SegmentationData
from messagenet.evaluation import Scores
from messagenet.prediction.enlarge import most_probable
from messagenet.prediction.predictor import Predictor
from messagenet.report import Example, entropy


def report_examples(
    predictors: Mapping[str, Predictor], data: SegmentationData, scores: Scores, count: int = 5
) -> list[Example]:
    """Examples for `messagenet.report.write_report`: `count` images from either end of the ranking.

    Args:
        predictors: Models by name; the last one's uncertainty is shown.
        data: The set that was scored.
        scores: The scores to rank the images by.
        count: How many of the worst and of the best.
    """
    ranked = [image.name for image in scores.ranked()]
    wanted = set(ranked[:count] + ranked[-count:])
    places = [index for index in range(len(data)) if data.sample_name(index) in wanted]
    examples = []
    for index in places:
        sample = data[index]
        assert sample.mask is not None
        marginals = {name: predictor.marginals(sample.image) for name, predictor in predictors.items()}
        labels = {name: most_probable(values) for name, values in marginals.items()}
        uncertainty = entropy(next(reversed(marginals.values())))
        examples.append(Example(sample.name, sample.image, sample.mask, labels, uncertainty))
    return examples
