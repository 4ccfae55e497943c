"""A torch data set trains as the data set of this package with the same images does, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import TensorDataset

from messagenet.data import SegmentationData, as_data, to_tensor
from messagenet.errors import InputError
from messagenet.training import TrainResult
from messagenet.training.build import DataSets


def pairs(data: SegmentationData) -> SegmentationData:
    images, masks = zip(*map(to_tensor, data), strict=True)
    return as_data(TensorDataset(torch.stack(images), torch.stack(masks)), data.classes)


@pytest.mark.parametrize("extra", [("run.workers=1",), ("run.freeze_backbone=true", "run.cache_features=true")])
def test_the_weights_are_the_same(run: Callable[..., TrainResult], scenes: DataSets, extra: tuple[str, ...]) -> None:
    theirs = DataSets(pairs(scenes.train), pairs(scenes.val))
    first, second = (run(*extra, name=name, data=data) for name, data in (("ours", scenes), ("theirs", theirs)))
    ours, others = (load_file(result.folder / "last" / "model.safetensors") for result in (first, second))
    assert all(torch.equal(values, others[name]) for name, values in ours.items())
    assert first.last_iou == second.last_iou


def test_errors_of_workers_arrive_as_one_line(run: Callable[..., TrainResult], scenes: DataSets) -> None:
    images = torch.zeros(4, 3, 48, 48)
    masks = torch.arange(4)[:, None, None].expand(4, 48, 48)
    data = DataSets(as_data(TensorDataset(images, masks), classes=3), None)
    with pytest.raises(InputError, match=r"^mask of TensorDataset\[3\] holds ids outside 0\.\.2: 3"):
        run("run.workers=1", data=data)
