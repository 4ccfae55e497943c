"""The loss as a sum and a count."""

from __future__ import annotations

import pytest
import torch

from messagenet.data import SyntheticScenes, collate
from messagenet.losses import marginal_cross_entropy
from messagenet.models import MessageNet
from messagenet.training.config import LossConfig
from messagenet.training.learner import Objective


@pytest.mark.parametrize(
    "config",
    [LossConfig(), LossConfig(cell_label="majority", label_smoothing=0.1), LossConfig(resolution="pixels")],
)
def test_sums_of_parts_are_the_sum_of_the_whole(config: LossConfig) -> None:
    data = SyntheticScenes(3, size=48)
    torch.manual_seed(0)
    net = MessageNet("tiny", data.classes, hidden=8).double()
    batch = collate([data[index] for index in range(3)])
    assert batch.masks is not None
    images, masks = batch.images.double(), batch.masks.clone()
    masks[0, :30] = 255  # one image with far fewer labels than the others
    objective = Objective(net, config)
    whole = objective(images, masks, None)
    parts = [objective(images[i : i + 1], masks[i : i + 1], None) for i in range(3)]
    torch.testing.assert_close(whole.total, torch.stack([part.total for part in parts]).sum())
    assert int(whole.nodes) == sum(int(part.nodes) for part in parts)
    mean = marginal_cross_entropy(
        net(images),
        masks,
        net.stride,
        resolution=config.resolution,
        cell_label=config.cell_label,
        label_smoothing=config.label_smoothing,
    )
    torch.testing.assert_close(whole.total / whole.nodes, mean)


def test_a_batch_without_labels_counts_nothing() -> None:
    data = SyntheticScenes(1, size=48)
    net = MessageNet("tiny", data.classes, hidden=8)
    loss = Objective(net, LossConfig())(collate([data[0]]).images, torch.full((1, 48, 48), 255), None)
    assert (loss.total.item(), loss.nodes.item()) == (0.0, 0)
    loss.total.backward()
