"""Copies what a page of results rests on out of a comparison: its tables and plots, and a line for every training.

python recipes/publish.py runs/study docs/studies/voc-animals

`runs.jsonl` has, for every row and seed, the losses that the run logged, the confusion matrix, and what was counted
near boundaries and by size.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

FILES = ("comparison.md", "comparison.json", "contrasts.md", "iou.png", "cost.png")
COUNTED = ("class_names", "confusion", "bands", "sizes")
EVERY = 50
"""Steps between the losses that are kept."""


def main(comparison: str, folder: str) -> None:
    """Copies the files that exist and writes `runs.jsonl`."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (Path(comparison) / name).is_file():
            shutil.copy(Path(comparison) / name, out / name)
    runs = [_run(path.parent) for path in sorted(Path(comparison).glob("*/seed-*/scores.json"))]
    (out / "runs.jsonl").write_text("".join(f"{json.dumps(run)}\n" for run in runs), encoding="utf-8")


def _run(folder: Path) -> dict[str, Any]:
    scores = json.loads((folder / "scores.json").read_text("utf-8"))
    log = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text("utf-8").splitlines()]
    losses = {
        line["step"]: round(line["loss"], 4) for line in log if "loss" in line and line["step"] % EVERY == 0
    }
    return {
        "row": folder.parent.name,
        "seed": int(folder.name.removeprefix("seed-")),
        **scores["summary"],
        **{name: scores[name] for name in COUNTED},
        "loss": losses,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
