"""PASCAL VOC segmentation in its devkit's layout (Everingham et al., IJCV 2010): 20 classes and background.

    VOC2012/JPEGImages/ID.jpg
    VOC2012/SegmentationClass/ID.png
    VOC2012/SegmentationClassAug/ID.png
    VOC2012/ImageSets/Segmentation/{train,val,trainval,trainaug,test}.txt

Masks are palette PNGs with 255 for void. `SegmentationClassAug` is where masks converted from SBD are kept;
an official mask goes before a converted one.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from messagenet.data.classes import VOC_CLASSES, VOID, Classes
from messagenet.data.dataset import FilePair, PairedFiles
from messagenet.errors import InputError, nearest

LISTS = Path("ImageSets") / "Segmentation"
MASK_FOLDERS = ("SegmentationClass", "SegmentationClassAug")
UNLABELLED = ("test",)


class VocData(PairedFiles):
    """One split of a VOC devkit.

    Args:
        root: The devkit's `VOC2012` folder, or the `VOCdevkit` folder or any folder around it.
        split: The name of a list in `ImageSets/Segmentation`. The samples of `test` have no masks.
        void_values: Mask values that mean "not labelled", besides 255.
        classes: Another class list, for data of one's own in this layout.
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        void_values: Sequence[int] = (VOID,),
        classes: Classes = VOC_CLASSES,
    ) -> None:
        root = find_devkit(Path(root))
        masks = {
            path.stem: path for folder in reversed(MASK_FOLDERS) for path in (root / folder).glob("*.png")
        }
        folder = next((name for name in MASK_FOLDERS if (root / name).is_dir()), MASK_FOLDERS[0])
        pairs = []
        for name in read_list(root, split):
            missing = None if split in UNLABELLED else root / folder / f"{name}.png"
            pairs.append(FilePair(name, root / "JPEGImages" / f"{name}.jpg", masks.get(name, missing)))
        super().__init__(f"{root.name} {split}", classes, pairs, void_values)


def find_devkit(root: Path) -> Path:
    """The folder with `JPEGImages` and `ImageSets/Segmentation`, at `root` or up to two folders below it."""
    if is_devkit(root):
        return root
    below = _folders(root)
    found = [folder for folder in (*below, *itertools.chain(*map(_folders, below))) if is_devkit(folder)]
    if not found:
        raise InputError(
            f"{root} holds no VOC devkit; give the folder with JPEGImages/ and {LISTS.as_posix()}/"
        )
    if len(found) > 1:
        newest = [folder for folder in found if folder.name == "VOC2012"]
        if len(newest) != 1:
            raise InputError(
                f"{root} holds {len(found)} VOC devkits; give one of {', '.join(map(str, found))}"
            )
        return newest[0]
    return found[0]


def _folders(root: Path) -> list[Path]:
    """The folders in a folder; quick where there are very many files."""
    if not root.is_dir():
        return []
    with os.scandir(root) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir())


def is_devkit(folder: Path) -> bool:
    """Whether a folder is laid out as a VOC year."""
    return (folder / "JPEGImages").is_dir() and (folder / LISTS).is_dir()


def read_list(root: Path, split: str) -> list[str]:
    """The image names of a split, in the order of its list."""
    file = root / LISTS / f"{split}.txt"
    if not file.is_file():
        have = [path.stem for path in (root / LISTS).glob("*.txt")]
        hint = nearest(split, have) if have else "the folder has no lists"
        raise InputError(f'there is no split "{split}" in {root / LISTS}; {hint}')
    names = [line.split()[0] for line in file.read_text().splitlines() if line.strip()]
    if not names:
        raise InputError(f"{file} is empty; restore it from the devkit")
    return names
