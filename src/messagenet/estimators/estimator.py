"""C2, the message estimator: two fully connected layers on [receiver; sender; dependent], K outputs.

    β_{F→p} = W₂ relu( A f_p + B f_q + D d_pF + b ) + b₂

The first layer of a network on a concatenation is the sum of three layers on its parts, so it is stored as
three: the products A f and B f are made once per node, never per edge (see `aggregate`). A unary factor has
no sender and no dependent message. K outputs, whatever the order of the factor.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class MessageEstimator(nn.Module):
    """One estimator M_F, shared by all factors of a type.

    Args:
        in_channels: r, the length of a node's feature vector.
        hidden: Units of the hidden layer.
        num_classes: K.
        has_sender: False for the unary factor.
        has_dependent: Whether messages of the previous iteration are an input (more than one iteration).
    """

    def __init__(
        self, in_channels: int, hidden: int, num_classes: int, *, has_sender: bool, has_dependent: bool
    ) -> None:
        super().__init__()
        self.receiver = nn.Linear(in_channels, hidden)
        self.sender = nn.Linear(in_channels, hidden, bias=False) if has_sender else None
        self.dependent = nn.Linear(num_classes, hidden, bias=False) if has_dependent and has_sender else None
        self.output = nn.Linear(hidden, num_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """He initialisation of the first layer, as if its parts were one matrix on the concatenation."""
        parts = [part for part in (self.receiver, self.sender, self.dependent) if part is not None]
        std = math.sqrt(2 / sum(part.in_features for part in parts))
        for part in parts:
            nn.init.normal_(part.weight, std=std)
        nn.init.zeros_(self.receiver.bias)
        nn.init.normal_(self.output.weight, std=1 / math.sqrt(self.output.in_features))
        nn.init.zeros_(self.output.bias)

    def forward(
        self, receiver: Tensor, sender: Tensor | None = None, dependent: Tensor | None = None
    ) -> Tensor:
        """Messages from features and dependent messages with equal leading axes: (…, r), (…, r), (…, K)."""
        hidden = self.receiver(receiver)
        if self.sender is not None and sender is not None:
            hidden = hidden + self.sender(sender)
        if self.dependent is not None and dependent is not None:
            hidden = hidden + self.dependent(dependent)
        message: Tensor = self.output(torch.relu(hidden))
        return message
