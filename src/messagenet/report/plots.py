"""Plots of scores, drawn with matplotlib's figure objects: no pyplot, no window, no state between calls.

matplotlib is imported when the first plot is drawn. Text and axes use one ink colour, which `figure_svg`
turns into `currentColor`, so that a plot inside a page follows the page from light to dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from messagenet.errors import InputError
from messagenet.evaluation.scores import Scores, as_named, shared_classes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INK = "#1f2934"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Colours of the methods, told apart by colour-blind readers (Okabe and Ito); the seventh begins anew."""

# Figures are about 4.2 inches wide, so that their text keeps its size beside each other and on a telephone.
LEGEND: dict[str, Any] = {"frameon": False, "labelcolor": INK, "fontsize": 8.5}
WRITTEN_UP_TO = 12
"""Classes up to which a confusion matrix has its numbers written into it."""

CELL_TEXT = ("#111111", "#ffffff")
"""Ink inside the cells of a matrix, on light and on dark: the cells do not change with the page."""


def confusion_plot(scores: Scores) -> Figure:
    """The confusion matrix with rows divided by their sum: where the pixels of each true class went."""
    from matplotlib.colors import LinearSegmentedColormap

    names = [plain(name) for name in scores.class_names]
    size = len(names)
    counts = scores.matrix
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    written = size <= WRITTEN_UP_TO
    side = min(14.0, 1.1 + (0.34 if written else 0.26) * size)
    figure, axes = _figure(side + (0.2 if written else 0.8), side)
    ramp = LinearSegmentedColormap.from_list("quiet", ["#f3f6fa", "#8fbcdb", "#08519c"])
    mesh = axes.pcolormesh(shares, cmap=ramp, vmin=0, vmax=1, edgecolors="white", linewidth=0.5)
    if written:
        for (row, column), share in np.ndenumerate(shares):
            if share >= 0.005:
                ink = CELL_TEXT[int(share > 0.6)]
                axes.text(
                    column + 0.5,
                    row + 0.5,
                    f"{100 * share:.0f}",
                    color=ink,
                    ha="center",
                    va="center",
                    fontsize=8,
                )
    ticks = np.arange(size) + 0.5
    axes.set_xticks(ticks, names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(ticks, names)
    axes.tick_params(length=0, labelsize=min(8.5, 400 / size))
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    if not written:
        bar = figure.colorbar(mesh, ax=axes, shrink=0.7, label="share of the true class")
        bar.outline.set_visible(False)
        _ink(bar.ax)
    return figure


def reliability_plot(scores: Scores | Mapping[str, Scores]) -> Figure:
    """Accuracy against confidence; the diagonal is perfect. Dots grow with the pixels in their bin."""
    named = as_named(scores)
    if all(each.reliability is None for each in named.values()):
        raise InputError("no method has marginals, so there is no reliability to plot; score with marginals")
    figure, axes = _figure(4.2, 3.9)
    axes.plot([0, 1], [0, 1], color=INK, alpha=0.4, linewidth=1, linestyle=(0, (4, 3)))
    for index, (name, each) in enumerate(named.items()):
        if (found := each.reliability) is None:
            continue
        colour = SERIES[index % len(SERIES)]
        share = np.asarray(found.counts) / max(found.pixels, 1)
        label = f"{plain(name)}, ECE {found.expected_calibration_error:.1%}"
        axes.plot(found.mean_confidence, found.accuracy, color=colour, linewidth=1.2, alpha=0.7)
        axes.scatter(
            found.mean_confidence,
            found.accuracy,
            s=12 + 160 * share,
            color=colour,
            label=label,
            clip_on=False,
        )
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    axes.set_aspect("equal")
    axes.set_xlabel("confidence")
    axes.set_ylabel("share of pixels that are right")
    axes.legend(loc="upper left", markerscale=0.8, **LEGEND)
    return figure


def trimap_plot(scores: Scores | Mapping[str, Scores]) -> Figure:
    """Mean IoU within a band around boundaries, against the width of the band."""
    named = as_named(scores)
    if not any(each.bands for each in named.values()):
        raise InputError("no method has trimap bands to plot; evaluate with widths such as 1, 2, 4, 8")
    figure, axes = _figure(4.2, 3.2)
    widths = sorted({band.width for each in named.values() for band in each.bands})
    for index, (name, each) in enumerate(named.items()):
        values = [np.nan if band.mean_iou is None else 100 * band.mean_iou for band in each.bands]
        colour = SERIES[index % len(SERIES)]
        axes.plot(
            [band.width for band in each.bands], values, "o-", color=colour, label=plain(name), markersize=4.5
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.minorticks_off()
    axes.set_xlabel("width of the band around boundaries, pixels")
    axes.set_ylabel("mean IoU, %")
    if len(named) > 1:
        axes.legend(loc="best", **LEGEND)
    return figure


def class_iou_plot(scores: Scores | Mapping[str, Scores]) -> Figure:
    """IoU of each class as bars, one colour per method."""
    named = as_named(scores)
    names = [plain(name) for name in shared_classes(named)]
    thickness = 0.8 / len(named)
    figure, axes = _figure(4.2, max(2.2, (0.15 * len(named) + 0.13) * len(names) + 0.8))
    rows = np.arange(len(names))
    for index, (name, each) in enumerate(named.items()):
        values = [0.0 if iou is None else 100 * iou for iou in each.class_iou]
        offset = (index - (len(named) - 1) / 2) * thickness
        axes.barh(
            rows + offset, values, 0.9 * thickness, color=SERIES[index % len(SERIES)], label=plain(name)
        )
        for row, iou in zip(rows, each.class_iou, strict=True):
            text = "absent" if iou is None else f"{100 * iou:.1f}"
            at = 0.0 if iou is None else 100 * iou
            axes.text(at + 1, row + offset, text, color=INK, va="center", fontsize=8)
    axes.set_yticks(rows, names)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 108)
    axes.set_xticks(range(0, 101, 20))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("IoU, %")
    if len(named) > 1:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, **LEGEND)
    return figure


def figure_png(figure: Figure, dots_per_inch: int = 144) -> bytes:
    """The figure as PNG on white."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dots_per_inch, facecolor="white", metadata={"Software": None})
    return content.getvalue()


def figure_svg(figure: Figure, prefix: str) -> str:
    """The figure as an `<svg>` element for a page: transparent, its ink the colour of the text around it.

    Args:
        figure: What to draw.
        prefix: Put before every id, so that several figures can share a page.
    """
    from matplotlib import rc_context

    content = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = content.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)


def plain(text: str) -> str:
    """The text with dollar signs escaped, which matplotlib would otherwise read as formulas."""
    return text.replace("$", r"\$")


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure with one axes in the house style."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=INK, alpha=0.12, linewidth=0.7)
    axes.set_axisbelow(True)
    _ink(axes)
    return figure, axes


def _ink(axes: Axes) -> None:
    axes.tick_params(color=INK, labelcolor=INK, labelsize=8.5, width=0.7)
    for spine in axes.spines.values():
        spine.set(color=INK, alpha=0.6, linewidth=0.7)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=INK, fontsize=9)
