"""Losses as a sum and a count, so that any number of batches can share one mean.

    J = Σ_batches total / Σ_batches nodes

A mean of means would depend on how images are divided among batches and processes; the sums do not.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from messagenet.data.classes import VOID


class Loss(NamedTuple):
    """A summed loss and the number of labelled nodes that it is to be divided by, both scalars."""

    total: Tensor
    nodes: Tensor

    @property
    def mean(self) -> Tensor:
        """The loss of a node; 0 where nothing is labelled."""
        return self.total / self.nodes.clamp(min=1)


def cross_entropy_total(logits: Tensor, labels: Tensor) -> Loss:
    """− Σ_p log softmax(logits_p)[ŷ_p] over the labelled nodes.

    >>> import torch
    >>> cross_entropy_total(torch.zeros(3, 2), torch.tensor([0, 1, 255]))
    Loss(total=tensor(1.3863), nodes=tensor(2))

    Args:
        logits: One row per node, (…, K).
        labels: Classes of the nodes and 255 for void, (…).
    """
    total = functional.cross_entropy(
        widened(logits).flatten(0, -2), labels.flatten(), ignore_index=VOID, reduction="sum"
    )
    return Loss(total, (labels != VOID).sum())


def widened(values: Tensor) -> Tensor:
    """The values in float32 if they had less, to be summed in."""
    return values.float() if values.dtype.itemsize < 4 else values
