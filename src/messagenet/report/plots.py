"""Plots of scores as matplotlib `Figure` objects, without pyplot, windows or global state.

Text and axes share one ink colour, which `figure_svg` replaces by `currentColor`, so that a plot follows its page
between light and dark. Figures are about 4.2 inches wide, so that text has one size in all layouts.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from messagenet.errors import InputError
from messagenet.evaluation.confusion import ratio
from messagenet.evaluation.scores import Scores, by_method, shared_classes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1f2934"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # colour-blind safe (Okabe and Ito)
LEGEND: dict[str, Any] = {"frameon": False, "labelcolor": INK, "fontsize": 8.5}
MAX_ANNOTATED_CLASSES = 12  # up to this many, the cells of a confusion matrix show their percentages
CELL_TEXT = ("#111111", "#ffffff")  # in light and in dark cells of a matrix, which look the same on any page


def class_iou_plot(scores: Scores | Mapping[str, Scores]) -> Figure:
    """IoU of each class as bars, one colour per method."""
    methods = by_method(scores)
    names = [escape_dollars(name) for name in shared_classes(methods)]
    thickness = 0.8 / len(methods)
    figure, axes = new_figure(4.2, max(2.2, (0.15 * len(methods) + 0.13) * len(names) + 0.8))
    rows = np.arange(len(names))
    for index, (name, each) in enumerate(methods.items()):
        values = [0.0 if iou is None else 100 * iou for iou in each.class_iou]
        offset = (index - (len(methods) - 1) / 2) * thickness
        colour, label = SERIES[index % len(SERIES)], escape_dollars(name)
        axes.barh(rows + offset, values, 0.9 * thickness, color=colour, label=label)
        for row, value, iou in zip(rows, values, each.class_iou, strict=True):
            text = "absent" if iou is None else f"{value:.1f}"
            axes.text(value + 1, row + offset, text, color=INK, va="center", fontsize=8)
    axes.set_yticks(rows, names)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 108)
    axes.set_xticks(range(0, 101, 20))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("IoU, %")
    if len(methods) > 1:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, **LEGEND)
    return figure


def trimap_plot(scores: Scores | Mapping[str, Scores]) -> Figure:
    """Mean IoU within a band around boundaries, against the width of the band."""
    methods = by_method(scores)
    if not any(each.bands for each in methods.values()):
        raise InputError("no method has trimap bands to plot; evaluate with widths such as 1, 2, 4, 8")
    figure, axes = new_figure(4.2, 3.2)
    for (name, each), colour in zip(methods.items(), cycle(SERIES), strict=False):
        widths = [band.width for band in each.bands]
        values = [np.nan if band.mean_iou is None else 100 * band.mean_iou for band in each.bands]
        axes.plot(widths, values, "o-", color=colour, label=escape_dollars(name), markersize=4.5)
    ticks = sorted({band.width for each in methods.values() for band in each.bands})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(width) for width in ticks])
    axes.minorticks_off()
    axes.set_xlabel("band width around boundaries, pixels")
    axes.set_ylabel("mean IoU, %")
    if len(methods) > 1:
        axes.legend(loc="best", **LEGEND)
    return figure


def reliability_plot(scores: Scores | Mapping[str, Scores]) -> Figure:
    """Accuracy against confidence; the diagonal is perfect. Dots grow with the number of pixels in their bin."""
    methods = by_method(scores)
    if all(each.reliability is None for each in methods.values()):
        raise InputError("no method has marginals, so there is no reliability to plot; score with marginals")
    figure, axes = new_figure(4.2, 3.9)
    axes.plot([0, 1], [0, 1], color=INK, alpha=0.4, linewidth=1, linestyle=(0, (4, 3)))
    for (name, each), colour in zip(methods.items(), cycle(SERIES), strict=False):
        if (histogram := each.reliability) is None:
            continue
        points = histogram.mean_confidence, histogram.accuracy
        sizes = 12 + 160 * (np.asarray(histogram.counts) / max(histogram.pixels, 1))
        label = f"{escape_dollars(name)}, ECE {histogram.expected_calibration_error:.1%}"
        axes.plot(*points, color=colour, linewidth=1.2, alpha=0.7)
        axes.scatter(*points, s=sizes, color=colour, label=label, clip_on=False)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    axes.set_aspect("equal")
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy")
    axes.legend(loc="upper left", markerscale=0.8, **LEGEND)
    return figure


def confusion_plot(scores: Scores) -> Figure:
    """The confusion matrix, rows normalised: how the pixels of each target class were predicted."""
    from matplotlib.colors import LinearSegmentedColormap

    names = [escape_dollars(name) for name in scores.class_names]
    size = len(names)
    shares = ratio(scores.matrix, np.broadcast_to(scores.matrix.sum(axis=1, keepdims=True), (size, size)))
    annotated = size <= MAX_ANNOTATED_CLASSES
    side = min(14.0, 1.1 + (0.34 if annotated else 0.26) * size)
    figure, axes = new_figure(side + (0.2 if annotated else 0.8), side)
    ramp = LinearSegmentedColormap.from_list("quiet", ["#f3f6fa", "#8fbcdb", "#08519c"])
    mesh = axes.pcolormesh(shares, cmap=ramp, vmin=0, vmax=1, edgecolors="white", linewidth=0.5)
    ticks = np.arange(size) + 0.5
    axes.set_xticks(ticks, names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(ticks, names)
    axes.tick_params(length=0, labelsize=min(8.5, 400 / size))
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("target class")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    if annotated:
        centre: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
        for (row, column), share in np.ndenumerate(shares):
            if share >= 0.005:
                colour = CELL_TEXT[int(share > 0.6)]
                axes.text(column + 0.5, row + 0.5, f"{100 * share:.0f}", color=colour, **centre)
    else:
        bar = figure.colorbar(mesh, ax=axes, shrink=0.7, label="share of the target class")
        bar.outline.set_visible(False)
        _style(bar.ax)
    return figure


def figure_png(figure: Figure, dots_per_inch: int = 144) -> bytes:
    """The figure encoded as PNG on white."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dots_per_inch, facecolor="white", metadata={"Software": None})
    return content.getvalue()


def figure_svg(figure: Figure, prefix: str) -> str:
    """The figure as a transparent `<svg>` element in the text colour of its page, `prefix` before every id."""
    from matplotlib import rc_context

    content = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = content.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)


def escape_dollars(text: str) -> str:
    """The text with dollar signs escaped, which matplotlib would otherwise read as mathematics."""
    return text.replace("$", r"\$")


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure of so many inches, with a quiet grid."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=INK, alpha=0.12, linewidth=0.7)
    axes.set_axisbelow(True)
    _style(axes)
    return figure, axes


def _style(axes: Axes) -> None:
    axes.tick_params(color=INK, labelcolor=INK, labelsize=8.5, width=0.7)
    for spine in axes.spines.values():
        spine.set(color=INK, alpha=0.6, linewidth=0.7)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=INK, fontsize=9)
