from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from messagenet.data import VOID, Classes, FolderData
from messagenet.errors import InputError


def names(data: FolderData) -> list[str]:
    return [data.sample_name(index) for index in range(len(data))]


class TestReading:
    def test_pairs_by_stem(self, folder: Path) -> None:
        data = FolderData(folder)
        assert names(data) == [str(index) for index in range(10)]
        assert data.classes.names == ("background", "road", "sky")
        assert data[1].mask.tolist() == [[2, 0, 0, 1, 1, 2]] * 3 + [[VOID] * 6]
        assert data.issues == []

    @pytest.mark.parametrize("mode", ["P", "L", "I;16"])
    def test_mask_formats(self, folder: Path, save_mask: Callable[..., Path], mode: str) -> None:
        ids = np.array([[0, 1, 2, 2, 1, VOID]] * 4)
        save_mask(folder / "masks" / "3.png", ids, mode)
        assert np.array_equal(FolderData(folder)[3].mask, ids)

    def test_painted_masks(self, folder: Path) -> None:
        (folder / "classes.txt").write_text("background 0 0 0\nroad 10 20 30\nsky #ff0000\nvoid 9 9 9\n")
        painted = np.array([[[0, 0, 0], [10, 20, 30], [255, 0, 0], [9, 9, 9], [0, 0, 0], [0, 0, 0]]] * 4, np.uint8)
        Image.fromarray(painted).save(folder / "masks" / "0.png")
        assert FolderData(folder)[0].mask[0].tolist() == [0, 1, 2, VOID, 0, 0]

    def test_void_values(self, folder: Path, save_mask: Callable[..., Path]) -> None:
        save_mask(folder / "masks" / "0.png", np.full((4, 6), 11))
        assert (FolderData(folder, void_values=(11,))[0].mask == VOID).all()
        with pytest.raises(InputError, match=r"0\.png holds ids outside 0\.\.2: 11 \(24 pixels\).*--void 11"):
            FolderData(folder)[0]

    def test_void_values_of_16_bit_masks(self, folder: Path, save_mask: Callable[..., Path]) -> None:
        save_mask(folder / "masks" / "0.png", np.full((4, 6), 1000), "I;16")
        assert (FolderData(folder, void_values=(1000,))[0].mask == VOID).all()
        for value in (-1, 65536):
            with pytest.raises(InputError, match=f"no mask holds the void value {value}.*65535"):
                FolderData(folder, void_values=(value,))

    def test_other_folder_names_and_given_classes(self, folder: Path, tmp_path: Path) -> None:
        (folder / "images").rename(folder / "photos")
        (folder / "classes.txt").rename(tmp_path / "list.txt")
        assert len(FolderData(folder, tmp_path / "list.txt", images="photos")) == 10
        assert len(FolderData(folder, Classes(("a", "b", "c")), images="photos")) == 10

    def test_without_masks_there_is_only_something_to_predict(self, folder: Path) -> None:
        (folder / "masks").rename(folder / "unused")
        data = FolderData(folder)
        assert len(data) == 10
        assert data[0].mask is None


class TestSplits:
    def test_sub_folders(self, folder: Path) -> None:
        for kind, suffix in (("images", "jpg"), ("masks", "png")):
            for split, first, last in (("train", 0, 6), ("val", 6, 10)):
                (folder / kind / split).mkdir()
                for index in range(first, last):
                    file = folder / kind / f"{index}.{suffix}"
                    file.rename(folder / kind / split / file.name)
        assert names(FolderData(folder, split="train")) == [f"train/{index}" for index in range(6)]
        assert names(FolderData(folder, split="val")) == [f"val/{index}" for index in range(6, 10)]
        assert len(FolderData(folder)) == 10
        with pytest.raises(InputError, match=r'has the splits train, val but no "test"; add .*images/test/ or'):
            FolderData(folder, split="test")

    def test_a_split_folder_without_masks_is_unlabelled(self, folder: Path) -> None:
        (folder / "images" / "test").mkdir()
        (folder / "images" / "0.jpg").rename(folder / "images" / "test" / "0.jpg")
        assert FolderData(folder, split="test")[0].mask is None

    def test_lists(self, folder: Path) -> None:
        (folder / "train.txt").write_text("3\n1.jpg\n\n3\n")
        (folder / "val.txt").write_text("0\n")
        assert names(FolderData(folder, split="train")) == ["3", "1"]
        assert names(FolderData(folder, split="val")) == ["0"]

    @pytest.mark.parametrize(
        ("text", "expected"), [("3\nx\ny.png\n", "lists x, y, but no such image"), ("\n", "is empty")]
    )
    def test_bad_lists(self, folder: Path, text: str, expected: str) -> None:
        (folder / "train.txt").write_text(text)
        with pytest.raises(InputError, match=expected):
            FolderData(folder, split="train")

    def test_automatic_hold_out(self, folder: Path) -> None:
        train, val = (names(FolderData(folder, split=split)) for split in ("train", "val"))
        assert sorted(train + val) == [str(index) for index in range(10)]
        assert val
        assert len(train) > len(val)
        with pytest.raises(InputError, match=r'no split "test"; list its names in .*test\.txt'):
            FolderData(folder, split="test")


class TestRefusals:
    def test_missing_mask(self, folder: Path) -> None:
        (folder / "masks" / "4.png").unlink()
        with pytest.raises(InputError, match=r"image .*4\.jpg has no mask; add .*masks/4\.png or remove the image"):
            FolderData(folder)
        lenient = FolderData(folder, strict=False)
        assert len(lenient) == 9
        assert len(lenient.issues) == 1

    def test_names_that_do_not_match(self, folder: Path) -> None:
        for file in sorted((folder / "masks").iterdir()):
            file.rename(file.with_stem(file.stem + "_mask"))
        with pytest.raises(InputError, match=r"0\.jpg and 0_mask\.png, for one, differ"):
            FolderData(folder)

    def test_mask_without_image_is_an_issue_but_no_obstacle(self, folder: Path) -> None:
        (folder / "images" / "4.jpg").unlink()
        data = FolderData(folder)
        assert len(data) == 9
        assert "4.png has no image" in data.issues[0]

    def test_name_used_twice(self, folder: Path, save_image: Callable[..., Path]) -> None:
        save_image(folder / "images" / "4.png")
        with pytest.raises(InputError, match=r"4\.jpg and 4\.png have the same name"):
            FolderData(folder)

    def test_folders(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="is not a folder"):
            FolderData(tmp_path / "x")
        with pytest.raises(InputError, match="has no folder images/"):
            FolderData(tmp_path)
        (tmp_path / "images").mkdir()
        with pytest.raises(InputError, match="no images in"):
            FolderData(tmp_path)

    def test_missing_class_list_says_what_to_write(self, folder: Path) -> None:
        (folder / "classes.txt").unlink()
        with pytest.raises(InputError, match=r"write .*classes\.txt .*\(the masks hold ids 0, 1, 2, 255: 3 lines\)"):
            FolderData(folder)
        for file in (folder / "masks").iterdir():
            Image.fromarray(np.full((4, 6, 3), (1, 2, 3), np.uint8)).save(file)
        with pytest.raises(InputError, match=r"`name r g b` per class \(the masks hold the colours 1 2 3\)"):
            FolderData(folder)
