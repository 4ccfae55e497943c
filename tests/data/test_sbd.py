from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from messagenet.data import SbdData, VocData, train_aug
from messagenet.errors import InputError


def test_splits(sbd: Path) -> None:
    assert [sample.name for sample in SbdData(sbd)] == ["a", "d", "x"]
    assert [sample.name for sample in SbdData(sbd, "val")] == ["e", "y"]
    assert [sample.name for sample in SbdData(sbd, "trainval")] == ["a", "d", "x", "e", "y"]
    assert (SbdData(sbd)[0].mask == 8).all()


def test_root_may_be_any_folder_around_it(sbd: Path) -> None:
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


def test_ids_are_checked(sbd: Path) -> None:
    from scipy.io import savemat

    savemat(sbd / "cls" / "a.mat", {"GTcls": {"Segmentation": np.full((4, 6), 40, np.uint8)}})
    with pytest.raises(InputError, match=r"a\.mat holds ids outside 0\.\.20: 40"):
        SbdData(sbd)[0]


@pytest.mark.parametrize("content", [b"", b"not a mat file" * 40, b"MATLAB 5.0 MAT-file" + b"\0" * 300])
def test_damaged_masks(sbd: Path, content: bytes) -> None:
    (sbd / "cls" / "a.mat").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.mat is not an SBD mask") as raised:
        SbdData(sbd)[0]
    assert "\n" not in str(raised.value)


def test_refusals(sbd: Path, tmp_path: Path) -> None:
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


def test_without_scipy(sbd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="pip install scipy"):
        SbdData(sbd)
