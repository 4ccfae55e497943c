"""Factor graphs of familiar shapes: chains, trees and grids.

    P(y) ∝ exp[ Σ_p θ_p(y_p) + Σ_(p,q) θ_pq(y_p, y_q) ]

Unary factors come first, then one factor per edge: `potentials[0]` are the unaries if all cardinalities are equal.
"""

from __future__ import annotations

import graphlib
from collections.abc import Sequence

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph.factor_graph import FactorGraph
from messagenet.graph.grid import GridFactorGraph, GridGraph
from messagenet.graph.relations import four_neighbours


def _unaries(num_variables: int) -> Tensor:
    return torch.arange(num_variables)[:, None]


def chain_graph(cardinalities: Sequence[int] | Tensor) -> FactorGraph:
    """Variables in a row, each connected to the next.

    >>> chain_graph([2, 2, 3]).scopes()
    [(0,), (1,), (2,), (0, 1), (1, 2)]
    """
    count = len(cardinalities)
    nodes = torch.arange(count)
    return FactorGraph.from_blocks(cardinalities, [_unaries(count), torch.stack([nodes[:-1], nodes[1:]], 1)])


def tree_graph(parents: Sequence[int], cardinalities: Sequence[int] | Tensor) -> FactorGraph:
    """A tree (or forest) given by the parent of each variable, -1 for a root.

    >>> tree_graph([-1, 0, 0], [2, 2, 2]).scopes()
    [(0,), (1,), (2,), (0, 1), (0, 2)]
    """
    if len(parents) != len(cardinalities):
        raise InputError(f"{len(parents)} parents were given for {len(cardinalities)} variables; give one each")
    parents = [int(parent) for parent in parents]
    _check_forest(parents)
    edges = [(parent, child) for child, parent in enumerate(parents) if parent >= 0]
    pairs = torch.tensor(edges, dtype=torch.long).reshape(-1, 2)
    return FactorGraph.from_blocks(cardinalities, [_unaries(len(parents)), pairs])


def _check_forest(parents: Sequence[int]) -> None:
    """Refuses parents that do not exist, and cycles."""
    if (largest := max(parents, default=-1)) >= len(parents):
        raise InputError(f"parent {largest} does not exist; variables are 0 to {len(parents) - 1}")
    try:
        graphlib.TopologicalSorter({child: [parent] for child, parent in enumerate(parents) if parent >= 0}).prepare()
    except graphlib.CycleError as error:
        variable = min(error.args[1])
        raise InputError(f"the parents of variable {variable} lead back to it; a tree has no cycle") from None


def grid_factor_graph(height: int, width: int, num_classes: int) -> GridFactorGraph:
    """A 4-connected grid, rows first: unaries, horizontal pairs and vertical pairs.

    >>> [len(group) for group in grid_factor_graph(2, 3, num_classes=5).groups]
    [6, 4, 3]
    """
    return GridFactorGraph.from_grid(GridGraph(height, width, (four_neighbours(),)), num_classes)
