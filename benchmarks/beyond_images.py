"""Accuracy of the examples over seeds: snakes against the number of iterations, chains, an LDPC code.

    python benchmarks/beyond_images.py
    python benchmarks/beyond_images.py --only snakes --file snakes.npz --plot snakes.svg

Prints one table per example: a line per setting, with mean and range over the seeds. No time is measured here; an
example takes from minutes to an hour.
"""

from __future__ import annotations

import argparse
import math
import runpy
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import QUICK, finish, start

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SNAKE_ITERATIONS, CODE_ITERATIONS = ([1, 2] if QUICK else [1, 2, 3, 5, 7, 10]), [3, 5]
DECIBELS = (2, 3, 4)
Scores = list[tuple[float, float]]  # accuracy on all cells and on snake cells, for each T


def load_example(name: str) -> Callable[..., Any]:
    """Returns the `main` of an example, with its arguments as strings; under --quick in its quick form."""
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    return lambda *arguments: main([str(argument) for argument in arguments] + ["--quick"] * QUICK)


def percentages(values: Sequence[float]) -> str:
    """Mean, minimum and maximum over the seeds."""
    return f"{statistics.mean(values):.2%} ({min(values):.2%} to {max(values):.2%})"


def snakes(options: argparse.Namespace) -> list[Scores]:
    """Prints accuracy against T; returns the scores of every seed."""
    run, counts = load_example("snakes"), options.iterations or SNAKE_ITERATIONS
    arguments = ["--iterations", *counts, *(["--file", options.file] if options.file else [])]
    by_seed = [run("--seed", seed, *arguments) for seed in options.seeds]
    print("| T | all cells | snake cells |\n|---|---|---|")
    for iterations, scores in zip(counts, zip(*by_seed, strict=True), strict=True):
        cells, snake_cells = zip(*scores, strict=True)
        print(f"| {iterations} | {percentages(cells)} | {percentages(snake_cells)} |")
    if options.plot:
        draw(counts, by_seed, options.plot)
    return by_seed


def draw(counts: Sequence[int], by_seed: Sequence[Scores], path: str) -> None:
    """Plots accuracy over the number of iterations, one line per seed."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.4), layout="constrained")
    for column, (name, colour) in enumerate((("all cells", "#0072b2"), ("snake cells", "#d55e00"))):
        for index, scores in enumerate(by_seed):
            values = [100 * score[column] for score in scores]
            axes.plot(counts, values, "o-", color=colour, alpha=0.7, label=None if index else name)
    axes.set(xlabel="iterations T", ylabel="% right on unseen snakes", xticks=counts, ylim=(None, 101))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None, "Creator": None} if path.endswith(".svg") else None)


def chains(options: argparse.Namespace) -> float:
    """Prints learned messages against the exact CRF; returns the largest gap over the seeds."""
    run = load_example("chain_tagging")
    by_seed = [run("--seed", seed) for seed in options.seeds]
    print("| | right |\n|---|---|")
    for name in by_seed[0]:
        print(f"| {name} | {percentages([scores[name] for scores in by_seed])} |")
    return float(max(scores["exact CRF"] - scores["learned messages"] for scores in by_seed))


def code(options: argparse.Namespace) -> dict[str, float]:
    """Prints learned corrections against belief propagation; returns the worst ratio by T and noise."""
    run = load_example("ldpc")
    ratios = {}
    print("| T | noise | belief propagation | learned corrections |\n|---|---|---|---|")
    for iterations in options.iterations or CODE_ITERATIONS:
        by_seed = [run("--iterations", iterations, "--seed", seed) for seed in options.seeds]
        for row, decibel in enumerate(DECIBELS):
            computed, learned = ([float(wrong[row, n]) for wrong in by_seed] for n in range(2))
            print(f"| {iterations} | {decibel} dB | {percentages(computed)} | {percentages(learned)} |")
            pairs = zip(computed, learned, strict=True)
            ratios[code_key(iterations, decibel)] = max(b / a if a else math.nan for a, b in pairs)
    return ratios


def code_key(iterations: int, decibel: int) -> str:
    """The result's name of a ratio of `code`."""
    return f"worst_ratio_T{iterations}_{decibel}dB"


def main() -> None:
    options = start(
        __doc__,
        only={"choices": ("snakes", "chains", "code"), "help": "one example; default: all three"},
        file={"help": "the published snakes (snakes.npz); default: generated ones"},
        plot={"help": "file for the plot of accuracy against T"},
        iterations={"type": int, "nargs": "+", "help": "T; default: those of docs/examples.md"},
        seeds={"type": int, "nargs": "+", "default": [0] if QUICK else [0, 1, 2]},
    )
    by_seed = [[(math.nan, math.nan)]]
    gap, ratios = math.nan, {code_key(t, decibel): math.nan for t in CODE_ITERATIONS for decibel in DECIBELS}
    if options.only in (None, "snakes"):
        by_seed = snakes(options)
    if options.only in (None, "chains"):
        gap = chains(options)
    if options.only in (None, "code"):
        ratios = code(options)
    finish(
        max_accuracy_at_first_T=max(scores[0][0] for scores in by_seed),
        min_accuracy_at_last_T=min(scores[-1][0] for scores in by_seed),
        min_snake_accuracy_at_last_T=min(scores[-1][1] for scores in by_seed),
        largest_gap_to_exact=gap,
        **ratios,
    )


if __name__ == "__main__":
    main()
