"""The demonstration at a small size: messages must win where only the arrangement tells."""

from __future__ import annotations

from functools import partial

from rich.console import Console

from messagenet import demo
from messagenet.bundled import photographs


def test_messages_win_by_far_and_the_sheet_is_drawn(tmp_path, monkeypatch):
    settings = {
        "data.spec": "synthetic:200",
        "data.val_limit": 10,
        "run.steps": 70,
        "run.workers": 0,
        "schedule.warmup": 10,
    }
    small = partial(demo.compare_on_scenes, test_scenes=20, settings=settings)
    monkeypatch.setattr(demo, "compare_on_scenes", small)
    console = Console(record=True, file=open("/dev/null", "w"), width=100)  # noqa: SIM115
    scores = demo.run_demo(tmp_path / "demo", console=console)
    assert scores["messages"].mean_iou > scores["unary"].mean_iou + 0.15
    assert (tmp_path / "demo" / "scenes.png").is_file()
    text = console.export_text()
    assert "Mean IoU" in text
    assert "20 scenes that neither model has seen" in text
    assert "scenes.png" in text.replace("\n", "")
    if photographs():
        assert "chelsea.png: cat" in text
        assert (tmp_path / "demo" / "photographs.html").is_file()
        assert "photographs.html" in text.replace("\n", "")


def test_without_photographs_it_says_where_to_get_some(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "photographs", list)
    console = Console(record=True, file=open("/dev/null", "w"), width=100)  # noqa: SIM115
    assert demo.segment_photographs(tmp_path, console) is None
    assert "pip install scikit-image" in console.export_text()
