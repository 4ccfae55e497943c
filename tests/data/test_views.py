from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.data import (
    VOID,
    Classes,
    Joined,
    Restricted,
    Sample,
    SegmentationData,
    Subset,
    SyntheticScenes,
    hold_out,
    split_data,
)
from messagenet.errors import InputError


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


class TestRestricted:
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
    def test_renumbering(
        self, data: Tiny, keep: list[str], rest: str, names: object, expected: list[int]
    ) -> None:
        restricted = Restricted(data, keep, rest)
        assert restricted.classes.names == names
        assert restricted[0].mask[0].tolist() == expected
        assert len(set(restricted.classes.colours)) == restricted.classes.num_classes

    def test_kept_classes_keep_their_colours(self) -> None:
        assert Restricted(Tiny(), ["dog", "cow"]).classes.colours == Tiny.classes.colours[2:]

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
            Restricted(Tiny(), keep, rest)


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
        names = [f"image {number}" for number in range(2000)]
        _, held = hold_out(names, 0.2)
        assert 0.17 < len(held) / len(names) < 0.23
        _, fewer = hold_out(names[:1000], 0.2)
        assert fewer == [index for index in held if index < 1000]
        _, more = hold_out(names, 0.3)
        assert set(held) < set(more)

    def test_refusals(self) -> None:
        with pytest.raises(InputError, match="between 0 and 1"):
            hold_out(["a", "b"], 1.0)
        with pytest.raises(InputError, match="cannot be divided"):
            hold_out(["a"])

    def test_split_data(self) -> None:
        train, held = split_data(SyntheticScenes(40, size=32), 0.25)
        assert {sample.name for sample in train} | {sample.name for sample in held} == {
            f"train-{number:05d}" for number in range(40)
        }


def test_subset_order_and_negative_indices() -> None:
    data = SyntheticScenes(6, size=32)
    assert [sample.name for sample in Subset(data, [4, -1, 0])] == [
        "train-00004",
        "train-00005",
        "train-00000",
    ]
    with pytest.raises(IndexError):
        Subset(data, [6])


def test_joined_reads_each_part_in_turn() -> None:
    parts = [
        SyntheticScenes(count, size=32, split=split)
        for count, split in ((2, "train"), (1, "val"), (3, "test"))
    ]
    joined = Joined(parts, "all")
    assert [sample.name for sample in joined] == [sample.name for part in parts for sample in part]
    with pytest.raises(InputError, match="different classes"):
        Joined([parts[0], Tiny()], "mixed")
