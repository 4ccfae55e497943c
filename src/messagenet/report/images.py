"""Images of labels and of uncertainty, and sheets of images.

Labels have the colours of their classes. Uncertainty is the normalised entropy of a pixel's marginals,

    H(p) / log K = − Σ_k p(k) log p(k) / log K   ∈ [0, 1],

from black (certain) to pale (uniform over the classes).
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

from messagenet.data import SegmentationData
from messagenet.data.classes import BACKGROUND, VOID, Classes
from messagenet.errors import InputError, write_atomically
from messagenet.evaluation.confusion import Array, label_array, marginals_tensor

# Lightness grows with the value, so the ramp reads without colour vision.
RAMP = ((0, 0, 4), (59, 15, 112), (140, 41, 129), (222, 73, 104), (254, 159, 109), (252, 253, 191))
SHEET_MARGIN, SHEET_GAP, SWATCH = 20, 10, 14
USUAL_SIDE, MAX_SIDE, MAX_ENLARGEMENT = 224, 360, 4
TITLE_HEIGHT, CAPTION_HEIGHT = 28, 18
TEXT_COLOUR, SHEET_COLOUR, BORDER_COLOUR = (31, 41, 51), (255, 255, 255), (200, 204, 209)
EMPTY_COLOUR, ERROR_COLOUR = (235, 235, 235), (190, 30, 30)

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def palette_image(mask: Array, classes: Classes) -> Image.Image:
    """A palette image whose values are the labels, the usual format of stored masks, from (height, width)."""
    labels = label_array(mask, "mask")
    if labels.ndim != 2:
        raise InputError(f"a mask must be (height, width), not {labels.shape}; pass one image at a time")
    wrong = labels[(labels != VOID) & ((labels < 0) | (labels >= classes.num_classes))]
    if wrong.size:
        raise InputError(
            f"the mask holds label {wrong[0]}, outside 0…{classes.num_classes - 1} (void is {VOID}); "
            "use the classes the mask was made with"
        )
    image = Image.fromarray(labels.astype(np.uint8))
    image.putpalette(classes.palette())
    return image


def colourise(mask: Array, classes: Classes) -> Image.Image:
    """Each label in the colour of its class, as RGB.

    >>> colourise(np.array([[0, 1, 255]]), Classes(("background", "cat"))).getpixel((1, 0))
    (128, 0, 0)
    """
    return palette_image(mask, classes).convert("RGB")


def overlay(image: Array | Image.Image, mask: Array, classes: Classes, opacity: float = 0.6) -> Image.Image:
    """The mask's colours over its image. Void pixels and a class called "background" stay transparent."""
    if not 0 <= opacity <= 1:
        raise InputError(f"opacity is {opacity}; choose a value from 0 (image alone) to 1 (labels alone)")
    below, above = as_image(image), colourise(mask, classes)
    if below.size != above.size:
        raise InputError(f"image {below.size} and mask {above.size} differ in size; resize the mask first")
    transparent = [VOID, *(label for label, name in enumerate(classes.names) if name == BACKGROUND)]
    is_transparent = np.isin(label_array(mask, "mask"), transparent)
    alpha = np.where(is_transparent, 0, round(255 * opacity)).astype(np.uint8)
    return Image.composite(above, below, Image.fromarray(alpha))


def entropy(marginals: Array) -> npt.NDArray[np.float32]:
    """Normalised entropy H(p) / log K of each pixel, (height, width), from marginals (K, height, width).

    >>> entropy(torch.tensor([[[0.5, 1.0]], [[0.5, 0.0]]]))
    array([[1., 0.]], dtype=float32)
    """
    p = marginals_tensor(marginals)
    normalised = torch.special.entr(p).sum(dim=0) / np.log(max(p.shape[0], 2))  # (height, width)
    values: npt.NDArray[np.float32] = normalised.clamp(0, 1).float().cpu().numpy()
    return values


def entropy_image(marginals: Array) -> Image.Image:
    """The normalised entropy of marginals (K, height, width) in the colours of `RAMP`."""
    return ramp_image(entropy(marginals))


def ramp_image(values: npt.NDArray[np.floating]) -> Image.Image:
    """Values in [0, 1] of shape (height, width) in the colours of `RAMP`."""
    stops = np.linspace(0, 1, len(RAMP))
    channels = [np.interp(values, stops, [colour[c] for colour in RAMP]) for c in range(3)]
    return Image.fromarray(np.rint(np.stack(channels, axis=-1)).astype(np.uint8))


def as_image(image: Array | Image.Image) -> Image.Image:
    """An RGB image from a PIL image of any mode or from uint8 values (height, width, 3)."""
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    values = image.detach().cpu().numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    if values.dtype != np.uint8 or values.ndim != 3 or values.shape[2] != 3:
        raise InputError(
            f"an image must be uint8 (height, width, 3), not {values.dtype} {values.shape}; undo its normalisation"
        )
    return Image.fromarray(values)


def save_png(image: Image.Image, path: str | Path) -> Path:
    """Saves an image as PNG, whatever the suffix of its path; never leaves half a file."""
    return write_atomically(path, png_bytes(image))


def png_bytes(image: Image.Image) -> bytes:
    """The image encoded as PNG."""
    content = io.BytesIO()
    image.save(content, format="PNG", optimize=True)
    return content.getvalue()


def image_sheet(
    rows: Sequence[Sequence[Array | Image.Image]], column_titles: Sequence[str], classes: Classes
) -> Image.Image:
    """Rows of images under column titles, with a legend of the classes that occur.

    Integer arrays (height, width) are label maps; uint8 (height, width, 3) and PIL images are shown as they are. A row
    is drawn at the size of its first image. Small images are enlarged by an integer factor without interpolation.
    """
    if not rows or not column_titles or any(len(row) != len(column_titles) for row in rows):
        raise InputError("an image sheet needs as many images in each row as there are column titles")
    cells = [[_cell_image(cell, classes) for cell in row] for row in rows]
    label_maps = [np.asarray(cell).ravel() for row in cells for cell in row if cell.mode == "P"]
    present = np.unique(np.concatenate(label_maps)).tolist() if label_maps else []
    longest = max(side for row in cells for side in row[0].size)
    enlargement = min(MAX_ENLARGEMENT, max(1, round(USUAL_SIDE / longest)))
    scale = MAX_SIDE / longest if longest > MAX_SIDE else enlargement
    sizes = [tuple(max(1, round(side * scale)) for side in row[0].size) for row in cells]
    width = max(size[0] for size in sizes)
    lefts = [SHEET_MARGIN + column * (width + SHEET_GAP) for column in range(len(column_titles))]
    inner = lefts[-1] + width - SHEET_MARGIN
    legend = legend_image(present, classes, inner, ImageFont.load_default(size=14)) if present else None
    top = SHEET_MARGIN + TITLE_HEIGHT
    bottom = top + sum(size[1] + SHEET_GAP for size in sizes) - SHEET_GAP
    legend_top = bottom + SHEET_GAP + 4
    height = (legend_top + legend.height if legend else bottom + 4) + SHEET_MARGIN
    sheet = Image.new("RGB", (inner + 2 * SHEET_MARGIN, height), SHEET_COLOUR)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=16)
    for left, title in zip(lefts, column_titles, strict=True):
        text, centre = truncate_text(title, width, font), (left + width / 2, SHEET_MARGIN + 10)
        draw.text(centre, text, fill=TEXT_COLOUR, font=font, anchor="mm")
    for row, (w, h) in zip(cells, sizes, strict=True):
        for left, cell in zip(lefts, row, strict=True):
            smooth = scale < 1 and cell.mode == "RGB"
            resized = cell.resize((w, h), Image.Resampling.LANCZOS if smooth else Image.Resampling.NEAREST)
            x = left + (width - w) // 2
            sheet.paste(resized.convert("RGB"), (x, top))
            draw.rectangle((x - 1, top - 1, x + w, top + h), outline=BORDER_COLOUR)
        top += h + SHEET_GAP
    if legend:
        sheet.paste(legend, (SHEET_MARGIN, legend_top))
    return sheet


def contact_sheet(
    data: SegmentationData, count: int = 24, columns: int = 6, cell: int = 200, opacity: float = 0.5
) -> Image.Image:
    """Samples spread evenly over a data set, masks as overlays; an unreadable one is an empty cell with a note."""
    if len(data) == 0:
        raise InputError(f"{data.name} has no samples to show; check its split")
    count = min(count, len(data))
    columns = min(columns, count)
    step, row_height = cell + SHEET_GAP, cell + CAPTION_HEIGHT + SHEET_GAP
    font = ImageFont.load_default(12)
    legend = legend_image(range(data.classes.num_classes), data.classes, columns * step - SHEET_GAP, font)
    legend_top = math.ceil(count / columns) * row_height + SHEET_GAP
    size = (columns * step + SHEET_GAP, legend_top + legend.height + SHEET_GAP)
    sheet = Image.new("RGB", size, SHEET_COLOUR)
    draw = ImageDraw.Draw(sheet)
    for position in range(count):
        index = position * len(data) // count
        row, column = divmod(position, columns)
        left, top = SHEET_GAP + column * step, SHEET_GAP + row * row_height
        image = _thumbnail(data, index, cell, opacity)
        draw.rectangle((left, top, left + cell - 1, top + cell - 1), fill=EMPTY_COLOUR)
        sheet.paste(image, (left + (cell - image.width) // 2, top + (cell - image.height) // 2))
        name = truncate_text(data.sample_name(index), cell, font)
        draw.text((left, top + cell + 2), name, fill=TEXT_COLOUR, font=font)
    sheet.paste(legend, (SHEET_GAP, legend_top))
    return sheet


def legend_image(labels: Sequence[int], classes: Classes, width: int, font: Font) -> Image.Image:
    """Colours and names of the classes, wrapped at `width` pixels."""
    line_height, between, pad = 24, 18, 7
    entries, x, line = [], 0, 0
    for label in labels:
        void = label == VOID
        name = truncate_text("void" if void else classes.names[label], width - SWATCH - pad, font)
        extent = SWATCH + pad + round(font.getlength(name))
        if x and x + extent > width:
            x, line = 0, line + 1
        entries.append((x, line * line_height, name, classes.void_colour if void else classes.colours[label]))
        x += extent + between
    legend = Image.new("RGB", (width, (line + 1) * line_height), SHEET_COLOUR)
    draw = ImageDraw.Draw(legend)
    for left, top, name, colour in entries:
        box = (left, top + 5, left + SWATCH - 1, top + 4 + SWATCH)
        draw.rounded_rectangle(box, radius=3, fill=colour, outline=BORDER_COLOUR)
        draw.text((left + SWATCH + pad, top + 12), name, fill=TEXT_COLOUR, font=font, anchor="lm")
    return legend


def truncate_text(text: str, width: int, font: Font) -> str:
    """The text, cut with an ellipsis if it is wider than `width` pixels."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"


def _cell_image(cell: Array | Image.Image, classes: Classes) -> Image.Image:
    return as_image(cell) if isinstance(cell, Image.Image) or cell.ndim != 2 else palette_image(cell, classes)


def _thumbnail(data: SegmentationData, index: int, cell: int, opacity: float) -> Image.Image:
    try:
        sample = data[index]
    except InputError:
        image = Image.new("RGB", (cell, cell), EMPTY_COLOUR)
        ImageDraw.Draw(image).text((SHEET_GAP, SHEET_GAP), "cannot be read", fill=ERROR_COLOUR)
        return image
    image = as_image(sample.image)
    if sample.mask is not None:
        image = overlay(image, sample.mask, data.classes, opacity)
    scale = cell / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    return image.resize((width, height), Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BILINEAR)
