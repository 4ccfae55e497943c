"""The log of a run that was interrupted is the log of one run."""

from __future__ import annotations

from pathlib import Path

from messagenet.training.progress import RunLog, read_log


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
