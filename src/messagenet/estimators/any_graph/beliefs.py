"""What changes while messages are passed."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class GraphBeliefs(NamedTuple):
    """The state between iterations.

    Attributes:
        totals: For each factor type, the sum of its messages to every variable, (variables, K).
        messages: For types whose cavities will be needed, every message, (slots, K).
    """

    totals: dict[str, Tensor]
    messages: dict[str, Tensor]

    @property
    def logits(self) -> Tensor:
        """Σ_F β_{F→p}, (variables, K)."""
        first, *rest = self.totals.values()
        for total in rest:
            first = first + total
        return first
