"""Message slots: one for every (factor, position) that is sent a message, in the order that makes sums fast.

The slot of factor F and position i carries β_{F→p}, p the variable at that position. Slots that one estimator
serves lie together and are sorted by receiver, so that the messages of a variable are neighbours in memory and
their sum is a sum over a segment. For each slot the layout knows

    receivers   p
    senders     the other variables of F, in the order of their positions
    reverse     the slots of F's messages to those senders, −1 where it sends them none: what a cavity leaves out
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Slots:
    """Slots of one estimator and one factor order; rows `first` to `first + len` of the type's messages.

    Attributes:
        first: Row of the first slot.
        estimator: Which of the type's estimators makes these messages.
        block: Which of the type's blocks of factors they belong to.
        receivers: (slots,) variables, ascending.
        senders: (slots, order − 1) variables.
        reverse: (slots, order − 1) rows, −1 where the factor sends that variable nothing.
        factors: (slots,) number of the factor in the user's list.
        origin: (slots,) position · factors of the block + place of the factor in it.
    """

    first: int
    estimator: int
    block: int
    receivers: Tensor
    senders: Tensor
    reverse: Tensor
    factors: Tensor
    origin: Tensor

    def __len__(self) -> int:
        return len(self.receivers)

    @property
    def order(self) -> int:
        """Number of variables of each factor."""
        return self.senders.shape[1] + 1

    @property
    def rows(self) -> slice:
        """Where these slots are among the type's messages."""
        return slice(self.first, self.first + len(self))


@dataclass(frozen=True, eq=False)
class Layout:
    """Every slot of a factor type.

    Attributes:
        slots: Parts that have one estimator and one order, one after another.
        receivers: (rows,) the variable that each message of the type goes to.
        counts: For each estimator, (variables,) how many messages each variable gets from it.
        row_of: For each block, (factors, order) the row of every (factor, position), −1 where nothing is sent.
    """

    slots: tuple[Slots, ...]
    receivers: Tensor
    counts: tuple[Tensor, ...]
    row_of: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.receivers)


def lay_out(
    blocks: Sequence[tuple[Tensor, Tensor]],
    num_variables: int,
    *,
    ordered: bool,
    sends_to: tuple[int, ...] | None = None,
) -> Layout:
    """Lays out the messages of one factor type.

    Args:
        blocks: (factors, order) scopes with the factors' numbers, (factors,).
        num_variables: Number of variables of the graph.
        ordered: One estimator per receiving position, or one for all.
        sends_to: The positions that are sent messages; None for all.

    >>> layout = lay_out([(torch.tensor([[1, 0], [0, 2]]), torch.arange(2))], 3, ordered=False)
    >>> (part,) = layout.slots
    >>> part.receivers.tolist(), part.senders[:, 0].tolist(), part.reverse[:, 0].tolist()
    ([0, 0, 1, 2], [2, 1, 0, 0], [3, 2, 1, 0])
    """
    parts: list[Slots] = []
    row_of: list[Tensor] = []
    first = 0
    for block, (scopes, numbers) in enumerate(blocks):
        count, order = scopes.shape
        positions = tuple(range(order)) if sends_to is None else sends_to
        others = torch.tensor([[j for j in range(order) if j != i] for i in range(order)])
        others = others.to(scopes.device)
        rows = torch.full_like(scopes, -1)
        own: list[tuple[int, Tensor]] = []
        for group in [(i,) for i in positions] if ordered else [positions]:
            receivers = torch.cat([scopes[:, i] for i in group])
            origin = torch.cat([torch.arange(i * count, (i + 1) * count) for i in group]).to(scopes.device)
            origin = origin[receivers.argsort(stable=True)]
            place, factor = origin // max(count, 1), origin % max(count, 1)
            rows[factor, place] = torch.arange(first, first + len(origin), device=scopes.device)
            own.append((first, origin))
            first += len(origin)
        for estimator, (start, origin) in enumerate(own):
            place, factor = origin // max(count, 1), origin % max(count, 1)
            sending = others[place]  # (slots, order − 1)
            parts.append(
                Slots(
                    start,
                    estimator,
                    block,
                    receivers=scopes[factor, place],
                    senders=scopes[factor[:, None], sending],
                    reverse=rows[factor[:, None], sending],
                    factors=numbers[factor],
                    origin=origin,
                )
            )
        row_of.append(rows)
    estimators = 1 + max((part.estimator for part in parts), default=-1)
    counts = tuple(
        torch.bincount(
            torch.cat([part.receivers for part in parts if part.estimator == number]),
            minlength=num_variables,
        )
        for number in range(estimators)
    )
    if len(parts) == 1:
        return Layout(tuple(parts), parts[0].receivers, counts, tuple(row_of))
    receivers = torch.cat([part.receivers for part in parts]) if parts else torch.zeros(0, dtype=torch.long)
    return Layout(tuple(parts), receivers, counts, tuple(row_of))
