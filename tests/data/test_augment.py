from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from messagenet.data import VOID, Augment, Classes, Sample, SegmentationData, augment_sample, generator
from messagenet.data.augment import MEAN_BYTES, ids_to_paste, mirror, pad, paste, recolour, resized_window
from messagenet.errors import InputError
from messagenet.training.batches import AugmentedData
from messagenet.training.feature_cache import CacheSettings, _Versions


def sample_of(height: int, width: int, seed: int = 0) -> Sample:
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (height, width, 3), np.uint8)
    return Sample(image, rng.integers(0, 5, (height, width), np.uint8), "s")


def resize(sample: Sample, height: int, width: int) -> Sample:
    return resized_window(sample, (height, width), (0, 0), (height, width))


sides = st.integers(3, 40)


class TestResizedWindow:
    @given(sides, sides, sides, sides, st.data())
    @settings(max_examples=80, deadline=None)
    def test_equals_resizing_everything_and_cropping(
        self, height: int, width: int, rows: int, columns: int, data: st.DataObject
    ) -> None:
        sample = sample_of(height, width)
        h, w = data.draw(st.integers(1, rows)), data.draw(st.integers(1, columns))
        top, left = data.draw(st.integers(0, rows - h)), data.draw(st.integers(0, columns - w))
        window = resized_window(sample, (rows, columns), (top, left), (h, w))
        crop = np.s_[top : top + h, left : left + w]
        image = np.asarray(Image.fromarray(sample.image).resize((columns, rows), Image.Resampling.BILINEAR))[crop]
        assert window.image.shape == (h, w, 3)
        # Each of Pillow's two passes rounds to bytes, and their order depends on the sizes.
        assert np.abs(window.image.astype(int) - image).max() <= 2

    @given(sides, sides, sides, sides)
    @settings(max_examples=60, deadline=None)
    def test_masks_take_the_nearest_pixel(self, height: int, width: int, rows: int, columns: int) -> None:
        sample = sample_of(height, width)
        mask = resize(sample, rows, columns).mask
        for row in range(rows):
            for column in range(columns):
                y, x = (row + 0.5) * height / rows, (column + 0.5) * width / columns
                if min(y % 1, 1 - y % 1, x % 1, 1 - x % 1) > 1e-6:  # not on the line between two pixels
                    assert mask[row, column] == sample.mask[int(y), int(x)]

    def test_same_size_changes_nothing(self) -> None:
        sample = sample_of(7, 9)
        assert np.array_equal(resize(sample, 7, 9).image, sample.image)

    def test_without_a_mask(self) -> None:
        bare = dataclasses.replace(sample_of(8, 8), mask=None)
        assert mirror(pad(resize(bare, 4, 4), 6, 6)).mask is None


def test_image_and_mask_stay_aligned() -> None:
    """An image painted in its own labels is still so after everything but colour."""
    mask = np.kron(np.random.default_rng(0).integers(0, 2, (6, 8), np.uint8), np.ones((8, 8), np.uint8))
    sample = Sample(np.repeat(mask[:, :, None] * 255, 3, 2), mask, "s")
    augment = Augment(scale_range=(1.0, 2.0), crop=40, mirror=True)
    for index in range(20):
        out = augment(sample, generator(0, 0, index))
        agree = (out.image[:, :, 0] > 127) == (out.mask == 1)
        assert agree[out.mask != VOID].mean() > 0.97


def test_padding() -> None:
    sample = sample_of(3, 4)
    padded = pad(sample, 5, 4)
    assert np.array_equal(padded.image[:3], sample.image)
    assert (padded.image[3:] == MEAN_BYTES).all()
    assert (padded.mask[3:] == VOID).all()
    assert pad(sample, 2, 2) is sample


def test_mirror_is_its_own_inverse() -> None:
    sample = sample_of(4, 5)
    once = mirror(sample)
    assert np.array_equal(once.mask, sample.mask[:, ::-1])
    assert np.array_equal(mirror(once).image, sample.image)
    assert once.image.flags.c_contiguous


class TestRecolour:
    @pytest.mark.parametrize("factor", [0.5, 0.8, 1.3])
    def test_brightness_and_saturation_against_pillow(self, factor: float) -> None:
        image = sample_of(20, 20).image
        colour = Image.fromarray(image)
        for ours, theirs in (
            (recolour(image, brightness=factor), ImageEnhance.Brightness(colour).enhance(factor)),
            (recolour(image, saturation=factor), ImageEnhance.Color(colour).enhance(factor)),
        ):
            assert np.abs(ours.astype(int) - np.asarray(theirs).astype(int)).max() <= 1

    def test_contrast_keeps_the_mean_and_scales_the_spread(self) -> None:
        image = np.random.default_rng(0).integers(80, 176, (50, 50, 3)).astype(np.uint8)
        out = recolour(image, contrast=0.5)
        assert abs(out.mean() - image.mean()) < 0.6
        assert abs(out.std() / image.std() - 0.5) < 0.01

    def test_one_changes_nothing(self) -> None:
        image = sample_of(5, 5).image
        assert recolour(image) is image


class TestAugment:
    def test_nothing_by_default(self) -> None:
        sample = sample_of(9, 7)
        out = Augment()(sample, generator(0, 0, 0))
        assert np.array_equal(out.image, sample.image)
        assert np.array_equal(out.mask, sample.mask)

    @given(height=sides, width=sides, crop=st.tuples(sides, sides), index=st.integers(0, 99))
    @settings(max_examples=50, deadline=None)
    def test_crop_has_its_size_and_only_known_labels(
        self, height: int, width: int, crop: tuple[int, int], index: int
    ) -> None:
        sample = sample_of(height, width)
        augment = Augment(scale_range=(0.5, 2.0), crop=crop, mirror=True, brightness=0.3, contrast=0.3, saturation=0.3)
        out = augment(sample, generator(1, 2, index))
        assert out.image.shape == (*crop, 3)
        assert out.mask.shape == crop
        assert set(np.unique(out.mask)) <= set(np.unique(sample.mask)) | {VOID}

    def test_a_function_of_seed_epoch_and_index(self) -> None:
        sample = sample_of(40, 40)
        augment = Augment(scale_range=(0.5, 2.0), crop=20, mirror=True, brightness=0.2)
        draws = {
            key: augment(sample, generator(*key)).image.tobytes()
            for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
        }
        assert len(set(draws.values())) == 4
        for key, image in draws.items():
            assert augment(sample, generator(*key)).image.tobytes() == image

    def test_the_paper_s_set(self) -> None:
        """Ten variations, five scales and their mirror images, all about equally often."""
        sample = sample_of(50, 100)
        sizes = {(round(50 * s), round(100 * s)): s for s in (0.8, 0.9, 1.0, 1.1, 1.2)}
        counts: dict[tuple[float, bool], int] = {}
        augment = Augment(scales=(0.8, 0.9, 1.0, 1.1, 1.2), mirror=True)
        for index in range(1000):
            out = augment(sample, generator(0, 0, index))
            scale = sizes[out.mask.shape]
            plain = resize(sample, *out.mask.shape)
            flipped = not np.array_equal(out.mask, plain.mask)
            assert np.array_equal(out.mask, mirror(plain).mask if flipped else plain.mask)
            counts[scale, flipped] = counts.get((scale, flipped), 0) + 1
        assert len(counts) == 10
        assert min(counts.values()) > 65
        assert max(counts.values()) < 140

    def test_crops_reach_every_corner(self) -> None:
        mask = np.arange(25, dtype=np.uint8).reshape(5, 5)
        sample = Sample(np.zeros((5, 5, 3), np.uint8), mask, "s")
        corners = {int(Augment(crop=3)(sample, generator(0, 0, index)).mask[0, 0]) for index in range(200)}
        assert corners == {0, 1, 2, 5, 6, 7, 10, 11, 12}

    def test_longest_side_only_shrinks(self) -> None:
        assert Augment(longest_side=20)(sample_of(20, 40), generator(0, 0, 0)).mask.shape == (10, 20)
        assert Augment(longest_side=80)(sample_of(20, 40), generator(0, 0, 0)).mask.shape == (20, 40)

    def test_survives_a_round_trip_through_plain_values(self) -> None:
        augment = Augment(scale_range=(0.5, 2.0), crop=(3, 4))
        plain = {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(augment).items()}
        assert Augment(**plain) == augment

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"scales": ()}, "positive factors"),
            ({"scales": (0.0,)}, "positive factors"),
            ({"scale_range": (2.0, 0.5)}, "smallest first"),
            ({"scale_range": (0.5, 2.0), "scales": (0.5,)}, "not both"),
            ({"crop": 0}, "a height and a width"),
            ({"brightness": 1.0}, "brightness is 1.0"),
            ({"longest_side": 0}, "number of pixels"),
            ({"paste": 1.5, "crop": 8}, "from 0 to 1"),
            ({"paste": 0.5}, "set crop"),
        ],
    )
    def test_refusals(self, options: dict[str, object], expected: str) -> None:
        with pytest.raises(InputError, match=expected):
            Augment(**options)


LABELS = [0, 1, 2, VOID]


class Coloured(SegmentationData):
    """Images painted in the labels and the index of the image, so that every pixel shows its origin."""

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
def test_pixels_and_labels_come_from_one_image(first: int, second: int, ids: set[int]) -> None:
    sample, donor = NAMED[first], NAMED[second]
    out = paste(sample, donor, np.array(sorted(ids), np.uint8))
    for row, column in np.ndindex(12, 16):
        source = donor if donor.mask[row, column] in ids else sample
        assert out.mask[row, column] == source.mask[row, column]
        assert np.array_equal(out.image[row, column], source.image[row, column])


def test_an_image_without_target_stays() -> None:
    bare = Sample(NAMED[0].image, None, "bare")
    assert paste(bare, NAMED[1], np.array([1], np.uint8)) is bare
    assert paste(NAMED[1], bare, np.array([1], np.uint8)).mask is not None


def test_the_background_is_not_pasted() -> None:
    assert ids_to_paste(NAMED[0].mask, NAMED.classes, generator(0, 0, 0)).tolist() == [1, 2]


def test_half_of_the_classes_where_there_is_no_background() -> None:
    chosen = [ids_to_paste(BARE[0].mask, BARE.classes, generator(0, 0, index)).tolist() for index in range(40)]
    assert {len(ids) for ids in chosen} == {1}
    assert {ids[0] for ids in chosen} == {0, 1, 2}


def test_share_of_crops_with_pasted_objects() -> None:
    share = 0.3
    augment = Augment(crop=(12, 16), paste=share)
    drawn = [augment_sample(NAMED, 0, augment, generator(0, 0, index)) for index in range(400)]
    mixed = np.mean([(sample.image[..., 1] != 0).any() for sample in drawn])
    assert mixed == pytest.approx(share * 4 / 5, abs=0.07)  # the donor is the sample itself one time in five


def test_without_pasting_it_is_the_plain_augmentation() -> None:
    augment = Augment(crop=8, mirror=True)
    plain = augment(NAMED[2], generator(1, 2, 2))
    assert np.array_equal(augment_sample(NAMED, 2, augment, generator(1, 2, 2)).image, plain.image)


def test_loaders_paste_too() -> None:
    augment = Augment(crop=(12, 16), paste=1.0)
    training = AugmentedData(NAMED, augment, seed=1)
    assert any((training[0, index].image[..., 1] != index).any() for index in range(5))
    assert any((training[0, index].image != training[1, index].image).any() for index in range(5))


def test_cached_versions_have_pasted_objects() -> None:
    settings = CacheSettings(Augment(crop=(12, 16), paste=1.0), versions=2, seed=1)
    versions = _Versions(NAMED, settings)
    assert all(np.array_equal(versions[0, index].image, NAMED[index].image) for index in range(5))
    assert any((versions[1, index].image[..., 1] != index).any() for index in range(5))
