"""What every report is made of: one HTML file that needs nothing else, with embedded pictures and legends."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

from PIL import Image

from messagenet.data.classes import Classes
from messagenet.files import write_atomically
from messagenet.report.style import CSS

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
