"""Networks' potentials on a grid as a factor graph that the engines of `messagenet.inference` take.

One block of factors for each offset, with the tables of all its pairs. Nodes that are left out (they do not exist, or
have no label in training) keep their place but say nothing: their log-potentials, and those of the pairs they belong
to, are 0, so they are independent of all others and add log K each to log Z.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from messagenet.graph import GridGraph, Offset, Window, window
from messagenet.graph.factor_graph import FactorGroup
from messagenet.graph.grid_factors import EdgeBlock, GridFactorGraph
from messagenet.learning.pairs import Pairs, PairTable
from messagenet.learning.totals import widened


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
