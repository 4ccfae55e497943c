from __future__ import annotations

import numpy as np
import pytest
import torch

from messagenet.data import VOID, Sample, collate, to_tensor
from messagenet.errors import InputError


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
    assert batch.masks.shape == (2, 4, 5)
    assert batch.valid is None
    assert batch.names == ("4x5", "4x5")


def test_padding() -> None:
    samples = [sample_of(4, 7), sample_of(6, 5)]
    batch = collate(samples)
    assert batch.images.shape == (2, 3, 6, 7)
    for place, sample in enumerate(samples):
        height, width = sample.mask.shape
        inside = torch.zeros(6, 7, dtype=torch.bool)
        inside[:height, :width] = True
        image, mask = to_tensor(sample)
        assert torch.equal(batch.valid[place], inside)
        assert torch.equal(batch.images[place, :, :height, :width], image)
        assert torch.equal(batch.masks[place, :height, :width], mask)
        assert (batch.masks[place][~inside] == VOID).all()
        outside = batch.images[place].permute(1, 2, 0)[~inside]
        assert torch.equal(outside, torch.tensor([0.485, 0.456, 0.406]).expand_as(outside))


def test_samples_without_masks() -> None:
    assert collate([sample_of(4, 5, labelled=False)]).masks is None
    mixed = collate([sample_of(4, 5), sample_of(4, 5, labelled=False)])
    assert (mixed.masks[1] == VOID).all()


def test_to_another_device() -> None:
    batch = collate([sample_of(4, 5, labelled=False), sample_of(3, 5, labelled=False)]).to("meta")
    assert batch.images.device.type == batch.valid.device.type == "meta"
    assert batch.masks is None


def test_empty_batch() -> None:
    with pytest.raises(InputError, match="at least one sample"):
        collate([])
