"""Scores as a value: they survive JSON, rank their images and say what is wrong with a file."""

import json

import pytest

from messagenet.errors import InputError
from messagenet.evaluation.calibration import Reliability
from messagenet.evaluation.scores import Band, ImageScore, Scores


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
    assert [image.name for image in scores.ranked()] == ["z", "x"]


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
