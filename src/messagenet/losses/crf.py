"""Pairwise log-potentials on a grid, one offset at a time.

A pairwise CRF over a range box has a K × K table for every pair of nodes (p, p + o): with 32 × 32 nodes, 240
offsets and 21 classes, 0.4 GiB in single precision for one image, and as much again for every step of their
computation that a gradient would keep. So an objective receives, for each offset, a *promise* of the tables of
all pairs with that offset, asks for them when their turn comes, and lets them go. The gradient asks again.

Networks' potentials on a grid as a factor graph that the engines of `messagenet.inference` take.

One block of factors for each offset, with the tables of all its pairs. Nodes that are left out (they do not exist, or
have no label in training) keep their place but say nothing: their log-potentials, and those of the pairs they belong
to, are 0, so they are independent of all others and add log K each to log Z.

Piecewise training: every factor is trained as if it were a whole model (Sutton & McCallum, UAI 2005).

    J = 1/N [ Σ_p −log softmax_K(θ_p)[ŷ_p]  +  Σ_R 1/|R| Σ_{(p,q) ∈ R} −log softmax_{K²}(θ_pq)[ŷ_p, ŷ_q] ]

over N labelled nodes, and pairs of which both ends are labelled. The partition function splits into one
softmax per factor, so no inference is needed; but a pairwise factor has K² classes. ContextDCRF trains its
potentials so (Lin, Shen, van den Hengel, Reid, arXiv 1504.01013), each kind by itself. Here |R| is the number
of offsets of a relation, counting every unordered pair once: there are about |R| pairs to a node, so a
relation weighs as much as the unary, whatever the size of its box. Dividing by |R|, and not by the number of
labelled pairs in the batch, keeps the loss a sum over images.

Pseudo-likelihood: every node is predicted from the true labels of its neighbours (Besag, 1975).

    J = − 1/N Σ_p log P(ŷ_p | ŷ_{neighbours}, x),     P(y_p | …) = softmax( θ_p + Σ_q θ_pq(·, ŷ_q) )

over N labelled nodes. No inference is needed, but the neighbours' labels are known in training and not in
prediction, so context is trusted more than it deserves. A neighbour without a label (void) is left out of the
sum, as if it were not connected; a node without a label is not predicted.

Messages kept from one training step to the next.

Potentials change little between two visits of an image, and so do their messages: belief propagation that begins
where it ended last time needs a few iterations instead of many. The same thought as persistent chains for sampling
(Tieleman, ICML 2008). It holds only for images that stay as they are; another crop has other messages.

Maximum likelihood: the objective whose gradient needs inference at every step.

    J      = − 1/N log P(ŷ | x) = 1/N [ log Z(x) − Σ_p θ_p(ŷ_p) − Σ_{pq} θ_pq(ŷ_p, ŷ_q) ]
    ∂J/∂θ_pq(y, y') = 1/N [ P(y, y' | x) − 1[ŷ_p = y, ŷ_q = y'] ]                       and likewise for θ_p

over N labelled nodes. Marginals and log Z come from an engine. With belief propagation log Z is Bethe's; at a fixed
point it is stationary in the messages, so its gradient is the beliefs that the messages give, and nothing is
differentiated through the iterations (Wainwright & Jordan 2008, §4; Domke, PAMI 2013, compares the alternatives). On
trees both are exact. Where messages have not converged the gradient is that of the beliefs all the same: pseudo-moment
matching (Wainwright, Jaakkola & Willsky, AISTATS 2003).

Nodes without a label are left out of the model, with their pairs, as in `piecewise` and `pseudo_likelihood`. To sum
them out instead would take a second inference, with the labelled nodes clamped, for nodes that are void because they
have no right class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from messagenet.data.classes import VOID
from messagenet.graph import GridGraph, Offset, Window, window
from messagenet.graph.factor_graph import FactorGraph, FactorGroup, Potentials
from messagenet.graph.grid import EdgeBlock, GridFactorGraph
from messagenet.inference import BeliefPropagation, Engine, Result
from messagenet.losses.cross_entropy import Loss, cross_entropy_total, widened

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


class PairGraph(NamedTuple):
    """A factor graph and its potentials.

    Attributes:
        graph: The nodes and pairs of a map.
        potentials: What an engine takes: the unaries, then one tensor for each block of pairs.
        pairs: The pairs of each block.
    """

    graph: GridFactorGraph
    potentials: tuple[Tensor, ...]
    pairs: tuple[PairTable, ...]


def pair_graph(unary: Tensor, relations: Iterable[Pairs], present: Tensor | None = None) -> PairGraph:
    """The factor graph of a batch of maps of one size; all tables exist at the same time.

    Args:
        unary: Log-potentials θ_p, (B, h, w, K).
        relations: For each relation, its pairwise log-potentials.
        present: Which nodes are not left out, (B, h, w); None if all are there.
    """
    height, width, num_classes = unary.shape[1:]
    pairs = tuple(pair for each in relations for pair in each if window((height, width), pair.offset))
    graph = grid_of_offsets(height, width, tuple(pair.offset for pair in pairs), num_classes)
    if unary.device != graph.cardinalities.device:
        graph = graph.to(unary.device)
    tables = [_together(widened(pair.table()), pair.offset, present) for pair in pairs]
    alone = widened(unary)
    if present is not None:
        alone = torch.where(present[..., None], alone, 0)
    return PairGraph(graph, graph.potentials(alone.permute(0, 3, 1, 2), tables), pairs)


@lru_cache(maxsize=16)
def grid_of_offsets(
    height: int, width: int, offsets: tuple[Offset, ...], num_classes: int
) -> GridFactorGraph:
    """One unary factor per node, and one block of pairwise factors for each offset, in the order given.

    >>> [block.shape for block in grid_of_offsets(3, 4, ((0, 1), (-1, 2)), 5).blocks]
    [(3, 3), (2, 2)]
    """
    grid = GridGraph(height, width)
    nodes = torch.arange(grid.nodes).view(height, width)
    blocks = []
    groups = [FactorGroup((num_classes,), nodes.view(-1, 1), nodes.flatten())]
    first = grid.nodes
    for offset in offsets:
        w = window((height, width), offset)
        assert w is not None, "an offset that leaves the map has no pairs"
        block = EdgeBlock("", offset, w.receivers[1:], w.senders[1:])
        scopes = torch.stack([nodes[block.first].flatten(), nodes[block.second].flatten()], 1)
        groups.append(FactorGroup((num_classes,) * 2, scopes, torch.arange(first, first + len(block))))
        blocks.append(block)
        first += len(block)
    return GridFactorGraph(torch.full((grid.nodes,), num_classes), tuple(groups), grid, tuple(blocks))


def both_present(present: Tensor, w: Window) -> Tensor:
    """Which pairs of a window have both of their nodes, (B, h', w')."""
    return present[w.receivers] & present[w.senders]


def _together(table: Tensor, offset: Offset, present: Tensor | None) -> Tensor:
    """The tables, 0 for pairs that miss a node."""
    if present is None:
        return table
    w = window(present.shape[1:], offset)
    assert w is not None
    return torch.where(both_present(present, w)[..., None, None], table, 0)


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


class MessageMemory:
    """The last messages of every image, by name, in main memory.

    >>> memory = MessageMemory()
    >>> memory.keep(["cat"], torch.ones(1, 5, 3))
    >>> memory.recall(["cat", "dog"], (5, 3)).sum((1, 2))
    tensor([15.,  0.])
    """

    def __init__(self) -> None:
        self._messages: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self._messages)

    def recall(self, names: Sequence[str], shape: tuple[int, int]) -> Tensor:
        """Messages to begin with, (B, rows, K); zeros for images not met before, or met with another map.

        Args:
            names: Of the images.
            shape: Rows and classes of their messages.
        """
        kept = (self._messages.get(name) for name in names)
        nothing = torch.zeros(shape)
        return torch.stack([nothing if m is None or m.shape != shape else m for m in kept])

    def keep(self, names: Sequence[str], messages: Tensor) -> None:
        """Remembers the messages (B, rows, K) of some images."""
        for name, own in zip(names, messages.detach().cpu(), strict=True):
            self._messages[name] = own.clone()


Ask = Callable[[FactorGraph, Potentials], Result]


def likelihood(
    unary: Tensor,
    relations: Sequence[Pairs],
    labels: Tensor,
    engine: Engine,
    *,
    memory: MessageMemory | None = None,
    names: Sequence[str] = (),
) -> Loss:
    """The negative log-likelihood of a batch of maps of one size.

    Unlike in the other objectives, the tables of all pairs and their marginals exist at the same time.

    Args:
        unary: Log-potentials θ_p, (B, h, w, K).
        relations: For each relation, its pairwise log-potentials.
        labels: Classes of the nodes and 255 for void, (B, h, w).
        engine: What computes marginals and log Z.
        memory: Where messages of earlier steps are kept, to begin with; the engine is then one that passes messages.
        names: Of the images, for the memory.
    """
    known = labels != VOID
    ask = engine.run if memory is None else _remembering(engine, memory, names)
    pairs, of_nodes, of_pairs, value = _inferred(unary.detach(), relations, labels, known, ask)
    moved = (widened(unary) * of_nodes).sum()
    for pair, residual in zip(pairs, of_pairs, strict=True):
        moved = moved + _expected(pair, residual)
    return Loss(moved - moved.detach() + value, known.sum())


@torch.no_grad()
def _inferred(
    unary: Tensor, relations: Sequence[Pairs], labels: Tensor, known: Tensor, ask: Ask
) -> tuple[tuple[PairTable, ...], Tensor, list[Tensor], Tensor]:
    """The pairs, the gradient in θ_p, (B, h, w, K), and θ_pq, (B, h', w', K, K) each, and − log P(ŷ | x)."""
    size, num_classes = labels.shape[1:], unary.shape[-1]
    graph, potentials, pairs = pair_graph(unary, relations, known)
    result = ask(graph, potentials)
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


def _remembering(engine: Engine, memory: MessageMemory, names: Sequence[str]) -> Ask:
    """Runs a message-passing engine from where it ended for these images."""
    assert isinstance(engine, BeliefPropagation)

    def ask(graph: FactorGraph, potentials: Potentials) -> Result:
        rows = sum(len(group) * group.order for group in graph.groups if group.order > 1)
        result = engine.run(graph, potentials, memory.recall(names, (rows, graph.max_cardinality)))
        assert result.messages is not None
        memory.keep(names, result.messages)
        return result

    return ask


def _residual(marginals: Tensor, states: Tensor, present: Tensor) -> Tensor:
    """Probabilities (…, S) less the indicator of the true states (…); 0 for what is left out."""
    indicated = marginals.scatter_add(-1, states[..., None], -torch.ones_like(marginals[..., :1]))
    return torch.where(present[..., None], indicated, 0)


def _expected(pair: PairTable, residual: Tensor) -> Tensor:
    """Σ θ_pq · residual over all pairs with one offset."""
    return recomputed(lambda: (widened(pair.table()) * residual).sum())
