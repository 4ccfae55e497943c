"""A conditional random field whose potentials are networks, and its objectives that need no inference.

    log P(y | x) = Σ_p θ_p(y_p) + Σ_R s/n_R Σ_{(p,q) ∈ R} θ_pq(y_p, y_q) − log Z(x),
    θ_p(y)       = W₂ relu(A f_p + b) + b₂                              K outputs; θ_pq: `pairwise_potentials`

n_R is the number of a relation's factors at an inner node: potentials then have the same weight whatever the size
of the range box. Piecewise training does not see it; s is the pairwise scale, to be tuned for prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from messagenet.errors import InputError
from messagenet.estimators.estimator import MessageEstimator
from messagenet.estimators.field import fields
from messagenet.graph import Relation
from messagenet.learning.pairs import Pairs, PairTable
from messagenet.learning.piecewise import piecewise
from messagenet.learning.totals import Loss, cross_entropy_total
from messagenet.models.heads import checked, known
from messagenet.models.pair_offsets import Neighbours
from messagenet.models.pairwise_potentials import PairwisePotentials


@dataclass(frozen=True)
class GridPotentials:
    """A CRF on maps of one size.

    Attributes:
        unary: θ_p, (B, h, w, K).
        relations: θ_pq of each relation; every unordered pair once.
        present: Which nodes exist, (B, h, w); None if all do. Pairs with the others are to be ignored.
    """

    unary: Tensor
    relations: tuple[Pairs, ...]
    present: Tensor | None = None

    def scaled(self, scale: float = 1.0) -> GridPotentials:
        """The potentials of the energy: θ_pq · scale / n_R, n_R the relation's factors at an inner node."""
        return replace(
            self, relations=tuple(_scaled(pairs, scale / max(1, 2 * len(pairs))) for pairs in self.relations)
        )


def _scaled(pairs: Pairs, factor: float) -> Pairs:
    def times(table: Callable[[], Tensor]) -> Tensor:
        return table() * factor

    return [PairTable(pair.offset, partial(times, pair.table)) for pair in pairs]


class CRFPotentials(nn.Module):
    """Unary and pairwise potential networks of a CRF, and the objectives that need no inference.

    It is all of a head but what needs inference: see `crf_head`.

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
        self.in_channels = in_channels
        self.pairwise = PairwisePotentials(
            in_channels, num_classes, relations, hidden=hidden, neighbours=neighbours
        )
        self.unary = MessageEstimator(in_channels, hidden, num_classes, has_sender=False, has_dependent=False)
        self.check_finite = True

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations that have a network."""
        return self.pairwise.relations

    def maps(
        self, features: Tensor | Mapping[str, Tensor], valid: Tensor | None = None
    ) -> Iterator[tuple[Tensor | None, GridPotentials]]:
        """The potentials of a batch, one `GridPotentials` for each size of map, with their images' numbers.

        The numbers are None where all maps have the full size.

        Args:
            features: The feature map (B, r, h, w), or one for "unary" and for each relation by name.
            valid: Which nodes exist, (B, h, w).
        """
        for numbers, nodes, present in self._split(features, valid):
            yield (
                numbers,
                GridPotentials(self.unary(nodes["unary"]), tuple(self.pairwise.on(nodes)), present),
            )

    def piecewise_loss(
        self, features: Tensor | Mapping[str, Tensor], labels: Tensor, valid: Tensor | None = None
    ) -> Loss:
        """Every factor trained by itself: see `learning.piecewise`."""
        labels = known(labels, valid)
        losses = [
            piecewise(potentials.unary, potentials.relations, part_of(labels, numbers, potentials.unary))
            for numbers, potentials in self.maps(features, valid)
        ]
        return sum_of(losses)

    def pseudo_likelihood_loss(
        self, features: Tensor | Mapping[str, Tensor], labels: Tensor, valid: Tensor | None = None
    ) -> Loss:
        """Every node predicted from its neighbours' true labels: see `learning.pseudo_likelihood`.

        The same as that function on `GridPotentials.scaled()`, without making the tables.
        """
        labels = known(labels, valid)
        losses = []
        for numbers, nodes, _ in self._split(features, valid):
            truth = part_of(labels, numbers, nodes["unary"])
            logits = self.unary(nodes["unary"]) + self.pairwise.told_by_labels(nodes, truth)
            losses.append(cross_entropy_total(logits, truth))
        return sum_of(losses)

    def _split(
        self, features: Tensor | Mapping[str, Tensor], valid: Tensor | None
    ) -> Iterator[tuple[Tensor | None, Mapping[str, Tensor], Tensor | None]]:
        """The maps of each size: their images' numbers, features by factor type and existing nodes."""
        names = ["unary", *(relation.name for relation in self.relations)]
        by_type = dict.fromkeys(names, features) if isinstance(features, Tensor) else features
        if missing := [name for name in names if name not in by_type]:
            raise InputError(f"no features for {', '.join(missing)}; give one map for each of {names}")
        for values in {id(by_type[name]): by_type[name] for name in names}.values():
            checked(values, self.in_channels, self.check_finite)
        for numbers, field in fields({name: by_type[name] for name in names}, valid, self.relations):
            present = None if field.talking is None else field.talking[..., 0] > 0
            yield numbers, field.features, present


def part_of(labels: Tensor, numbers: Tensor | None, like: Tensor) -> Tensor:
    """The labels of some images, (b, h, w), cut to the size of their map."""
    return labels if numbers is None else labels[numbers, : like.shape[1], : like.shape[2]]


def sum_of(losses: Sequence[Loss]) -> Loss:
    """One loss of several batches."""
    totals, counts = zip(*losses, strict=True)
    return Loss(torch.stack(totals).sum(), torch.stack(counts).sum())
