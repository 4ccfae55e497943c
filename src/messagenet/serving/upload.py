"""The form of `POST /segment`: one file or the key of one, and a few short fields."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO

import python_multipart  # noqa: F401 (what parses forms; if it is missing, better now than at the first request)
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from messagenet.errors import InputError, nearest
from messagenet.serving.limits import Limits

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
