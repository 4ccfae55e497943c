"""Photographs that are free for everyone: a cat and an astronaut, which scikit-image carries in its package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGE = "scikit-image"
NAMES = ("chelsea.png", "astronaut.png")


def photographs() -> list[Path]:
    """The files, without loading the package; none where it is not installed."""
    package = find_spec("skimage")
    if package is None or package.origin is None:
        return []
    folder = Path(package.origin).parent / "data"
    return [folder / name for name in NAMES if (folder / name).is_file()]
