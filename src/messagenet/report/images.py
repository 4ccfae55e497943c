"""Label maps, overlays and uncertainty as pictures.

Labels take the colours of their class, void the void colour of the class list. Uncertainty is the entropy of
a pixel's marginals as a share of its largest possible value, H(p) / log K: 0 (black) is certain, 1 (pale) is
a guess among all classes.

A sheet of pictures: one row per image, one titled column per method, the classes explained below.

Small pictures are enlarged by a whole factor without interpolation, so that a pixel stays a crisp square;
large ones are reduced. All pictures of a row are brought to the size of its first.

A contact sheet: many samples of a data set with their masks laid over them, to look through.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont

from messagenet.data import Sample, SegmentationData
from messagenet.data.classes import BACKGROUND, VOID, Classes
from messagenet.errors import InputError, write_atomically
from messagenet.evaluation.confusion import Array, as_labels, as_marginals

RAMP = ((0, 0, 4), (59, 15, 112), (140, 41, 129), (222, 73, 104), (254, 159, 109), (252, 253, 191))
"""Black to pale through purple, evenly spaced: lightness grows with the value, whatever the reader's eyes."""


def palette_image(mask: Array, classes: Classes) -> Image.Image:
    """A palette image whose values are the labels themselves, the form masks are stored and exchanged in."""
    labels = as_labels(mask, "mask")
    if labels.ndim != 2:
        raise InputError(f"a mask must be (height, width), not {labels.shape}; pass one image at a time")
    wrong = labels[(labels != VOID) & ((labels < 0) | (labels >= classes.num_classes))]
    if wrong.size:
        raise InputError(
            f"the mask holds label {wrong[0]}, outside 0…{classes.num_classes - 1} (void is {VOID}); "
            "use the classes the mask was made with"
        )
    picture = Image.fromarray(labels.astype(np.uint8))
    picture.putpalette(classes.palette())
    return picture


def colourise(mask: Array, classes: Classes) -> Image.Image:
    """Each label in the colour of its class, as RGB.

    >>> colourise(np.array([[0, 1, 255]]), Classes(("background", "cat"))).getpixel((1, 0))
    (128, 0, 0)
    """
    return palette_image(mask, classes).convert("RGB")


def overlay(image: Array | Image.Image, mask: Array, classes: Classes, opacity: float = 0.6) -> Image.Image:
    """The mask laid over its image; void pixels, and a class called "background", show the image unchanged."""
    if not 0 <= opacity <= 1:
        raise InputError(f"opacity is {opacity}; choose a value from 0 (image alone) to 1 (labels alone)")
    below = as_picture(image)
    above = colourise(mask, classes)
    if below.size != above.size:
        raise InputError(f"image {below.size} and mask {above.size} differ in size; resize the mask first")
    bare = [VOID, *(label for label, name in enumerate(classes.names) if name == BACKGROUND)]
    cover = np.where(np.isin(as_labels(mask, "mask"), bare), 0, round(255 * opacity)).astype(np.uint8)
    return Image.composite(above, below, Image.fromarray(cover))


def entropy(marginals: Array) -> npt.NDArray[np.float32]:
    """Uncertainty of each pixel, H(p) / log K in [0, 1], from marginals (K, height, width).

    >>> entropy(torch.tensor([[[0.5, 1.0]], [[0.5, 0.0]]]))
    array([[1., 0.]], dtype=float32)
    """
    p = as_marginals(marginals)
    share = torch.special.entr(p).sum(dim=0) / np.log(max(p.shape[0], 2))  # (height, width)
    values: npt.NDArray[np.float32] = share.clamp(0, 1).float().cpu().numpy()
    return values


def ramp_picture(values: npt.NDArray[np.floating]) -> Image.Image:
    """Values in [0, 1] as colours of `RAMP`."""
    stops = np.linspace(0, 1, len(RAMP))
    channels = [np.interp(values, stops, [colour[c] for colour in RAMP]) for c in range(3)]
    return Image.fromarray(np.rint(np.stack(channels, axis=-1)).astype(np.uint8))


def entropy_picture(marginals: Array) -> Image.Image:
    """Where the model is unsure: black is certain, pale is a guess among all classes."""
    return ramp_picture(entropy(marginals))


def as_picture(image: Array | Image.Image) -> Image.Image:
    """An RGB picture from a picture of any mode or from uint8 values (height, width, 3)."""
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    values = image.detach().cpu().numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    if values.dtype != np.uint8 or values.ndim != 3 or values.shape[2] != 3:
        raise InputError(
            f"an image must be uint8 (height, width, 3), not {values.dtype} {values.shape}; "
            "undo its normalisation"
        )
    return Image.fromarray(values)


def save_palette_png(mask: Array, classes: Classes, path: str | Path) -> Path:
    """Stores a mask as palette PNG, as PASCAL VOC and its evaluation server expect; never half a file."""
    return save_png(palette_image(mask, classes), path)


def save_png(picture: Image.Image, path: str | Path) -> Path:
    """Stores a picture as PNG, whatever its name ends in; never half a file."""
    return write_atomically(path, png_bytes(picture))


def png_bytes(picture: Image.Image) -> bytes:
    """The picture as a PNG file's content."""
    content = io.BytesIO()
    picture.save(content, format="PNG", optimize=True)
    return content.getvalue()


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
