"""Callbacks of a run, a progress bar, and the log: one JSON object per line. TensorBoard gets the same figures.

    {"step": 40, "epoch": 2.0, "loss": 0.71, "lr": 0.0029, "images_per_second": 310.2, "waiting": 0.01}
    {"step": 40, "epoch": 2.0, "mean_iou": 0.52, "pixel_accuracy": 0.81, "class_iou": {"sky": 0.9, ...}}

A resumed run first drops the records after its checkpoint, so the file is always the log of one run.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from messagenet.errors import write_atomically


@dataclass(frozen=True)
class RunInfo:
    """What is known before the first step."""

    folder: Path
    model: str  # its parts on one line
    start_step: int  # steps taken before the run was resumed
    total_steps: int
    steps_per_epoch: int  # steps that see every image once
    images: int  # training images
    val_images: int  # images to score
    parameters: int  # number of trained values
    device: str
    processes: int
    best_iou: float | None  # best score so far, of a resumed run


@dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
        folder: Where it is written; `folder/best` and `folder/last` are models.
        steps: Steps taken in all.
        best_iou: The best score, that of `folder/best`; None without validation.
        last_iou: The last score, that of `folder/last`.
        seconds: Time spent, over all resumptions.
        interrupted: Whether it was asked to stop before its end.
    """

    folder: Path
    steps: int
    best_iou: float | None
    last_iou: float | None
    seconds: float
    interrupted: bool


class TrainCallback:
    """Follows a run, in the first process only; every method does nothing unless a subclass overrides it."""

    def start(self, info: RunInfo) -> None:
        """Called before the first step."""

    def caching(self, done: int, total: int) -> None:
        """Called after every image while features of a frozen backbone are computed."""

    def step(self, step: int, record: dict[str, Any] | None) -> None:
        """Called after every step; `record` is the line of the log, where there is one."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """Called after every validation."""

    def finished(self, result: TrainResult | None) -> None:
        """Called at the end; None if an error ended the run."""


class Bar(TrainCallback):
    """A bar in the terminal with loss, IoU and the time left; one line per scoring stays above it.

    Args:
        console: Where to print.
        to_resume: What to do to continue a run that was interrupted.
    """

    def __init__(self, console: Console | None = None, to_resume: str = "resume the run (--resume)") -> None:
        self.console = console or Console(stderr=True)
        self.to_resume = to_resume
        self._best = 0.0
        self._shown: dict[str, Any] = {"loss": "–", "iou": "–"}
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  IoU {task.fields[iou]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self._steps: TaskID | None = None
        self._cache: TaskID | None = None

    def start(self, info: RunInfo) -> None:
        """Prints the sizes of the run and the parts of the model, and shows the bar."""
        processes = f" x {info.processes} processes" if info.processes > 1 else ""
        to_score = f", {info.val_images} to score" if info.val_images else ""
        sizes = f"{info.images} training images{to_score}, {info.parameters / 1e6:.2f} million parameters"
        self.console.print(f"{sizes}, {info.device}{processes}")
        self.console.out(info.model, highlight=False)
        if info.start_step >= info.total_steps:
            self.console.out(
                f"this run is complete, all {info.total_steps} steps are taken; to train it for longer:\n"
                f"  messagenet train --out {info.folder} --resume --epochs N (or --set run.steps=N)",
                highlight=False,
            )
            return
        if info.start_step:
            self.console.print(f"resuming after step {info.start_step}")
        self._best = info.best_iou or 0.0
        self._steps = self._bar.add_task("training", total=info.total_steps, completed=info.start_step, **self._shown)
        self._bar.start()

    def caching(self, done: int, total: int) -> None:
        """Moves a second bar, which is removed when it is full."""
        if self._cache is None:
            self._cache = self._bar.add_task("features", total=total, **self._shown)
        self._bar.update(self._cache, completed=done)
        if done == total:
            self._bar.remove_task(self._cache)
            self._cache = None

    def step(self, step: int, record: dict[str, Any] | None) -> None:
        """Moves the bar."""
        if record is not None:
            self._shown["loss"] = f"{record['loss']:.4f}"
        assert self._steps is not None
        self._bar.update(self._steps, completed=step, **self._shown)

    def evaluated(self, record: dict[str, Any]) -> None:
        """Prints the scores."""
        iou = record["mean_iou"]
        best = " (best so far)" if iou > self._best else ""
        self._best = max(iou, self._best)
        self._shown["iou"] = f"{iou:.1%}"
        self._bar.console.print(
            f"step {record['step']}, epoch {record['epoch']:.1f}: mean IoU {iou:.1%}, pixel accuracy "
            f"{record['pixel_accuracy']:.1%}{best}"
        )
        self.step(record["step"], None)

    def finished(self, result: TrainResult | None) -> None:
        """Removes the bar and prints the result."""
        if self._steps is not None:
            self._bar.stop()
        if result is None:
            return
        if result.interrupted:
            self.console.print(f"stopped after step {result.steps}; to continue, {self.to_resume}")
        score = "" if result.best_iou is None else f", best mean IoU {result.best_iou:.1%}"
        steps = "1 step" if result.steps == 1 else f"{result.steps} steps"
        self.console.print(f"{result.folder}: {steps} in {result.seconds:.0f} s{score}")


LOG, BOARD = "log.jsonl", "tensorboard"
Record = dict[str, Any]


def read_log(path: str | Path) -> list[Record]:
    """The records of a log, up to a line that was cut off."""
    records: list[Record] = []
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError), Path(path).open(encoding="utf-8") as file:
        for line in file:
            records.append(json.loads(line))
    return records


class RunLog:
    """The log in a run's folder; records after `step`, the number of steps taken, are dropped."""

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboardX import SummaryWriter  # type: ignore[import-untyped]

        path = folder / LOG
        kept = [record for record in read_log(path) if record["step"] <= step]
        write_atomically(path, "".join(json.dumps(record) + "\n" for record in kept).encode())
        self._file: TextIO = path.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(folder / BOARD), purge_step=step + 1 if step else None)

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends a record and flushes it."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        for name, value in record.items():
            if isinstance(value, dict):
                for key, number in value.items():
                    if number is not None:
                        self._board.add_scalar(f"{name}/{key}", number, record["step"])
            elif name not in ("step", "epoch") and value is not None:
                self._board.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Closes both files."""
        self._file.close()
        self._board.close()
