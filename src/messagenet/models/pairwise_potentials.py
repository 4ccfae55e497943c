"""Potentials computed by networks, as in ContextDCRF (Lin, Shen, van den Hengel, Reid, arXiv 1504.01013).

    θ_pq(y, y') = W₂ relu(A f_p + B f_q + b) + b₂                       K² outputs, one network per relation

The two layers are those of a message estimator, but a potential has one output for every pair of classes, and
its first and second argument play different parts, so that it can tell "sky above land" from its opposite. Which
pairs there are, each once, says `pair_offsets`. The first layer on [f_p; f_q] splits into products per node; the
last one, K² · hidden multiplications per pair, cannot be spared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import get_args

import torch
from torch import Tensor, nn

from messagenet.data.classes import VOID
from messagenet.errors import InputError, nearest
from messagenet.estimators.aggregate import relu_sum
from messagenet.estimators.box_sum import box_sum
from messagenet.estimators.estimator import MessageEstimator
from messagenet.graph import GridGraph, Offset, Relation, window
from messagenet.learning.pairs import Pairs, PairTable
from messagenet.models.heads import check_sizes
from messagenet.models.pair_offsets import Neighbours, pair_offsets, paired_relations


class PairwisePotentials(nn.Module):
    """One network per relation, K² outputs.

    >>> from messagenet.graph import above, surrounding
    >>> pairwise = PairwisePotentials(16, 5, [surrounding(0.4), above(0.4)], hidden=32)
    >>> near, vertical = pairwise.on(torch.randn(2, 12, 15, 16))
    >>> near[0].offset, near[0].table().shape
    ((0, 1), torch.Size([2, 12, 14, 5, 5]))

    Args:
        in_channels: r, channels of the feature map.
        num_classes: K.
        relations: Which pairs have a potential.
        hidden: Hidden units of every network.
        neighbours: "lattice" for 24 neighbours of a node spread over each range box, "all" for the whole box.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        relations: Sequence[Relation],
        *,
        hidden: int = 512,
        neighbours: Neighbours = "lattice",
    ) -> None:
        super().__init__()
        check_sizes(in_channels, num_classes)
        if neighbours not in get_args(Neighbours):
            raise InputError(
                f"unknown neighbours {neighbours!r}; {nearest(neighbours, get_args(Neighbours))}"
            )
        self.num_classes = num_classes
        self.relations = paired_relations(GridGraph(1, 1, tuple(relations)).relations)
        self.neighbours = neighbours
        self.networks = nn.ModuleList(
            MessageEstimator(in_channels, hidden, num_classes**2, has_sender=True, has_dependent=False)
            for _ in self.relations
        )

    def on(self, features: Tensor | Mapping[str, Tensor]) -> list[Pairs]:
        """The potentials of each relation on maps of one size, channels last (B, h, w, r), or one by name."""
        return [
            [PairTable(offset, partial(self._table, first, second, network, offset)) for offset in offsets]
            for network, offsets, first, second in self._projected(features)
        ]

    def told_by_labels(self, features: Tensor | Mapping[str, Tensor], labels: Tensor) -> Tensor:
        """Σ_R 1/n_R Σ_q θ_pq(y, ŷ_q) for every node and class, (B, h, w, K): pseudo-likelihood's context.

        With the neighbour's class known, only K of the K² outputs matter, and the last layer commutes with the
        sum over neighbours of one class:

            Σ_q θ_pq(y, ŷ_q) = Σ_c [ W₂[y, c] S_pc + n_pc b₂[y, c] ],     S_pc = Σ_{q: ŷ_q = c} relu(P_p + Q_q)

        and likewise for the second node of a pair. No table is made.

        Args:
            features: As for `on`.
            labels: Classes of the nodes and 255 for void, which tells nothing, (B, h, w).
        """
        is_class = labels[..., None] == torch.arange(self.num_classes, device=labels.device)  # (B, h, w, K)
        present = [int(label) for label in labels.unique() if label != VOID]
        some = features if isinstance(features, Tensor) else next(iter(features.values()))
        total = some.new_zeros(is_class.shape)
        for network, offsets, first, second in self._projected(features):
            if offsets:
                told = self._told(network, offsets, first, second, is_class, present)
                total = total + told / (2 * len(offsets))
        return total

    def _told(
        self,
        network: MessageEstimator,
        offsets: tuple[Offset, ...],
        first: Tensor,
        second: Tensor,
        is_class: Tensor,
        present: Sequence[int],
    ) -> Tensor:
        """Σ_q θ_pq(y, ŷ_q) over both kinds of neighbours in one relation, (B, h, w, K)."""
        square = (self.num_classes, self.num_classes)
        weight, bias = network.output.weight.unflatten(0, square), network.output.bias.unflatten(0, square)
        given_first, given_second = weight.unbind(0), weight.unbind(1)  # (K, hidden) for each known class
        back = tuple((-dy, -dx) for dy, dx in offsets)
        hot = is_class.to(first.dtype)
        total: Tensor = box_sum(hot, offsets) @ bias.T + box_sum(hot, back) @ bias
        for c in present:
            others = ~is_class[..., c : c + 1]
            to_first = relu_sum(first, second.masked_fill(others, -torch.inf), offsets)  # (B, h, w, hidden)
            to_second = relu_sum(second, first.masked_fill(others, -torch.inf), back)
            total = total + to_first @ given_second[c].T + to_second @ given_first[c].T
        return total

    def _projected(
        self, features: Tensor | Mapping[str, Tensor]
    ) -> Iterator[tuple[MessageEstimator, tuple[Offset, ...], Tensor, Tensor]]:
        """For each relation its network, its offsets, and the first layer of both ends, (B, h, w, hidden)."""
        for relation, network in zip(self.relations, self.networks, strict=True):
            assert isinstance(network, MessageEstimator)
            assert network.sender is not None
            own = features if isinstance(features, Tensor) else features[relation.name]
            offsets = pair_offsets(relation.offsets_on(own.shape[1], own.shape[2]), self.neighbours)
            yield network, offsets, network.receiver(own), network.sender(own)

    def _table(self, first: Tensor, second: Tensor, network: MessageEstimator, offset: Offset) -> Tensor:
        """θ_pq of all pairs with one offset, (B, h', w', K, K)."""
        w = window(first.shape[1:3], offset)
        assert w is not None, "an offset that leaves the map has no pairs"
        hidden = torch.relu(first[w.receivers] + second[w.senders])
        table: Tensor = network.output(hidden).unflatten(-1, (self.num_classes, self.num_classes))
        return table
