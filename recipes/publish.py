"""Copies the files behind docs/results.md from a comparison: tables, plots, and one line per training run.

    python recipes/publish.py runs/study docs/studies/voc-animals

`runs.jsonl` has, for every system and seed, the logged losses, the confusion matrix, and the counts near boundaries and
by object size. Where labels of systems differ in "T = …" alone, `iterations.png` shows mean IoU and negative
log-likelihood against T. With --quick alone, publishes a tiny comparison that it runs first.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

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
    results = [json.loads(path.read_text("utf-8")) for path in Path(comparison).glob("*/seed-*/result.json")]
    if figure := draw_iterations(results):
        figure.savefig(out / "iterations.png", dpi=144, metadata={"Software": None})
    print(json.dumps({"files": len(files) + (figure is not None), "runs": len(runs)}))


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


def draw_iterations(results: Sequence[dict[str, Any]]) -> Figure | None:
    """Draws two measures against T, one line for each kind of system that was trained with several T."""
    families: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        if (found := re.search(r"(, )?T = (\d+)(?(1)|(, )?)", result["label"])) and result["negative_log_likelihood"]:
            families[result["label"].replace(found[0], "") or "all"][int(found[2])].append(result)
    several = {name: family for name, family in families.items() if len(family) > 1}
    if not several:
        return None
    figure = Figure(figsize=(7.2, 2.8), layout="constrained")
    panels = {"mean_iou": ("mean IoU, %", 100), "negative_log_likelihood": ("negative log-likelihood", 1)}
    for position, (measure, (label, scale)) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, 2, position)
        for name, family in sorted(several.items()):
            counts = sorted(family)
            values = [[scale * result[measure] for result in family[count]] for count in counts]
            spreads = [statistics.stdev(each) if len(each) > 1 else 0.0 for each in values]
            axes.errorbar(counts, list(map(statistics.mean, values)), spreads, marker="o", capsize=3, label=name)
        axes.set_xticks(sorted(set().union(*several.values())))
        axes.set(xlabel="iterations T", ylabel=label)
        axes.legend(fontsize=7, frameon=False)
    return figure


def compare_quickly(folder: str) -> str:
    """Runs a comparison of three systems, each trained for two steps; returns its folder."""
    from messagenet.data import SyntheticScenes
    from messagenet.studies import compare
    from messagenet.training import DataSets, load_config, override

    config = override(load_config("tiny"), {"run.steps": 2, "run.batch_size": 2, "run.workers": 0})
    data = DataSets(SyntheticScenes(6, size=32), SyntheticScenes(2, size=32, split="val"))
    systems = {"unary": ["unary"], "messages, T = 1": ["message"], "messages, T = 2": ["message_t2"]}
    compare(systems, config, [0], f"{folder}/study", held_out=2, data=data)
    return f"{folder}/study"


if __name__ == "__main__":
    if sys.argv[1:] == ["--quick"]:
        with tempfile.TemporaryDirectory() as folder:
            main(compare_quickly(folder), f"{folder}/published")
    else:
        main(*sys.argv[1:])
