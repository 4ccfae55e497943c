"""A contact sheet: many samples of a data set with their masks laid over them, to look through."""

from __future__ import annotations

import math

from PIL import Image, ImageDraw, ImageFont

from messagenet.data import Sample, SegmentationData
from messagenet.errors import InputError
from messagenet.report.pictures import as_picture, overlay
from messagenet.report.sheet import GAP, INK, PAPER, legend, shortened

FAINT, WARNING = (235, 235, 235), (190, 30, 30)
LINE = 18


def contact_sheet(
    data: SegmentationData, count: int = 24, columns: int = 6, cell: int = 200, opacity: float = 0.5
) -> Image.Image:
    """Samples spread evenly over a data set, with their masks laid over them, their names, and a legend.

    A sample that cannot be read is shown as an empty cell that says so.
    """
    if len(data) == 0:
        raise InputError(f"{data.name} has no samples to show; check its split")
    count = min(count, len(data))
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    font = ImageFont.load_default(12)
    key = legend(range(data.classes.num_classes), data.classes, columns * (cell + GAP) - GAP, font)
    top = rows * (cell + LINE + GAP) + GAP
    sheet = Image.new("RGB", (columns * (cell + GAP) + GAP, top + key.height + GAP), PAPER)
    pen = ImageDraw.Draw(sheet)
    for place in range(count):
        index = place * len(data) // count
        left = GAP + (place % columns) * (cell + GAP)
        above = GAP + (place // columns) * (cell + LINE + GAP)
        picture = _thumbnail(data, index, cell, opacity)
        pen.rectangle((left, above, left + cell - 1, above + cell - 1), fill=FAINT)
        sheet.paste(picture, (left + (cell - picture.width) // 2, above + (cell - picture.height) // 2))
        pen.text(
            (left, above + cell + 2), shortened(data.sample_name(index), cell, font), fill=INK, font=font
        )
    sheet.paste(key, (GAP, top))
    return sheet


def _thumbnail(data: SegmentationData, index: int, cell: int, opacity: float) -> Image.Image:
    try:
        sample = data[index]
    except InputError:
        picture = Image.new("RGB", (cell, cell), FAINT)
        ImageDraw.Draw(picture).text((GAP, GAP), "cannot be read", fill=WARNING)
        return picture
    picture = _shown(sample, data, opacity)
    scale = cell / max(picture.size)
    filter = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BILINEAR
    return picture.resize(
        (max(1, round(picture.width * scale)), max(1, round(picture.height * scale))), filter
    )


def _shown(sample: Sample, data: SegmentationData, opacity: float) -> Image.Image:
    if sample.mask is None:
        return as_picture(sample.image)
    return overlay(sample.image, sample.mask, data.classes, opacity)
