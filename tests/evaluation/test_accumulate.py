"""The evaluator against the functions it is made of, applied to all images at once."""

import numpy as np
import pytest
import torch

from messagenet.data.classes import Classes
from messagenet.errors import InputError
from messagenet.evaluation.boundary import trimap_iou, trimap_matrices
from messagenet.evaluation.calibration import reliability
from messagenet.evaluation.confusion import confusion_matrix, mean_iou
from messagenet.evaluation.scores import Evaluator

VOID = 255
CLASSES = Classes(("sky", "land", "water"))


def images(count=4, height=9, width=11):
    generator = torch.Generator().manual_seed(0)
    for index in range(count):
        coarse = torch.randint(0, 3, (3, 4), generator=generator)
        truth = coarse.repeat_interleave(3, 0).repeat_interleave(3, 1)[:height, :width].clone()
        truth[0, : index + 1] = VOID
        logits = torch.randn(3, height, width, generator=generator, dtype=torch.float64)
        yield f"image {index}", logits.softmax(dim=0), truth


def filled(**options):
    evaluator = Evaluator(CLASSES, **options)
    for name, marginals, truth in images():
        evaluator.add(name, marginals, truth)
    return evaluator


def test_scores_are_those_of_the_whole_set():
    names, marginals, truths = zip(*images(), strict=True)
    predicted = [p.argmax(dim=0) for p in marginals]
    scores = filled(widths=(1, 3), bins=7).scores()

    whole = confusion_matrix(torch.cat(predicted), torch.cat(truths), 3)
    np.testing.assert_array_equal(scores.matrix, whole)
    assert scores.mean_iou == mean_iou(whole)
    bands = sum(trimap_matrices(p, t, 3, (1, 3)) for p, t in zip(predicted, truths, strict=True))
    assert [band.mean_iou for band in scores.bands] == trimap_iou(bands).tolist()
    assert [band.width for band in scores.bands] == [1, 3]
    all_pixels = reliability(torch.cat(marginals, dim=1), torch.cat(truths), bins=7)
    assert scores.reliability.counts == all_pixels.counts
    assert scores.expected_calibration_error == pytest.approx(
        all_pixels.expected_calibration_error, rel=1e-12
    )
    assert [image.name for image in scores.images] == list(names)
    each = [mean_iou(confusion_matrix(p, t, 3)) for p, t in zip(predicted, truths, strict=True)]
    assert [image.mean_iou for image in scores.images] == each


def test_hard_predictions_give_the_same_iou_and_no_calibration():
    hard = Evaluator(CLASSES)
    for name, marginals, truth in images():
        hard.add(name, None, truth, predicted=marginals.argmax(dim=0))
    soft, scores = filled().scores(), hard.scores()
    assert scores.reliability is None
    assert (scores.confusion, scores.bands, scores.images) == (soft.confusion, soft.bands, soft.images)


def test_labels_given_beside_marginals_decide_the_iou():
    evaluator = Evaluator(CLASSES)
    _, marginals, truth = next(images())
    evaluator.add("refined", marginals, truth, predicted=truth.where(truth != VOID, 0))
    scores = evaluator.scores()
    assert scores.mean_iou == 1
    assert scores.reliability == reliability(marginals, truth)


def test_parts_add_up_to_the_whole():
    parts = Evaluator(CLASSES), Evaluator(CLASSES)
    for index, (name, marginals, truth) in enumerate(images()):
        parts[index // 2].add(name, marginals, truth)
    total, whole = (parts[0] + parts[1]).scores(), filled().scores()
    assert (total.confusion, total.bands, total.images) == (whole.confusion, whole.bands, whole.images)
    assert total.brier_score == pytest.approx(whole.brier_score, rel=1e-12)


def test_an_empty_evaluator_has_no_figures():
    scores = Evaluator(CLASSES).scores()
    assert (scores.mean_iou, scores.pixel_accuracy, scores.reliability) == (None, None, None)
    assert scores.class_iou == (None, None, None)


def test_no_widths_means_no_bands():
    assert filled(widths=()).scores().bands == ()


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (("image 0", torch.full((3, 2, 2), 1 / 3), torch.zeros(2, 2, dtype=torch.long)), {}, "scored before"),
        (("new", None, torch.zeros(2, 2, dtype=torch.long)), {}, "for all images or for none"),
        (("new", torch.full((2, 2, 2), 0.5), torch.zeros(2, 2, dtype=torch.long)), {}, "2 classes, not 3"),
        (("new", torch.full((3, 2, 2), 9.0), torch.zeros(2, 2, dtype=torch.long)), {}, "apply softmax"),
        (
            ("new", torch.full((3, 2, 2), 1 / 3), torch.zeros(2, 2, dtype=torch.long)),
            {"predicted": torch.full((2, 2), 3)},
            "predicted holds label 3",
        ),
    ],
)
def test_a_refused_image_is_named_and_not_counted(arguments, options, says):
    evaluator = filled()
    before = evaluator.scores()
    with pytest.raises(InputError, match=says):
        evaluator.add(*arguments, **options)
    assert evaluator.scores() == before


def test_a_prediction_is_needed():
    with pytest.raises(InputError, match="has no prediction"):
        Evaluator(CLASSES).add("one", None, torch.zeros(2, 2, dtype=torch.long))


def test_only_like_evaluators_add():
    with pytest.raises(InputError, match="different classes, widths or bins"):
        Evaluator(CLASSES, bins=3) + Evaluator(CLASSES, bins=4)
    with pytest.raises(InputError, match='"image 0" is in both'):
        filled() + filled()
    hard = Evaluator(CLASSES)
    hard.add("hard", None, torch.zeros(2, 2, dtype=torch.long), predicted=torch.zeros(2, 2, dtype=torch.long))
    with pytest.raises(InputError, match="with and without marginals"):
        filled() + hard
