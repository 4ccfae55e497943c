"""From an uploaded file to checked RGB pixels, and the form that carries it.

The file's name and declared type are ignored: it is decoded as one of `FORMATS`, or refused. Too many pixels, by the
header, are refused before memory is allocated. Pixels are those of `messagenet.data.read_image`, reduced to the limit.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import python_multipart  # noqa: F401 (parses forms; if it is missing, fail now and not at the first request)
from PIL import Image, ImageOps, UnidentifiedImageError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from messagenet.data.images import DECODER_ERRORS, ImageArray, to_rgb
from messagenet.errors import InputError, nearest
from messagenet.explorer import Limits

FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
FIELDS = ("image", "key", "model", "iteration")


@dataclass(frozen=True, eq=False)
class Upload:
    """A decoded image."""

    key: str  # hash of the file, by which later requests refer to it
    pixels: ImageArray  # upright RGB, (H, W, 3)

    @property
    def size(self) -> tuple[int, int]:
        """(H, W)."""
        return self.pixels.shape[0], self.pixels.shape[1]

    @property
    def nbytes(self) -> int:
        """Memory."""
        return self.pixels.nbytes


@dataclass(frozen=True)
class SegmentForm:
    """The fields of `POST /segment`: either a file, which is closed after the request, or a key."""

    file: BinaryIO | None
    key: str | None
    model: str | None
    iteration: int | None


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
    """Decodes an uploaded file to upright RGB, (H, W, 3), with a longer side of at most `limits.longest_side`."""
    try:
        return _decode(file, limits)
    except InputError:
        raise
    except Image.DecompressionBombError:
        raise _too_large("far too many", limits) from None
    except UnidentifiedImageError:
        formats = ", ".join(FORMATS[:-1]) + f" or {FORMATS[-1]}"
        raise InputError(f"the file is not a readable image; send {formats}") from None
    except DECODER_ERRORS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"the image is damaged or incomplete ({reason}); save it again") from error


def webp_size(head: bytes) -> tuple[int, int] | None:
    """(width, height) from the first 30 bytes of a WebP file; its decoder allocates memory as soon as it is opened.

    >>> webp_size(b"RIFF....WEBPVP8X" + bytes(8) + b"\\x0f\\x27\\x00" * 2)
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
            words = (int.from_bytes(head[start : start + 2], "little") & 0x3FFF for start in (26, 28))
            return next(words), next(words)


@asynccontextmanager
async def read_segment_form(request: Request, limits: Limits) -> AsyncIterator[SegmentForm]:
    """Reads the form; a file above 1 MB is on disk until the request is answered."""
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
        yield _check_form(form)
    finally:
        await form.close()


def _decode(file: BinaryIO, limits: Limits) -> ImageArray:
    file.seek(0)
    if size := webp_size(file.read(30)):
        _check_size(size, limits)
    file.seek(0)
    image = Image.open(file, formats=FORMATS)
    _check_size(image.size, limits)
    bound = (limits.longest_side, limits.longest_side)
    if image.format in ("JPEG", "MPO"):
        image.draft(None, bound)  # decodes at a half, a quarter… where that is enough
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    rgb = Image.fromarray(to_rgb(image, "the image"))
    rgb.thumbnail(bound)
    return np.array(rgb)


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


def _check_form(form: FormData) -> SegmentForm:
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
    if iteration and not (iteration.isascii() and iteration.isdecimal() and len(iteration) <= 9):
        raise InputError(f"iteration {iteration[:20]!r} is not a number; count from 0")
    file = None if image is None else image.file
    return SegmentForm(file, key, model or None, int(iteration) if iteration else None)
