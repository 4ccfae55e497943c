from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from messagenet.data import (
    VOID,
    Classes,
    FilePair,
    FolderData,
    Joined,
    PairedFiles,
    Restricted,
    SbdData,
    SegmentationData,
    Subset,
    SyntheticScenes,
    VocData,
    as_labels,
    train_aug,
)
from messagenet.errors import InputError

TWO = Classes(("background", "object"))

KINDS: dict[str, Callable[[pytest.FixtureRequest], SegmentationData]] = {
    "synthetic": lambda request: SyntheticScenes(5, size=32),
    "folder": lambda request: FolderData(request.getfixturevalue("folder")),
    "voc": lambda request: VocData(request.getfixturevalue("devkit")),
    "voc test": lambda request: VocData(request.getfixturevalue("devkit"), "test"),
    "sbd": lambda request: SbdData(request.getfixturevalue("sbd")),
    "train_aug": lambda request: train_aug(request.getfixturevalue("devkit"), request.getfixturevalue("sbd")),
    "restricted": lambda request: Restricted(SyntheticScenes(3, size=32), ["water", "sky"]),
    "subset": lambda request: Subset(SyntheticScenes(9, size=32), [7, 2]),
    "joined": lambda request: Joined(
        [SyntheticScenes(2, size=32), SyntheticScenes(3, size=32, split="val")], "both"
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_contract(kind: str, request: pytest.FixtureRequest) -> None:
    """What every data set promises to everything that uses it."""
    data = KINDS[kind](request)
    assert len(data) > 0
    assert data.name
    names = [data.sample_name(index) for index in range(len(data))]
    assert len(set(names)) == len(names)
    assert len(list(data)) == len(data)
    for index in range(len(data)):
        sample = data[index]
        assert sample.name == names[index]
        assert sample.image.dtype == np.uint8
        assert sample.image.ndim == 3
        assert sample.image.shape[2] == 3
        if sample.mask is not None:
            assert sample.mask.dtype == np.uint8
            assert sample.mask.shape == sample.image.shape[:2]
            assert ((sample.mask < data.classes.num_classes) | (sample.mask == VOID)).all()
        again = data[index - len(data)]
        assert np.array_equal(again.image, sample.image)
    for index in (len(data), -len(data) - 1):
        with pytest.raises(IndexError):
            data[index]


class TestAsLabels:
    @given(
        raw=arrays(np.int32, (4, 5), elements=st.integers(0, 400)),
        num_classes=st.integers(2, 255),
        voids=st.sets(st.integers(0, 400), max_size=3),
    )
    @settings(max_examples=100, deadline=None)
    def test_against_a_loop(self, raw: np.ndarray, num_classes: int, voids: set[int]) -> None:
        expected, wrong = [], set()
        for value in raw.ravel().tolist():
            void = value in voids or value == VOID
            if not void and value >= num_classes:
                wrong.add(value)
            expected.append(VOID if void else value)
        if wrong:
            with pytest.raises(InputError, match=rf"--void {min(wrong)}\)"):
                as_labels(raw, num_classes, tuple(voids), "m.png")
        else:
            assert as_labels(raw, num_classes, tuple(voids), "m.png").ravel().tolist() == expected

    def test_message_names_file_ids_and_fix(self) -> None:
        raw = np.array([[0, 5, 5, 9]], np.uint8)
        with pytest.raises(
            InputError, match=r"mask m\.png holds ids outside 0\.\.1: 5 \(2 pixels\), 9 \(1 pixels\)"
        ):
            as_labels(raw, 2, (), "m.png")

    def test_negative_ids(self) -> None:
        with pytest.raises(InputError, match="-1"):
            as_labels(np.array([[-1]], np.int32), 2, (), "m.png")


class TestPairedFiles:
    def data(self, tmp_path: Path, image: Image.Image, mask: np.ndarray, **options: object) -> PairedFiles:
        image.save(tmp_path / "a.png", **options)
        Image.fromarray(mask).save(tmp_path / "m.png")
        return PairedFiles("x", TWO, [FilePair("a", tmp_path / "a.png", tmp_path / "m.png")])

    def test_sizes_must_agree(self, tmp_path: Path) -> None:
        data = self.data(tmp_path, Image.new("RGB", (6, 4)), np.zeros((4, 5), np.uint8))
        with pytest.raises(InputError, match=r"a\.png is 6x4 but its mask .*m\.png is 5x4; save the mask at"):
            data[0]

    def test_turned_image_and_mask_that_is_not(self, tmp_path: Path) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6
        data = self.data(tmp_path, Image.new("RGB", (6, 4)), np.zeros((4, 6), np.uint8), exif=exif)
        with pytest.raises(InputError, match="EXIF orientation"):
            data[0]

    def test_grey_classes_with_a_void_grey(self, tmp_path: Path) -> None:
        Image.new("RGB", (3, 1)).save(tmp_path / "a.png")
        Image.fromarray(np.array([[0, 255, 7]], np.uint8)).save(tmp_path / "m.png")
        pair = FilePair("a", tmp_path / "a.png", tmp_path / "m.png")
        classes = Classes(("background", "object"), ((0, 0, 0), (255, 255, 255)))
        assert PairedFiles("x", classes, [pair], (255, 7)).read_labels(0).tolist() == [[0, 1, VOID]]
        with pytest.raises(InputError, match=r"\(7, 7, 7\)"):
            PairedFiles("x", classes, [pair]).read_labels(0)
