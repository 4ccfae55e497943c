from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from messagenet.data import ClassSubset, FolderData, SyntheticScenes, VocData, check_data, open_data


def test_a_clean_folder(folder: Path) -> None:
    report = check_data(folder)
    assert report.ok
    assert (report.count, report.labelled) == (10, 10)
    assert report.sizes == {(6, 4): 10}
    assert report.pixels.tolist() == [60, 60, 60]
    assert report.images.tolist() == [10, 10, 10]
    assert report.void_pixels == 60
    assert "no issues found" in report.summary()
    assert " 25.00%" in report.summary()
    sizes = [len(FolderData(folder, split=split)) for split in ("train", "val")]
    assert f"split: {sizes[0]} for training, {sizes[1]} for validation" in report.summary()
    (folder / "train.txt").write_text(f"{FolderData(folder).sample_name(0)}\n")
    assert check_data(folder).issues == [
        f'{folder} has the splits train but no "val"; add {folder / "images" / "val"}/ or {folder / "val.txt"}'
    ]
    (folder / "val.txt").write_text("0\n", encoding="utf-16")
    (issue,) = check_data(folder).issues
    assert issue.endswith("save it as UTF-8 text")


def test_every_issue_is_collected(
    folder: Path, save_mask: Callable[..., Path], save_image: Callable[..., Path]
) -> None:
    (folder / "masks" / "0.png").unlink()
    (folder / "images" / "1.jpg").write_bytes(b"nonsense")
    (folder / "masks" / "1.png").write_bytes(b"")
    save_mask(folder / "masks" / "2.png", np.full((4, 6), 9))
    save_mask(folder / "masks" / "3.png", np.zeros((5, 6)))
    save_mask(folder / "masks" / "orphan.png", np.zeros((4, 6)))
    save_image(folder / "images" / "4.png")
    report = check_data(str(folder))
    expected = [
        "4.jpg and 4.png have the same name",
        "0.jpg has no mask",
        "orphan.png has no image",
        "1.jpg is not an image",
        "1.png is empty",
        "2.png holds ids outside 0..2: 9 (24 pixels)",
        "3.png is 6x5",
    ]
    assert len(report.issues) == len(expected)
    for text in expected:
        assert any(text in issue for issue in report.issues), text
    assert not report.ok
    assert "7 issues:" in report.summary()
    assert "no issues" not in report.summary()


def test_of_any_data_set(devkit: Path) -> None:
    assert check_data("synthetic:3").labelled == 3
    (devkit / "JPEGImages" / "a.jpg").unlink()
    voc = VocData(devkit)
    assert len(check_data(voc).issues) == 1
    assert len(check_data(ClassSubset(voc, ["dog", "cat"])).issues) == 1


def test_issues_found_on_opening_survive_in_class_subsets(folder: Path) -> None:
    (folder / "masks" / "0.png").unlink()
    lenient = open_data(folder, split=None, keep=["road", "sky"], strict=False)
    assert "0.jpg has no mask" in check_data(lenient).issues[0]


def test_counts_agree_with_the_masks() -> None:
    data = SyntheticScenes(5, size=48)
    masks = np.stack([sample.mask for sample in data])
    report = check_data(data)
    assert report.pixels.tolist() == [int((masks == label).sum()) for label in range(9)]
    assert report.images.tolist() == [int((masks == label).any((1, 2)).sum()) for label in range(9)]


def test_notes(folder: Path, save_mask: Callable[..., Path]) -> None:
    for index in range(10):
        save_mask(folder / "masks" / f"{index}.png", np.array([[0, 255, 0, 255, 0, 0]] * 4), "L")
    report = check_data(folder)
    assert report.ok
    assert "never occurs: road, sky" in report.notes[0]
    assert "`object 255 255 255`" in report.notes[1]
    (folder / "classes.txt").write_text("background 0 0 0\nobject 255 255 255\n")
    assert check_data(folder).notes == []


def test_unlabelled(folder: Path) -> None:
    (folder / "masks").rename(folder / "unused")
    report = check_data(FolderData(folder))
    assert report.issues == [f"{folder.name} has no masks to learn from; add them, or choose another split"]
    assert "predicted, not scored" in report.summary()


def test_a_mask_is_usable_with_an_image_of_its_size_only(
    folder: Path, save_mask: Callable[..., Path], save_image: Callable[..., Path]
) -> None:
    (folder / "images" / "1.jpg").write_bytes(b"nonsense")
    save_mask(folder / "masks" / "3.png", np.zeros((5, 6)))
    report = check_data(folder)
    assert (report.count, report.labelled, report.images.tolist()) == (10, 8, [8, 8, 8])
    assert "10 samples, 8 with a mask that can be used" in report.summary()


def test_an_issue_of_many_files_is_listed_once(folder: Path, save_mask: Callable[..., Path]) -> None:
    for index in range(30):
        (folder / "images" / f"x{index:02}.jpg").write_bytes(b"")
        save_mask(folder / "masks" / f"x{index:02}.png", np.full((4, 6), 9 + index % 2)[: 1 + index % 4])
    report = check_data(folder)
    assert len(report.issues) == 60
    lines = report.summary().splitlines()
    start = lines.index("60 issues of 2 kinds (--all lists each one):")
    assert "x00.jpg is empty" in lines[start + 1]
    assert lines[start + 2].count(".jpg") == 3
    assert lines[start + 2].endswith("x03.jpg and 26 more")
    assert "x00.png holds ids outside 0..2: 9 (6 pixels)" in lines[start + 3]
    assert lines[start + 4].endswith("x03.png and 26 more")
    assert lines[-1] == "  ids of no class: 9 in 15 masks, 10 in 15 masks"
    every = report.summary(every=True)
    assert all(issue in every for issue in report.issues)
    assert "60 issues:" in every


def test_sizes_and_missing_files_are_kinds_too(folder: Path, save_mask: Callable[..., Path]) -> None:
    for index in range(4):
        save_mask(folder / "masks" / f"{index}.png", np.zeros((5 + index, 6)))
    for index in range(4, 7):
        (folder / "masks" / f"{index}.png").unlink()
        (folder / "masks" / f"orphan {index}.png").write_bytes(b"")
    assert "10 issues of 3 kinds" in check_data(folder).summary()


def test_many_kinds_are_shortened(folder: Path) -> None:
    data = FolderData(folder)
    data.issues = [f"{chr(97 + index) * 3} is wrong" for index in range(25)]
    assert "… and 5 more (--all" in check_data(data).summary()


def test_progress() -> None:
    seen: list[tuple[int, int]] = []
    check_data("synthetic:3", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("spec", ["folder:{}", "{}"])
def test_class_list_is_still_needed(folder: Path, spec: str) -> None:
    (folder / "classes.txt").unlink()
    with pytest.raises(ValueError, match="no class list"):
        check_data(spec.format(folder))
