"""The images on offer: those directly in a folder, or free photographs and synthetic scenes.

Only names that were listed at the start are served. A file that by then leads out of the folder is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from messagenet.data import SyntheticScenes
from messagenet.data.photographs import photographs
from messagenet.errors import InputError
from messagenet.report import png_bytes

MEDIA_TYPES = {
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
}
SCENES, SCENE_SIZE = 4, 256


class Sample(NamedTuple):
    """An image on offer: how to get its content, which may be gone, and what kind of file it is."""

    content: Callable[[], bytes | None]
    media_type: str


Samples = Mapping[str, Sample]


def open_samples(folder: Path | None) -> Samples:
    """The images of a folder by name; photographs, where they are installed, and scenes if there is no folder."""
    return {**free_photographs(), **scenes()} if folder is None else folder_samples(folder)


def free_photographs() -> Samples:
    """Those of `messagenet.data.photographs`."""
    return {
        path.name: Sample(partial(_content, path, path.parent.resolve()), MEDIA_TYPES[path.suffix])
        for path in photographs()
    }


def scenes() -> Samples:
    """A few synthetic scenes, in memory."""
    images = [sample.image for sample in SyntheticScenes(SCENES, SCENE_SIZE, split="test")]
    contents = [png_bytes(Image.fromarray(image)) for image in images]
    return {
        f"scene-{number}.png": Sample(partial(bytes, content), MEDIA_TYPES[".png"])
        for number, content in enumerate(contents, start=1)
    }


def folder_samples(folder: Path) -> Samples:
    """The images directly in a folder, hidden files, names that are no text and links out of it left aside."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; give a folder of images with --samples")
    home = folder.resolve()
    names = sorted(
        path.name
        for path in home.iterdir()
        if path.suffix.lower() in MEDIA_TYPES
        and not path.name.startswith(".")
        and not _undecodable(path.name)
        and inside(path, home)
    )
    if not names:
        raise InputError(
            f"there are no images in {folder}; it needs files that end in {' '.join(MEDIA_TYPES)}"
        )
    return {
        name: Sample(partial(_content, home / name, home), MEDIA_TYPES[Path(name).suffix.lower()])
        for name in names
    }


def _undecodable(name: str) -> bool:
    """Whether a file name holds bytes that are no UTF-8, which JSON cannot say."""
    return any("\ud800" <= character <= "\udfff" for character in name)


def inside(path: Path, home: Path) -> bool:
    """Whether a path leads to a file directly in a folder, links followed."""
    return path.is_file() and path.resolve().parent == home


def _content(path: Path, home: Path) -> bytes | None:
    try:
        return path.read_bytes() if inside(path, home) else None
    except OSError:
        return None
