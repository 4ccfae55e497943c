"""Losses of conditional random fields, on the potentials of a `CRFHead`.

Piecewise training (Sutton & McCallum, UAI 2005) trains every factor as if it were a whole model:

    J = 1/N [ Σ_p −log softmax_K(θ_p)[ŷ_p]  +  Σ_R 1/|R| Σ_{(p,q) ∈ R} −log softmax_{K²}(θ_pq)[ŷ_p, ŷ_q] ]

over N labelled nodes, and pairs with both ends labelled. The partition function splits into one softmax per factor, so
no inference is needed, but a pairwise factor has K² classes. ContextDCRF trains its potentials so (Lin, Shen, van den
Hengel, Reid, arXiv 1504.01013), each kind by itself. |R| is the number of offsets of a relation, every unordered pair
counted once, so a relation weighs as much as the unary whatever its box, and the loss stays a sum over images.

Pseudo-likelihood (Besag, 1975) predicts every node from the true labels of its neighbours:

    J = − 1/N Σ_p log P(ŷ_p | ŷ_{neighbours}, x),     P(y_p | …) = softmax( θ_p + Σ_q θ_pq(·, ŷ_q) )

No inference is needed, but labels of neighbours are known only in training, so the model relies on context too much. A
neighbour without a label (void) is left out of the sum.

Maximum likelihood needs inference for its gradient, at every step:

    J      = − 1/N log P(ŷ | x) = 1/N [ log Z(x) − Σ_p θ_p(ŷ_p) − Σ_{pq} θ_pq(ŷ_p, ŷ_q) ]
    ∂J/∂θ_pq(y, y') = 1/N [ P(y, y' | x) − 1[ŷ_p = y, ŷ_q = y'] ]                       and likewise for θ_p

Marginals and log Z come from an engine. With belief propagation log Z is Bethe's. At a fixed point it is stationary in
the messages, so its gradient is the beliefs, and nothing is differentiated through the iterations (Wainwright & Jordan
2008, §4; Domke, PAMI 2013, compares the alternatives). On trees both are exact. Without convergence the gradient is
still that of the beliefs: pseudo-moment matching (Wainwright, Jaakkola & Willsky, AISTATS 2003). Nodes without a label
are left out of the model, with their pairs; summing them out would take a second inference.

Persistent messages start belief propagation where it ended for the image in the previous epoch, which saves most
iterations (the idea of persistent chains, Tieleman, ICML 2008). They need images that do not change between epochs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from messagenet.data.classes import VOID
from messagenet.geometry import CellLabel, Features
from messagenet.graph import Window, window
from messagenet.graph.factor_graph import FactorGraph, Potentials
from messagenet.inference import BeliefPropagation, Engine, Result
from messagenet.losses.cross_entropy import LossSum, NodeLoss, cross_entropy_sum, sum_losses
from messagenet.models.base import at_least_float32
from messagenet.models.crf import CRFHead, GridPotentials, Pairs, PairTable, both_present, pair_graph, recompute
from messagenet.settings import at_least, register

_LEFT_OUT = -1  # 255 is a pair of classes
_TOLERANCE = 1e-4  # of belief propagation in training
Query = Callable[[FactorGraph, Potentials], Result]
MessageMemory = dict[str, Tensor]  # the last messages of every image, by id, in main memory


class CRFLoss(NodeLoss):
    """A loss at the nodes of a CRF."""

    heads, head_class = ("crf",), CRFHead


@register("loss", "piecewise")
class Piecewise(CRFLoss):
    """Every factor trained by itself: a softmax over K for a node, over K² for a pair."""

    def on_features(
        self, head: Any, features: Features, labels: Tensor, mask: Tensor | None = None, ids: Sequence[str] = ()
    ) -> LossSum:
        """See `NodeLoss.on_features`."""
        parts = _with_labels(head.potentials(features, mask), labels)
        return sum_losses(piecewise(potentials.unary, potentials.relations, own) for potentials, own, _ in parts)


@register("loss", "pseudo_likelihood")
class PseudoLikelihood(CRFLoss):
    """Every node predicted from the true labels of its neighbours."""

    def on_features(
        self, head: Any, features: Features, labels: Tensor, mask: Tensor | None = None, ids: Sequence[str] = ()
    ) -> LossSum:
        """See `NodeLoss.on_features`; needs no tables."""
        losses = []
        for indices, nodes, _ in head.split_by_size(features, mask):
            own = _cut(labels, indices, nodes["unary"])
            losses.append(cross_entropy_sum(head.conditional_logits(nodes, own), own))
        return sum_losses(losses)


@register("loss", "likelihood")
class Likelihood(CRFLoss):
    """− log P(ŷ | x), with marginals from belief propagation at every step.

    Args:
        cell_label: Which label a node has: of its cell's "centre", or the "majority" of its cell.
        iterations: Of belief propagation in each training step, at most.
        persistent_messages: Warm-start belief propagation with the image's messages from the previous epoch. Needs
            augmentation off and memory for every image's messages. A resumed run starts without.
    """

    def __init__(
        self, *, cell_label: CellLabel = "centre", iterations: int = 20, persistent_messages: bool = False
    ) -> None:
        super().__init__(cell_label=cell_label)
        at_least(1, iterations=iterations)
        self.engine = BeliefPropagation(max_iterations=iterations, tolerance=_TOLERANCE)
        self.memory: MessageMemory | None = {} if persistent_messages else None

    def on_features(
        self, head: Any, features: Features, labels: Tensor, mask: Tensor | None = None, ids: Sequence[str] = ()
    ) -> LossSum:
        """The negative log-likelihood; `ids` are for persistent messages."""
        memory = self.memory if ids else None
        losses = []
        for potentials, own, indices in _with_labels(head.potentials(features, mask), labels):
            scaled = potentials.scale()
            theirs = ids if indices is None or not ids else [ids[index] for index in indices.tolist()]
            losses.append(likelihood(scaled.unary, scaled.relations, own, self.engine, memory=memory, ids=theirs))
        return sum_losses(losses)


def _with_labels(
    parts: Iterable[tuple[Tensor | None, GridPotentials]], labels: Tensor
) -> Iterator[tuple[GridPotentials, Tensor, Tensor | None]]:
    for indices, potentials in parts:
        yield potentials, _cut(labels, indices, potentials.unary), indices


def _cut(labels: Tensor, indices: Tensor | None, ref: Tensor) -> Tensor:
    return labels if indices is None else labels[indices, : ref.shape[1], : ref.shape[2]]


def piecewise(unary: Tensor, relations: Iterable[Pairs], labels: Tensor) -> LossSum:
    """The piecewise loss of maps of one size: θ_p (B, h, w, K), θ_pq by relation, labels (B, h, w), 255 for void."""
    total, count = cross_entropy_sum(unary, labels)
    for pairs in relations:
        for pair in pairs:
            if (w := window(labels.shape[1:], pair.offset)) is not None:
                total = total + _pieces(pair, labels, w, unary.shape[-1]) / len(pairs)
    return LossSum(total, count)


def _pieces(pair: PairTable, labels: Tensor, w: Window, num_classes: int) -> Tensor:
    """− Σ log softmax_{K²}(θ_pq)[ŷ_p, ŷ_q] over the labelled pairs with one offset."""
    first, second = labels[w.receivers], labels[w.senders]  # (B, h', w')
    joint = first * num_classes + second
    joint = torch.where((first != VOID) & (second != VOID), joint, _LEFT_OUT).flatten()

    def total() -> Tensor:
        table = at_least_float32(pair.table()).flatten(0, 2).flatten(1)  # (B·h'·w', K²)
        return functional.cross_entropy(table, joint, ignore_index=_LEFT_OUT, reduction="sum")

    return recompute(total)


def likelihood(
    unary: Tensor,
    relations: Sequence[Pairs],
    labels: Tensor,
    engine: Engine,  # computes marginals and log Z; belief propagation if there is a memory
    *,
    memory: MessageMemory | None = None,
    ids: Sequence[str] = (),
) -> LossSum:
    """The negative log-likelihood of maps of one size; arguments as for `piecewise`, `ids` for the memory.

    Unlike in the other losses, the tables of all pairs and their marginals exist at the same time.
    """
    known = labels != VOID
    query = engine.run if memory is None else _warm_started(engine, memory, ids)
    pairs, of_nodes, of_pairs, value = _marginal_residuals(unary.detach(), relations, labels, known, query)
    potential = (at_least_float32(unary) * of_nodes).sum()
    for pair, residual in zip(pairs, of_pairs, strict=True):
        potential = potential + _expected(pair, residual)
    return LossSum(potential - potential.detach() + value, known.sum())


@torch.no_grad()
def _marginal_residuals(
    unary: Tensor, relations: Sequence[Pairs], labels: Tensor, known: Tensor, query: Query
) -> tuple[tuple[PairTable, ...], Tensor, list[Tensor], Tensor]:
    """The pairs, the gradient in θ_p, (B, h, w, K), and θ_pq, (B, h', w', K, K) each, and − log P(ŷ | x)."""
    size, num_classes = labels.shape[1:], unary.shape[-1]
    graph, potentials, pairs = pair_graph(unary, relations, known)
    result = query(graph, potentials)
    states = torch.where(known, labels, 0)
    value = result.log_z.sum() - (~known).sum().to(result.log_z) * math.log(num_classes)
    of_nodes = _residual(result.marginals.unflatten(1, size), states, known)
    value = value - torch.take_along_dim(potentials[0], states.flatten(1)[..., None], -1).sum()
    of_pairs = []
    joint_marginals = result.log_factor_marginals[1:]
    for pair, table, logs in zip(pairs, potentials[1:], joint_marginals, strict=True):
        w = window(size, pair.offset)
        assert w is not None
        joint = states[w.receivers] * num_classes + states[w.senders]  # (B, h', w')
        value = value - torch.take_along_dim(table.flatten(2), joint.flatten(1)[..., None], -1).sum()
        marginals = logs.exp().flatten(2).unflatten(1, joint.shape[1:])  # (B, h', w', K²)
        residual = _residual(marginals, joint, both_present(known, w))
        of_pairs.append(residual.unflatten(-1, (num_classes, num_classes)))
    return pairs, of_nodes, of_pairs, value


def _warm_started(engine: Engine, memory: MessageMemory, ids: Sequence[str]) -> Query:
    """A query that starts from the images' last messages: zeros if there are none, or for another map size."""
    assert isinstance(engine, BeliefPropagation)

    def query(graph: FactorGraph, potentials: Potentials) -> Result:
        rows = sum(len(group) * group.order for group in graph.groups if group.order > 1)
        stored, nothing = (memory.get(name) for name in ids), torch.zeros(rows, graph.max_cardinality)
        start = torch.stack([nothing if m is None or m.shape != nothing.shape else m for m in stored])
        result = engine.run(graph, potentials, start)
        assert result.messages is not None
        for name, own in zip(ids, result.messages.detach().cpu(), strict=True):
            memory[name] = own.clone()
        return result

    return query


def _residual(marginals: Tensor, states: Tensor, present: Tensor) -> Tensor:
    """Probabilities (…, S) less the indicator of the true states (…); 0 for what is left out."""
    indicated = marginals.scatter_add(-1, states[..., None], -torch.ones_like(marginals[..., :1]))
    return torch.where(present[..., None], indicated, 0)


def _expected(pair: PairTable, residual: Tensor) -> Tensor:
    return recompute(lambda: (at_least_float32(pair.table()) * residual).sum())
