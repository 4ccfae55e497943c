from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import messagenet.settings
from messagenet.data import (
    VOC_CLASSES,
    VOID,
    ConcatData,
    FolderData,
    SbdData,
    SyntheticScenes,
    VocData,
    check_data,
    hold_out_val,
    open_data,
    takes,
)
from messagenet.data.open import forms
from messagenet.data.pairs import PairData
from messagenet.errors import InputError
from messagenet.settings import register


def test_noisy() -> None:
    data = open_data("noisy:7", "test", seed=4)
    assert (len(data), data.classes.names) == (7, ("blue", "earth", "white", "red"))
    assert takes("noisy:7", "seed")
    assert takes("synthetic", "seed")
    assert not takes("voc:noisy", "seed")
    with pytest.raises(InputError, match="noisy:500"):
        open_data("noisy:many")


def test_synthetic() -> None:
    assert len(open_data("synthetic")) == 2000
    assert len(open_data("synthetic", "val")) == 200
    data = open_data("synthetic:7", "test", seed=4)
    assert len(data) == 7
    assert np.array_equal(data[3].image, SyntheticScenes(7, seed=4, split="test")[3].image)


def test_folders_by_name_and_by_layout(folder: Path, devkit: Path, sbd: Path) -> None:
    for kind, location, expected in (("folder", folder, FolderData), ("voc", devkit, VocData), ("sbd", sbd, SbdData)):
        for spec in (f"{kind}:{location}", str(location), location):
            assert type(open_data(spec)) is expected
    assert len(open_data(f"folder:{folder}", "val")) + len(open_data(folder)) == 10
    assert len(open_data(devkit, "val")) == 2


def test_train_aug_from_both_releases(devkit: Path, sbd: Path) -> None:
    spec = f"voc:{devkit},{sbd}"
    assert isinstance(open_data(spec, "trainaug"), ConcatData)
    assert len(open_data(spec, "train_aug")) == 5
    assert len(open_data(spec, "val")) == 2


def test_train_aug_from_a_list(devkit: Path) -> None:
    with pytest.raises(InputError, match=r"has no trainaug\.txt; give SBD as well: voc:.*,SBD_DIR"):
        open_data(f"voc:{devkit}", "train_aug")
    (devkit / "ImageSets" / "Segmentation" / "trainaug.txt").write_text("a\nd\n")
    assert len(open_data(f"voc:{devkit}", "train_aug")) == 2


def test_splits_joined(devkit: Path) -> None:
    train, val = open_data(devkit, "train"), open_data(devkit, "val")
    both = open_data(devkit, "train+val+train")
    assert both.name == f"{train.name} + {val.name} + {train.name}"
    names = [data.sample_name(index) for data in (train, val, train) for index in range(len(data))]
    assert [both.sample_name(index) for index in range(len(both))] == names
    kept = open_data(devkit, "train+val", keep=["background", "cat"], rest="background")
    assert kept.classes.names == ("background", "cat")
    assert all(set(np.unique(sample.mask)) <= {0, 1, VOID} for sample in kept)
    with pytest.raises(InputError, match='no split "vall"'):
        open_data(devkit, "train+vall")
    for split in ("train+", "+val", "train++val"):
        with pytest.raises(InputError, match="names joined by"):
            open_data(devkit, split)


def test_settings_reach_the_data(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("one\ntwo\n")
    data = open_data(f"folder:{folder}", classes=tmp_path / "list.txt", void_values=[2])
    assert data.classes.names == ("one", "two")
    assert set(np.unique(data[0].mask)) == {0, 1, 255}
    assert open_data(f"folder:{folder}", classes=["a", "b", "c"]).classes.names == ("a", "b", "c")
    assert open_data(f"folder:{folder}", classes=3).classes.num_classes == 3
    kept = open_data(f"folder:{folder}", keep=["sky", "road"], rest="background")
    assert kept.classes.names == ("background", "sky", "road")


@pytest.mark.parametrize("spec", ["nowhere", "flder:x", "", "folder:", "synthetc"])
def test_bad_specifications_list_the_forms(spec: str) -> None:
    with pytest.raises(InputError) as raised:
        open_data(spec)
    assert all(form in str(raised.value) for form in forms())


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='did you mean "folder"'):
        open_data("flder:x")
    with pytest.raises(InputError, match="not laid out as a data set"):
        open_data(tmp_path)
    with pytest.raises(InputError, match="needs a number of scenes"):
        open_data("synthetic:many")
    with pytest.raises(InputError, match="no split"):
        open_data("synthetic", "dev")
    (tmp_path / "list.txt").write_text("one\ntwo\n")
    with pytest.raises(InputError, match="classes of their own"):
        open_data("synthetic", classes=tmp_path / "list.txt")


def test_a_reader_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(messagenet.settings._REGISTRY, "data", dict(messagenet.settings._REGISTRY["data"]))

    @register("data", "squares")
    def open_squares(location: str, *, split: str = "train", void_values: tuple[int, ...] = ()) -> PairData:
        pairs = [(np.zeros((int(location), 3, 3), np.uint8), np.zeros((int(location), 3), np.uint8))]
        data = PairData(pairs, ["one", "two"], void_values)
        data.name = f"squares {split}"
        return data

    assert open_data("squares:5", None).name == "squares train"
    data = open_data("squares:5", "val+test", void_values=[0])
    assert data.name == "squares val + squares test"
    assert (data[1].mask == VOID).all()
    assert "squares:LOCATION" in forms()
    assert not takes("squares:5", "seed")
    with pytest.raises(InputError, match='did you mean "squares"'):
        open_data("sqares:5")
    with pytest.raises(InputError, match="squares data have classes of their own"):
        open_data("squares:5", classes=VOC_CLASSES)


def test_a_reader_without_splits_holds_out_one_sample_in_five(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(messagenet.settings._REGISTRY, "data", dict(messagenet.settings._REGISTRY["data"]))

    @register("data", "dots")
    def open_dots(location: str) -> PairData:
        pairs = [(np.full((3, 3, 3), index, np.uint8), np.zeros((3, 3), np.uint8)) for index in range(int(location))]
        return PairData(pairs, ["one", "two"])

    everything = {sample.name for sample in open_data("dots:20", None)}
    train, val = ({sample.name for sample in open_data("dots:20", split)} for split in ("train", "val"))
    assert train | val == everything
    assert not train & val
    assert 1 <= len(val) < len(train)
    assert [[each.name for each in part] for part in hold_out_val(open_dots("20"))] == [sorted(train), sorted(val)]
    with pytest.raises(InputError, match='dots data have no split "test"; choose train or val'):
        open_data("dots:20", "test")
    with pytest.raises(InputError, match="dots data take no void_values, but a location alone; leave it out"):
        open_data("dots:20", void_values=[3])
    with pytest.raises(InputError, match="dots data take no seed"):
        open_data("dots:20", seed=1)


def test_what_a_reader_cannot_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="synthetic data take no void_values, but split, seed; leave it out"):
        open_data("synthetic", void_values=[3])
    with pytest.raises(InputError, match="folder data take no seed, but classes, void_values"):
        open_data(f"folder:{tmp_path}", seed=3)
    with pytest.raises(InputError, match='rest is "background", for classes that are not kept; give keep as well'):
        open_data("synthetic", rest="background")
    with pytest.raises(InputError, match="reads its own masks; give it the void values when it is made"):
        open_data(open_data("synthetic:4"), void_values=[3])


def test_a_torch_data_set() -> None:
    pairs = [(np.zeros((4, 6, 3), np.uint8), np.full((4, 6), label, np.uint8)) for label in (0, 1, 7)]
    data = open_data(pairs, classes=VOC_CLASSES, void_values=[7], keep=["background", "aeroplane"])
    assert [sample.mask[0, 0] for sample in data] == [0, 1, VOID]
    assert check_data(data).labelled == 3
