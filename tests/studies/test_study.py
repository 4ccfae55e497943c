"""Studies as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from messagenet.data.classes import numbered_classes
from messagenet.errors import InputError
from messagenet.studies.run import check_systems
from messagenet.studies.study import Study, read_study
from messagenet.training import load_config, override

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def study(tmp_path: Path, text: str) -> Study:
    (tmp_path / "study.yaml").write_text(text)
    return read_study(tmp_path / "study.yaml")


def test_a_study_says_everything(tmp_path: Path) -> None:
    read = study(
        tmp_path,
        "preset: tiny\nsettings: [run.steps=3]\nseeds: [4]\nheld_out: 2\nscore: held_out\n"
        'systems:\n  unary alone: [unary]\n  "messages, T = 2": [message, model.head.iterations=2]\n'
        'contrasts: [[unary alone, "messages, T = 2"]]\n',
    )
    assert (read.preset, read.settings, read.seeds, read.held_out) == ("tiny", ("run.steps=3",), (4,), 2)
    assert read.score == "held_out"
    assert [system.name for system in read.systems] == ["unary-alone", "messages-t-2"]
    assert read.systems[1].label == "messages, T = 2"
    assert read.contrasts == (("unary alone", "messages, T = 2"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("systems: [", "is not YAML"),
        ("seeds: [0]", "has no systems"),
        ("systems: {}", "has no systems"),
        ("rows: {unary: [unary]}", "has no systems"),
        ("systems: {mine: [unray]}", 'no system "unray"; did you mean "unary"'),
        ("systems: {unary: []}\nseed: [0]", 'did you mean "seeds"'),
        ("systems: {unary: unary}", "give a list such as"),
        ("systems: {unary: []}\nseeds: zero", "whole numbers"),
        ("systems: {unary: []}\nheld_out: some", "whole number"),
        ("systems: {unary: []}\nscore: held-out", 'did you mean "held_out"'),
        ("systems: {unary: []}\ncontrasts: [unary]", "pairs of systems"),
        ("systems: {unary: []}\ncontrasts: [[unary, unaries]]", 'did you mean "unary"'),
    ],
)
def test_bad_studies_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        study(tmp_path, text)
    with pytest.raises(InputError, match="check the path"):
        read_study(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", sorted(RECIPES.glob("study*.yaml")), ids=lambda path: path.stem)
def test_every_system_of_a_published_study_can_be_built(path: Path) -> None:
    read = read_study(path)
    assert read.preset is not None
    shared = override(load_config(read.preset), read.settings)
    check_systems(read.systems, shared, numbered_classes(7))
