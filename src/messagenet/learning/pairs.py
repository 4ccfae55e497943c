"""Pairwise log-potentials on a grid, one offset at a time.

A pairwise CRF over a range box has a K × K table for every pair of nodes (p, p + o): with 32 × 32 nodes, 240
offsets and 21 classes, 0.4 GiB in single precision for one image, and as much again for every step of their
computation that a gradient would keep. So an objective receives, for each offset, a *promise* of the tables of
all pairs with that offset, asks for them when their turn comes, and lets them go. The gradient asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from messagenet.graph import Offset

T = TypeVar("T")


class PairTable(NamedTuple):
    """The log-potentials θ(y_p, y_q) of all pairs (p, q = p + offset) that lie inside a map.

    Attributes:
        offset: From the first node of a pair to the second.
        table: Makes them, (B, h', w', K, K), the axes of a table being y_p and y_q; h' × w' is the window
            of first nodes (see `messagenet.graph.window`). It is called again for the gradient, and must
            return the same values then.
    """

    offset: Offset
    table: Callable[[], Tensor]


Pairs = Sequence[PairTable]
"""The factors of one relation: every unordered pair of nodes at most once."""


def recomputed(function: Callable[[], T]) -> T:
    """The function's result, keeping nothing else of its computation for the gradient."""
    if not torch.is_grad_enabled():
        return function()
    result: T = checkpoint(function, use_reentrant=False, preserve_rng_state=False)
    return result
