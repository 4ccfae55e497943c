"""Adds comparisons to the published records of a study, and draws its tables and plots from the records alone.

    python recipes/publish.py recipes/study-heads.yaml docs/studies/heads-voc runs/heads-voc
    python recipes/publish.py recipes/study-heads.yaml docs/studies/heads-voc                   # only draws

The records are the results in `comparison.json` and, in `runs.jsonl`, one line for every system and seed: the logged
losses, the confusion matrix, and the counts near boundaries and by object size. A run that was published before is
replaced. Where labels of systems differ in "T = …" alone, `iterations.png` shows mean IoU and negative log-likelihood
against T. With --quick alone, publishes a tiny comparison that it runs first.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from messagenet.errors import InputError, write_atomically
from messagenet.evaluation import Scores
from messagenet.report.plots import figure_png
from messagenet.studies import RunResult, read_study
from messagenet.studies.cost import Cost
from messagenet.studies.tables import write_contrasts, write_plots, write_tables

COUNTS = ("class_names", "confusion", "bands", "sizes")
EVERY = 50
"""Steps between the losses that are published."""


def main(study: str, folder: str, *comparisons: str) -> None:
    """Merges the runs of the comparisons into the records of the folder, then draws."""
    plan, out = read_study(study), Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    results, runs = read_records(out)
    for comparison in comparisons:
        found = sorted(Path(comparison).glob("*/seed-*/result.json"))
        if not found:
            raise InputError(f"{comparison} has no results: give the folder of a comparison")
        for path in found:
            result = RunResult.load(path)
            key = result.system, result.seed
            results[key], runs[key] = result, summarise(path.parent)
    if not results:
        raise InputError(f"{folder} has no records yet: give the folder of a comparison as well")
    order = [(system.name, seed) for seed in plan.seeds for system in plan.systems]
    keys = [key for key in order if key in results] + sorted(set(results) - set(order))
    known = [results[key] for key in keys]
    write_tables(known, out)
    (out / "comparison.csv").unlink()  # the same as the JSON file
    write_plots(known, out)
    names = {system.label: system.name for system in plan.systems}
    pairs = [(names[base], names[other]) for base, other in plan.contrasts]
    write_contrasts(pairs, known, out, lambda result: counted(runs[result.system, result.seed]))
    if figure := draw_iterations(known):
        write_atomically(out / "iterations.png", figure_png(figure))
    lines = "".join(f"{json.dumps(runs[key])}\n" for key in keys)
    write_atomically(out / "runs.jsonl", lines.encode())
    print(json.dumps({"runs": len(known), "systems": len({result.system for result in known})}))


def read_records(folder: Path) -> tuple[dict[tuple[str, int], RunResult], dict[tuple[str, int], dict[str, Any]]]:
    """The published results and runs, by system and seed."""
    if not (folder / "runs.jsonl").is_file():
        return {}, {}
    results = json.loads((folder / "comparison.json").read_text("utf-8"))["results"]
    runs = [json.loads(line) for line in (folder / "runs.jsonl").read_text("utf-8").splitlines()]
    return (
        {(each["system"], each["seed"]): RunResult(**{**each, "cost": Cost(**each["cost"])}) for each in results},
        {(run["system"], run["seed"]): run for run in runs},
    )


def counted(run: dict[str, Any]) -> Scores:
    """The counts of a published run, without the reliability of its marginals."""
    return Scores.from_dict({name: run[name] for name in COUNTS})


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


def draw_iterations(results: Sequence[RunResult]) -> Figure | None:
    """Draws two measures against T, one line for each kind of system that was trained with several T."""
    families: dict[str, dict[int, list[RunResult]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        if (found := re.search(r"(, )?T = (\d+)(?(1)|(, )?)", result.label)) and result.negative_log_likelihood:
            families[result.label.replace(found[0], "") or "all"][int(found[2])].append(result)
    several = {name: family for name, family in families.items() if len(family) > 1}
    if not several:
        return None
    figure = Figure(figsize=(7.2, 2.8), layout="constrained")
    panels = {"mean_iou": ("mean IoU, %", 100), "negative_log_likelihood": ("negative log-likelihood", 1)}
    for position, (measure, (label, scale)) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, 2, position)
        for name, family in sorted(several.items()):
            counts = sorted(family)
            values = [[scale * getattr(result, measure) for result in family[count]] for count in counts]
            spreads = [statistics.stdev(each) if len(each) > 1 else 0.0 for each in values]
            axes.errorbar(counts, list(map(statistics.mean, values)), spreads, marker="o", capsize=3, label=name)
        axes.set_xticks(sorted(set().union(*several.values())))
        axes.set(xlabel="iterations T", ylabel=label)
        axes.legend(fontsize=7, frameon=False)
    return figure


def compare_quickly(folder: str) -> tuple[str, str, str]:
    """Runs a comparison of three systems, each trained for two steps; returns the arguments to publish it."""
    from messagenet.data import SyntheticScenes
    from messagenet.studies import compare
    from messagenet.training import DataSets, load_config, override

    study = Path(folder) / "study.yaml"
    study.write_text(
        'systems: {unary: [unary], "messages, T = 1": [message], "messages, T = 2": [message_t2]}\n'
        'contrasts: [[unary, "messages, T = 1"]]\nseeds: [0]\n'
    )
    plan = read_study(study)
    config = override(load_config("tiny"), {"run.steps": 2, "run.batch_size": 2, "run.workers": 0})
    data = DataSets(SyntheticScenes(6, size=32), SyntheticScenes(2, size=32, split="val"))
    compare(plan.systems, config, plan.seeds, f"{folder}/comparison", held_out=2, data=data)
    return str(study), f"{folder}/published", f"{folder}/comparison"


if __name__ == "__main__":
    if sys.argv[1:] == ["--quick"]:
        with tempfile.TemporaryDirectory() as folder:
            main(*compare_quickly(folder))
    else:
        try:
            main(*sys.argv[1:])
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
