"""The evaluator against the functions it is made of; scores through JSON; tables of several methods."""

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

from messagenet.data.classes import Classes
from messagenet.errors import InputError
from messagenet.evaluation.boundary import trimap_iou, trimap_matrices
from messagenet.evaluation.calibration import Reliability, reliability
from messagenet.evaluation.confusion import confusion_matrix, mean_iou
from messagenet.evaluation.scores import (
    Band,
    Evaluator,
    ImageScore,
    ScoreRow,
    Scores,
    scores_csv,
    scores_latex,
    scores_table,
    summary_rows,
)

VOID = 255
CLASSES = Classes(("sky", "land", "water"))
GOOD = Scores(
    ("[red]a", "b"), ((9, 1), (0, 10)), bands=(Band(2, 0.5),), reliability=Reliability((20,), (18.0,), (19,), 4.0, 2.0)
)
POOR = Scores(("[red]a", "b"), ((5, 5), (0, 10)))


def images(count=4, height=9, width=11):
    generator = torch.Generator().manual_seed(0)
    for index in range(count):
        coarse = torch.randint(0, 3, (3, 4), generator=generator)
        target = coarse.repeat_interleave(3, 0).repeat_interleave(3, 1)[:height, :width].clone()
        target[0, : index + 1] = VOID
        logits = torch.randn(3, height, width, generator=generator, dtype=torch.float64)
        yield f"image {index}", logits.softmax(dim=0), target


def filled(**options):
    evaluator = Evaluator(CLASSES, **options)
    for name, marginals, target in images():
        evaluator.add(name, marginals, target)
    return evaluator


def test_scores_are_those_of_the_whole_set():
    names, marginals, targets = zip(*images(), strict=True)
    predicted = [p.argmax(dim=0) for p in marginals]
    scores = filled(widths=(1, 3), bins=7).scores()

    whole = confusion_matrix(torch.cat(predicted), torch.cat(targets), 3)
    np.testing.assert_array_equal(scores.matrix, whole)
    assert scores.mean_iou == mean_iou(whole)
    bands = sum(trimap_matrices(p, t, 3, (1, 3)) for p, t in zip(predicted, targets, strict=True))
    assert [band.mean_iou for band in scores.bands] == trimap_iou(bands).tolist()
    assert [band.width for band in scores.bands] == [1, 3]
    all_pixels = reliability(torch.cat(marginals, dim=1), torch.cat(targets), bins=7)
    assert scores.reliability.counts == all_pixels.counts
    assert scores.expected_calibration_error == pytest.approx(all_pixels.expected_calibration_error, rel=1e-12)
    assert [image.name for image in scores.images] == list(names)
    each = [mean_iou(confusion_matrix(p, t, 3)) for p, t in zip(predicted, targets, strict=True)]
    assert [image.mean_iou for image in scores.images] == each


def test_hard_predictions_give_the_same_iou_and_no_calibration():
    hard = Evaluator(CLASSES)
    for name, marginals, target in images():
        hard.add(name, None, target, predicted=marginals.argmax(dim=0))
    soft, scores = filled().scores(), hard.scores()
    assert scores.reliability is None
    assert (scores.confusion, scores.bands, scores.images) == (soft.confusion, soft.bands, soft.images)


def test_labels_given_beside_marginals_decide_the_iou():
    evaluator = Evaluator(CLASSES)
    _, marginals, target = next(images())
    evaluator.add("refined", marginals, target, predicted=target.where(target != VOID, 0))
    scores = evaluator.scores()
    assert scores.mean_iou == 1
    assert scores.reliability == reliability(marginals, target)


def test_parts_add_up_to_the_whole():
    parts = Evaluator(CLASSES), Evaluator(CLASSES)
    for index, (name, marginals, target) in enumerate(images()):
        parts[index // 2].add(name, marginals, target)
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


def test_sizes_are_summed_over_images_and_saved():
    classes = Classes(("ground", "cat"))
    target = np.zeros((10, 10), int)
    target[0, 0] = 1
    first, second = Evaluator(classes), Evaluator(classes)
    first.add("found", None, target, predicted=target)
    second.add("missed", None, target, predicted=np.zeros_like(target))
    scores = (first + second).scores()
    assert [group.accuracy for group in scores.sizes] == [0.5, None, 1.0]
    assert Scores.from_dict(scores.to_dict()) == scores


@pytest.fixture
def scores():
    return Scores(
        class_names=("a", "b", "never"),
        confusion=((3, 1, 0), (0, 4, 0), (0, 0, 0)),
        bands=(Band(1, 0.25), Band(2, None)),
        images=(ImageScore("x", 0.9), ImageScore("y", None), ImageScore("z", 0.1)),
        reliability=Reliability((2, 6), (0.6, 5.1), (1, 6), 2.0, 1.0),
    )


def test_figures_follow_from_the_counts(scores):
    assert scores.class_iou == (3 / 4, 4 / 5, None)
    assert scores.mean_iou == pytest.approx((3 / 4 + 4 / 5) / 2)
    assert scores.pixel_accuracy == 7 / 8
    assert scores.frequency_weighted_iou == pytest.approx((3 / 4 + 4 / 5) / 2)
    assert scores.expected_calibration_error == pytest.approx((0.4 + 0.9) / 8)
    assert scores.negative_log_likelihood == 0.25
    assert scores.brier_score == 0.125


def test_images_are_ranked_from_worst_to_best(scores):
    assert [image.name for image in scores.ranked_images()] == ["z", "x"]


@pytest.mark.parametrize("soft", [True, False])
def test_json_round_trip(scores, soft):
    if not soft:
        scores = Scores(scores.class_names, scores.confusion)
    text = json.dumps(scores.to_dict(), allow_nan=False)
    assert Scores.from_dict(json.loads(text)) == scores
    assert json.loads(text)["summary"]["class_iou"]["never"] is None


def test_the_summary_in_a_file_is_not_trusted(scores):
    values = scores.to_dict()
    values["summary"]["mean_iou"] = 1.0
    assert Scores.from_dict(values).mean_iou == scores.mean_iou


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda v: v.update(confusoin=v.pop("confusion")), 'no entry "confusoin"; did you mean "confusion"'),
        (lambda v: v.pop("class_names"), "lack the entry 'class_names'"),
        (lambda v: v["confusion"].pop(), "3×3 confusion matrix"),
        (lambda v: v.update(bands=[{"wide": 1}]), "cannot be read"),
        (lambda v: v.update(confusion=3), "cannot be read"),
        (lambda v: v.update(confusion=[["x"] * 3] * 3), "cannot be read"),
        (lambda v: v.update(reliability=[1]), "cannot be read"),
        (lambda v: v.update(reliability={}), "cannot be read"),
        (lambda v: v["reliability"]["counts"].pop(), "same bins"),
    ],
)
def test_a_bad_file_is_named(scores, change, says):
    values = json.loads(json.dumps(scores.to_dict()))
    change(values)
    with pytest.raises(InputError, match=says):
        Scores.from_dict(values)


def rendered(*arguments):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(scores_table(*arguments))
    return console.export_text()


def test_comparison_shows_both_methods_and_missing_figures():
    lines = rendered({"poor": POOR, "good": GOOD}, "Two methods").splitlines()
    assert lines[0].strip() == "Two methods"
    cells = {line.split("│")[1].strip(): [c.strip() for c in line.split("│")[2:4]] for line in lines if "│" in line}
    assert cells["[red]a"] == ["50.0%", "90.0%"]
    assert cells["Pixel accuracy"] == ["75.0%", "95.0%"]
    assert cells["Trimap IoU, 2 px"] == ["–", "50.0%"]
    assert cells["Calibration error (ECE)"] == ["–", "5.0%"]
    assert cells["Brier score"] == ["–", "0.1000"]


def test_one_method_needs_no_name():
    assert "75.0%" in rendered(POOR)


def test_figures_that_no_method_has_are_left_out():
    assert not any("Calibration" in row.label for row in summary_rows({"poor": POOR}))


@pytest.mark.parametrize(
    ("row", "is_best"),
    [
        (ScoreRow("higher", (0.1, 0.3, None)), (False, True, False)),
        (ScoreRow("lower", (0.1, 0.3, None), mode="min"), (True, False, False)),
        (ScoreRow("neither", (1, 2), ",", ""), (False, False)),
        (ScoreRow("shown alike", (0.50001, 0.50002, 0.4)), (True, True, False)),
        (ScoreRow("all alike", (0.5, 0.5)), (False, False)),
        (ScoreRow("alone", (0.5,)), (False,)),
    ],
)
def test_the_best_is_marked(row, is_best):
    assert row.is_best == is_best


def test_only_like_is_compared():
    with pytest.raises(InputError, match="different classes"):
        scores_table({"one": POOR, "other": Scores(("a", "c"), POOR.confusion)})
    with pytest.raises(InputError, match="no scores"):
        scores_table({})


def test_rows_for_papers():
    absent = Scores(("a_1", "b"), ((3, 0), (0, 0)))
    methods = {"good, ours": Scores(("a_1", "b"), ((9, 1), (0, 10))), "50%": Scores(("a_1", "b"), ((5, 5), (0, 10)))}
    assert scores_csv(methods) == 'method,mean,a_1,b\n"good, ours",90.45,90.00,90.91\n50%,58.33,50.00,66.67\n'
    assert scores_csv(absent) == "method,mean,a_1,b\nscore,100.00,100.00,\n"
    assert scores_latex(methods).splitlines() == [
        r"% method & mean & a\_1 & b",
        r"good, ours & \textbf{90.5} & \textbf{90.0} & \textbf{90.9} \\",
        r"50\% & 58.3 & 50.0 & 66.7 \\",
    ]
    assert scores_latex(absent).splitlines()[1] == r"score & 100.0 & 100.0 & -- \\"
