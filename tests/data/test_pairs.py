from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, TensorDataset, random_split
from torch.utils.data import Subset as TorchSubset

from messagenet.data import VOID, Classes, SyntheticScenes, as_data, check_data
from messagenet.data.pairs import PairData
from messagenet.errors import InputError
from messagenet.training.feature_cache import _content_digest

IMAGE = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
MASK = np.array([[0, 1, 2, 0, 1, VOID]] * 4, np.uint8)
CHANNELS_FIRST = torch.from_numpy(IMAGE.transpose(2, 0, 1).copy())


def palette(ids: np.ndarray) -> Image.Image:
    image = Image.fromarray(ids)
    image.putpalette([value % 256 for value in range(768)])
    return image


class TestConversion:
    @pytest.mark.parametrize(
        "image",
        [
            pytest.param(IMAGE, id="array"),
            pytest.param(IMAGE[:, ::-1].copy()[:, ::-1], id="strided"),
            pytest.param(Image.fromarray(IMAGE), id="PIL"),
            pytest.param(CHANNELS_FIRST, id="uint8 tensor"),
            pytest.param(CHANNELS_FIRST / 255, id="float tensor"),
            pytest.param((CHANNELS_FIRST.double() / 255).requires_grad_(), id="double tensor"),
        ],
    )
    def test_images(self, image: Any) -> None:
        sample = as_data([(image, MASK)], classes=3)[0]
        assert sample.image.dtype == np.uint8
        assert np.array_equal(sample.image, IMAGE)

    @pytest.mark.parametrize(
        "mask",
        [
            pytest.param(MASK, id="array"),
            pytest.param(MASK.astype(np.int64), id="int64"),
            pytest.param(Image.fromarray(MASK), id="grey PIL"),
            pytest.param(palette(MASK), id="palette PIL"),
            pytest.param(torch.from_numpy(MASK).long(), id="tensor"),
            pytest.param(torch.from_numpy(MASK)[None], id="tensor with a channel"),
        ],
    )
    def test_masks(self, mask: Any) -> None:
        sample = as_data([(IMAGE, mask)], classes=3)[0]
        assert sample.mask.dtype == np.uint8
        assert np.array_equal(sample.mask, MASK)

    def test_other_modes_void_values_and_no_mask(self) -> None:
        grey = Image.fromarray(IMAGE[..., 0])
        data = as_data([(grey, MASK > 0), (IMAGE, None)], classes=["off", "on"], void_values=[0])
        assert np.array_equal(data[0].image, np.repeat(IMAGE[..., :1], 3, 2))
        assert np.array_equal(data[0].mask, np.where(MASK > 0, 1, VOID))
        assert data[1].mask is None


class TestClasses:
    def test_given_or_of_the_data(self) -> None:
        pairs = [(IMAGE, MASK)]
        listed = Classes(("a", "b", "c"))
        assert as_data(pairs, listed).classes is listed
        assert as_data(pairs, ["x", "y", "z"]).classes.names == ("x", "y", "z")
        assert as_data(pairs, 3).classes.num_classes == 3

        class Named(list[Any]):
            classes = ("u", "v", "w")

        assert as_data(Named(pairs)).classes.names == ("u", "v", "w")
        assert as_data(TorchSubset(Named(pairs), [0])).classes.names == ("u", "v", "w")
        assert as_data(Named(pairs), 4).classes.num_classes == 4

    @pytest.mark.parametrize(
        ("classes", "expected"),
        [
            (None, "list does not name its classes; give classes="),
            ("names", "cannot read the class list names"),
            ([1, 2], r"\[1, 2\] are not class names; give names, their count"),
            ({"a": 1}, r"\{'a': 1\} are not class names"),
        ],
    )
    def test_never_guessed(self, classes: Any, expected: str) -> None:
        with pytest.raises(InputError, match=expected):
            as_data([(IMAGE, MASK)], classes)


class TestSubsets:
    def test_parts_of_a_segmentation_data_keep_their_names(self) -> None:
        scenes = SyntheticScenes(6, size=32)
        assert as_data(scenes) is scenes
        part, _ = random_split(scenes, [2, 4], generator=torch.Generator().manual_seed(0))
        assert [sample.name for sample in as_data(part)] == [scenes.sample_name(i) for i in part.indices]
        both = as_data(scenes + SyntheticScenes(2, size=32, split="val"))
        assert both.name == "synthetic train + synthetic val"
        assert both[6].name == "val-00000"
        with pytest.raises(InputError, match="classes of its own"):
            as_data(scenes, classes=3)

    def test_pairs_of_several_data_sets_have_different_names(self) -> None:
        both = as_data(ConcatDataset([[(IMAGE, MASK)], [(IMAGE, MASK)]]), classes=3)
        assert [sample.name for sample in both] == ["00000", "00001"]


class Items(Dataset[Any]):
    def __init__(self, item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.item


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (IMAGE, "Items[1] is a ndarray, not an (image, mask) pair"),
        ((IMAGE,), "Items[1] is a tuple of 1, not"),
        ((IMAGE, MASK, 0), "Items[1] is a tuple of 3, not"),
        (("a.png", MASK), "the image of Items[1] is a str; give a PIL image, an array or a tensor"),
        ((IMAGE / 255, MASK), "is float64 (4, 6, 3); give uint8"),
        ((IMAGE[..., 0], MASK), "is uint8 (4, 6); give uint8 (height, width, 3)"),
        ((CHANNELS_FIRST.int(), MASK), "is int32 (4, 6, 3); give uint8"),
        ((torch.zeros(4, 6, 3), MASK), "is a tensor (4, 6, 3); give RGB as (3, height, width)"),
        ((CHANNELS_FIRST.float(), MASK), "has values from 1 to 248; give 0..1"),
        ((CHANNELS_FIRST / 255 - 0.5, MASK), "give 0..1, without normalisation"),
        ((torch.full((3, 4, 6), torch.nan), MASK), "has values from nan to nan"),
        ((IMAGE, "m.png"), "the mask of Items[1] is a str"),
        ((IMAGE, MASK / 255), "is float64; give integer ids, 255 for void, without scaling"),
        ((IMAGE, torch.from_numpy(MASK) / 255), "is float32; give integer ids"),
        ((IMAGE, IMAGE), "has the shape (4, 6, 3); give ids (height, width), not colours"),
        ((IMAGE, MASK[:3]), "is 6x4 but its mask is 6x3; transform both alike"),
        ((IMAGE, MASK + 2), "mask of Items[1] holds ids outside 0..2: 3 (8 pixels)"),
        ((IMAGE, MASK.astype(int) - 1), "holds ids outside 0..2: -1"),
    ],
)
def test_bad_items(item: Any, expected: str) -> None:
    with pytest.raises(InputError, match=re.escape(expected)) as raised:
        as_data(Items(item), classes=3)[1]
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("data", "expected"), [([], "is empty"), (iter([]), "with a length and items"), (3, "int is not a data set")]
)
def test_what_is_no_data_set(data: Any, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        as_data(data, classes=3)


def test_checks_and_digests() -> None:
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    pairs = TensorDataset(images, torch.zeros(4, 8, 8, dtype=torch.long))
    data = as_data(pairs, classes=2)
    assert isinstance(data, PairData)
    assert check_data(data).pixels.tolist() == [256, 0]
    other = as_data(TensorDataset(images.flip(0), pairs.tensors[1]), classes=2)
    assert _content_digest(data) == _content_digest(as_data(pairs, classes=2)) != _content_digest(other)
