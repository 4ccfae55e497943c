"""A sheet of pictures: one row per image, one titled column per method, the classes explained below.

Small pictures are enlarged by a whole factor without interpolation, so that a pixel stays a crisp square;
large ones are reduced. All pictures of a row are brought to the size of its first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from messagenet.data.classes import VOID, Classes
from messagenet.errors import InputError
from messagenet.evaluation.arrays import Array
from messagenet.report.pictures import as_picture, palette_image

COMFORTABLE, LARGEST, MOST_ENLARGED = 224, 360, 4
MARGIN, GAP, SWATCH = 20, 10, 14
INK, PAPER, RULE = (31, 41, 51), (255, 255, 255), (200, 204, 209)

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def picture_sheet(
    rows: Sequence[Sequence[Array | Image.Image]], column_titles: Sequence[str], classes: Classes
) -> Image.Image:
    """Draws the sheet.

    Args:
        rows: Pictures, one sequence per row. Whole numbers (height, width) are labels and take the colours of
            their classes; uint8 (height, width, 3) and PIL images are shown as they are.
        column_titles: One title per column.
        classes: Colours of the labels; the legend lists those that occur.
    """
    if not rows or not column_titles or any(len(row) != len(column_titles) for row in rows):
        raise InputError("a picture sheet needs rows of as many pictures as there are column titles")
    present: set[int] = set()
    pictures = [[_picture(cell, classes, present) for cell in row] for row in rows]
    scale = _scale(max(side for row in pictures for side in row[0].size))
    sizes = [tuple(max(1, round(side * scale)) for side in row[0].size) for row in pictures]
    width = max(size[0] for size in sizes)

    title_font, legend_font = ImageFont.load_default(size=16), ImageFont.load_default(size=14)
    columns = len(column_titles)
    inner = columns * width + (columns - 1) * GAP
    key = legend(sorted(present), classes, inner, legend_font) if present else None
    grid_top = MARGIN + 28
    legend_top = grid_top + sum(size[1] + GAP for size in sizes) + 4
    height = legend_top + key.height + MARGIN if key else legend_top - GAP + MARGIN
    sheet = Image.new("RGB", (inner + 2 * MARGIN, height), PAPER)
    draw = ImageDraw.Draw(sheet)

    lefts = [MARGIN + column * (width + GAP) for column in range(columns)]
    for left, title in zip(lefts, column_titles, strict=True):
        text = shortened(title, width, title_font)
        draw.text((left + width / 2, MARGIN + 10), text, fill=INK, font=title_font, anchor="mm")
    top = grid_top
    for row, (w, h) in zip(pictures, sizes, strict=True):
        for left, picture in zip(lefts, row, strict=True):
            smooth = scale < 1 and picture.mode == "RGB"
            resized = picture.resize((w, h), Image.Resampling.LANCZOS if smooth else Image.Resampling.NEAREST)
            x = left + (width - w) // 2
            sheet.paste(resized.convert("RGB"), (x, top))
            draw.rectangle((x - 1, top - 1, x + w, top + h), outline=RULE)
        top += h + GAP
    if key:
        sheet.paste(key, (MARGIN, legend_top))
    return sheet


def shortened(text: str, width: int, font: Font) -> str:
    """The text, cut with an ellipsis if it is wider than `width` pixels."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"


def _picture(cell: Array | Image.Image, classes: Classes, present: set[int]) -> Image.Image:
    """One cell as a picture, labels in palette mode; the labels met are added to `present`."""
    if isinstance(cell, Image.Image) or cell.ndim != 2:
        return as_picture(cell)
    picture = palette_image(cell, classes)
    present.update(np.unique(np.asarray(picture)).tolist())
    return picture


def _scale(longest: int) -> float:
    if longest > LARGEST:
        return LARGEST / longest
    return min(MOST_ENLARGED, max(1, round(COMFORTABLE / longest)))


def legend(labels: Sequence[int], classes: Classes, width: int, font: Font) -> Image.Image:
    """Swatches and names, flowing over as many lines as they need."""
    line_height, between, pad = 24, 18, 7
    entries, x, line = [], 0, 0
    for label in labels:
        name, colour = ("void", classes.void_colour) if label == VOID else _entry(label, classes)
        name = shortened(name, width - SWATCH - pad, font)
        extent = SWATCH + pad + round(font.getlength(name))
        if x and x + extent > width:
            x, line = 0, line + 1
        entries.append((x, line * line_height, name, colour))
        x += extent + between
    key = Image.new("RGB", (width, (line + 1) * line_height), PAPER)
    draw = ImageDraw.Draw(key)
    for left, top, name, colour in entries:
        box = (left, top + 5, left + SWATCH - 1, top + 4 + SWATCH)
        draw.rounded_rectangle(box, radius=3, fill=colour, outline=RULE)
        draw.text((left + SWATCH + pad, top + 12), name, fill=INK, font=font, anchor="lm")
    return key


def _entry(label: int, classes: Classes) -> tuple[str, tuple[int, int, int]]:
    return classes.names[label], classes.colours[label]
