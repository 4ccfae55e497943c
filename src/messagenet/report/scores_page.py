"""The evaluation as one HTML file that needs nothing else: tables, plots, and the worst and best images.

Pictures are embedded, plots are inline SVG, there are no scripts, fonts or addresses. Several methods can be
compared; images are ranked by the last of them, the one the report is about.
"""

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
from messagenet.evaluation.scores import Row, Scores, as_named, class_rows, shared_classes, summary_rows
from messagenet.report import plots
from messagenet.report.images import as_picture, palette_image, ramp_picture
from messagenet.report.page import legend, section, swatches, tiles, write_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure


WIDEST_IN_HALF, TALL = 5.5, 1.4  # inches; times its width


@dataclass(frozen=True, eq=False)
class Example:
    """One image to show.

    Attributes:
        name: As it was scored; its rank is looked up by it.
        image: uint8 (height, width, 3), or a PIL image.
        truth: (height, width) labels.
        predictions: Labels by method, shown in this order.
        entropy: (height, width) uncertainty in [0, 1], from `report.pictures.entropy`.
    """

    name: str
    image: Array | Image.Image
    truth: Array
    predictions: Mapping[str, Array]
    entropy: npt.NDArray[np.floating] | None = None


def write_report(
    scores: Scores | Mapping[str, Scores],
    examples: Sequence[Example],
    path: str | Path,
    *,
    classes: Classes,
    title: str = "Evaluation",
    shown: int = 5,
) -> Path:
    """Writes the report and returns where it is.

    Args:
        scores: Of one method, or of several by name.
        examples: Images to choose from; the `shown` worst and best are taken, no image twice.
        path: The HTML file; it appears complete or not at all.
        classes: Names and colours; must be those of the scores.
        title: Heading of the page.
        shown: How many images at either end.
    """
    named = as_named(scores)
    if shared_classes(named) != tuple(classes.names):
        raise InputError(
            "the scores have other classes than the report; pass the classes they were made with"
        )
    worst, best = _ends(tuple(named.values())[-1], examples, shown)
    sections = [
        section("Scores", _tables(named, classes)),
        section("Plots", f'<div class="plots">{"".join(_plots(named))}</div>'),
        *(
            section(
                heading,
                legend(classes, entropy=any(each.entropy is not None for each in chosen))
                + "".join(_example(each, named, classes) for each in chosen),
            )
            for heading, chosen in (("Worst images", worst), ("Best images", best))
            if chosen
        ),
    ]
    return write_page(path, title, _lead(named), sections)


def _ends(
    scores: Scores, examples: Sequence[Example], shown: int
) -> tuple[Sequence[Example], Sequence[Example]]:
    by_name = {example.name: example for example in examples}
    ranked = [by_name[image.name] for image in scores.ranked() if image.name in by_name]
    if examples and not ranked:
        raise InputError("none of the examples was scored; name them as the images were named when scored")
    split = min(shown, (len(ranked) + 1) // 2)
    return ranked[:split], ranked[split:][-shown:][::-1] if shown else []


def _lead(named: Mapping[str, Scores]) -> str:
    scores = tuple(named.values())[-1]
    iou = "no pixels" if scores.mean_iou is None else f"mean IoU {scores.mean_iou:.1%}"
    of = f" ({escape(tuple(named)[-1])})" if len(named) > 1 else ""
    return f"{len(scores.images):,} images, {len(scores.class_names)} classes, {iou}{of}"


def _tables(named: Mapping[str, Scores], classes: Classes) -> str:
    marks = swatches(classes)
    per_set = summary_rows(named)
    whole = _table("Whole set", tuple(named), per_set, [""] * len(per_set))
    by_class = _table("IoU by class", tuple(named), class_rows(named), marks)
    return f'<div class="tables">{whole}{by_class}</div>'


def _table(caption: str, methods: Sequence[str], rows: Sequence[Row], marks: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{escape(method)}</th>' for method in methods)
    body = []
    for row, mark in zip(rows, marks, strict=True):
        cells = zip(row.cells, row.winners, strict=True)
        shown = "".join(f"<td><strong>{c}</strong></td>" if won else f"<td>{c}</td>" for c, won in cells)
        body.append(f'<tr><th scope="row">{mark}{escape(row.label)}</th>{shown}</tr>')
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _plots(named: Mapping[str, Scores]) -> list[str]:
    drawn = [("iou", plots.class_iou_plot(named), "IoU of each class.")]
    if any(scores.bands for scores in named.values()):
        caption = "Mean IoU near object boundaries, by the width of the band around them."
        drawn.append(("trimap", plots.trimap_plot(named), caption))
    if any(scores.reliability for scores in named.values()):
        caption = "Reliability: on the diagonal, confidence equals accuracy. Larger dots hold more pixels."
        drawn.append(("reliability", plots.reliability_plot(named), caption))
    for index, (name, scores) in enumerate(named.items()):
        of = f" ({name})" if len(named) > 1 else ""
        caption = f"Confusion{of}: where the pixels of each true class went, in % of the class."
        drawn.append((f"confusion{index}", plots.confusion_plot(scores), caption))
    return [
        f'<figure{_shape(figure)}><div class="scroll" role="img" aria-label="{escape(caption)}">'
        f"{plots.figure_svg(figure, prefix)}</div><figcaption>{escape(caption)}</figcaption></figure>"
        for prefix, figure, caption in drawn
    ]


def _shape(figure: Figure) -> str:
    """A figure too wide for half of the page has all of it; beside a tall one there is room for two others."""
    width, height = figure.get_size_inches()
    if width > WIDEST_IN_HALF:
        return ' class="wide"'
    return ' class="tall"' if height > TALL * width else ""


def _example(example: Example, named: Mapping[str, Scores], classes: Classes) -> str:
    per_image = {
        method: {image.name: image.mean_iou for image in scores.images}.get(example.name)
        for method, scores in named.items()
    }
    found = {method: iou for method, iou in per_image.items() if iou is not None}
    numbers = ", ".join(
        f"{escape(method)} {iou:.1%}" if len(named) > 1 else f"{iou:.1%}" for method, iou in found.items()
    )
    pictures = [
        ("image", as_picture(example.image)),
        ("truth", palette_image(example.truth, classes)),
        *((method, palette_image(mask, classes)) for method, mask in example.predictions.items()),
    ]
    if example.entropy is not None:
        whose = f" ({tuple(example.predictions)[-1]})" if len(example.predictions) > 1 else ""
        pictures.append((f"entropy{whose}", ramp_picture(example.entropy)))
    return (
        f'<figure class="example"><figcaption>{escape(example.name)}, mean IoU {numbers}</figcaption>'
        f"{tiles(pictures, example.name)}</figure>"
    )
