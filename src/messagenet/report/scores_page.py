"""The evaluation report in one HTML file: tables, plots, and the worst and best images by the last of the methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from PIL import Image

from messagenet.data.classes import Classes
from messagenet.errors import InputError
from messagenet.evaluation.confusion import Array
from messagenet.evaluation.scores import ScoreRow, Scores, by_method, class_rows, shared_classes, summary_rows
from messagenet.report import plots
from messagenet.report.images import as_image, palette_image, ramp_image
from messagenet.report.page import example_html, legend_html, section_html, swatches_html, write_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_HALF_WIDTH = 5.5  # inches up to which a plot takes half of the page
TALL = 1.4  # ratio of height to width above which a plot spans two rows


@dataclass(frozen=True, eq=False)
class ReportExample:
    """An image that a report can show."""

    name: str  # under which the image was scored
    image: Array | Image.Image  # uint8 (height, width, 3), or a PIL image
    target: Array  # (height, width) labels
    predictions: Mapping[str, Array]  # labels (height, width) by method, in the order of the columns
    entropy: npt.NDArray[np.floating] | None = None  # (height, width), of the last method, from `report.entropy`


def write_report(
    scores: Scores | Mapping[str, Scores],
    examples: Sequence[ReportExample],
    path: str | Path,
    *,
    classes: Classes,
    title: str = "Evaluation",
    shown: int = 5,
) -> Path:
    """Writes the report and returns its path. It shows the `shown` worst and best examples, no image twice."""
    methods = by_method(scores)
    if shared_classes(methods) != tuple(classes.names):
        raise InputError("the scores have other classes than the report; pass the classes used for scoring")
    worst, best = _worst_and_best(tuple(methods.values())[-1], examples, shown)
    sections = [
        section_html("Scores", _tables(methods, classes)),
        section_html("Plots", f'<div class="plots">{"".join(_plots(methods))}</div>'),
    ]
    for heading, chosen in (("Worst images", worst), ("Best images", best)):
        if chosen:
            legend = legend_html(classes, entropy=any(example.entropy is not None for example in chosen))
            figures = "".join(_example(example, methods, classes) for example in chosen)
            sections.append(section_html(heading, legend + figures))
    return write_page(path, title, _lead(methods), sections)


def _worst_and_best(
    scores: Scores, examples: Sequence[ReportExample], shown: int
) -> tuple[Sequence[ReportExample], Sequence[ReportExample]]:
    by_name = {example.name: example for example in examples}
    ranked = [by_name[image.name] for image in scores.ranked_images() if image.name in by_name]
    if examples and not ranked:
        raise InputError("none of the examples was scored; use the names the images were scored with")
    split = min(shown, (len(ranked) + 1) // 2)
    return ranked[:split], ranked[split:][-shown:][::-1] if shown else []


def _lead(methods: Mapping[str, Scores]) -> str:
    name, scores = tuple(methods.items())[-1]
    iou = "no pixels" if scores.mean_iou is None else f"mean IoU {scores.mean_iou:.1%}"
    of = f" ({escape(name)})" if len(methods) > 1 else ""
    return f"{len(scores.images):,} images, {len(scores.class_names)} classes, {iou}{of}"


def _tables(methods: Mapping[str, Scores], classes: Classes) -> str:
    summary = summary_rows(methods)
    whole = _table("Whole set", tuple(methods), summary, [""] * len(summary))
    by_class = _table("IoU by class", tuple(methods), class_rows(methods), swatches_html(classes))
    return f'<div class="tables">{whole}{by_class}</div>'


def _table(caption: str, methods: Sequence[str], rows: Sequence[ScoreRow], marks: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{escape(method)}</th>' for method in methods)
    body = []
    for row, mark in zip(rows, marks, strict=True):
        pairs = zip(row.cells, row.is_best, strict=True)
        cells = "".join(f"<td><strong>{c}</strong></td>" if best else f"<td>{c}</td>" for c, best in pairs)
        body.append(f'<tr><th scope="row">{mark}{escape(row.label)}</th>{cells}</tr>')
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _plots(methods: Mapping[str, Scores]) -> list[str]:
    drawn = [("iou", plots.class_iou_plot(methods), "IoU of each class.")]
    if any(scores.bands for scores in methods.values()):
        caption = "Mean IoU near object boundaries, by band width."
        drawn.append(("trimap", plots.trimap_plot(methods), caption))
    if any(scores.reliability for scores in methods.values()):
        caption = "Reliability: on the diagonal, confidence equals accuracy. Larger dots stand for more pixels."
        drawn.append(("reliability", plots.reliability_plot(methods), caption))
    for index, (name, scores) in enumerate(methods.items()):
        of = f" ({name})" if len(methods) > 1 else ""
        caption = f"Confusion{of}: how the pixels of each class were predicted, in % of the class."
        drawn.append((f"confusion{index}", plots.confusion_plot(scores), caption))
    return [
        f'<figure{_layout_class(figure)}><div class="scroll" role="img" aria-label="{escape(caption)}">'
        f"{plots.figure_svg(figure, prefix)}</div><figcaption>{escape(caption)}</figcaption></figure>"
        for prefix, figure, caption in drawn
    ]


def _layout_class(figure: Figure) -> str:
    """A wide plot takes the full width of the page; a tall one leaves room for two others beside it."""
    width, height = figure.get_size_inches()
    if width > MAX_HALF_WIDTH:
        return ' class="wide"'
    return ' class="tall"' if height > TALL * width else ""


def _example(example: ReportExample, methods: Mapping[str, Scores], classes: Classes) -> str:
    figures = []
    for method, scores in methods.items():
        iou = next((image.mean_iou for image in scores.images if image.name == example.name), None)
        if iou is not None:
            figures.append(f"{method} {iou:.1%}" if len(methods) > 1 else f"{iou:.1%}")
    columns = [
        ("image", as_image(example.image)),
        ("target", palette_image(example.target, classes)),
        *((method, palette_image(mask, classes)) for method, mask in example.predictions.items()),
    ]
    if example.entropy is not None:
        of = f" ({tuple(example.predictions)[-1]})" if len(example.predictions) > 1 else ""
        columns.append((f"entropy{of}", ramp_image(example.entropy)))
    return example_html(f"{example.name}, mean IoU {', '.join(figures)}", columns, example.name)
