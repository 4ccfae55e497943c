"""What changes while messages are passed."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor


class Beliefs(NamedTuple):
    """The state between iterations, on a grid (nodes: B, H, W) or on any graph (nodes: variables).

    Attributes:
        totals: For each factor type, the sum of its messages to every node, (nodes, K).
        messages: For types whose cavities will be needed, every message: on a grid (B, n, H, W, K), else (slots, K).
    """

    totals: dict[str, Tensor]
    messages: dict[str, Tensor]

    @property
    def logits(self) -> Tensor:
        """Σ_F β_{F→p}, (nodes, K)."""
        return reduce(torch.add, self.totals.values())
