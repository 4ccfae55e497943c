"""What every report is made of: one HTML file that needs nothing else, with embedded pictures and legends.

The style sheet of the report: one column, rows of pictures that wrap, light or dark as the system is.

Segmented images on one HTML page: each photograph, its labels laid over it, and what was found where.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from messagenet.data.classes import Classes
from messagenet.errors import write_atomically
from messagenet.evaluation.confusion import Array, as_labels
from messagenet.report.images import as_picture, overlay

CSS = """
:root {
  color-scheme: light dark;
  --ink: #1f2934; --soft: #56616d; --paper: #ffffff; --panel: #f5f7f9; --rule: #d8dde2; --accent: #005a8d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e4e8ec; --soft: #a3adb8; --paper: #14181c; --panel: #1c2227; --rule: #343c44; --accent: #6cb8e6;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 72rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif;
}
h1 { font-size: 1.75rem; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; border-bottom: 1px solid var(--rule); }
p.lead, figcaption, caption { color: var(--soft); }
.tables { display: flex; flex-wrap: wrap; gap: 1.5rem 2.5rem; align-items: flex-start; }
.plots {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.25rem;
  align-items: start;
}
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .4rem; font-size: .9rem; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; }
tbody th { text-align: left; font-weight: 400; }
td strong { color: var(--accent); }
.swatch {
  display: inline-block; width: .85em; height: .85em; margin-right: .5em; vertical-align: -.08em;
  border: 1px solid var(--rule); border-radius: .2em;
}
figure { margin: 0; }
figcaption { font-size: .9rem; }
.plots > figure { min-width: 0; padding: 1rem; background: var(--panel); border-radius: .5rem; }
.plots svg { display: block; width: 100%; max-width: 32rem; height: auto; margin: 0 auto; }
.plots figcaption { margin-top: .6rem; }
.plots .tall { grid-row: span 2; }
.plots .wide { grid-column: 1 / -1; }
.plots .wide svg { min-width: 40rem; max-width: 56rem; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 0 0 1rem; font-size: .9rem; }
.example { margin: 0 0 1.5rem; padding: 1rem; background: var(--panel); border-radius: .5rem; }
.example > figcaption { margin-bottom: .6rem; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .6rem; }
.tiles img { width: 100%; height: auto; display: block; border-radius: .25rem; }
.tiles img.crisp { image-rendering: pixelated; }
.tiles figcaption { font-size: .8rem; }
@media print { .example, .plots > figure { break-inside: avoid; } }
"""


LONGEST_SIDE = 480
CRISP_BELOW = 200


def write_page(path: str | Path, title: str, lead: str, sections: Sequence[str]) -> Path:
    """Writes the page, whole or not at all, and returns where it is.

    Args:
        path: The HTML file.
        title: Its heading, as text.
        lead: The line below the heading, as HTML.
        sections: What follows, from `section`.
    """
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f'<header><h1>{escape(title)}</h1><p class="lead">{lead}</p></header>\n'
        f"<main>\n{''.join(sections)}</main>\n</body>\n</html>\n"
    )
    return write_atomically(path, page.encode())


def section(heading: str, content: str) -> str:
    """A part of the page: a heading as text, its content as HTML."""
    return f"<section>\n<h2>{escape(heading)}</h2>\n{content}\n</section>\n"


def swatches(classes: Classes) -> list[str]:
    """A patch of colour for each class."""
    return [
        f'<span class="swatch" style="background:rgb{colour}" aria-hidden="true"></span>'
        for colour in classes.colours
    ]


def legend(classes: Classes, *, entropy: bool) -> str:
    """What the colours of labels mean, and those of entropy."""
    marks = [mark + escape(name) for mark, name in zip(swatches(classes), classes.names, strict=True)]
    if entropy:
        marks.append("entropy: black is certain, pale a guess")
    return f'<p class="legend">{"".join(f"<span>{mark}</span>" for mark in marks)}</p>'


def tiles(pictures: Sequence[tuple[str, Image.Image]], of: str) -> str:
    """Pictures in a row, each with what it is; `of` names the image they belong to."""
    shown = "".join(
        f"<figure>{embedded(picture, f'{what} of {of}')}<figcaption>{escape(what)}</figcaption></figure>"
        for what, picture in pictures
    )
    return f'<div class="tiles">{shown}</div>'


def embedded(picture: Image.Image, alt: str) -> str:
    """An embedded picture: labels and small pictures exactly, photographs as JPEG."""
    labels = picture.mode == "P"
    if max(picture.size) > LONGEST_SIDE:
        ratio = LONGEST_SIDE / max(picture.size)
        size = (max(1, round(picture.width * ratio)), max(1, round(picture.height * ratio)))
        picture = picture.resize(size, Image.Resampling.NEAREST if labels else Image.Resampling.LANCZOS)
    small = max(picture.size) < CRISP_BELOW
    content = io.BytesIO()
    if labels or small:
        kind = "png"
        picture.save(content, format="PNG", optimize=True)
    else:
        kind = "jpeg"
        picture.save(content, format="JPEG", quality=88)
    data = base64.b64encode(content.getvalue()).decode()
    crisp = ' class="crisp"' if labels or small else ""
    return (
        f'<img{crisp} src="data:image/{kind};base64,{data}" alt="{escape(alt)}" '
        f'width="{picture.width}" height="{picture.height}" decoding="async">'
    )


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
