"""The page's own files, read once from the package: what is not among them cannot be asked for."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import PurePath
from typing import NamedTuple

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    """A file of the page."""

    content: bytes
    media_type: str
    tag: str


def page_files() -> dict[str, PageFile]:
    """The files of the page by name."""
    found = {}
    for entry in (files("messagenet.serving") / "page").iterdir():
        if entry.is_file() and (media_type := MEDIA_TYPES.get(PurePath(entry.name).suffix)):
            content = entry.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[entry.name] = PageFile(content, media_type, tag)
    return found
