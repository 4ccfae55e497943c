"""A conditional random field as a head: potentials from networks, marginals from inference.

    log P(y | x) = Σ_p θ_p(y_p) + Σ_R s/n_R Σ_{(p,q) ∈ R} θ_pq(y_p, y_q) − log Z(x)
    θ_p(y)       = W₂ relu(A f_p + b) + b₂                              K outputs
    θ_pq(y, y')  = W₂ relu(A f_p + B f_q + b) + b₂                      K² outputs, one network per relation

as in ContextDCRF (Lin, Shen, van den Hengel, Reid, arXiv 1504.01013). n_R is the number of a relation's factors at an
inner node, so the weight of a potential does not depend on the size of the range box. s is tuned, not learned.
Prediction is mean field from the unary marginals, or loopy BP. Potentials learned with BP marginals make up for the
errors of BP, and need it in prediction too (Wainwright, JMLR 7, 2006).

A potential belongs to an unordered pair, so no pair may be listed twice:

    surrounding   o and −o are the same pairs: those with o > (0, 0), the second node below or to the right
    above         −o is never in it: all offsets, the second node above the first
    below         the pairs of `above` from the other end: a relation adds none if its mirror image comes before it

As in ContextDCRF, each node has a lattice of 24 neighbours in the range box. With 32 × 32 nodes, 240 offsets and 21
classes, all K × K tables of one image take 0.4 GiB, so they are made one offset at a time, and again for gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import ClassVar, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from messagenet.data.classes import VOID
from messagenet.errors import InputError, nearest
from messagenet.geometry import Features
from messagenet.graph import GridGraph, Offset, Relation, Window, window
from messagenet.graph.grid import EdgeBlock, GridFactorGraph, mirrors
from messagenet.graph.relations import PAPER_RELATIONS
from messagenet.inference import BeliefPropagation, MeanField
from messagenet.message_passing.estimator import MessageEstimator
from messagenet.message_passing.fused_sum import as_rectangle, box_sum, relu_sum
from messagenet.message_passing.grid import split_by_size
from messagenet.models.base import Head, at_least_float32, check_features, check_sizes, zero_padding
from messagenet.models.message import unary_estimator
from messagenet.settings import at_least, convert, register

Neighbours = Literal["lattice", "all"]
Inference = Literal["mean_field", "belief_propagation"]
LATTICE = 5
T = TypeVar("T")


@register("head", "crf")
class CRFHead(Head):
    """Unary and pairwise potential networks of a CRF, and inference on them.

    >>> from messagenet.graph import above, surrounding
    >>> crf = CRFHead(16, 5, [surrounding(0.4), above(0.4)], hidden=32)
    >>> crf(torch.randn(2, 16, 6, 7)).shape
    torch.Size([2, 5, 6, 7])

    Args:
        in_channels, num_classes: r, channels of the feature map, and K.
        relations: Which pairs of nodes have a potential; a box stands for the pairs in it.
        neighbours: "lattice" for 24 neighbours of a node spread over each range box, "all" for the whole box.
        hidden: Hidden units of every network.
        inference: "mean_field" or "belief_propagation"; choose the latter if training used its marginals.
        inference_iterations: Of that.
        pairwise_scale: s, for prediction; training has s = 1.
    """

    tunable: ClassVar[Mapping[str, tuple[float, ...]]] = {
        "pairwise_scale": (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
        "inference_iterations": (3, 10),
    }

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        relations: Sequence[Relation | str] = PAPER_RELATIONS,
        *,
        neighbours: Neighbours = "lattice",
        hidden: int = 256,
        inference: Inference = "mean_field",
        inference_iterations: int = 3,
        pairwise_scale: float = 1.0,
    ) -> None:
        super().__init__(in_channels, num_classes)
        if inference not in get_args(Inference):
            raise InputError(f"unknown inference {inference!r}; {nearest(inference, get_args(Inference))}")
        at_least(1, hidden=hidden, inference_iterations=inference_iterations)
        at_least(0, pairwise_scale=pairwise_scale)
        self.pairwise = PairwisePotentials(in_channels, num_classes, relations, hidden=hidden, neighbours=neighbours)
        self.unary = unary_estimator(in_channels, hidden, num_classes)
        self.inference = inference
        self.inference_iterations = inference_iterations
        self.pairwise_scale = pairwise_scale

    @staticmethod
    def feature_names(relations: Sequence[Relation]) -> tuple[str, ...]:
        """Names of the feature maps if every factor type has its own."""
        return ("unary", *(relation.name for relation in paired_relations(relations)))

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations that have a network."""
        return self.pairwise.relations

    @property
    def outputs_per_factor(self) -> int:
        """K², of a pairwise potential."""
        return self.num_classes**2

    def forward(self, features: Features, mask: Tensor | None = None) -> Tensor:
        """Log-marginals, (B, K, h, w); 0 at nodes that do not exist."""
        some = features if isinstance(features, Tensor) else features["unary"]
        logits = some.new_zeros(len(some), self.num_classes, *some.shape[2:])
        for indices, potentials in self.potentials(features, mask):
            found = zero_padding(self.log_marginals(potentials), potentials.present).to(logits.dtype)
            if indices is None:
                return found
            whole = torch.zeros_like(logits[indices])
            whole[..., : found.shape[2], : found.shape[3]] = found
            logits = logits.index_copy(0, indices, whole)
        return logits

    def log_marginals(self, potentials: GridPotentials) -> Tensor:
        """Log-marginals of a batch of maps of one size, (B, K, h, w)."""
        scaled = potentials.scale(self.pairwise_scale)
        graph, tables, _ = pair_graph(scaled.unary, scaled.relations, scaled.present)
        steps = int(self.inference_iterations)
        if self.inference == "mean_field":
            alone = torch.softmax(at_least_float32(scaled.unary), -1).flatten(1, 2)  # (B, h·w, K)
            result = MeanField("parallel", max_iterations=steps, tolerance=None).run(graph, tables, alone)
        else:
            result = BeliefPropagation(max_iterations=steps, tolerance=None).run(graph, tables)
        return graph.as_map(result.log_marginals)

    def potentials(
        self, features: Features, mask: Tensor | None = None
    ) -> Iterator[tuple[Tensor | None, GridPotentials]]:
        """For each size of map, the indices of its images (None if all have the full size) and their potentials."""
        for indices, nodes, present in self.split_by_size(features, mask):
            unary, pairwise = self.unary(nodes["unary"]), tuple(self.pairwise.tables(nodes))
            yield indices, GridPotentials(unary, pairwise, present)

    def conditional_logits(self, nodes: Mapping[str, Tensor], target: Tensor) -> Tensor:
        """Logits (B, h, w, K) given the target of neighbours (void: ignored), from features by type, (B, h, w, r)."""
        unary: Tensor = self.unary(nodes["unary"])
        return unary + self.pairwise.given_labels(nodes, target)

    def split_by_size(
        self, features: Features, mask: Tensor | None
    ) -> Iterator[tuple[Tensor | None, Mapping[str, Tensor], Tensor | None]]:
        """For each size of map: indices of its images, features by factor type, existing nodes."""
        names = ["unary", *(relation.name for relation in self.relations)]
        by_type = dict.fromkeys(names, features) if isinstance(features, Tensor) else features
        if missing := [name for name in names if name not in by_type]:
            raise InputError(f"no features for {', '.join(missing)}; give one map for each of {names}")
        checked = {
            id(by_type[name]): check_features(zero_padding(by_type[name], mask), self.in_channels, self.check_finite)
            for name in names
        }
        maps = {name: checked[id(by_type[name])] for name in names}
        for indices, context in split_by_size(maps, mask, self.relations):
            present = None if context.mask is None else context.mask[..., 0] > 0
            yield indices, context.features, present


@dataclass(frozen=True)
class GridPotentials:
    """A CRF on maps of one size; pairs with nodes that are not present are to be ignored."""

    unary: Tensor  # θ_p, (B, h, w, K)
    relations: tuple[Pairs, ...]  # θ_pq of each relation; every unordered pair once
    present: Tensor | None = None  # which nodes exist, (B, h, w); None if all do

    def scale(self, factor: float = 1.0) -> GridPotentials:
        """The potentials of the energy: θ_pq · factor / n_R, n_R the relation's factors at an inner node."""
        return replace(
            self, relations=tuple(_scaled(pairs, factor / max(1, 2 * len(pairs))) for pairs in self.relations)
        )


def _scaled(pairs: Pairs, factor: float) -> Pairs:
    def times(table: Callable[[], Tensor]) -> Tensor:
        return table() * factor

    return [PairTable(pair.offset, partial(times, pair.table)) for pair in pairs]


class PairwisePotentials(nn.Module):
    """One network per relation, K² outputs; arguments as for `CRFHead`.

    >>> from messagenet.graph import above, surrounding
    >>> pairwise = PairwisePotentials(16, 5, [surrounding(0.4), above(0.4)], hidden=32)
    >>> near, vertical = pairwise.tables(torch.randn(2, 12, 15, 16))
    >>> near[0].offset, near[0].table().shape
    ((0, 1), torch.Size([2, 12, 14, 5, 5]))
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        relations: Sequence[Relation | str],
        *,
        hidden: int = 256,
        neighbours: Neighbours = "lattice",
    ) -> None:
        super().__init__()
        check_sizes(in_channels, num_classes)
        if neighbours not in get_args(Neighbours):
            raise InputError(f"unknown neighbours {neighbours!r}; {nearest(neighbours, get_args(Neighbours))}")
        self.num_classes = num_classes
        given = convert(tuple(relations), Sequence[Relation], "relations")
        self.relations = paired_relations(GridGraph(1, 1, given).relations)
        self.neighbours = neighbours
        self.networks = nn.ModuleList(MessageEstimator(in_channels, hidden, num_classes**2) for _ in self.relations)

    def tables(self, features: Tensor | Mapping[str, Tensor]) -> list[Pairs]:
        """The potentials of each relation on maps of one size, channels last (B, h, w, r), or one by name."""
        return [
            [PairTable(offset, partial(self._table, first, second, network, offset)) for offset in offsets]
            for network, offsets, first, second in self._project(features)
        ]

    def given_labels(self, features: Tensor | Mapping[str, Tensor], labels: Tensor) -> Tensor:
        """Σ_R 1/n_R Σ_q θ_pq(y, ŷ_q) for every node and class, (B, h, w, K); void labels do not contribute.

        The last layer commutes with the sum over neighbours of one class, so no table is made:

            Σ_q θ_pq(y, ŷ_q) = Σ_c [ W₂[y, c] S_pc + n_pc b₂[y, c] ],     S_pc = Σ_{q: ŷ_q = c} relu(P_p + Q_q)
        """
        is_class = labels[..., None] == torch.arange(self.num_classes, device=labels.device)  # (B, h, w, K)
        present = [int(label) for label in labels.unique() if label != VOID]
        some = features if isinstance(features, Tensor) else next(iter(features.values()))
        total = some.new_zeros(is_class.shape)
        for network, offsets, first, second in self._project(features):
            if offsets:
                context = self._given_labels(network, offsets, first, second, is_class, present)
                total = total + context / (2 * len(offsets))
        return total

    def _given_labels(
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

    def _project(
        self, features: Tensor | Mapping[str, Tensor]
    ) -> Iterator[tuple[MessageEstimator, tuple[Offset, ...], Tensor, Tensor]]:
        """For each relation its network, offsets, and first layer at both ends, (B, h, w, hidden)."""
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


class PairTable(NamedTuple):
    """The log-potentials θ(y_p, y_q) of all pairs (p, q = p + offset) that lie inside a map."""

    offset: Offset  # from the first node of a pair to the second
    table: Callable[[], Tensor]  # makes (B, h', w', K, K) for the window of first nodes; called again for the gradient


Pairs = Sequence[PairTable]  # the factors of one relation: every unordered pair of nodes at most once


def recompute(function: Callable[[], T]) -> T:
    """The function's result; its computation is repeated for the gradient instead of stored."""
    if not torch.is_grad_enabled():
        return function()
    result: T = checkpoint(function, use_reentrant=False, preserve_rng_state=False)
    return result


class PairGraph(NamedTuple):
    """A factor graph and its potentials."""

    graph: GridFactorGraph
    potentials: tuple[Tensor, ...]  # the unaries, then one tensor for each block of pairs
    pairs: tuple[PairTable, ...]  # the pairs of each block


def pair_graph(unary: Tensor, relations: Iterable[Pairs], present: Tensor | None = None) -> PairGraph:
    """The factor graph of a batch of maps of one size; all tables exist at the same time.

    Nodes that are not `present` (B, h, w) stay in the graph: their log-potentials, and those of their pairs, are 0, so
    they are independent of all others and add log K each to log Z.
    """
    height, width, num_classes = unary.shape[1:]
    every = ((pair, window((height, width), pair.offset)) for each in relations for pair in each)
    inside = [(pair, w) for pair, w in every if w is not None]
    graph = grid_of_offsets(height, width, tuple(pair.offset for pair, _ in inside), num_classes)
    if unary.device != graph.cardinalities.device:
        graph = graph.to(unary.device)
    tables = [_mask_pairs(at_least_float32(pair.table()), w, present) for pair, w in inside]
    alone = at_least_float32(unary)
    if present is not None:
        alone = torch.where(present[..., None], alone, 0)
    pairs = tuple(pair for pair, _ in inside)
    return PairGraph(graph, graph.potentials(alone.permute(0, 3, 1, 2), tables), pairs)


@lru_cache(maxsize=16)
def grid_of_offsets(height: int, width: int, offsets: tuple[Offset, ...], num_classes: int) -> GridFactorGraph:
    """One unary factor per node, and one block of pairwise factors per offset.

    >>> [block.shape for block in grid_of_offsets(3, 4, ((0, 1), (-1, 2)), 5).blocks]
    [(3, 3), (2, 2)]
    """
    windows = ((offset, window((height, width), offset)) for offset in offsets)
    blocks = [EdgeBlock("", offset, w.receivers[1:], w.senders[1:]) for offset, w in windows if w is not None]
    return GridFactorGraph.from_edges(GridGraph(height, width), blocks, num_classes)


def both_present(present: Tensor, w: Window) -> Tensor:
    """The pairs of a window whose nodes both exist, (B, h', w')."""
    return present[w.receivers] & present[w.senders]


def _mask_pairs(table: Tensor, w: Window, present: Tensor | None) -> Tensor:
    return table if present is None else torch.where(both_present(present, w)[..., None, None], table, 0)


def paired_relations(relations: Sequence[Relation]) -> tuple[Relation, ...]:
    """The relations, as pairwise ones, without mirror images of earlier ones.

    >>> from messagenet.graph import surrounding, above, below
    >>> [relation.name for relation in paired_relations([surrounding(0.4), above(0.4), below(0.4)])]
    ['surrounding', 'above']
    """
    pairwise = [replace(relation, form="pairwise") for relation in relations]
    matched = mirrors(pairwise)
    return tuple(relation for i, relation in enumerate(pairwise) if (mirror := matched[i]) is None or mirror >= i)


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
    """Up to 24 of the offsets, on a 5 × 5 lattice that spans their box, without its middle.

    Boxes of at most 24 offsets, and offsets that fill no box, stay whole.

    >>> from messagenet.graph import above, surrounding
    >>> [len(lattice(relation.offsets_on(32, 32))) for relation in (surrounding(0.4), above(0.4))]
    [24, 24]
    """
    if len(offsets) < LATTICE**2 or (box := as_rectangle(offsets)) is None:
        return offsets
    rows, columns = _spread(box.top, box.bottom), _spread(box.left, box.right)
    positions = tuple(product(rows, columns))
    if len(positions) < LATTICE**2:
        return tuple(position for position in positions if position != (0, 0))
    return tuple(position for i, position in enumerate(positions) if i != len(positions) // 2)


def _spread(low: int, high: int) -> list[int]:
    """Up to five whole numbers, evenly from `low` to `high`."""
    return sorted({round(low + (high - low) * i / (LATTICE - 1)) for i in range(LATTICE)})
