"""PASCAL VOC segmentation in its devkit's layout (Everingham et al., IJCV 2010): 20 classes and background.

    VOC2012/JPEGImages/ID.jpg
    VOC2012/SegmentationClass/ID.png
    VOC2012/SegmentationClassAug/ID.png
    VOC2012/ImageSets/Segmentation/{train,val,trainval,trainaug,test}.txt

Masks are palette PNGs with 255 for void. `SegmentationClassAug` is where masks converted from SBD are kept;
an official mask goes before a converted one.

The Semantic Boundaries Dataset, masks for 11,355 VOC images (Hariharan et al., ICCV 2011); `train_aug`.

    dataset/img/ID.jpg   dataset/cls/ID.mat (GTcls.Segmentation, VOC ids, no void)   dataset/{train,val}.txt

What the literature calls VOC's augmented training set is

    train_aug = (VOC train ∪ SBD train ∪ SBD val) − VOC val        10,582 images

with VOC's own mask wherever there is one.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np

from messagenet.data.classes import VOC_CLASSES, VOID, Classes
from messagenet.data.dataset import FilePair, Joined, PairedFiles, Subset
from messagenet.data.images import RawMask, read_bytes
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


SPLITS = {"train": ("train",), "val": ("val",), "trainval": ("train", "val")}


class SbdData(PairedFiles):
    """One split of SBD: `train`, `val` or `trainval`.

    Args:
        root: The `dataset` folder, or `benchmark_RELEASE`, or the folder around it.
        split: Which of the release's lists; `trainval` is both.
        void_values: Mask values that mean "not labelled", besides 255.
        classes: What the ids mean.
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        void_values: Sequence[int] = (VOID,),
        classes: Classes = VOC_CLASSES,
    ) -> None:
        _require_scipy()
        root = find_sbd(Path(root))
        if split not in SPLITS:
            raise InputError(f'there is no split "{split}" of SBD; {nearest(split, SPLITS)}')
        names = [name for part in SPLITS[split] for name in _read_list(root / f"{part}.txt")]
        pairs = [
            FilePair(n, root / "img" / f"{n}.jpg", root / "cls" / f"{n}.mat") for n in dict.fromkeys(names)
        ]
        super().__init__(f"SBD {split}", classes, pairs, void_values)

    def read_raw_mask(self, path: Path) -> RawMask:
        """The ids in a `.mat` file."""
        return read_mat(path)


def train_aug(voc_root: str | Path, sbd_root: str | Path, void_values: Sequence[int] = (VOID,)) -> Joined:
    """VOC's augmented training set from the two releases: VOC's images first, then those only SBD has."""
    voc = VocData(voc_root, "train", void_values)
    sbd = SbdData(sbd_root, "trainval", void_values)
    taken = {pair.name for pair in (*voc.pairs, *VocData(voc_root, "val").pairs)}
    added = [index for index, pair in enumerate(sbd.pairs) if pair.name not in taken]
    return Joined([voc, Subset(sbd, added)], f"{voc.name}_aug")


def find_sbd(root: Path) -> Path:
    """The folder with `img` and `cls`, at `root` or in a `dataset` folder below it."""
    for folder in (root, root / "dataset", root / "benchmark_RELEASE" / "dataset"):
        if is_sbd(folder):
            return folder
    raise InputError(f"{root} holds no SBD; give the folder with img/, cls/ and train.txt")


def is_sbd(folder: Path) -> bool:
    """Whether a folder is laid out as SBD's `dataset`."""
    return (folder / "img").is_dir() and (folder / "cls").is_dir()


def read_mat(path: Path) -> RawMask:
    """The `GTcls.Segmentation` array of an SBD file."""
    _require_scipy()
    from scipy.io import loadmat

    data = BytesIO(read_bytes(path))
    try:
        content = loadmat(data, variable_names=["GTcls"], squeeze_me=True, struct_as_record=False)
        return np.asarray(content["GTcls"].Segmentation).astype(np.uint8)
    except Exception as error:  # a damaged file can fail anywhere in the parser
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{path} is not an SBD mask ({reason}); extract it from the release again"
        ) from error


def _require_scipy() -> None:
    try:
        import scipy.io  # noqa: F401
    except ImportError:
        raise InputError("SBD's .mat masks need SciPy; run `pip install scipy`") from None


def _read_list(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}; extract SBD again") from None
