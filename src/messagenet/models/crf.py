"""A conditional random field as a head: potentials from networks, marginals from inference.

    prediction    mean field from the unary marginals, 3 iterations (ContextDCRF, Lin et al., arXiv 1504.01013), or
                  loopy belief propagation; pairwise potentials are multiplied by a scale s that is tuned, not learned
    training      "piecewise", "pseudo_likelihood", or "likelihood" with marginals from belief propagation

All objectives train the same networks (`crf_potentials`), so that a comparison of them compares nothing else.

Conventional CRFs with CNN potentials: ContextDCRF, and the same potentials trained in other ways.

    objective "piecewise"           ContextDCRF (Lin, Shen, van den Hengel, Reid, arXiv 1504.01013)
    objective "pseudo_likelihood"   every node given its neighbours' labels (Besag, 1975)
    objective "likelihood"          the conditional likelihood, marginals by belief propagation in every step

K² outputs per pairwise factor, where a learned message has K.

A conditional random field whose potentials are networks, and its objectives that need no inference.

    log P(y | x) = Σ_p θ_p(y_p) + Σ_R s/n_R Σ_{(p,q) ∈ R} θ_pq(y_p, y_q) − log Z(x),
    θ_p(y)       = W₂ relu(A f_p + b) + b₂                              K outputs; θ_pq: `pairwise_potentials`

n_R is the number of a relation's factors at an inner node: potentials then have the same weight whatever the size
of the range box. Piecewise training does not see it; s is the pairwise scale, to be tuned for prediction.

Potentials computed by networks, as in ContextDCRF (Lin, Shen, van den Hengel, Reid, arXiv 1504.01013).

    θ_pq(y, y') = W₂ relu(A f_p + B f_q + b) + b₂                       K² outputs, one network per relation

The two layers are those of a message estimator, but a potential has one output for every pair of classes, and
its first and second argument play different parts, so that it can tell "sky above land" from its opposite. Which
pairs there are, each once, says `pair_offsets`. The first layer on [f_p; f_q] splits into products per node; the
last one, K² · hidden multiplications per pair, cannot be spared.

Which pairs of nodes carry a pairwise potential.

A message goes one way, so a relation lists every neighbour of a node. A potential belongs to an unordered pair,
so one list serves both ends, and no pair may be in it twice:

    surrounding   o and −o are the same pairs: those with o > (0, 0), the second node below or to the right
    above         −o is never in it: all offsets, the second node above the first
    below         the pairs of `above`, seen from the other end: a relation whose mirror image has come before it
                  adds none

ContextDCRF does not connect every pair in the range box, for cost, but a regular lattice of 24 neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from messagenet.data.classes import VOC_CLASSES, VOID, Classes
from messagenet.errors import InputError, nearest
from messagenet.graph import GridGraph, Offset, Relation, window
from messagenet.graph.grid import mirrors
from messagenet.inference import BeliefPropagation, MeanField
from messagenet.losses.crf import MessageMemory, Pairs, PairTable, likelihood, pair_graph, piecewise
from messagenet.losses.cross_entropy import Loss, cross_entropy_total, widened
from messagenet.message_passing.estimator import MessageEstimator
from messagenet.message_passing.fused_sum import as_rectangle, box_sum, relu_sum
from messagenet.message_passing.grid import fields
from messagenet.models.base import Features, SegmentationNet, check_sizes, checked, heard, known
from messagenet.models.message import PAPER_RELATIONS

Neighbours = Literal["lattice", "all"]
LATTICE = 5


def paired_relations(relations: Sequence[Relation]) -> tuple[Relation, ...]:
    """The relations without those whose pairs an earlier one has already.

    >>> from messagenet.graph import surrounding, above, below
    >>> [relation.name for relation in paired_relations([surrounding(0.4), above(0.4), below(0.4)])]
    ['surrounding', 'above']
    """
    for relation in relations:
        if relation.form != "pairwise":
            raise InputError(
                f"relation {relation.name!r} has the form {relation.form!r}, which potentials of pairs cannot have; "
                "make it pairwise"
            )
    matched = mirrors(relations)
    return tuple(
        relation for i, relation in enumerate(relations) if (mirror := matched[i]) is None or mirror >= i
    )


def pair_offsets(offsets: tuple[Offset, ...], neighbours: Neighbours = "lattice") -> tuple[Offset, ...]:
    """The offsets that name each pair of neighbours once.

    >>> from messagenet.graph import surrounding
    >>> box = surrounding(cells=13).offsets_on(32, 32)
    >>> len(pair_offsets(box, "all")), pair_offsets(box)[:5]        # 168 / 2; the lattice has 24 / 2
    (84, ((0, 3), (0, 6), (3, -6), (3, -3), (3, 0)))
    """
    chosen = lattice(offsets) if neighbours == "lattice" else offsets
    present = set(chosen)
    return tuple((dy, dx) for dy, dx in chosen if (dy, dx) > (0, 0) or (-dy, -dx) not in present)


def lattice(offsets: tuple[Offset, ...]) -> tuple[Offset, ...]:
    """Up to 24 of the offsets, on a 5 × 5 lattice that spans their box, its middle left out.

    In a box around the node the middle is the node itself. A box above it has none to leave out; its middle goes
    all the same, so that every relation has 24. Boxes with no more offsets than that, and sets of offsets that
    fill no box, stay whole.

    >>> from messagenet.graph import above, surrounding
    >>> [len(lattice(relation.offsets_on(32, 32))) for relation in (surrounding(0.4), above(0.4))]
    [24, 24]
    """
    if len(offsets) < LATTICE**2 or (box := as_rectangle(offsets)) is None:
        return offsets
    rows, columns = _spread(box.top, box.bottom), _spread(box.left, box.right)
    places = tuple(product(rows, columns))
    if len(places) < LATTICE**2:
        return tuple(place for place in places if place != (0, 0))
    return tuple(place for i, place in enumerate(places) if i != len(places) // 2)


def _spread(low: int, high: int) -> list[int]:
    """Up to five whole numbers, evenly from `low` to `high`."""
    return sorted({round(low + (high - low) * i / (LATTICE - 1)) for i in range(LATTICE)})


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


Objective = Literal["piecewise", "pseudo_likelihood", "likelihood"]
Inference = Literal["mean_field", "belief_propagation"]

LIKELIHOOD_TOLERANCE = 1e-4


class CRFHead(CRFPotentials):
    """Potential networks with an objective and a way to predict.

    >>> from messagenet.graph import above, surrounding
    >>> crf = CRFHead(16, 5, [surrounding(0.4), above(0.4)], hidden=32)
    >>> crf(torch.randn(2, 16, 6, 7)).shape
    torch.Size([2, 5, 6, 7])

    Args:
        in_channels: r, channels of the feature map.
        num_classes: K.
        relations: Which pairs have a potential.
        hidden: Hidden units of every network.
        neighbours: "lattice" for 24 neighbours of a node spread over each range box, "all" for the whole box.
        objective: What it is trained with.
        inference: How it predicts.
        inference_iterations: Of that.
        likelihood_iterations: Of belief propagation in every training step, at most.
        persistent_messages: Begin it with the messages that the same image had when it was last seen.
        pairwise_scale: s, for prediction; training has s = 1.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        relations: Sequence[Relation],
        *,
        hidden: int = 512,
        neighbours: Neighbours = "lattice",
        objective: Objective = "piecewise",
        inference: Inference = "mean_field",
        inference_iterations: int = 3,
        likelihood_iterations: int = 20,
        persistent_messages: bool = False,
        pairwise_scale: float = 1.0,
    ) -> None:
        super().__init__(in_channels, num_classes, relations, hidden=hidden, neighbours=neighbours)
        for name, value, choices in (
            ("objective", objective, get_args(Objective)),
            ("inference", inference, get_args(Inference)),
        ):
            if value not in choices:
                raise InputError(f"unknown {name} {value!r}; {nearest(value, choices)}")
        self.objective = objective
        self.inference = inference
        self.inference_iterations = inference_iterations
        self.pairwise_scale = pairwise_scale
        self.memory = MessageMemory() if persistent_messages else None
        self.engine = BeliefPropagation(max_iterations=likelihood_iterations, tolerance=LIKELIHOOD_TOLERANCE)

    def forward(self, features: Tensor | Mapping[str, Tensor], valid: Tensor | None = None) -> Tensor:
        """Log-marginals, (B, K, h, w); 0 at nodes that are not valid."""
        some = features if isinstance(features, Tensor) else features["unary"]
        logits = some.new_zeros(len(some), self.pairwise.num_classes, *some.shape[2:])
        for numbers, potentials in self.maps(features, valid):
            found = heard(self.log_marginals(potentials), potentials.present).to(logits.dtype)
            if numbers is None:
                return found
            whole = torch.zeros_like(logits[numbers])
            whole[..., : found.shape[2], : found.shape[3]] = found
            logits = logits.index_copy(0, numbers, whole)
        return logits

    def log_marginals(self, potentials: GridPotentials) -> Tensor:
        """What inference makes of a batch of maps of one size, (B, K, h, w)."""
        scaled = potentials.scaled(self.pairwise_scale)
        graph, tables, _ = pair_graph(scaled.unary, scaled.relations, scaled.present)
        steps = self.inference_iterations
        if self.inference == "mean_field":
            alone = torch.softmax(widened(scaled.unary), -1).flatten(1, 2)  # (B, h·w, K)
            result = MeanField("parallel", max_iterations=steps, tolerance=None).run(graph, tables, alone)
        else:
            result = BeliefPropagation(max_iterations=steps, tolerance=None).run(graph, tables)
        return graph.as_map(result.log_marginals)

    def loss(
        self,
        features: Tensor | Mapping[str, Tensor],
        labels: Tensor,
        valid: Tensor | None = None,
        names: Sequence[str] = (),
    ) -> Loss:
        """The objective over the labelled nodes, summed, and their number; names are for persistent messages."""
        if self.objective == "likelihood":
            return self.likelihood_loss(features, labels, valid, names)
        if self.objective == "pseudo_likelihood":
            return self.pseudo_likelihood_loss(features, labels, valid)
        return self.piecewise_loss(features, labels, valid)

    def likelihood_loss(
        self,
        features: Tensor | Mapping[str, Tensor],
        labels: Tensor,
        valid: Tensor | None = None,
        names: Sequence[str] = (),
    ) -> Loss:
        """− log P(ŷ | x), with marginals from belief propagation: see `learning.likelihood`."""
        memory = self.memory if names else None
        labels = known(labels, valid)
        losses = []
        for numbers, potentials in self.maps(features, valid):
            truth = part_of(labels, numbers, potentials.unary)
            scaled = potentials.scaled()
            theirs = names if numbers is None or not names else [names[n] for n in numbers.tolist()]
            losses.append(
                likelihood(scaled.unary, scaled.relations, truth, self.engine, memory=memory, names=theirs)
            )
        return sum_of(losses)


def usual_inference(objective: Objective) -> Inference:
    """How a CRF predicts unless told: with the inference that its potentials were learned with, if there was any.

    Potentials that maximise a likelihood under the marginals of belief propagation make up for its errors, and need
    them in prediction (Wainwright, "Estimating the wrong graphical model", JMLR 7, 2006).

    >>> usual_inference("likelihood"), usual_inference("piecewise")
    ('belief_propagation', 'mean_field')
    """
    return "belief_propagation" if objective == "likelihood" else "mean_field"


class CRFNet(SegmentationNet):
    """A backbone with a CRF for a head.

    >>> import torch
    >>> CRFNet("tiny", 3, hidden=16)(torch.rand(1, 3, 40, 50)).shape
    torch.Size([1, 3, 10, 13])

    Args:
        backbone, classes, backbone_options, neck, void_values: See `SegmentationNet`.
        relations: Which pairs of nodes have a potential.
        separate_features: A backbone of its own for the unary and for every relation.
        hidden, neighbours, objective, inference, inference_iterations, likelihood_iterations, persistent_messages,
            pairwise_scale: See `CRFHead`.
    """

    options = (
        *("separate_features", "neck", "hidden", "neighbours"),
        *("inference", "inference_iterations", "likelihood_iterations", "persistent_messages"),
    )
    own_objective = True
    adjustable: ClassVar[Mapping[str, tuple[float, ...]]] = {
        "pairwise_scale": (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
        "inference_iterations": (3, 10),
    }
    head: CRFHead

    def __init__(
        self,
        backbone: str | nn.Module = "efficientnet_lite0",
        classes: Classes | Sequence[str] | int = VOC_CLASSES,
        relations: Sequence[Relation] = PAPER_RELATIONS,
        *,
        backbone_options: Mapping[str, Any] | None = None,
        separate_features: bool = False,
        neck: Mapping[str, Any] | None = None,
        hidden: int = 256,
        neighbours: Neighbours = "lattice",
        objective: Objective = "piecewise",
        inference: Inference | None = None,
        inference_iterations: int = 3,
        likelihood_iterations: int = 20,
        persistent_messages: bool = False,
        pairwise_scale: float = 1.0,
        void_values: Sequence[int] = (),
    ) -> None:
        of_head: dict[str, Any] = {
            "hidden": hidden,
            "neighbours": neighbours,
            "objective": objective,
            "inference": inference or usual_inference(objective),
            "inference_iterations": inference_iterations,
            "likelihood_iterations": likelihood_iterations,
            "persistent_messages": persistent_messages,
            "pairwise_scale": pairwise_scale,
        }
        kinds = ["unary", *(relation.name for relation in paired_relations(relations))]
        super().__init__(
            backbone,
            classes,
            relations,
            settings={"separate_features": separate_features, **of_head},
            backbone_options=backbone_options,
            separate=kinds if separate_features else (),
            neck=neck,
            void_values=void_values,
        )
        self.head = CRFHead(self.head_channels, self.classes.num_classes, relations, **of_head)

    @property
    def outputs_per_factor(self) -> int:
        """K², of a pairwise potential."""
        return self.classes.num_classes**2

    def own_loss(self, features: Features, truth: Tensor, valid: Tensor | None, names: Sequence[str]) -> Loss:
        """The head's objective, which may remember images by name."""
        return self.head.loss(features, truth, valid, names)

    def adjust(self, **values: float) -> None:
        """Sets the pairwise scale, and for how long inference goes on."""
        super().adjust(**values)
        self.head.pairwise_scale = self.settings["pairwise_scale"]
        self.head.inference_iterations = self.settings["inference_iterations"]
