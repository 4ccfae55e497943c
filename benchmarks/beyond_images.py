"""What the examples reach, over seeds: snakes against the number of iterations, chains, a small code.

python benchmarks/beyond_images.py snakes --file snakes.npz --plot snakes.svg
python benchmarks/beyond_images.py chains
python benchmarks/beyond_images.py code

Each prints one table with a line per setting, mean and spread over the seeds. Nothing here is a time; the runs take
from minutes to an hour.
"""

from __future__ import annotations

import argparse
import runpy
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import finish, machine

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def example(name: str) -> Callable[[list[str]], Any]:
    """The `main` of an example."""
    main: Callable[[list[str]], Any] = runpy.run_path(str(EXAMPLES / name))["main"]
    return main


def spread(values: Sequence[float]) -> str:
    """Percentages of all seeds: mean, lowest and highest."""
    return f"{statistics.mean(values):.2%} ({min(values):.2%} to {max(values):.2%})"


def snakes(options: argparse.Namespace) -> dict[str, float]:
    """Accuracy against T."""
    run = example("snakes.py")
    file = ["--file", options.file] if options.file else []
    counts = [str(count) for count in options.iterations]
    by_seed = [run([*file, "--seed", str(seed), "--iterations", *counts]) for seed in options.seeds]
    print("| T | all cells | snake cells |\n|---|---|---|")
    for count, scores in zip(counts, zip(*by_seed, strict=True), strict=True):
        cells, snake_cells = zip(*scores, strict=True)
        print(f"| {count} | {spread(cells)} | {spread(snake_cells)} |")
    if options.plot:
        draw(options.iterations, by_seed, options.plot)
    last = list(zip(*(scores[-1] for scores in by_seed), strict=True))
    return {
        "most_at_first_T": max(scores[0][0] for scores in by_seed),
        "least_at_last_T": min(last[0]),
        "least_of_snake_cells_at_last_T": min(last[1]),
    }


def draw(counts: Sequence[int], by_seed: Sequence[Sequence[tuple[float, float]]], path: str) -> None:
    """Accuracy over the number of iterations, one line per seed."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.4), layout="constrained")
    for which, (name, colour) in enumerate((("all cells", "#0072b2"), ("snake cells", "#d55e00"))):
        for number, scores in enumerate(by_seed):
            values = [100 * score[which] for score in scores]
            axes.plot(counts, values, "o-", color=colour, alpha=0.7, label=None if number else name)
    axes.set(xlabel="iterations T", ylabel="% right on unseen snakes", xticks=counts, ylim=(None, 101))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None, "Creator": None} if path.endswith(".svg") else None)


def chains(options: argparse.Namespace) -> dict[str, float]:
    """Learned messages against the exact CRF."""
    by_seed = [example("chain_tagging.py")(["--seed", str(seed)]) for seed in options.seeds]
    print("| | right |\n|---|---|")
    for name in by_seed[0]:
        print(f"| {name} | {spread([scores[name] for scores in by_seed])} |")
    gaps = [scores["exact CRF"] - scores["learned messages"] for scores in by_seed]
    return {"largest_gap_to_exact": max(gaps)}


def code(options: argparse.Namespace) -> dict[str, float]:
    """Learned corrections against belief propagation at equal iterations."""
    worst = {}
    print("| T | noise | belief propagation | learned corrections |\n|---|---|---|---|")
    for count in options.iterations:
        by_seed = [
            example("ldpc.py")(["--iterations", str(count), "--seed", str(seed)]) for seed in options.seeds
        ]
        for row, decibel in enumerate((2, 3, 4)):
            computed, learned = ([float(wrong[row, n]) for wrong in by_seed] for n in range(2))
            print(f"| {count} | {decibel} dB | {spread(computed)} | {spread(learned)} |")
            ratios = [mine / theirs for theirs, mine in zip(computed, learned, strict=True)]
            worst[f"worst_ratio_T{count}_{decibel}dB"] = max(ratios)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("which", choices=("snakes", "chains", "code"))
    parser.add_argument("--file", help="snakes.npz; left out, snakes are drawn")
    parser.add_argument("--plot", help="where to draw accuracy against T")
    parser.add_argument("--iterations", type=int, nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    options.iterations = options.iterations or ([1, 2, 3, 5, 7, 10] if options.which == "snakes" else [3, 5])
    print(machine())
    finish(**{"snakes": snakes, "chains": chains, "code": code}[options.which](options))


if __name__ == "__main__":
    main()
