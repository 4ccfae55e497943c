"""What a run writes down: one JSON object per line, and the same figures for TensorBoard.

    {"step": 40, "epoch": 2.0, "loss": 0.71, "lr": 0.0029, "images_per_second": 310.2, "waiting": 0.01}
    {"step": 40, "epoch": 2.0, "mean_iou": 0.52, "pixel_accuracy": 0.81, "class_iou": {"sky": 0.9, ...}}

A resumed run first drops what was written after its checkpoint, so the file is always the log of one run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from messagenet.files import write_atomically

LOG, BOARD = "log.jsonl", "tensorboard"
Record = dict[str, Any]


def read_log(path: str | Path) -> list[Record]:
    """The records of a log, up to a line that was cut off."""
    return list(_records(Path(path)))


def _records(path: Path) -> Iterator[Record]:
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return


class RunLog:
    """The log of a run in its folder.

    Args:
        folder: The run's folder.
        step: How many steps have been taken; later records are dropped.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboardX import SummaryWriter  # type: ignore[import-untyped]

        path = folder / LOG
        kept = [record for record in read_log(path) if record["step"] <= step]
        write_atomically(path, "".join(json.dumps(record) + "\n" for record in kept).encode())
        self._file: TextIO = path.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(folder / BOARD), purge_step=step + 1 if step else None)

    def write(self, record: Mapping[str, Any]) -> None:
        """Adds a record; it is on its way to the disk when this returns."""
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
        """Ends both files."""
        self._file.close()
        self._board.close()
