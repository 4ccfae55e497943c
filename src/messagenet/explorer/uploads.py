"""Uploaded bytes to a checked RGB picture.

The file's name and declared type are ignored: what counts is what it decodes to, under one of `FORMATS` and no other,
so a file that is several things at once is only ever pixels. The size is taken from the header, and refused there if
it is too large, before any memory is set aside for pixels. The result is what `messagenet.data.read_image` gives for
the same file, reduced if its longer edge is above the limit.

The form of `POST /segment`: one file or the key of one, and a few short fields.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import python_multipart  # noqa: F401 (what parses forms; if it is missing, better now than at the first request)
from PIL import Image, ImageOps, UnidentifiedImageError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from messagenet.data.images import DECODER_ERRORS, ImageArray
from messagenet.errors import InputError, nearest
from messagenet.explorer import Limits

FORMATS = ("JPEG", "PNG", "WEBP", "GIF")


@dataclass(frozen=True, eq=False)
class Picture:
    """An image that was sent.

    Attributes:
        key: What later requests call it, a hash of the file.
        pixels: Upright RGB, (H, W, 3).
    """

    key: str
    pixels: ImageArray

    @property
    def size(self) -> tuple[int, int]:
        """(H, W)."""
        return self.pixels.shape[0], self.pixels.shape[1]

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return self.pixels.nbytes


def file_key(file: BinaryIO) -> str:
    """The hash of a file's content, 32 hexadecimal digits.

    >>> from io import BytesIO
    >>> file_key(BytesIO(b"pixels"))
    '6ec9c2b0eb14010746c8bce8939303b3'
    """
    digest = hashlib.sha256()
    file.seek(0)
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()[:32]


def decode(file: BinaryIO, limits: Limits) -> ImageArray:
    """Decodes an uploaded file to upright RGB, (H, W, 3), its longer edge at most `limits.side`."""
    try:
        return _decoded(file, limits)
    except InputError:
        raise
    except Image.DecompressionBombError:
        raise _too_large("far too many", limits) from None
    except UnidentifiedImageError:
        raise InputError(f"the file is no image that can be read here; send {_listed()}") from None
    except DECODER_ERRORS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"the image is damaged or incomplete ({reason}); save it again") from error


def _decoded(file: BinaryIO, limits: Limits) -> ImageArray:
    file.seek(0)
    if canvas := webp_canvas(file.read(30)):
        _check_size(canvas, limits)
    file.seek(0)
    picture = Image.open(file, formats=FORMATS)
    _check_size(picture.size, limits)
    if picture.format in ("JPEG", "MPO"):
        picture.draft(None, (limits.side, limits.side))  # decodes at a half, a quarter… where that is enough
    picture.load()
    ImageOps.exif_transpose(picture, in_place=True)
    rgb = _rgb(picture)
    rgb.thumbnail((limits.side, limits.side))
    return np.array(rgb)


def webp_canvas(head: bytes) -> tuple[int, int] | None:
    """(width, height) that the first 30 bytes of a WebP file declare: its decoder sets memory aside on opening.

    >>> webp_canvas(b"RIFF....WEBPVP8X" + bytes(8) + b"\\x0f\\x27\\x00" * 2)
    (10000, 10000)
    """
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP" or len(head) < 30:
        return None
    match head[12:16]:
        case b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case _:
            words = (int.from_bytes(head[place : place + 2], "little") & 0x3FFF for place in (26, 28))
            return next(words), next(words)


def _check_size(size: tuple[int, int], limits: Limits) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise InputError(f"the image has no pixels ({width}×{height}); save it again")
    if width * height > limits.pixels:
        raise _too_large(f"{width}×{height}", limits)


def _too_large(count: str, limits: Limits) -> InputError:
    return InputError(
        f"the image has {count} pixels, more than the {limits.pixels / 1e6:g} million allowed; scale it down first"
    )


def _rgb(picture: Image.Image) -> Image.Image:
    """As RGB: 16-bit grey scaled to 8 bits, whatever is transparent laid on white."""
    if picture.mode.startswith("I"):
        grey = np.asarray(picture).astype(np.int64).clip(0, 65535)
        return Image.fromarray(((grey * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    return picture.convert("RGB")


def _listed() -> str:
    return ", ".join(FORMATS[:-1]) + f" or {FORMATS[-1]}"


FIELDS = ("image", "key", "model", "iteration")


@dataclass(frozen=True)
class SegmentForm:
    """What was sent: either a file, which is closed after the request, or a key."""

    file: BinaryIO | None
    key: str | None
    model: str | None
    iteration: int | None


@asynccontextmanager
async def segment_form(request: Request, limits: Limits) -> AsyncIterator[SegmentForm]:
    """Reads the form; a file above 1 MB is on disk meanwhile, and gone afterwards."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise HTTPException(415, "send the image as multipart/form-data, in a field called image")
    try:
        form = await request.form(max_files=1, max_fields=len(FIELDS), max_part_size=limits.field_bytes)
    except HTTPException as error:
        if error.status_code != 400:
            raise
        raise InputError(
            f"the form cannot be read ({error.detail.rstrip('.')}); send one image and short fields"
        ) from None
    try:
        yield _checked(form)
    finally:
        await form.close()


def _checked(form: FormData) -> SegmentForm:
    for name in form:
        if name not in FIELDS:
            raise InputError(f"unknown field {name[:50]!r}; {nearest(name[:50], FIELDS)}")
    image = form.get("image")
    texts = {name: form.get(name) for name in FIELDS[1:]}
    if any(isinstance(value, UploadFile) for value in texts.values()):
        raise InputError("only the field image may be a file; send the others as text")
    if isinstance(image, str):
        raise InputError("the field image holds text; attach a file to it")
    key, model, iteration = (value if isinstance(value, str) else None for value in texts.values())
    if (image is None) == (key is None):
        raise InputError("send either a file in the field image or the key of one sent before")
    file = None if image is None else image.file
    return SegmentForm(file, key, model or None, _number(iteration))


def _number(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise InputError(f"iteration {text[:20]!r} is not a number; count from 0")
    return int(text)
