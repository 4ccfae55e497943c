"""Tables: every figure is there, the best is marked, names are shown as they are."""

import io

import pytest
from rich.console import Console

from messagenet.errors import InputError
from messagenet.evaluation.calibration import Reliability
from messagenet.evaluation.scores import Band, Row, Scores, scores_table, summary_rows

GOOD = Scores(
    ("[red]a", "b"),
    ((9, 1), (0, 10)),
    bands=(Band(2, 0.5),),
    reliability=Reliability((20,), (18.0,), (19,), 4.0, 2.0),
)
POOR = Scores(("[red]a", "b"), ((5, 5), (0, 10)))


def rendered(*arguments):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(scores_table(*arguments))
    return console.export_text()


def test_comparison_shows_both_methods_and_missing_figures():
    lines = rendered({"poor": POOR, "good": GOOD}, "Two methods").splitlines()
    assert lines[0].strip() == "Two methods"
    cells = {
        line.split("│")[1].strip(): [c.strip() for c in line.split("│")[2:4]] for line in lines if "│" in line
    }
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
    ("row", "winners"),
    [
        (Row("higher", (0.1, 0.3, None)), (False, True, False)),
        (Row("lower", (0.1, 0.3, None), best="lowest"), (True, False, False)),
        (Row("neither", (1, 2), ",", ""), (False, False)),
        (Row("shown alike", (0.50001, 0.50002, 0.4)), (True, True, False)),
        (Row("all alike", (0.5, 0.5)), (False, False)),
        (Row("alone", (0.5,)), (False,)),
    ],
)
def test_the_best_is_marked(row, winners):
    assert row.winners == winners


def test_only_like_is_compared():
    with pytest.raises(InputError, match="different classes"):
        scores_table({"one": POOR, "other": Scores(("a", "c"), POOR.confusion)})
    with pytest.raises(InputError, match="no scores"):
        scores_table({})
