"""The network's loss as a module, because a distributed wrapper synchronises the gradients of a `forward` it has seen.

    J = Σ_batches total  /  Σ_batches #labelled nodes

A mean of means would weigh a batch with few labelled nodes as much as one with many, and so depend on how a
step's images are divided among batches and processes. The sums do not.
"""

from __future__ import annotations

from torch import Tensor, nn

from messagenet.learning.totals import Loss
from messagenet.models import SegmentationNet
from messagenet.models.segmentation_net import Features
from messagenet.training.config import LossConfig


class Objective(nn.Module):
    """Images and truth in, a summed loss and its count out."""

    def __init__(self, net: SegmentationNet, config: LossConfig) -> None:
        super().__init__()
        self.net = net
        self.config = config

    def forward(
        self,
        inputs: Features,
        truth: Tensor,
        valid: Tensor | None,
        names: tuple[str, ...] = (),
        are_features: bool = False,
    ) -> Loss:
        """The loss of a batch: see `SegmentationNet.loss`."""
        return self.net.loss(
            inputs,
            truth,
            valid,
            are_features=are_features,
            resolution=self.config.resolution,
            cell_label=self.config.cell_label,
            label_smoothing=self.config.label_smoothing,
            names=names,
        )
