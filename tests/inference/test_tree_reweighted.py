"""Tree-reweighted message passing: spanning trees, bounds, and TRW-S."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.graph.factor_graph import FactorGraph
from messagenet.inference import Exact, TreeReweighted, tree_reweighted
from messagenet.inference.tree_reweighted import spanning_tree_probabilities
from random_graphs import random_graph, random_potentials

close = torch.testing.assert_close


@given(seed=st.integers(0, 10_000), order=st.sampled_from([2, 3]), scale=st.sampled_from([0.5, 2.0]))
@settings(max_examples=10, deadline=None)
def test_bounds_log_z_from_above(seed, order, scale):
    generator = torch.Generator().manual_seed(seed)
    graph = random_graph(6, 8, order=order, cardinality=(2, 3), generator=generator)
    potentials = random_potentials(graph, scale=scale, generator=generator)
    result = TreeReweighted(tolerance=1e-7, max_iterations=500).run(graph, potentials)
    assume(result.converged)
    assert float(result.log_z) >= float(Exact().run(graph, potentials).log_z) - 1e-6


def test_the_bound_is_tight_without_couplings_and_loose_with():
    ring = FactorGraph([2, 2, 2], [[0, 1], [1, 2], [2, 0]])
    weak, strong = [torch.zeros(3, 2, 2)], [torch.tensor([[0.0, 2.0], [2.0, 0.0]]).expand(3, 2, 2)]
    close(TreeReweighted().run(ring, weak).log_z, Exact().run(ring, weak).log_z)
    assert float(TreeReweighted().run(ring, strong).log_z - Exact().run(ring, strong).log_z) > 0.1


def _is_forest(num_variables, edges):
    component = list(range(num_variables))
    for a, b in edges:
        if component[a] == component[b]:
            return False
        component = [component[a] if each == component[b] else each for each in component]
    return True


def brute_tree_probabilities(num_variables, edges):
    size = num_variables - 1
    counts, trees = torch.zeros(len(edges), dtype=torch.float64), 0
    for chosen in itertools.combinations(range(len(edges)), size):
        if _is_forest(num_variables, [edges[edge] for edge in chosen]):
            counts[list(chosen)] += 1
            trees += 1
    return counts / trees


def test_probabilities_are_those_of_uniform_tree_reweighted():
    edges = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 2), (3, 4)]  # one edge doubled, one a bridge
    graph = FactorGraph([2] * 5, [[0], *edges])
    found = spanning_tree_probabilities(graph)
    assert float(found[0]) == 1
    close(found[1:], brute_tree_probabilities(5, edges))


def test_components_are_independent():
    apart = FactorGraph([2] * 7, [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5)])
    close(spanning_tree_probabilities(apart), torch.tensor([2, 2, 2, 3, 3], dtype=torch.float64) / 3)


@pytest.mark.parametrize("order", [2, 3])
def test_forests_cover_every_factor_and_stay_forests(monkeypatch, order):
    monkeypatch.setattr(tree_reweighted, "MAX_DENSE", 1)
    graph = random_graph(7, 12, order=order, generator=torch.Generator().manual_seed(0))
    found = spanning_tree_probabilities(graph)
    assert bool((found > 0).all())
    assert bool((found <= 1).all())
    assert float((order - 1) * found[7:].sum()) <= 7 - 1 + 1e-9


def test_own_probabilities_are_used_and_checked():
    ring = FactorGraph([2, 2, 2], [[0, 1], [1, 2], [2, 0]])
    potentials = random_potentials(ring, generator=torch.Generator().manual_seed(0))
    default = TreeReweighted().run(ring, potentials)
    given_ = TreeReweighted(edge_probabilities=torch.full((3,), 2 / 3)).run(ring, potentials)
    close(given_.log_z, default.log_z)
    with pytest.raises(InputError, match="one number for each of the 3 factors"):
        TreeReweighted(edge_probabilities=torch.ones(2)).run(ring, potentials)
    with pytest.raises(InputError, match=r"factor 1: edge probability 0\.0"):
        TreeReweighted(edge_probabilities=torch.tensor([1.0, 0.0, 1.0])).run(ring, potentials)
