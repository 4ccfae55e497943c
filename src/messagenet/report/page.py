"""Self-contained HTML pages: one file with style, embedded images and legends, without scripts or links."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from messagenet.data.classes import Classes
from messagenet.errors import write_atomically
from messagenet.evaluation.confusion import Array, label_array
from messagenet.report.images import as_image, overlay, png_bytes

STYLE = Path(__file__).with_name("page.css")
MAX_EMBEDDED_SIDE = 480
CRISP_BELOW = 200  # images with shorter sides are embedded losslessly and enlarged without interpolation
MIN_SHARE = 0.005  # smallest share of the image that `class_shares_text` lists


@dataclass(frozen=True, eq=False)
class GalleryImage:
    """An image of a gallery with its labels."""

    name: str
    image: Array | Image.Image  # uint8 (height, width, 3), or a PIL image
    labels: Array  # (height, width)
    entropy: Image.Image | None = None  # such as `entropy_image` draws


def gallery_figure(image: GalleryImage, classes: Classes) -> str:
    """One image of a gallery, as HTML."""
    columns = [("image", as_image(image.image)), ("labels", overlay(image.image, image.labels, classes))]
    if image.entropy is not None:
        columns.append(("entropy", image.entropy))
    return example_html(f"{image.name}: {class_shares_text(image.labels, classes)}", columns, image.name)


def write_gallery(
    figures: Sequence[str], path: str | Path, *, classes: Classes, title: str = "Segmentations", entropy: bool = False
) -> Path:
    """Writes a page of figures from `gallery_figure` and returns its path; `entropy`: whether they show entropy."""
    lead = f"{len(figures):,} image{'s' * (len(figures) != 1)}, {classes.num_classes} classes"
    content = legend_html(classes, entropy=entropy) + "".join(figures)
    return write_page(path, title, lead, [section_html("Images", content)])


def class_shares_text(labels: Array, classes: Classes) -> str:
    """The classes that cover at least 0.5% of the image, largest first.

    >>> class_shares_text(np.array([[0, 1, 1, 1]]), Classes(("background", "cat")))
    'cat 75%, background 25%'
    """
    values = label_array(labels, "labels")
    shares = np.bincount(values.ravel(), minlength=256)[: classes.num_classes] / max(values.size, 1)
    order = sorted(np.flatnonzero(shares >= MIN_SHARE), key=lambda label: -shares[label])
    return ", ".join(f"{classes.names[label]} {shares[label]:.0%}" for label in order)


def write_page(path: str | Path, title: str, lead: str, sections: Sequence[str]) -> Path:
    """Writes an HTML page and returns its path. The title is text, the lead and the sections are HTML."""
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE.read_text()}</style>\n</head>\n<body>\n"
        f'<header><h1>{escape(title)}</h1><p class="lead">{lead}</p></header>\n'
        f"<main>\n{''.join(sections)}</main>\n</body>\n</html>\n"
    )
    return write_atomically(path, page.encode())


def section_html(heading: str, content: str) -> str:
    """A section: heading as text, content as HTML."""
    return f"<section>\n<h2>{escape(heading)}</h2>\n{content}\n</section>\n"


def swatches_html(classes: Classes) -> list[str]:
    """A colour swatch for each class."""
    return [
        f'<span class="swatch" style="background:rgb{colour}" aria-hidden="true"></span>' for colour in classes.colours
    ]


def legend_html(classes: Classes, *, entropy: bool) -> str:
    """The legend of the class colours and, on request, of the entropy ramp."""
    entries = [mark + escape(name) for mark, name in zip(swatches_html(classes), classes.names, strict=True)]
    if entropy:
        entries.append("entropy: black is certain, pale is uncertain")
    return f'<p class="legend">{"".join(f"<span>{entry}</span>" for entry in entries)}</p>'


def example_html(caption: str, columns: Sequence[tuple[str, Image.Image]], name: str) -> str:
    """A row of titled images of one example under a caption; `name` is the example's name in their alt texts."""
    tiles = "".join(
        f"<figure>{img_html(image, f'{title} of {name}')}<figcaption>{escape(title)}</figcaption></figure>"
        for title, image in columns
    )
    return (
        f'<figure class="example"><figcaption>{escape(caption)}</figcaption><div class="tiles">{tiles}</div></figure>'
    )


def img_html(image: Image.Image, alt: str) -> str:
    """An `<img>` with embedded data: labels and small images as PNG, photos as JPEG, large images reduced."""
    is_labels = image.mode == "P"
    if max(image.size) > MAX_EMBEDDED_SIDE:
        scale = MAX_EMBEDDED_SIDE / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.NEAREST if is_labels else Image.Resampling.LANCZOS)
    if is_labels or max(image.size) < CRISP_BELOW:
        attributes, format, content = ' class="crisp"', "png", png_bytes(image)
    else:
        buffer = io.BytesIO()
        image.save(buffer, format="JPEG", quality=88)
        attributes, format, content = "", "jpeg", buffer.getvalue()
    data = base64.b64encode(content).decode()
    return (
        f'<img{attributes} src="data:image/{format};base64,{data}" alt="{escape(alt)}" '
        f'width="{image.width}" height="{image.height}" decoding="async">'
    )
