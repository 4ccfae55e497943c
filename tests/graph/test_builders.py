"""Builders of factor graphs."""

from __future__ import annotations

import pytest
import torch

from messagenet.errors import InputError
from messagenet.graph.builders import chain_graph, grid_factor_graph, tree_graph


def edges(graph):
    return [scope for scope in graph.scopes() if len(scope) == 2]


def test_chain():
    graph = chain_graph([2, 3, 4])
    assert edges(graph) == [(0, 1), (1, 2)]
    assert chain_graph([2]).scopes() == [(0,)]


def test_tree_and_forest():
    assert edges(tree_graph([-1, 0, 0, 2, -1], [2] * 5)) == [(0, 1), (0, 2), (2, 3)]
    assert edges(tree_graph([1, -1], [2, 2])) == [(1, 0)]
    with pytest.raises(InputError, match="lead back"):
        tree_graph([2, 0, 1], [2, 2, 2])
    with pytest.raises(InputError, match="lead back"):
        tree_graph(torch.tensor([1, 0]), [2, 2])
    with pytest.raises(InputError, match="parent 5 does not exist"):
        tree_graph([-1, 5], [2, 2])
    with pytest.raises(InputError, match="one"):
        tree_graph([-1, 0], [2, 2, 2])


def test_grid_has_every_neighbour_once():
    found = edges(grid_factor_graph(3, 4, 2))
    expected = [(a, b) for a in range(12) for b in range(a + 1, 12) if abs(a // 4 - b // 4) + abs(a % 4 - b % 4) == 1]
    assert sorted(found) == expected
    assert len(grid_factor_graph(1, 1, 3).groups) == 1
    assert len(grid_factor_graph(1, 4, 3).groups) == 2
    with pytest.raises(InputError, match="no node"):
        grid_factor_graph(0, 3, 2)
    with pytest.raises(InputError, match="num_classes is 0"):
        grid_factor_graph(3, 3, 0)
