"""What changes while messages are passed, and what is left when it is done."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False)
class Passed:
    """What came of passing messages.

    Attributes:
        logits: Of the marginals, (variables, K); −∞ at classes that a variable does not have.
        iterations: How many were run.
        settled: Whether the beliefs changed by no more than the tolerance at the end; None without a tolerance.
        changes: The largest change of a probability in each iteration, if there is a tolerance.
        note: What to bear in mind when reading the result; empty if nothing.
    """

    logits: Tensor
    iterations: int
    settled: bool | None
    changes: tuple[float, ...]
    note: str
