"""The Python of docs/python.md runs as printed, in an empty folder; the demonstration has a test of its own."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "python.md"


def test_blocks_run_and_mean_what_they_say(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    names: dict = {}
    ran = [block for block in blocks if "run_demo" not in block]
    for block in ran:
        assert len(block.split("\n\n")[-1].strip().splitlines()) <= 5
        exec(block, names)
    assert len(ran) == len(blocks) - 1
    assert (tmp_path / "runs/scenes/best/config.json").is_file()
    assert {file.name for file in names["done"].files} == {"photo.png", "photo.overlay.png"}
    assert (names["labels"] == names["marginals"].argmax(0).numpy()).all()
    assert names["both"].keys() == {"best", "last"}
    assert "<html" in (tmp_path / "report.html").read_text()
    joint = np.array([0.9, 0.1])[:, None] * np.array([[2, 1], [1, 2]])
    expected = np.stack([joint.sum(1), joint.sum(0)]) / joint.sum()
    torch.testing.assert_close(names["result"].marginals, torch.from_numpy(expected), check_dtype=False)
    assert "no problems found" in capsys.readouterr().out


def test_the_verbs_of_the_command_are_functions():
    import messagenet

    for name in ("train", "predict", "evaluate", "compare", "infer", "check_data", "run_demo"):
        assert callable(getattr(messagenet, name)), name


def test_every_file_it_names_exists():
    for target in re.findall(r"\]\(([^)#:]+)", GUIDE.read_text()):
        assert (GUIDE.parent / target).exists(), target
