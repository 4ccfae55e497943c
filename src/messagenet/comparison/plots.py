"""Two plots of a comparison: who is better, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from messagenet.comparison.outcome import Outcome
from messagenet.comparison.table import Line, lines
from messagenet.files import write_atomically
from messagenet.report.plots import INK, SERIES, figure_png, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def iou_plot(outcomes: Sequence[Outcome]) -> Figure:
    """Mean IoU of every row with its spread; a small dot is a seed."""
    from matplotlib.figure import Figure as NewFigure

    found = lines(outcomes)
    figure = NewFigure(figsize=(6.4, 1.0 + 0.3 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    for place, line in enumerate(found):
        spread = None if line.spread is None else 100 * line.spread
        style: dict[str, Any] = {"color": _colour(line), "markersize": 8, "capsize": 3}
        axes.errorbar(100 * line.mean_iou, place, xerr=spread, fmt="o", **style)
        seeds = [100 * outcome.mean_iou for outcome in outcomes if outcome.row == line.row]
        axes.plot(seeds, [place] * len(seeds), ".", color=INK, markersize=3)
    axes.set_yticks(range(len(found)), [plain(line.label) for line in found], fontsize=8.5)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlabel("mean IoU, %", fontsize=9)
    axes.grid(axis="both", color=INK, alpha=0.12, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def cost_plot(outcomes: Sequence[Outcome]) -> Figure:
    """Mean IoU against the seconds of the training; points have numbers, which the list beside them explains."""
    from matplotlib.figure import Figure as NewFigure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure = NewFigure(figsize=(8.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, line in enumerate(lines(outcomes), start=1):
        place = (max(line.train_seconds, 1e-3), 100 * line.mean_iou)
        axes.plot(*place, "o", color=_colour(line), label=f"{number}  {plain(line.label)}")
        axes.annotate(str(number), place, xytext=(4, 3), textcoords="offset points", fontsize=8)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    axes.margins(x=0.1)
    axes.set_xlabel("seconds of training", fontsize=9)
    axes.set_ylabel("mean IoU, %", fontsize=9)
    axes.grid(color=INK, alpha=0.12, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8, handlelength=0.8)
    return figure


def _colour(line: Line) -> str:
    """Learned messages stand out."""
    return SERIES[1] if line.kind == "message" else SERIES[0]


def write_plots(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Writes iou.png and cost.png."""
    for name, draw in (("iou.png", iou_plot), ("cost.png", cost_plot)):
        write_atomically(folder / name, figure_png(draw(outcomes)))
