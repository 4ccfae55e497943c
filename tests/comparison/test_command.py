"""`messagenet compare` and `messagenet tune` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import run
from messagenet.comparison import run as comparison_run
from messagenet.comparison.cost import Cost
from messagenet.data import SCENE_CLASSES
from messagenet.models import CRFNet, SegmentationNet, UnaryNet

SHORT = ("run.steps=2", "run.batch_size=2", "run.workers=0", "data.val_limit=2", "model.hidden=8")


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_run, "measured", lambda *_: Cost(0.1, 0.2, 3.0))
    arguments = ["compare", "--rows", "unary,message", "--data", "synthetic:8", "--seeds", "0"]
    arguments += ["--held-out", "2", "--out", str(tmp_path)]
    for setting in SHORT:
        arguments += ["--set", setting]
    assert run(*arguments) == 0
    assert "| learned messages | 1 |" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "comparison.json").read_text())["rows"]) == 2
    assert run(*arguments) == 0
    assert "step 2" not in capsys.readouterr().out  # nothing is trained again
    assert run("compare", "--rows", "unray", "--data", "synthetic:8", "--out", tmp_path) == 2
    assert 'did you mean "unary"' in capsys.readouterr().err
    assert run("compare", "--seeds", "one", "--data", "synthetic:8", "--out", tmp_path) == 2
    assert "write it like 0,1,2" in capsys.readouterr().err


def test_tune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CRFNet("tiny", SCENE_CLASSES, hidden=8).save(tmp_path / "crf")
    arguments = ("--data", "synthetic:8", "--limit", 1, "--out", tmp_path / "tuned")
    assert run("tune", "--model", tmp_path / "crf", *arguments) == 0
    assert "pairwise_scale" in capsys.readouterr().out
    tuned = SegmentationNet.from_pretrained(tmp_path / "tuned")
    assert tuned.settings["pairwise_scale"] in CRFNet.adjustable["pairwise_scale"]
    UnaryNet("tiny", SCENE_CLASSES, hidden=8).save(tmp_path / "unary")
    assert run("tune", "--model", tmp_path / "unary", *arguments) == 2
    assert "nothing to tune" in capsys.readouterr().err
