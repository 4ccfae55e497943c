"""Copies the files behind docs/results.md from a comparison: tables, plots, and one line per training run.

    python recipes/publish.py runs/study docs/studies/voc-animals

`runs.jsonl` has, for every system and seed, the logged losses, the confusion matrix, and the counts near boundaries and
by object size. With --quick alone, publishes a tiny comparison that it runs first.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

FILES = ("comparison.md", "comparison.json", "contrasts.md", "iou.png", "cost.png")
COUNTS = ("class_names", "confusion", "bands", "sizes")
EVERY = 50
"""Steps between the losses that are published."""


def main(comparison: str, folder: str) -> None:
    """Copies the files that exist and writes `runs.jsonl`."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    files = [Path(comparison) / name for name in FILES if (Path(comparison) / name).is_file()]
    for file in files:
        shutil.copy(file, out / file.name)
    runs = [summarise(path.parent) for path in sorted(Path(comparison).glob("*/seed-*/scores.json"))]
    (out / "runs.jsonl").write_text("".join(f"{json.dumps(run)}\n" for run in runs), encoding="utf-8")
    print(json.dumps({"files": len(files), "runs": len(runs)}))


def summarise(folder: Path) -> dict[str, Any]:
    """Returns the scores and the losses of one run."""
    scores = json.loads((folder / "scores.json").read_text("utf-8"))
    log = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text("utf-8").splitlines()]
    losses = {line["step"]: round(line["loss"], 4) for line in log if "loss" in line and line["step"] % EVERY == 0}
    return {
        "system": folder.parent.name,
        "seed": int(folder.name.removeprefix("seed-")),
        **scores["summary"],
        **{name: scores[name] for name in COUNTS},
        "loss": losses,
    }


def compare_quickly(folder: str) -> str:
    """Runs a comparison of one system, trained for two steps; returns its folder."""
    from messagenet.data import SyntheticScenes
    from messagenet.studies import compare
    from messagenet.training import DataSets, load_config, override

    config = override(load_config("tiny"), {"run.steps": 2, "run.batch_size": 2, "run.workers": 0})
    data = DataSets(SyntheticScenes(6, size=32), SyntheticScenes(2, size=32, split="val"))
    compare(["unary"], config, [0], f"{folder}/study", held_out=2, data=data)
    return f"{folder}/study"


if __name__ == "__main__":
    if sys.argv[1:] == ["--quick"]:
        with tempfile.TemporaryDirectory() as folder:
            main(compare_quickly(folder), f"{folder}/published")
    else:
        main(*sys.argv[1:])
