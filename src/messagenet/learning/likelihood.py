"""Maximum likelihood: the objective whose gradient needs inference at every step.

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
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from messagenet.data.classes import VOID
from messagenet.graph import window
from messagenet.graph.factor_graph import FactorGraph, Potentials
from messagenet.inference import BeliefPropagation, Engine, Result
from messagenet.learning.message_memory import MessageMemory
from messagenet.learning.pair_graph import both_present, pair_graph
from messagenet.learning.pairs import Pairs, PairTable, recomputed
from messagenet.learning.totals import Loss, widened

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
