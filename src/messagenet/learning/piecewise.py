"""Piecewise training: every factor is trained as if it were a whole model (Sutton & McCallum, UAI 2005).

    J = 1/N [ Σ_p −log softmax_K(θ_p)[ŷ_p]  +  Σ_R 1/|R| Σ_{(p,q) ∈ R} −log softmax_{K²}(θ_pq)[ŷ_p, ŷ_q] ]

over N labelled nodes, and pairs of which both ends are labelled. The partition function splits into one
softmax per factor, so no inference is needed; but a pairwise factor has K² classes. ContextDCRF trains its
potentials so (Lin, Shen, van den Hengel, Reid, arXiv 1504.01013), each kind by itself. Here |R| is the number
of offsets of a relation, counting every unordered pair once: there are about |R| pairs to a node, so a
relation weighs as much as the unary, whatever the size of its box. Dividing by |R|, and not by the number of
labelled pairs in the batch, keeps the loss a sum over images.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from messagenet.data.classes import VOID
from messagenet.graph import Window, window
from messagenet.learning.pairs import Pairs, PairTable, recomputed
from messagenet.learning.totals import Loss, cross_entropy_total, widened

_LEFT_OUT = -1  # 255 is a pair of classes


def piecewise(unary: Tensor, relations: Iterable[Pairs], labels: Tensor) -> Loss:
    """The piecewise loss of a batch of maps of one size.

    Args:
        unary: Log-potentials θ_p, (B, h, w, K).
        relations: For each relation, its pairwise log-potentials; at most one offset's exist at a time.
        labels: Classes of the nodes and 255 for void, (B, h, w).
    """
    total, nodes = cross_entropy_total(unary, labels)
    for pairs in relations:
        for pair in pairs:
            if (w := window(labels.shape[1:], pair.offset)) is not None:
                total = total + _pieces(pair, labels, w, unary.shape[-1]) / len(pairs)
    return Loss(total, nodes)


def _pieces(pair: PairTable, labels: Tensor, w: Window, num_classes: int) -> Tensor:
    """− Σ log softmax_{K²}(θ_pq)[ŷ_p, ŷ_q] over the labelled pairs with one offset."""
    first, second = labels[w.receivers], labels[w.senders]  # (B, h', w')
    joint = first * num_classes + second
    joint = torch.where((first != VOID) & (second != VOID), joint, _LEFT_OUT).flatten()

    def total() -> Tensor:
        table = widened(pair.table()).flatten(0, 2).flatten(1)  # (B·h'·w', K²)
        return functional.cross_entropy(table, joint, ignore_index=_LEFT_OUT, reduction="sum")

    return recomputed(total)
