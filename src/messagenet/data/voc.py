"""PASCAL VOC segmentation (Everingham et al., IJCV 2010), SBD (Hariharan et al., ICCV 2011), and `train_aug` of both.

    VOC2012/JPEGImages/ID.jpg                                   20 classes and background
    VOC2012/SegmentationClass/ID.png                            palette PNGs, 255 for void
    VOC2012/SegmentationClassAug/ID.png                         masks converted from SBD; official ones take precedence
    VOC2012/ImageSets/Segmentation/{train,val,trainval,trainaug,test}.txt
    dataset/img/ID.jpg                                          SBD: 11,355 VOC images
    dataset/cls/ID.mat                                          GTcls.Segmentation, VOC ids, no void
    dataset/{train,val}.txt

The augmented training set of the literature has VOC's own mask wherever there is one:

    train_aug = (VOC train ∪ SBD train ∪ SBD val) − VOC val        10,582 images
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np

from messagenet.data.classes import VOC_CLASSES, VOID, Classes
from messagenet.data.dataset import ConcatData, FilePair, PairedFiles, Subset
from messagenet.data.images import RawMask, read_bytes
from messagenet.errors import InputError, nearest
from messagenet.settings import register

LISTS = Path("ImageSets") / "Segmentation"
MASK_FOLDERS = ("SegmentationClass", "SegmentationClassAug")
TRAIN_AUG = ("trainaug", "train_aug")
SBD_SPLITS = {"train": ("train",), "val": ("val",), "trainval": ("train", "val")}


class _ListedFiles(PairedFiles):
    """The images of a list in a folder of VOC or SBD."""

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        void_values: Sequence[int] = (VOID,),
        classes: Classes = VOC_CLASSES,
    ) -> None:
        name, pairs = self.find_pairs(Path(root), split)
        super().__init__(name, classes, pairs, void_values)

    def find_pairs(self, root: Path, split: str) -> tuple[str, list[FilePair]]:
        """The name of the data set, and its files."""
        raise NotImplementedError


class VocData(_ListedFiles):
    """A list of a VOC devkit (`root`, or up to two levels below it); the samples of `test` have no masks."""

    def find_pairs(self, root: Path, split: str) -> tuple[str, list[FilePair]]:
        """The name of the data set, and its files."""
        root = find_devkit(root)
        masks = {path.stem: path for folder in reversed(MASK_FOLDERS) for path in (root / folder).glob("*.png")}
        folder = next((name for name in MASK_FOLDERS if (root / name).is_dir()), MASK_FOLDERS[0])
        pairs = []
        for name in read_list(root, split):
            missing = None if split == "test" else root / folder / f"{name}.png"
            pairs.append(FilePair(name, root / "JPEGImages" / f"{name}.jpg", masks.get(name, missing)))
        return f"{root.name} {split}", pairs


def find_devkit(root: Path) -> Path:
    """The folder with `JPEGImages` and `ImageSets/Segmentation`: `root`, or one up to two levels below it."""
    if _is_devkit(root):
        return root
    below = _folders(root)
    found = [folder for folder in (*below, *itertools.chain(*map(_folders, below))) if _is_devkit(folder)]
    if not found:
        raise InputError(f"{root} holds no VOC devkit; give the folder with JPEGImages/ and {LISTS.as_posix()}/")
    chosen = found if len(found) == 1 else [folder for folder in found if folder.name == "VOC2012"]
    if len(chosen) != 1:
        raise InputError(f"{root} holds {len(found)} VOC devkits; give one of {', '.join(map(str, found))}")
    return chosen[0]


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    with os.scandir(root) as entries:  # no `stat` per file
        return sorted(Path(entry.path) for entry in entries if entry.is_dir())


def _is_devkit(folder: Path) -> bool:
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


@register("data", "sbd")
class SbdData(_ListedFiles):
    """One split of SBD, `train`, `val` or `trainval`: `sbd:DIR`.

    Args:
        root: The `dataset` folder, or `benchmark_RELEASE`, or the folder that contains it.
        split: The list of the release; `trainval` is both.
        void_values: Mask values that mean "not labelled", besides 255.
        classes: The class list.
    """

    def find_pairs(self, root: Path, split: str) -> tuple[str, list[FilePair]]:
        """The name of the data set, and its files."""
        try:
            import scipy.io  # noqa: F401
        except ImportError:
            raise InputError("SBD's .mat masks need SciPy; run `pip install scipy`") from None
        root = find_sbd(root)
        if split not in SBD_SPLITS:
            raise InputError(f'there is no split "{split}" of SBD; {nearest(split, SBD_SPLITS)}')
        names: list[str] = []
        for file in (root / f"{part}.txt" for part in SBD_SPLITS[split]):
            try:
                names += file.read_text().split()
            except OSError as error:
                raise InputError(f"cannot read {file}: {error.strerror or error}; extract SBD again") from None
        pairs = [FilePair(n, root / "img" / f"{n}.jpg", root / "cls" / f"{n}.mat") for n in dict.fromkeys(names)]
        return f"SBD {split}", pairs

    def read_raw_mask(self, path: Path) -> RawMask:
        """The `GTcls.Segmentation` array of a `.mat` file."""
        from scipy.io import loadmat

        data = BytesIO(read_bytes(path))
        try:
            content = loadmat(data, variable_names=["GTcls"], squeeze_me=True, struct_as_record=False)
            return np.asarray(content["GTcls"].Segmentation).astype(np.uint8)
        except Exception as error:  # a damaged file can fail anywhere in the parser
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{path} is not an SBD mask ({reason}); extract it from the release again") from error


def train_aug(
    voc_root: str | Path, sbd_root: str | Path, void_values: Sequence[int] = (VOID,), classes: Classes = VOC_CLASSES
) -> ConcatData:
    """VOC's augmented training set from the two releases: VOC's images first, then those only SBD has."""
    voc = VocData(voc_root, "train", void_values, classes)
    sbd = SbdData(sbd_root, "trainval", void_values, classes)
    excluded = {pair.name for pair in (*voc.pairs, *VocData(voc_root, "val").pairs)}
    added = [index for index, pair in enumerate(sbd.pairs) if pair.name not in excluded]
    return ConcatData([voc, Subset(sbd, added)], f"{voc.name}_aug")


@register("data", "voc")
def open_voc(
    location: str, *, split: str = "train", classes: Classes = VOC_CLASSES, void_values: Sequence[int] = (VOID,)
) -> VocData | ConcatData:
    """A split of a PASCAL VOC devkit: `voc:DIR`, or `voc:DIR,SBD_DIR` for `trainaug` made from both releases."""
    voc, _, sbd = (location, "", "") if Path(location).is_dir() else location.partition(",")
    if split not in TRAIN_AUG:
        return VocData(voc, split, void_values, classes)
    if sbd:
        return train_aug(voc, sbd, void_values, classes)
    lists = find_devkit(Path(voc)) / LISTS
    if listed := next((name for name in TRAIN_AUG if (lists / f"{name}.txt").is_file()), None):
        return VocData(voc, listed, void_values, classes)
    raise InputError(f"{lists} has no trainaug.txt; give SBD as well: voc:{voc},SBD_DIR")


def find_sbd(root: Path) -> Path:
    """The folder with `img` and `cls`: `root`, or a `dataset` folder below it."""
    for folder in (root, root / "dataset", root / "benchmark_RELEASE" / "dataset"):
        if (folder / "img").is_dir() and (folder / "cls").is_dir():
            return folder
    raise InputError(f"{root} holds no SBD; give the folder with img/, cls/ and train.txt")
