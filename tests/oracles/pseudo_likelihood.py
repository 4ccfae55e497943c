"""The pseudo-likelihood of a CRF from the tables of its pairs; the library needs no tables."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from messagenet.data.classes import VOID
from messagenet.graph import Window, window
from messagenet.losses.cross_entropy import LossSum, cross_entropy_sum
from messagenet.models.crf import Pairs, PairTable


def pseudo_likelihood(unary: Tensor, relations: Iterable[Pairs], labels: Tensor) -> LossSum:
    """The negative log pseudo-likelihood of maps of one size; arguments as for `losses.crf.piecewise`."""
    return cross_entropy_sum(conditional_logits(unary, relations, labels), labels)


def conditional_logits(unary: Tensor, relations: Iterable[Pairs], labels: Tensor) -> Tensor:
    """θ_p(y) + Σ_q θ_pq(y, ŷ_q) for every node and class, (B, h, w, K); arguments as for `losses.crf.piecewise`."""
    logits = unary
    for pairs in relations:
        for pair in pairs:
            if (w := window(labels.shape[1:], pair.offset)) is not None:
                to_first, to_second = _messages_from_labels(pair, labels, w)
                logits = logits + _pad_window(to_first, w.receivers, logits)
                logits = logits + _pad_window(to_second, w.senders, logits)
    return logits


def _messages_from_labels(pair: PairTable, labels: Tensor, w: Window) -> tuple[Tensor, Tensor]:
    """What the label of either end adds to the other end's logits, (B, h', w', K) each."""
    first, second = (labels[part][..., None] for part in (w.receivers, w.senders))  # (B, h', w', 1)

    table = pair.table()  # (B, h', w', K, K)
    to_first = torch.take_along_dim(table, _index(second)[..., None, :], -1).squeeze(-1)
    to_second = torch.take_along_dim(table, _index(first)[..., None], -2).squeeze(-2)
    return torch.where(second != VOID, to_first, 0), torch.where(first != VOID, to_second, 0)


def _index(labels: Tensor) -> Tensor:
    return torch.where(labels != VOID, labels, 0)  # void is masked after the lookup


def _pad_window(values: Tensor, part: tuple[slice, slice, slice], ref: Tensor) -> Tensor:
    (_, rows, columns), (_, height, width, _) = part, ref.shape
    return functional.pad(values, (0, 0, columns.start, width - columns.stop, rows.start, height - rows.stop))
