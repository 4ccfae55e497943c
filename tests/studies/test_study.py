"""Studies as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from messagenet.errors import InputError
from messagenet.studies.study import Study, read_study
from messagenet.training import apply_overrides, load_config

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def study(tmp_path: Path, text: str) -> Study:
    (tmp_path / "study.yaml").write_text(text)
    return read_study(tmp_path / "study.yaml")


def test_a_study_says_everything(tmp_path: Path) -> None:
    read = study(
        tmp_path,
        "preset: tiny\nsettings: [run.steps=3]\nseeds: [4]\nheld_out: 2\n"
        'rows:\n  unary alone: [model.kind=unary]\n  "messages, T = 2": [model.iterations=2]\n'
        'contrasts: [[unary alone, "messages, T = 2"]]\n',
    )
    assert (read.preset, read.settings, read.seeds, read.held_out) == ("tiny", ("run.steps=3",), (4,), 2)
    assert [row.name for row in read.rows] == ["unary-alone", "messages-t-2"]
    assert read.rows[1].label == "messages, T = 2"
    assert read.contrasts == (("unary alone", "messages, T = 2"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rows: [", "is not YAML"),
        ("seeds: [0]", "has no rows"),
        ("rows: {}", "has no rows"),
        ("rows: {unary: []}\nseed: [0]", 'did you mean "seeds"'),
        ("rows: {unary: model.kind=unary}", "give a list such as"),
        ("rows: {unary: []}\nseeds: zero", "whole numbers"),
        ("rows: {unary: []}\nheld_out: some", "whole number"),
        ("rows: {unary: []}\ncontrasts: [unary]", "pairs of rows"),
        ("rows: {unary: []}\ncontrasts: [[unary, unaries]]", 'did you mean "unary"'),
    ],
)
def test_bad_studies_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        study(tmp_path, text)
    with pytest.raises(InputError, match="check the path"):
        read_study(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", sorted(RECIPES.glob("study*.yaml")), ids=lambda path: path.stem)
def test_published_studies_can_be_configured(path: Path) -> None:
    read = read_study(path)
    shared = apply_overrides(load_config(read.preset), read.settings)
    for row in read.rows:
        row.config(apply_overrides(shared, ["run.cache_features=false"]), 0)
