"""Small files and folders the tests of this package read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from messagenet.data import VOC_CLASSES

SaveMask = Callable[..., Path]


@pytest.fixture
def save_mask() -> SaveMask:
    """Writes ids as a palette PNG (or another mode) and returns the path."""

    def save(path: Path, ids: object, mode: str = "P") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        array = np.asarray(ids, np.uint16 if mode == "I;16" else np.uint8)
        image = Image.fromarray(array)
        if mode == "P":
            image.putpalette(VOC_CLASSES.palette())
        image.save(path)
        return path

    return save


@pytest.fixture
def save_image() -> Callable[..., Path]:
    """Writes a flat colour image and returns the path."""

    def save(path: Path, size: tuple[int, int] = (6, 4), colour: tuple[int, int, int] = (90, 120, 30)) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, colour).save(path)
        return path

    return save


@pytest.fixture
def folder(tmp_path: Path, save_image: Callable[..., Path], save_mask: SaveMask) -> Path:
    """Ten images of 6x4 pixels with masks of classes 0..2 and void, and a class list."""
    root = tmp_path / "data"
    ids = np.array([[0, 0, 1, 1, 2, 2]] * 3 + [[255] * 6])
    for index in range(10):
        save_image(root / "images" / f"{index}.jpg")
        save_mask(root / "masks" / f"{index}.png", np.roll(ids, index, axis=1))
    (root / "classes.txt").write_text("background\nroad\nsky\n")
    return root


@pytest.fixture
def devkit(tmp_path: Path, save_image: Callable[..., Path], save_mask: SaveMask) -> Path:
    """A VOC devkit with 3 train, 2 val and 1 test images; returns the VOC2012 folder."""
    root = tmp_path / "VOCdevkit" / "VOC2012"
    splits = {"train": ["a", "b", "c"], "val": ["d", "e"], "test": ["t"]}
    for split, names in splits.items():
        listed = root / "ImageSets" / "Segmentation" / f"{split}.txt"
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text("\n".join(names) + "\n")
        for name in names:
            save_image(root / "JPEGImages" / f"{name}.jpg")
            if split != "test":
                save_mask(root / "SegmentationClass" / f"{name}.png", np.full((4, 6), 12))
    return root


@pytest.fixture
def sbd(tmp_path: Path, save_image: Callable[..., Path]) -> Path:
    """An SBD release: train holds a (also VOC train), d (VOC val) and x; val holds e (VOC val) and y."""
    scipy_io = pytest.importorskip("scipy.io")
    root = tmp_path / "benchmark_RELEASE" / "dataset"
    (root / "cls").mkdir(parents=True)
    for split, names in {"train": ["a", "d", "x"], "val": ["e", "y"]}.items():
        (root / f"{split}.txt").write_text("\n".join(names) + "\n")
        for name in names:
            save_image(root / "img" / f"{name}.jpg")
            ids = np.full((4, 6), 8, np.uint8)
            scipy_io.savemat(root / "cls" / f"{name}.mat", {"GTcls": {"Segmentation": ids, "Boundaries": ids}})
    return root
