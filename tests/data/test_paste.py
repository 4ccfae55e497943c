from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.data import VOID, Augment, Classes, Sample, SegmentationData, augmented, generator
from messagenet.data.augment import objects, paste
from messagenet.training.batches import AugmentedData
from messagenet.training.config import LossConfig
from messagenet.training.feature_cache import CacheSettings, _Versions

LABELS = [0, 1, 2, VOID]


class Coloured(SegmentationData):
    """Pictures painted in the labels and the number of the picture, so that every pixel tells where it is from."""

    name = "coloured"

    def __init__(self, count: int, names: tuple[str, ...]) -> None:
        self.count, self.classes = count, Classes(names)

    def __len__(self) -> int:
        return self.count

    def sample_name(self, index: int) -> str:
        return str(index)

    def load(self, index: int) -> Sample:
        rng = np.random.default_rng(index)
        mask = rng.choice(np.array(LABELS, np.uint8), (12, 16))
        image = np.stack([mask, np.full_like(mask, index), np.zeros_like(mask)], 2)
        return Sample(image, mask, str(index))


NAMED = Coloured(5, ("background", "cat", "dog"))
BARE = Coloured(5, ("sky", "road", "tree"))


@given(st.integers(0, 4), st.integers(0, 4), st.sets(st.sampled_from([0, 1, 2])))
@settings(deadline=None)
def test_pixels_and_labels_come_from_one_picture(first: int, second: int, ids: set[int]) -> None:
    sample, donor = NAMED[first], NAMED[second]
    out = paste(sample, donor, np.array(sorted(ids), np.uint8))
    for row, column in np.ndindex(12, 16):
        source = donor if donor.mask[row, column] in ids else sample
        assert out.mask[row, column] == source.mask[row, column]
        assert np.array_equal(out.image[row, column], source.image[row, column])


def test_a_picture_without_truth_stays() -> None:
    bare = Sample(NAMED[0].image, None, "bare")
    assert paste(bare, NAMED[1], np.array([1], np.uint8)) is bare
    assert paste(NAMED[1], bare, np.array([1], np.uint8)).mask is not None


def test_the_background_is_not_pasted() -> None:
    assert objects(NAMED[0].mask, NAMED.classes, generator(0, 0, 0)).tolist() == [1, 2]


def test_half_of_the_classes_where_there_is_no_background() -> None:
    chosen = [objects(BARE[0].mask, BARE.classes, generator(0, 0, index)).tolist() for index in range(40)]
    assert {len(ids) for ids in chosen} == {1}
    assert {ids[0] for ids in chosen} == {0, 1, 2}


def test_how_often() -> None:
    share = 0.3
    augment = Augment(crop=(12, 16), paste=share)
    drawn = [augmented(NAMED, 0, augment, generator(0, 0, index)) for index in range(400)]
    mixed = np.mean([(sample.image[..., 1] != 0).any() for sample in drawn])
    assert mixed == pytest.approx(share * 4 / 5, abs=0.07)  # the donor is the sample itself one time in five


def test_without_pasting_it_is_the_plain_augmentation() -> None:
    augment = Augment(crop=8, mirror=True)
    plain = augment(NAMED[2], generator(1, 2, 2))
    assert np.array_equal(augmented(NAMED, 2, augment, generator(1, 2, 2)).image, plain.image)


def test_loaders_paste_too() -> None:
    augment = Augment(crop=(12, 16), paste=1.0)
    training = AugmentedData(NAMED, augment, seed=1)
    assert any((training[0, index].image[..., 1] != index).any() for index in range(5))
    assert any((training[0, index].image != training[1, index].image).any() for index in range(5))


def test_cached_versions_have_pasted_objects() -> None:
    settings = CacheSettings(LossConfig(), Augment(crop=(12, 16), paste=1.0), versions=2, seed=1)
    versions = _Versions(NAMED, settings)
    assert all(np.array_equal(versions[0, index].image, NAMED[index].image) for index in range(5))
    assert any((versions[1, index].image[..., 1] != index).any() for index in range(5))
