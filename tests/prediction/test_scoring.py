"""Scores of a model on labelled images, each at its own size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from messagenet import InputError, surrounding
from messagenet.data import SyntheticScenes
from messagenet.evaluation import Evaluator
from messagenet.models import MessageNet, UnaryNet
from messagenet.prediction import Predictor, score
from messagenet.prediction.scoring import report_examples


def test_score_needs_the_models_classes():
    net = MessageNet("tiny", 3, [surrounding(cells=3)], hidden=8)
    with pytest.raises(InputError, match=r"3 classes class 0.*9 classes sky"):
        score(Predictor(net), SyntheticScenes(1))
    scenes = SyntheticScenes(1)
    with pytest.raises(InputError, match="in its order"):
        score(Predictor(UnaryNet("tiny", scenes.classes.names[::-1], hidden=4)), scenes)


def test_scores_are_those_of_the_marginals_of_every_image():
    torch.manual_seed(0)
    scenes = SyntheticScenes(3)
    predictor = Predictor(UnaryNet("tiny", scenes.classes, hidden=4))
    evaluator, seen = Evaluator(scenes.classes), []
    for sample in scenes:
        evaluator.add(sample.name, predictor.marginals(sample.image), sample.mask)
    found = score(predictor, scenes, progress=lambda *figures: seen.append(figures))
    assert found.mean_iou == evaluator.scores().mean_iou
    assert seen == [(1, 3), (2, 3), (3, 3)]
    examples = report_examples({"first": predictor}, scenes, found, count=1)
    ranked = [image.name for image in found.ranked_images()]
    assert {example.name for example in examples} == {ranked[0], ranked[-1]}
    first = examples[0]
    assert first.predictions["first"].shape == first.image.shape[:2]
    assert np.array_equal(first.predictions["first"], predictor.labels(first.image))
