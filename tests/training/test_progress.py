"""The log of a run that was interrupted is the log of one run; what the bar prints is true."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from messagenet.training.progress import Bar, RunInfo, RunLog, TrainResult, read_log


def test_records_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 0)
    for step in (1, 2, 3):
        log.write({"step": step, "loss": 0.5, "class_iou": {"sky": None, "land": 0.2}})
    log.close()
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 4, "los')
    assert [record["step"] for record in read_log(tmp_path / "log.jsonl")] == [1, 2, 3]
    log = RunLog(tmp_path, 2)
    log.write({"step": 3, "loss": 0.25})
    log.close()
    assert [(r["step"], r["loss"]) for r in read_log(tmp_path / "log.jsonl")] == [(1, 0.5), (2, 0.5), (3, 0.25)]
    assert list((tmp_path / "tensorboard").iterdir())


def test_the_bar_speaks_of_scores_and_steps_as_they_are(tmp_path: Path) -> None:
    console = Console(record=True, file=io.StringIO(), width=200)
    info = RunInfo(tmp_path, "backbone tiny", 0, 1, 1, 12, 0, 1000, "cpu", 1, None)
    bar = Bar(console)
    bar.start(info)
    bar.finished(TrainResult(tmp_path, 1, None, None, 8.0, False))
    text = console.export_text()
    assert "12 training images, 0.00 million parameters" in text
    assert "1 step in 8 s" in text
    bar = Bar(console)
    bar.start(replace(info, start_step=6, total_steps=9, val_images=3))
    bar.finished(TrainResult(tmp_path, 7, None, None, 8.0, True))
    text = console.export_text()
    assert "12 training images, 3 to score" in text
    assert "resuming after step 6" in text
    assert "to continue, resume the run (--resume)" in text
    assert "7 steps in 8 s" in text
