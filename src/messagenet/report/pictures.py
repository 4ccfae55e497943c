"""Label maps, overlays and uncertainty as pictures.

Labels take the colours of their class, void the void colour of the class list. Uncertainty is the entropy of
a pixel's marginals as a share of its largest possible value, H(p) / log K: 0 (black) is certain, 1 (pale) is
a guess among all classes.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from messagenet.data.classes import BACKGROUND, VOID, Classes
from messagenet.errors import InputError
from messagenet.evaluation.arrays import Array, as_labels, as_marginals
from messagenet.files import write_atomically

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
