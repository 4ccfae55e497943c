"""Results of a comparison: what is kept of a run, the table, differences between systems, plots, the terminal.

The table has one row per system, mean and sample standard deviation over its seeds, as Markdown, CSV and JSON.
Contrasts are differences between two systems seed by seed, which share images and their order: the spread is the
standard deviation of the differences, usually smaller than that of either system.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.console import Console as RichConsole
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from messagenet.errors import InputError, write_atomically
from messagenet.evaluation import Scores
from messagenet.evaluation.confusion import SIZE_LIMITS
from messagenet.report.plots import INK, SERIES, escape_dollars, figure_png, new_figure
from messagenet.studies.cost import Cost
from messagenet.training import Bar, TrainCallback
from messagenet.training.systems import System

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class RunResult:
    """A trained and scored system."""

    system: str
    label: str  # the system in words
    seed: int
    mean_iou: float
    trimap_iou: dict[str, float]  # by width of the band in pixels
    parameters: int  # trained
    outputs_per_factor: int  # numbers that a network computes for a factor
    steps: int
    train_seconds: float  # the whole training
    cost: Cost  # of one model per system
    tuned: dict[str, float] = field(default_factory=dict)  # settings found on held-out images
    calibration_error: float | None = None  # ECE of the marginals
    small_accuracy: float | None = None  # mean class accuracy where a class covers little of its image
    head: str = ""  # kind of the head
    negative_log_likelihood: float | None = None  # of a labelled pixel, in nats

    def save(self, path: Path) -> None:
        """Writes the result as JSON."""
        write_atomically(path, (json.dumps(asdict(self), indent=2) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> RunResult:
        """Reads what `save` wrote."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{**values, "cost": Cost(**values["cost"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} is no result of a system ({error}); delete it to train again") from None


def near_boundaries(scores: Scores) -> dict[str, float]:
    """Trimap IoU by width, where there are boundaries."""
    return {str(band.width): band.mean_iou for band in scores.bands if band.mean_iou is not None}


TRIMAP = "4"  # width in pixels of the band that the table shows; JSON has them all
MEASURES = {  # by name: the column, and the unit
    "mean_iou": ("IoU", "%"),
    "trimap_iou": (f"trimap IoU, {TRIMAP} px", "%"),
    "small_accuracy": (f"accuracy, ≤ {SIZE_LIMITS[0]:.0%} of image", "%"),
    "calibration_error": ("ECE", "%"),
    "negative_log_likelihood": ("NLL", "nats"),
}
COLUMNS = (
    *("system", "seeds", *(column for column, _ in MEASURES.values()), "parameters", "outputs per factor"),
    *("s of training", "s / training step", "s / prediction", "MB / prediction"),
)


@dataclass(frozen=True)
class TableRow:
    """A system over all its seeds."""

    system: str
    label: str
    head: str  # kind of the head
    seeds: tuple[int, ...]
    measures: dict[str, tuple[float | None, float | None]]  # mean, and sample standard deviation; None if not known
    parameters: int  # trained
    outputs_per_factor: int  # numbers that a network computes for a factor
    train_seconds: float  # the whole training
    step_seconds: float | None  # None for a system that is fitted without steps
    prediction_seconds: float
    prediction_megabytes: float

    @property
    def mean_iou(self) -> float:
        """Over the seeds."""
        return self.measures["mean_iou"][0] or 0.0

    @property
    def cells(self) -> tuple[str, ...]:
        """Text of each of `COLUMNS`."""
        return (
            self.label,
            str(len(self.seeds)),
            *(with_spread(*self.measures[name], unit) for name, (_, unit) in MEASURES.items()),
            f"{self.parameters:,}",
            f"{self.outputs_per_factor:,}",
            f"{self.train_seconds:.0f}",
            "–" if self.step_seconds is None else f"{self.step_seconds:.3g}",
            f"{self.prediction_seconds:.3g}",
            f"{self.prediction_megabytes:.0f}",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with one key for each mean and one for its spread."""
        values = asdict(self)
        for name, (mean, spread) in values.pop("measures").items():
            values |= {name: mean, f"{name}_spread": spread}
        return values


def with_spread(mean: float | None, spread: float | None, unit: str = "%", sign: str = "") -> str:
    """A mean with its spread, in per cent or nats; with a sign if `sign` is "+".

    >>> with_spread(0.5, 0.012), with_spread(0.5, None, "nats"), with_spread(0.01, None, sign="+")
    ('50.0 ± 1.2', '0.500', '+1.0')
    """
    scale, digits = (100, 1) if unit == "%" else (1, 3)
    text = "–" if mean is None else f"{scale * mean:{sign}.{digits}f}"
    return text if spread is None else f"{text} ± {scale * spread:.{digits}f}"


def table_rows(results: Sequence[RunResult]) -> list[TableRow]:
    """One row for each system, in the order of the results."""
    names = dict.fromkeys(result.system for result in results)
    return [_table_row([result for result in results if result.system == name]) for name in names]


def _table_row(results: Sequence[RunResult]) -> TableRow:
    first, measures = results[0], [asdict(each) | {"trimap_iou": each.trimap_iou.get(TRIMAP)} for each in results]
    return TableRow(
        first.system,
        first.label,
        first.head,
        tuple(result.seed for result in results),
        {name: _mean_and_spread([each[name] for each in measures]) for name in MEASURES},
        first.parameters,
        first.outputs_per_factor,
        statistics.fmean(result.train_seconds for result in results),
        first.cost.step_seconds if first.steps > 1 else None,
        first.cost.prediction_seconds,
        first.cost.prediction_megabytes,
    )


def _mean_and_spread(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    known = [value for value in values if value is not None]
    return (statistics.fmean(known) if known else None, statistics.stdev(known) if len(known) > 1 else None)


def markdown(results: Sequence[RunResult]) -> str:
    """The table as Markdown, the best IoU in bold."""
    found = table_rows(results)
    best = max(row.mean_iou for row in found)
    lines = [COLUMNS, ("---", *("---:" for _ in COLUMNS[1:]))]
    for row in found:
        cells = list(row.cells)
        if row.mean_iou == best and len(found) > 1:
            cells[2] = f"**{cells[2]}**"
        lines.append(tuple(cells))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def write_tables(results: Sequence[RunResult], folder: Path) -> None:
    """Writes comparison.md, comparison.csv and comparison.json."""
    found = [row.to_dict() for row in table_rows(results)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]))
    writer.writeheader()
    writer.writerows(row | {"seeds": " ".join(map(str, row["seeds"]))} for row in found)
    content = {"systems": found, "results": [asdict(result) for result in results]}
    write_atomically(folder / "comparison.md", markdown(results).encode())
    write_atomically(folder / "comparison.csv", text.getvalue().encode())
    write_atomically(folder / "comparison.json", (json.dumps(content, indent=2) + "\n").encode())


NLL = "negative log-likelihood"
CONFUSIONS = 5  # listed changes of confusion, the largest ones


@dataclass(frozen=True)
class Contrast:
    """Differences between two systems; confusions are (first, second), means over the seeds."""

    base: str  # label of the first system
    other: str  # label of the second
    seeds: tuple[int, ...]  # that both have been trained with
    differences: dict[str, list[float]]  # by figure: second minus first, for each seed
    confusions: dict[tuple[str, str], tuple[float, float]]  # by (target, label): share of the target class

    @property
    def largest(self) -> list[tuple[tuple[str, str], tuple[float, float]]]:
        """The confusions that change most."""
        ranked = sorted(self.confusions.items(), key=lambda item: -abs(item[1][1] - item[1][0]))
        return ranked[:CONFUSIONS]


class ScoredRun(NamedTuple):
    """The result of a run, and what was counted on the scored images."""

    result: RunResult
    scores: Scores


def contrast(first: Mapping[int, ScoredRun], second: Mapping[int, ScoredRun]) -> Contrast:
    """Compares two systems from their runs by seed; they need a common seed."""
    seeds = tuple(sorted(first.keys() & second.keys()))
    before, after = [[runs[seed] for seed in seeds] for runs in (first, second)]
    base, other = before[0].result.label, after[0].result.label
    measures = [(_measures(a), _measures(b)) for a, b in zip(before, after, strict=True)]
    common = [name for name in measures[0][0] if all(name in a and name in b for a, b in measures)]
    differences = {name: [b[name] - a[name] for a, b in measures] for name in common}
    shares = [[_confusions(run.scores) for run in side] for side in (before, after)]
    confusions = {
        pair: (statistics.fmean(s[pair] for s in shares[0]), statistics.fmean(s[pair] for s in shares[1]))
        for pair in shares[0][0]
    }
    return Contrast(base, other, seeds, differences, confusions)


def _measures(run: ScoredRun) -> dict[str, float]:
    result, scores = run
    found: dict[str, float | None] = {"mean IoU": scores.mean_iou}
    found |= {f"IoU of {name}": iou for name, iou in zip(scores.class_names, scores.class_iou, strict=True)}
    found |= {f"IoU within {band.width} px of a boundary": band.mean_iou for band in scores.bands}
    lower = 0.0
    for group in scores.sizes:
        found[f"accuracy, {lower:.0%} to {group.largest_share:.0%} of the image"] = group.accuracy
        lower = group.largest_share
    found["expected calibration error"] = result.calibration_error
    found[f"{NLL}, × 100"] = result.negative_log_likelihood
    return {name: value for name, value in found.items() if value is not None}


def _confusions(scores: Scores) -> dict[tuple[str, str], float]:
    names = scores.class_names
    return {
        (names[target], names[label]): count / max(sum(row), 1)
        for target, row in enumerate(scores.confusion)
        for label, count in enumerate(row)
        if target != label
    }


def contrasts_markdown(contrasts: Sequence[Contrast]) -> str:
    """A table of the differences in percentage points, and the confusions that changed most."""
    lines = ["| difference in points | " + " | ".join(f"{c.base} → {c.other}" for c in contrasts) + " |"]
    lines.append("|---|" + "---:|" * len(contrasts))
    for name in dict.fromkeys(name for each in contrasts for name in each.differences):
        cells = [with_spread(*_mean_and_spread(each.differences.get(name, [])), sign="+") for each in contrasts]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append("| seeds | " + " | ".join(str(len(each.seeds)) for each in contrasts) + " |")
    for each in contrasts:
        lines += ["", f"{each.base} → {each.other}, confusions that change most, in per cent of the true class:", ""]
        for (target, label), (before, after) in each.largest:
            lines.append(f"- {target} called {label}: {100 * before:.1f} → {100 * after:.1f}")
    return "\n".join(lines) + "\n"


def read_scores(folder: Path, result: RunResult) -> Scores | None:
    """The scores of a run of the comparison in `folder`; None if there are none."""
    path = folder / result.system / f"seed-{result.seed}" / "scores.json"
    try:
        return Scores.from_dict(json.loads(path.read_text("utf-8"))) if path.is_file() else None
    except (ValueError, InputError) as error:
        raise InputError(f"{path} cannot be read ({error}); delete {path.parent} to train it again") from None


def write_contrasts(
    pairs: Iterable[tuple[str, str]],
    results: Sequence[RunResult],
    folder: Path,
    read: Callable[[RunResult], Scores | None] | None = None,
) -> None:
    """Writes contrasts.md for the pairs of systems that have been scored with a common seed.

    `read` returns the scores of a run, by default those in the folder.
    """
    pairs, read = list(pairs), read or partial(read_scores, folder)
    runs: dict[str, dict[int, ScoredRun]] = {name: {} for pair in pairs for name in pair}
    for result in results:
        if result.system in runs and (scores := read(result)) is not None:
            runs[result.system][result.seed] = ScoredRun(result, scores)
    found = [contrast(runs[base], runs[other]) for base, other in pairs if runs[base].keys() & runs[other].keys()]
    if found:
        write_atomically(folder / "contrasts.md", contrasts_markdown(found).encode())


def iou_plot(results: Sequence[RunResult]) -> Figure:
    """Mean IoU of every system with its spread; a small dot is a seed."""
    found = table_rows(results)
    figure, axes = new_figure(6.4, 1.0 + 0.3 * len(found))
    for position, row in enumerate(found):
        spread = row.measures["mean_iou"][1]
        style: dict[str, Any] = {"color": _colour(row), "markersize": 8, "capsize": 3}
        axes.errorbar(100 * row.mean_iou, position, xerr=spread and 100 * spread, fmt="o", **style)
        seeds = [100 * result.mean_iou for result in results if result.system == row.system]
        axes.plot(seeds, [position] * len(seeds), ".", color=INK, markersize=3)
    axes.set_yticks(range(len(found)), [escape_dollars(row.label) for row in found])
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlabel("mean IoU, %")
    return figure


def cost_plot(results: Sequence[RunResult]) -> Figure:
    """Mean IoU against seconds of training; the list beside the plot explains the indices of its points."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure, axes = new_figure(8.6, 4.2)
    for index, row in enumerate(table_rows(results), start=1):
        point = (max(row.train_seconds, 1e-3), 100 * row.mean_iou)
        axes.plot(*point, "o", color=_colour(row), label=f"{index}  {escape_dollars(row.label)}")
        axes.annotate(str(index), point, xytext=(4, 3), textcoords="offset points", fontsize=8)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    axes.margins(x=0.1)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("mean IoU, %")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8, handlelength=0.8)
    return figure


def _colour(row: TableRow) -> str:
    return SERIES[1] if row.head == "message" else SERIES[0]  # learned messages stand out


def write_plots(results: Sequence[RunResult], folder: Path) -> None:
    """Writes iou.png and cost.png."""
    for name, draw in (("iou.png", iou_plot), ("cost.png", cost_plot)):
        write_atomically(folder / name, figure_png(draw(results)))


TERMINAL_COLUMNS = [COLUMNS.index(name) for name in ("system", "IoU", "NLL", "parameters", "s of training")]


class StudyCallback:
    """Follows a comparison; every method does nothing unless a subclass overrides it."""

    def system(self, index: int, total: int, system: System, seed: int) -> TrainCallback | None:
        """Called before a system is trained; returns the callback of its training."""
        return None

    def features(self, done: int, total: int) -> None:
        """Called after every image while features of the scored images are computed."""

    def done(self, index: int, total: int, result: RunResult) -> None:
        """Called after a system is scored, or its result is loaded."""


class StudyConsole(StudyCallback):
    """Prints the progress of a comparison."""

    def __init__(self, console: RichConsole | None = None) -> None:
        self.console = console or RichConsole(stderr=True)
        self._bar: RichProgress | None = None

    def system(self, index: int, total: int, system: System, seed: int) -> TrainCallback | None:
        """A headline, and the bar of a training below it."""
        self.console.rule(f"{index}/{total}  {system.label or system.name}, seed {seed}", align="left")
        return Bar(self.console, to_resume="give the same command again")

    def features(self, done: int, total: int) -> None:
        """A bar, which disappears when it is full."""
        if self._bar is None:
            self._bar = RichProgress(console=self.console, transient=True)
            self._bar.add_task("features of the images to score", total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done)
        if done == total:
            self._bar.stop()
            self._bar = None

    def done(self, index: int, total: int, result: RunResult) -> None:
        """The scores of a system."""
        values = ", ".join(f"{name} {value:g}" for name, value in result.tuned.items())
        tuned = f", tuned on held-out images to {values}" if values else ""
        said = f"{index}/{total} {result.system}, seed {result.seed}: mean IoU {result.mean_iou:.1%}{tuned}"
        self.console.out(said, highlight=False)


def results_table(results: Sequence[RunResult]) -> Table:
    """The columns of the comparison that fit into a terminal; comparison.md has all of them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    found = table_rows(results)
    for index in TERMINAL_COLUMNS:
        widest = max((len(row.cells[index]) for row in found), default=0)
        min_width = widest if index else None  # numbers stay whole, a long name may go on in the next line
        table.add_column(COLUMNS[index], justify="right" if index else "left", min_width=min_width)
    for row in found:
        table.add_row(*(Text(row.cells[index]) for index in TERMINAL_COLUMNS))
    return table
