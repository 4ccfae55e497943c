"""The table and the differences between systems, against figures worked out by hand."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from messagenet.errors import InputError
from messagenet.evaluation.scores import Band, Scores, SizeGroup
from messagenet.studies import RunResult
from messagenet.studies.cost import Cost
from messagenet.studies.tables import ScoredRun, contrast, contrasts_markdown, markdown, table_rows, write_contrasts

STUDIES = Path(__file__).resolve().parents[2] / "docs" / "studies"


def scores(right: int, called_dog: int, near: float, small: float) -> Scores:
    """100 pixels of cat, of which some are called dog and the rest background; dogs and background are all right."""
    cats = (100 - right - called_dog, right, called_dog)
    return Scores(
        ("background", "cat", "dog"),
        ((50, 0, 0), cats, (0, 0, 40)),
        bands=(Band(4, near),),
        sizes=(SizeGroup(0.02, small), SizeGroup(1.0, None)),
    )


FIRST = {0: scores(60, 30, 0.4, 0.2), 1: scores(70, 20, 0.5, 0.2), 5: scores(1, 1, 0.1, 0.1)}
SECOND = {0: scores(80, 10, 0.45, 0.1), 1: scores(80, 10, 0.45, 0.2), 7: scores(2, 2, 0.1, 0.1)}


def runs(system: str, scored: dict[int, Scores]) -> dict[int, ScoredRun]:
    return {seed: ScoredRun(result(system, seed, 0.5), each) for seed, each in scored.items()}


def test_differences_are_of_common_seeds() -> None:
    found = contrast(runs("unary", FIRST), runs("messages", SECOND))
    assert (found.base, found.other) == ("unary", "messages")
    assert found.seeds == (0, 1)
    assert found.differences["IoU of cat"] == pytest.approx([0.2, 0.1])
    assert found.differences["IoU of dog"] == pytest.approx([40 / 50 - 40 / 70, 40 / 50 - 40 / 60])
    assert found.differences["IoU within 4 px of a boundary"] == pytest.approx([0.05, -0.05])
    assert found.differences["accuracy, 0% to 2% of the image"] == pytest.approx([-0.1, 0.0])
    assert "accuracy, 2% to 100% of the image" not in found.differences
    assert found.confusions["cat", "dog"] == pytest.approx((0.25, 0.10))
    assert found.largest[0][0] == ("cat", "dog")


def test_the_table_of_differences() -> None:
    unary = runs("unary", FIRST)
    text = contrasts_markdown([contrast(unary, runs("messages", SECOND)), contrast(unary, unary)])
    assert "| difference in points | unary → messages | unary → unary |" in text
    assert "| IoU of cat | +15.0 ± 7.1 | +0.0 ± 0.0 |" in text
    assert "| seeds | 2 | 3 |" in text
    assert "- cat called dog: 25.0 → 10.0" in text


def test_systems_are_found_in_a_comparison(tmp_path: Path) -> None:
    results = []
    for system, by_seed in (("unary", FIRST), ("messages-t-1", SECOND)):
        for seed, each in by_seed.items():
            folder = tmp_path / system / f"seed-{seed}"
            folder.mkdir(parents=True)
            (folder / "scores.json").write_text(json.dumps(each.to_dict()))
            label = system.replace("-t-1", ", T = 1")
            results.append(RunResult(system, label, seed, 0.5, {}, 1, 3, 2, 1.0, Cost(0.1, 0.1, 1.0)))
    write_contrasts([("unary", "crf-rnn")], results, tmp_path)
    assert not (tmp_path / "contrasts.md").exists()
    write_contrasts([("unary", "messages-t-1"), ("unary", "crf-rnn")], results, tmp_path)
    text = (tmp_path / "contrasts.md").read_text()
    assert "| difference in points | unary → messages, T = 1 |" in text
    assert "| seeds | 2 |" in text
    (tmp_path / "unary" / "seed-0" / "scores.json").write_text("{")
    with pytest.raises(InputError, match=r"seed-0.scores\.json cannot be read"):
        write_contrasts([("unary", "messages-t-1")], results, tmp_path)


def result(system: str, seed: int, iou: float, near: float = 0.2) -> RunResult:
    return RunResult(system, system, seed, iou, {"4": near}, 1234, 9, 2, 1.0, Cost(0.01, 0.02, 3.0))


def test_rows_are_means_and_spreads_over_seeds() -> None:
    first, second = table_rows([result("a", 0, 0.4), result("b", 0, 0.9), result("a", 1, 0.6, 0.4)])
    assert (first.seeds, first.mean_iou, first.measures["trimap_iou"][0]) == ((0, 1), 0.5, pytest.approx(0.3))
    assert first.measures["mean_iou"][1] == pytest.approx(statistics.stdev([0.4, 0.6]))
    assert second.measures["mean_iou"][1] is None
    assert first.measures["negative_log_likelihood"] == (None, None)
    text = markdown([result("a", 0, 0.4), result("a", 1, 0.6), result("b", 0, 0.9)]).splitlines()
    assert "50.0 ± 14.1" in text[2]
    assert "**90.0**" in text[3]


def test_systems_without_steps_have_no_time_of_a_step() -> None:
    fitted = replace(result("machine_dagger", 0, 0.5), steps=1, train_seconds=12.0)
    (row,) = table_rows([fitted])
    assert row.step_seconds is None
    assert row.cells[9:11] == ("12", "–")


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*/comparison.json")), ids=lambda path: path.parent.name)
def test_published_tables_follow_from_the_published_results(path: Path) -> None:
    published = json.loads(path.read_text("utf-8"))
    results = [RunResult(**{**each, "cost": Cost(**each["cost"])}) for each in published["results"]]
    assert markdown(results) == path.with_suffix(".md").read_text("utf-8")
    assert json.loads(json.dumps([row.to_dict() for row in table_rows(results)])) == published["systems"]
    runs = [json.loads(line) for line in path.with_name("runs.jsonl").read_text("utf-8").splitlines()]
    assert {(run["system"], run["seed"]) for run in runs} == {(each.system, each.seed) for each in results}
