from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from messagenet.data import (
    VOID,
    Classes,
    ClassSubset,
    ConcatData,
    FilePair,
    PairedFiles,
    Sample,
    SegmentationData,
    Subset,
    SyntheticScenes,
    collate,
    hold_out,
    to_tensor,
)
from messagenet.data.dataset import raw_to_labels
from messagenet.errors import InputError

TWO = Classes(("background", "object"))


class TestRawToLabels:
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
            with pytest.raises(InputError, match=" ".join(f"--void {label}" for label in sorted(wrong)[:5])):
                raw_to_labels(raw, num_classes, tuple(voids), "m.png")
        else:
            assert raw_to_labels(raw, num_classes, tuple(voids), "m.png").ravel().tolist() == expected

    def test_message_names_file_ids_and_fix(self) -> None:
        raw = np.array([[0, 5, 5, 9]], np.uint8)
        with pytest.raises(InputError, match=r"mask m\.png holds ids outside 0\.\.1: 5 \(2 pixels\), 9 \(1 pixels\)"):
            raw_to_labels(raw, 2, (), "m.png")

    def test_negative_ids(self) -> None:
        with pytest.raises(InputError, match="-1"):
            raw_to_labels(np.array([[-1]], np.int32), 2, (), "m.png")


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


class Tiny(SegmentationData):
    """One sample with every id and void."""

    name = "tiny"
    classes = Classes(("background", "cat", "dog", "cow"))

    def __len__(self) -> int:
        return 1

    def sample_name(self, index: int) -> str:
        return "only"

    def load(self, index: int) -> Sample:
        mask = np.array([[0, 1, 2, 3, VOID]], np.uint8)
        return Sample(np.zeros((1, 5, 3), np.uint8), mask, "only")


class NoBackground(Tiny):
    classes = Classes(("sky", "cat", "dog", "cow"))


class TestClassSubset:
    @pytest.mark.parametrize(
        ("data", "keep", "rest", "names", "expected"),
        [
            (Tiny(), ["dog", "cat"], "void", ("dog", "cat"), [255, 1, 0, 255, 255]),
            (Tiny(), [3, "0"], "void", ("cow", "background"), [1, 255, 255, 0, 255]),
            (Tiny(), ["background", "dog"], "background", ("background", "dog"), [0, 0, 1, 0, 255]),
            (Tiny(), ["dog", "background"], "background", ("dog", "background"), [1, 1, 0, 1, 255]),
            (Tiny(), ["dog"], "background", ("background", "dog"), [0, 0, 1, 0, 255]),
            (NoBackground(), ["sky", "cow"], "background", ("background", "sky", "cow"), [1, 0, 0, 2, 255]),
        ],
    )
    def test_renumbering(self, data: Tiny, keep: list[str], rest: str, names: object, expected: list[int]) -> None:
        chosen = ClassSubset(data, keep, rest)
        assert chosen.classes.names == names
        assert chosen[0].mask[0].tolist() == expected
        assert len(set(chosen.classes.colours)) == chosen.classes.num_classes

    def test_kept_classes_keep_their_colours(self) -> None:
        assert ClassSubset(Tiny(), ["dog", "cow"]).classes.colours == Tiny.classes.colours[2:]

    @pytest.mark.parametrize(
        ("keep", "rest", "expected"),
        [
            (["dog", "dgo"], "void", 'did you mean "dog"'),
            (["dog", 2], "void", '"dog" is kept twice'),
            (["background", "background"], "void", '"background" is kept twice'),
            (["dog"], "void", "at least 2 classes"),
            (["dog", "cat"], "ignore", 'use "void" or "background"'),
        ],
    )
    def test_bad_choices(self, keep: list[str], rest: str, expected: str) -> None:
        with pytest.raises(InputError, match=expected):
            ClassSubset(Tiny(), keep, rest)


class TestHoldOut:
    @given(numbers=st.sets(st.integers(0, 999), min_size=2, max_size=20), fraction=st.floats(0.01, 0.99))
    @settings(max_examples=50, deadline=None)
    def test_divides_without_an_empty_side(self, numbers: set[int], fraction: float) -> None:
        names = sorted(map(str, numbers))
        train, held = hold_out(names, fraction)
        assert sorted(train + held) == list(range(len(names)))
        assert train
        assert held

    def test_fraction_is_met_and_no_sample_changes_sides(self) -> None:
        names = [f"image {index}" for index in range(2000)]
        _, held = hold_out(names, 0.2)
        assert 0.17 < len(held) / len(names) < 0.23
        _, fewer = hold_out(names[:1000], 0.2)
        assert fewer == [index for index in held if index < 1000]
        _, more = hold_out(names, 0.3)
        assert set(held) < set(more)

    def test_refusals(self) -> None:
        with pytest.raises(InputError, match="between 0 and 1"):
            hold_out(["a", "b"], 1.0)
        with pytest.raises(InputError, match="cannot be split"):
            hold_out(["a"])


def test_subset_order_and_negative_indices() -> None:
    data = SyntheticScenes(6, size=32)
    assert [sample.name for sample in Subset(data, [4, -1, 0])] == ["train-00004", "train-00005", "train-00000"]
    with pytest.raises(IndexError):
        Subset(data, [6])


def test_joined_reads_each_part_in_turn() -> None:
    parts = [SyntheticScenes(count, size=32, split=split) for count, split in ((2, "train"), (1, "val"), (3, "test"))]
    joined = ConcatData(parts, "all")
    assert [sample.name for sample in joined] == [sample.name for part in parts for sample in part]
    with pytest.raises(InputError, match="different classes"):
        ConcatData([parts[0], Tiny()], "mixed")


def sample_of(height: int, width: int, labelled: bool = True) -> Sample:
    rng = np.random.default_rng(height * 100 + width)
    image = rng.integers(0, 256, (height, width, 3), np.uint8)
    mask = rng.integers(0, 5, (height, width), np.uint8) if labelled else None
    return Sample(image, mask, f"{height}x{width}")


def test_to_tensor() -> None:
    sample = sample_of(4, 5)
    image, mask = to_tensor(sample)
    assert image.dtype == torch.float32
    assert mask.dtype == torch.int64
    assert image.shape == (3, 4, 5)
    assert image[2, 3, 1] == np.float32(sample.image[3, 1, 2]) / 255
    assert np.array_equal(mask, sample.mask)


def test_negative_strides_and_read_only_arrays() -> None:
    sample = sample_of(4, 5)
    view = sample.image[:, ::-1]
    view.flags.writeable = False
    image, _ = to_tensor(Sample(view, sample.mask[:, ::-1], "s"))
    assert torch.equal(image.flip(2), to_tensor(sample)[0])


def test_equal_sizes_need_no_padding() -> None:
    batch = collate([sample_of(4, 5), sample_of(4, 5)])
    assert batch.images.shape == (2, 3, 4, 5)
    assert batch.target.shape == (2, 4, 5)
    assert batch.sizes.tolist() == [[4, 5], [4, 5]]
    assert batch.ids == ("4x5", "4x5")


def test_padding() -> None:
    samples = [sample_of(4, 7), sample_of(6, 5)]
    batch = collate(samples)
    assert batch.images.shape == (2, 3, 6, 7)
    for index, sample in enumerate(samples):
        height, width = sample.mask.shape
        inside = torch.zeros(6, 7, dtype=torch.bool)
        inside[:height, :width] = True
        image, mask = to_tensor(sample)
        assert batch.sizes[index].tolist() == [height, width]
        assert torch.equal(batch.images[index, :, :height, :width], image)
        assert torch.equal(batch.target[index, :height, :width], mask)
        assert (batch.target[index][~inside] == VOID).all()
        outside = batch.images[index].permute(1, 2, 0)[~inside]
        assert torch.equal(outside, torch.tensor([0.485, 0.456, 0.406]).expand_as(outside))


def test_samples_without_masks() -> None:
    assert collate([sample_of(4, 5, labelled=False)]).target is None
    mixed = collate([sample_of(4, 5), sample_of(4, 5, labelled=False)])
    assert (mixed.target[1] == VOID).all()


def test_to_another_device() -> None:
    batch = collate([sample_of(4, 5, labelled=False), sample_of(3, 5, labelled=False)]).to("meta")
    assert batch.images.device.type == "meta"
    assert batch.sizes.device.type == "cpu"
    assert batch.target is None


def test_empty_batch() -> None:
    with pytest.raises(InputError, match="at least one sample"):
        collate([])


def test_features_move_too() -> None:
    batch = collate([sample_of(4, 5)])._replace(images=None)
    maps = {"unary": torch.zeros(1, 2, 3, 3), "above": torch.zeros(1, 2, 3, 3)}
    assert batch._replace(features=maps["unary"]).to("meta").features.device.type == "meta"
    moved = batch._replace(features=maps).to("meta")
    assert {key: values.device.type for key, values in moved.features.items()} == dict.fromkeys(maps, "meta")
    assert moved.images is None
    assert moved.ids == batch.ids
