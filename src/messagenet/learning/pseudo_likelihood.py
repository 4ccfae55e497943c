"""Pseudo-likelihood: every node is predicted from the true labels of its neighbours (Besag, 1975).

    J = − 1/N Σ_p log P(ŷ_p | ŷ_{neighbours}, x),     P(y_p | …) = softmax( θ_p + Σ_q θ_pq(·, ŷ_q) )

over N labelled nodes. No inference is needed, but the neighbours' labels are known in training and not in
prediction, so context is trusted more than it deserves. A neighbour without a label (void) is left out of the
sum, as if it were not connected; a node without a label is not predicted.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from messagenet.data.classes import VOID
from messagenet.graph import Window, window
from messagenet.learning.pairs import Pairs, PairTable, recomputed
from messagenet.learning.totals import Loss, cross_entropy_total


def pseudo_likelihood(unary: Tensor, relations: Iterable[Pairs], labels: Tensor) -> Loss:
    """The negative log pseudo-likelihood of a batch of maps of one size.

    Args:
        unary: Log-potentials θ_p, (B, h, w, K).
        relations: For each relation, its pairwise log-potentials; at most one offset's exist at a time.
        labels: Classes of the nodes and 255 for void, (B, h, w).
    """
    return cross_entropy_total(conditional_logits(unary, relations, labels), labels)


def conditional_logits(unary: Tensor, relations: Iterable[Pairs], labels: Tensor) -> Tensor:
    """θ_p(y) + Σ_q θ_pq(y, ŷ_q) for every node and class, (B, h, w, K); arguments as above."""
    logits = unary
    for pairs in relations:
        for pair in pairs:
            if (w := window(labels.shape[1:], pair.offset)) is not None:
                to_first, to_second = _told(pair, labels, w)
                logits = logits + _placed(to_first, w.receivers, logits)
                logits = logits + _placed(to_second, w.senders, logits)
    return logits


def _told(pair: PairTable, labels: Tensor, w: Window) -> tuple[Tensor, Tensor]:
    """What each end of the pairs with one offset hears from the other's label, (B, h', w', K) each."""
    first, second = (labels[part][..., None] for part in (w.receivers, w.senders))  # (B, h', w', 1)

    def told() -> tuple[Tensor, Tensor]:
        table = pair.table()  # (B, h', w', K, K)
        to_first = torch.take_along_dim(table, _index(second)[..., None, :], -1).squeeze(-1)
        to_second = torch.take_along_dim(table, _index(first)[..., None], -2).squeeze(-2)
        return torch.where(second != VOID, to_first, 0), torch.where(first != VOID, to_second, 0)

    return recomputed(told)


def _index(labels: Tensor) -> Tensor:
    """The labels with void as 0, to look up what will be left out."""
    return torch.where(labels != VOID, labels, 0)


def _placed(values: Tensor, place: tuple[slice, slice, slice], like: Tensor) -> Tensor:
    """Values of a window on the whole map, 0 around it."""
    (_, rows, columns), (_, height, width, _) = place, like.shape
    return functional.pad(values, (0, 0, columns.start, width - columns.stop, rows.start, height - rows.stop))
