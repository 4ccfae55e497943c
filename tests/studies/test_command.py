"""`messagenet compare` and `messagenet tune` as a user meets them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from command import run
from messagenet.data import SCENE_CLASSES
from messagenet.models import CRFHead, SegmentationModel, UnaryNet
from messagenet.studies import RunResult
from messagenet.studies import run as comparison
from messagenet.studies.cost import Cost
from messagenet.training.systems import SYSTEMS, System

SHORT = ("run.steps=2", "run.batch_size=2", "run.workers=0", "data.val_limit=2", "model.head.hidden=8")


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "measure_in_subprocess", lambda *_: Cost(0.1, 0.2, 3.0))
    arguments = ["compare", "--systems", "unary,message", "--data", "synthetic:8", "--seeds", "0"]
    arguments += ["--held-out", "2", "--out", str(tmp_path)]
    for setting in SHORT:
        arguments += ["--set", setting]
    assert run(*arguments) == 0
    assert "learned messages" in capsys.readouterr().out
    assert "| learned messages | 1 |" in (tmp_path / "comparison.md").read_text()
    assert len(json.loads((tmp_path / "comparison.json").read_text())["systems"]) == 2
    assert run(*arguments) == 0
    assert "step 2" not in capsys.readouterr().out  # nothing is trained again
    assert run("compare", "--systems", "unray", "--data", "synthetic:8", "--out", tmp_path) == 2
    assert 'did you mean "unary"' in capsys.readouterr().err
    assert run("compare", "--seeds", "one", "--data", "synthetic:8", "--out", tmp_path) == 2
    assert "write it like 0,1,2" in capsys.readouterr().err


def test_all_systems_that_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that cannot be built on the backbone are named; nothing is trained before that is known."""
    asked: list[str] = []

    def compare(systems: list[System], *_: object, **__: object) -> list[RunResult]:
        asked.extend(system.name for system in systems)
        return [RunResult("unary", "unary", 0, 0.5, {"4": 0.5}, 1, 1, 1, 1.0, Cost(0.1, 0.2, 3.0))]

    monkeypatch.setattr("messagenet.studies.compare", compare)
    assert run("compare", "--systems", "all", "--data", "synthetic:8", "--out", tmp_path) == 0
    assert {"unary", "dilated", "crf_likelihood", "message_t2"} <= set(asked)
    assert not {"fcn8s", "deconvnet", "deeplab_mcl"} & set(asked)
    assert "message_t1" not in asked  # the same as message
    assert (
        run("compare", "--systems", "all", "--data", "synthetic:8", "--out", tmp_path, "--set", "data.balance=0.5") == 0
    )
    said = capsys.readouterr().out
    assert (
        "without machine_forward: system inference machine, forward training: forward training looks at every" in said
    )
    assert "without fcn8s: the backbone Tiny has no maps" in said
    assert "without deeplab_mcl: it needs the backbone vgg16" in said


def test_systems_that_cannot_be_built_are_refused_before_any_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("compare", "--systems", "unary,fcn8s", "--data", "synthetic:8", "--out", tmp_path / "out") == 2
    assert "system fcn8s: the backbone Tiny has no maps" in capsys.readouterr().err
    assert not (tmp_path / "out" / "unary").exists()


def test_help_names_every_system(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", "--help") == 0
    words = set(re.findall(r"[a-z0-9_]+", capsys.readouterr().out))
    assert set(SYSTEMS) - {"message_t2"} <= words


def test_a_study_has_its_own_systems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.yaml").write_text("systems: {unary: [unary]}")
    arguments = ("compare", "--study", tmp_path / "study.yaml", "--data", "synthetic:8", "--out", tmp_path / "out")
    assert run(*arguments, "--systems", "message") == 2
    assert "leave --systems out" in capsys.readouterr().err
    (tmp_path / "study.yaml").write_text("systems: {mine: [unary, model.head.kind=unray]}")
    assert run(*arguments) == 2
    assert 'system mine: there is no head "unray"' in capsys.readouterr().err
    (tmp_path / "study.yaml").write_text("systems:\n  mine: [a\n")
    assert run(*arguments) == 2
    assert "is not YAML in line" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_tune_needs_the_classes_of_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SegmentationModel("tiny", ["sky", "land", "house"], {"kind": "crf", "hidden": 8}).save(tmp_path / "crf")
    arguments = ("tune", "--model", tmp_path / "crf", "--data", "synthetic:8", "--split", "test", "--limit", 1)
    before = (tmp_path / "crf" / "config.json").read_bytes()
    assert run(*arguments) == 2
    assert "--keep sky,land,house" in capsys.readouterr().err
    assert (tmp_path / "crf" / "config.json").read_bytes() == before
    assert run(*arguments, "--keep", "sky,land,house") == 0
    assert SegmentationModel.from_pretrained(tmp_path / "crf-tuned").classes.names == ("sky", "land", "house")
    assert (tmp_path / "crf" / "config.json").read_bytes() == before
    assert run(*arguments[:3], "--data", "noisy:8", "--split", "test") == 2
    assert "give data with the model's classes" in capsys.readouterr().err


def test_tune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SegmentationModel("tiny", SCENE_CLASSES, {"kind": "crf", "hidden": 8}).save(tmp_path / "crf")
    arguments = ("--data", "synthetic:8", "--split", "test", "--limit", 1, "--out", tmp_path / "tuned")
    assert run("tune", "--model", tmp_path / "crf", *arguments) == 0
    assert "pairwise_scale" in capsys.readouterr().out
    tuned = SegmentationModel.from_pretrained(tmp_path / "tuned")
    assert tuned.config["head"]["pairwise_scale"] in CRFHead.tunable["pairwise_scale"]
    UnaryNet("tiny", SCENE_CLASSES, hidden=8).save(tmp_path / "unary")
    assert run("tune", "--model", tmp_path / "unary", *arguments) == 2
    assert "nothing to tune" in capsys.readouterr().err
