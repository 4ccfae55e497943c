from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from messagenet.data import VOC_CLASSES, VOID, ClassSubset, SbdData, VocData
from messagenet.data.voc import train_aug
from messagenet.errors import InputError

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "voc2012-animals"
ANIMALS = ["background", "cat", "cow", "dog", "horse", "person", "sheep"]


def test_splits(devkit: Path) -> None:
    train, val = VocData(devkit), VocData(devkit, "val")
    assert [sample.name for sample in train] == ["a", "b", "c"]
    assert [sample.name for sample in val] == ["d", "e"]
    assert train.classes == VOC_CLASSES
    assert (train[0].mask == 12).all()


def test_test_split_has_no_masks(devkit: Path) -> None:
    assert VocData(devkit, "test")[0].mask is None


def test_root_may_be_any_folder_around_it(devkit: Path) -> None:
    for root in (devkit, devkit.parent, devkit.parent.parent):
        assert len(VocData(root)) == 3


def test_two_years(devkit: Path) -> None:
    other = devkit.parent / "VOC2007"
    for folder in ("JPEGImages", "ImageSets/Segmentation"):
        (other / folder).mkdir(parents=True)
    assert len(VocData(devkit.parent)) == 3
    devkit.rename(devkit.parent / "VOC2010")
    with pytest.raises(InputError, match=r"holds 2 VOC devkits; give one of .*VOC2007.*VOC2010"):
        VocData(devkit.parent)


def test_official_masks_go_before_converted_ones(devkit: Path, save_mask: Callable[..., Path]) -> None:
    save_mask(devkit / "SegmentationClassAug" / "a.png", np.full((4, 6), 8))
    save_mask(devkit / "SegmentationClassAug" / "z.png", np.full((4, 6), 8))
    (devkit / "ImageSets" / "Segmentation" / "trainaug.txt").write_text("a\nz\n")
    (devkit / "JPEGImages" / "z.jpg").write_bytes((devkit / "JPEGImages" / "a.jpg").read_bytes())
    data = VocData(devkit, "trainaug")
    assert [int(sample.mask[0, 0]) for sample in data] == [12, 8]


def test_missing_files_are_named_when_read(devkit: Path) -> None:
    (devkit / "SegmentationClass" / "b.png").unlink()
    (devkit / "JPEGImages" / "c.jpg").unlink()
    data = VocData(devkit)
    with pytest.raises(InputError, match=r"SegmentationClass/b\.png does not exist"):
        data[1]
    with pytest.raises(InputError, match=r"JPEGImages/c\.jpg does not exist"):
        data[2]


def test_refusals(devkit: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'no split "tran" in .*did you mean "train"'):
        VocData(devkit, "tran")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no VOC devkit; give the folder with JPEGImages/"):
        VocData(tmp_path / "empty")
    (devkit / "ImageSets" / "Segmentation" / "train.txt").write_text("\n")
    with pytest.raises(InputError, match=r"train\.txt is empty"):
        VocData(devkit)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="the VOC subset is not beside the checkout")
class TestRealSubset:
    def test_counts(self) -> None:
        sizes = {split: len(VocData(SHARED, split)) for split in ("train", "trainaug", "val")}
        assert sizes == {"train": 437, "trainaug": 3131, "val": 245}

    def test_protocol_of_seven_classes(self) -> None:
        data = VocData(SHARED, "val")
        animals = ClassSubset(data, ANIMALS)
        assert [VOC_CLASSES.index(name) for name in animals.classes.names] == [0, 8, 10, 12, 13, 15, 17]
        for index in range(0, len(data), 35):
            official, ours = data[index].mask, animals[index].mask
            for new, name in enumerate(ANIMALS):
                assert np.array_equal(ours == new, official == VOC_CLASSES.index(name))
            assert np.array_equal(ours == VOID, ~np.isin(official, [0, 8, 10, 12, 13, 15, 17]))

    def test_train_and_val_share_no_image(self) -> None:
        train, val = ({pair.name for pair in VocData(SHARED, split).pairs} for split in ("trainaug", "val"))
        assert not train & val


def test_sbd_splits(sbd: Path) -> None:
    assert [sample.name for sample in SbdData(sbd)] == ["a", "d", "x"]
    assert [sample.name for sample in SbdData(sbd, "val")] == ["e", "y"]
    assert [sample.name for sample in SbdData(sbd, "trainval")] == ["a", "d", "x", "e", "y"]
    assert (SbdData(sbd)[0].mask == 8).all()


def test_sbd_root_may_be_any_folder_around_it(sbd: Path) -> None:
    for root in (sbd, sbd.parent, sbd.parent.parent):
        assert len(SbdData(root)) == 3


def test_train_aug_is_the_union_without_voc_val(devkit: Path, sbd: Path) -> None:
    data = train_aug(devkit, sbd)
    voc = {pair.name for pair in VocData(devkit).pairs}
    both = {pair.name for pair in SbdData(sbd, "trainval").pairs}
    val = {pair.name for pair in VocData(devkit, "val").pairs}
    assert {sample.name for sample in data} == (voc | both) - val == {"a", "b", "c", "x", "y"}


def test_train_aug_prefers_voc_masks(devkit: Path, sbd: Path) -> None:
    labels = {sample.name: int(sample.mask[0, 0]) for sample in train_aug(devkit, sbd)}
    assert labels == {"a": 12, "b": 12, "c": 12, "x": 8, "y": 8}


def test_sbd_ids_are_checked(sbd: Path) -> None:
    from scipy.io import savemat

    savemat(sbd / "cls" / "a.mat", {"GTcls": {"Segmentation": np.full((4, 6), 40, np.uint8)}})
    with pytest.raises(InputError, match=r"a\.mat holds ids outside 0\.\.20: 40"):
        SbdData(sbd)[0]


@pytest.mark.parametrize("content", [b"", b"not a mat file" * 40, b"MATLAB 5.0 MAT-file" + b"\0" * 300])
def test_sbd_damaged_masks(sbd: Path, content: bytes) -> None:
    (sbd / "cls" / "a.mat").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.mat is not an SBD mask") as raised:
        SbdData(sbd)[0]
    assert "\n" not in str(raised.value)


def test_sbd_refusals(sbd: Path, tmp_path: Path) -> None:
    (sbd / "cls" / "a.mat").unlink()
    with pytest.raises(InputError, match=r"a\.mat does not exist"):
        SbdData(sbd)[0]
    with pytest.raises(InputError, match='no split "test" of SBD'):
        SbdData(sbd, "test")
    (sbd / "val.txt").unlink()
    with pytest.raises(InputError, match=r"cannot read .*val\.txt"):
        SbdData(sbd, "val")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no SBD"):
        SbdData(tmp_path / "empty")


def test_sbd_without_scipy(sbd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="pip install scipy"):
        SbdData(sbd)
