"""Segmented images on one HTML page: each photograph, its labels laid over it, and what was found where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from messagenet.data.classes import Classes
from messagenet.evaluation.arrays import Array, as_labels
from messagenet.report.page import legend, section, tiles, write_page
from messagenet.report.pictures import as_picture, overlay

LEAST_SHARE = 0.005


@dataclass(frozen=True, eq=False)
class Segmented:
    """An image and its labels.

    Attributes:
        name: What the page calls it.
        image: uint8 (height, width, 3), or a PIL image.
        labels: (height, width).
        entropy: A picture of where the model is unsure.
    """

    name: str
    image: Array | Image.Image
    labels: Array
    entropy: Image.Image | None = None


def write_gallery(
    images: Iterable[Segmented], path: str | Path, *, classes: Classes, title: str = "Segmentations"
) -> Path:
    """Writes the page and returns where it is; images are taken one at a time.

    Args:
        images: What to show.
        path: The HTML file; it appears complete or not at all.
        classes: What the labels mean.
        title: Heading of the page.
    """
    shown, unsure = [], False
    for each in images:
        unsure |= each.entropy is not None
        shown.append(_figure(each, classes))
    lead = f"{len(shown):,} image{'s' * (len(shown) != 1)}, {classes.num_classes} classes"
    return write_page(
        path, title, lead, [section("Images", legend(classes, entropy=unsure) + "".join(shown))]
    )


def found_text(labels: Array, classes: Classes) -> str:
    """The classes that cover at least half a per cent of the image, largest first.

    >>> found_text(np.array([[0, 1, 1, 1]]), Classes(("background", "cat")))
    'cat 75%, background 25%'
    """
    values = as_labels(labels, "labels")
    shares = np.bincount(values.ravel(), minlength=256)[: classes.num_classes] / max(values.size, 1)
    order = sorted(np.flatnonzero(shares >= LEAST_SHARE), key=lambda label: -shares[label])
    return ", ".join(f"{classes.names[label]} {shares[label]:.0%}" for label in order)


def _figure(each: Segmented, classes: Classes) -> str:
    pictures = [
        ("image", as_picture(each.image)),
        ("labels", overlay(each.image, each.labels, classes)),
        *([] if each.entropy is None else [("entropy", each.entropy)]),
    ]
    return (
        f'<figure class="example"><figcaption>{escape(f"{each.name}: {found_text(each.labels, classes)}")}</figcaption>'
        f"{tiles(pictures, each.name)}</figure>"
    )
