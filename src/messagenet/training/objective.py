"""The loss of a batch as a sum and a count, so that any number of batches can share one mean.

    J = Σ_batches Σ_p −log P(ŷ_p | x)  /  Σ_batches #labelled nodes

A mean of means would weigh a batch with few labelled nodes as much as one with many, and so depend on how a
step's images are divided among batches and processes. The sums do not.

It is a module because a distributed wrapper synchronises the gradients of a `forward` it has seen.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from messagenet.data import VOID
from messagenet.learning import marginal_cross_entropy, node_labels
from messagenet.models import MessageNet
from messagenet.training.config import LossConfig

Features = Tensor | dict[str, Tensor]


class Loss(NamedTuple):
    """Σ −log P and the number of nodes (or pixels) it is over, both scalars."""

    total: Tensor
    nodes: Tensor


class Objective(nn.Module):
    """Images and truth in, `Loss` out."""

    def __init__(self, net: MessageNet, config: LossConfig) -> None:
        super().__init__()
        self.net = net
        self.config = config

    def forward(
        self, inputs: Features, truth: Tensor, valid: Tensor | None, are_features: bool = False
    ) -> Loss:
        """The loss of a batch.

        Args:
            inputs: Images (B, 3, H, W), or their features (B, r, h, w), one map or one by factor type.
            truth: Labels of pixels (B, H, W); with features and a loss on nodes, of nodes (B, h, w).
            valid: Which pixels, or with features which nodes, are not padding.
            are_features: Whether the inputs are features.
        """
        logits = self.net.head(inputs, valid) if are_features else self.net(inputs, valid)  # (B, K, h, w)
        if self.config.resolution == "pixels":
            mean = marginal_cross_entropy(
                logits,
                truth,
                self.net.stride,
                resolution="pixels",
                label_smoothing=self.config.label_smoothing,
            )
        else:
            truth = truth if are_features else self.at_nodes(truth, logits.shape[2:])
            mean = marginal_cross_entropy(logits, truth, 1.0, label_smoothing=self.config.label_smoothing)
        nodes = (truth != VOID).sum()
        return Loss(mean * nodes, nodes)

    def at_nodes(self, masks: Tensor, size: torch.Size) -> Tensor:
        """The truth at the nodes, (B, h, w)."""
        return node_labels(masks, (size[0], size[1]), self.net.stride, self.config.cell_label)
