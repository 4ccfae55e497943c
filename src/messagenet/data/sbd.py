"""The Semantic Boundaries Dataset, masks for 11,355 VOC images (Hariharan et al., ICCV 2011); `train_aug`.

    dataset/img/ID.jpg   dataset/cls/ID.mat (GTcls.Segmentation, VOC ids, no void)   dataset/{train,val}.txt

What the literature calls VOC's augmented training set is

    train_aug = (VOC train ∪ SBD train ∪ SBD val) − VOC val        10,582 images

with VOC's own mask wherever there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np

from messagenet.data.classes import VOC_CLASSES, VOID, Classes
from messagenet.data.dataset import FilePair, PairedFiles
from messagenet.data.images import RawMask, read_bytes
from messagenet.data.views import Joined, Subset
from messagenet.data.voc import VocData
from messagenet.errors import InputError, nearest

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
