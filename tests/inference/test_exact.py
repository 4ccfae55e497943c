"""Exact inference against listing every joint state, and its limits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.graph.builders import chain_graph, grid_factor_graph
from messagenet.graph.factor_graph import FactorGraph
from messagenet.inference import Exact
from messagenet.inference.exact import best_elimination, breadth_first, eliminate, neighbours
from random_graphs import random_graph, random_potentials

METHODS = ["enumerate", "eliminate"]
close = torch.testing.assert_close


@pytest.mark.parametrize("method", METHODS)
@given(seed=st.integers(0, 10_000), zeros=st.sampled_from([0.0, 0.3]))
@settings(max_examples=12, deadline=None)
def test_equals_brute_force(brute_force, random_model, method, seed, zeros):
    graph, potentials = random_model(seed, zeros=zeros)
    enumerated = brute_force(graph, potentials)
    result = Exact(method=method).run(graph, potentials)
    assert float(result.log_z) == pytest.approx(enumerated.log_z, abs=1e-10)
    close(result.marginals, enumerated.marginals, atol=1e-12, rtol=0)
    for found, expected in zip(graph.unpack(result.factor_marginals), enumerated.factor_marginals, strict=True):
        close(found, expected, atol=1e-12, rtol=0)
    assert float(graph.score(potentials, result.map_state)) == pytest.approx(enumerated.max_score, abs=1e-12)


@pytest.mark.parametrize("method", METHODS)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_temperature_zero_gives_max_marginals(brute_force, random_model, method, seed):
    graph, potentials = random_model(seed, zeros=0.2)
    enumerated = brute_force(graph, potentials)
    result = Exact(method=method, temperature=0).run(graph, potentials)
    assert float(result.log_z) == pytest.approx(enumerated.max_score, abs=1e-12)
    close(result.log_marginals, enumerated.max_marginals.log_softmax(-1), atol=1e-12, rtol=0)
    assert float(graph.score(potentials, result.map_state)) == pytest.approx(enumerated.max_score, abs=1e-12)


def test_temperature_scales_the_potentials(random_model):
    graph, potentials = random_model(4)
    warm = Exact(temperature=2.0).run(graph, potentials)
    scaled = Exact().run(graph, [p / 2 for p in potentials])
    close(warm.log_marginals, scaled.log_marginals)
    close(warm.log_z, 2 * scaled.log_z)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_gradient_of_log_z_is_the_factor_marginals(random_model, method, zeros):
    graph, potentials = random_model(7, zeros=zeros)
    leaves = [p.clone().requires_grad_() for p in potentials]
    result = Exact(method=method).run(graph, leaves)
    result.log_z.backward()
    for leaf, marginal in zip(leaves, result.factor_marginals, strict=True):
        close(leaf.grad, marginal.detach(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("method", METHODS)
def test_marginals_are_differentiable(method):
    graph = FactorGraph([2, 3, 2], [[0], [0, 1], [2, 1], [0, 2]])
    leaves = [p.requires_grad_() for p in random_potentials(graph, generator=torch.Generator().manual_seed(0))]

    def outputs(*tables):
        result = Exact(method=method).run(graph, tables)
        return result.marginals, *result.factor_marginals

    assert torch.autograd.gradcheck(outputs, leaves)


@pytest.mark.parametrize("method", METHODS)
def test_batch_items_are_independent_and_tables_may_be_shared(method):
    graph = grid_factor_graph(2, 3, 3)
    unary, horizontal, vertical = random_potentials(graph, batch=4, generator=torch.Generator().manual_seed(1))
    mixed = [unary, horizontal[:1, :1], vertical[0, :1]]  # batched; shared by all; shared and unbatched
    together = Exact(method=method).run(graph, mixed)
    assert together.marginals.shape == (4, 6, 3)
    assert together.log_z.shape == (4,)
    assert together.map_state.shape == (4, 6)
    assert [tuple(f.shape) for f in together.factor_marginals] == [(4, 6, 3), (4, 4, 3, 3), (4, 3, 3, 3)]
    for item in range(4):
        alone = Exact(method=method).run(
            graph, [unary[item], horizontal[0, :1].expand(4, 3, 3), vertical[0, :1].expand(3, 3, 3)]
        )
        close(together.marginals[item], alone.marginals)
        close(together.log_z[item], alone.log_z)
        assert torch.equal(together.map_state[item], alone.map_state)
        close(together.factor_marginals[1][item], alone.factor_marginals[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_marginals_survive_a_range_that_probabilities_do_not(dtype):
    steep = 2000.0
    graph = chain_graph([2, 2, 2])
    potentials = [
        torch.tensor([[0.0, steep], [0.0, 0.0], [0.0, 0.0]], dtype=dtype),
        torch.tensor([[[0.0, 0.0], [0.0, steep]]], dtype=dtype).expand(2, 2, 2),
    ]
    result = Exact(method="eliminate").run(graph, potentials)
    close(result.log_marginals[:, 0], torch.tensor([-2 * steep, -2 * steep, -steep], dtype=dtype), rtol=1e-6, atol=2.0)
    assert float(result.log_z) == pytest.approx(3 * steep, rel=1e-6)


def test_what_cannot_fit_is_refused_with_its_size():
    graph = grid_factor_graph(40, 40, 4)
    with pytest.raises(InputError, match=r"at least [\d.e+]+ entries, about [\d.e+]+ GiB .*memory_limit"):
        Exact().run(graph, [torch.zeros(1, *group.shape) for group in graph.groups])
    with pytest.raises(InputError, match="joint table over 1600 variables"):
        Exact(method="enumerate").run(graph, [torch.zeros(1, *group.shape) for group in graph.groups])


def test_contradictions_are_refused():
    graph = chain_graph([2, 2])
    never = torch.tensor([[[-float("inf"), 0.0], [-float("inf"), -float("inf")]]])
    with pytest.raises(InputError, match="contradict"):
        Exact().run(graph, [torch.tensor([[0.0, -float("inf")], [0.0, -float("inf")]]), never])
    ring = FactorGraph([2, 2, 2], [[0, 1], [1, 2], [2, 0]])
    differ = torch.tensor([[[-float("inf"), 0.0], [0.0, -float("inf")]]])
    with pytest.raises(InputError, match="every joint state has probability zero"):
        Exact().run(ring, [differ])


def test_unknown_method_is_refused():
    with pytest.raises(InputError, match='did you mean "eliminate"'):
        Exact(method="elimination")


def test_elimination_cliques_cover_every_factor():
    graph = random_graph(30, 45, order=3, generator=torch.Generator().manual_seed(0))
    adjacency = neighbours(30, graph.scopes())
    for order in (None, breadth_first(adjacency)):
        plan = eliminate([2] * 30, adjacency, order, limit=2**60)
        assert plan.complete
        assert sorted(clique[0] for clique in plan.cliques) == list(range(30))
        assert all(any(set(scope) <= set(clique) for clique in plan.cliques) for scope in graph.scopes())
        assert plan.largest == max(2 ** len(clique) for clique in plan.cliques)


def test_grids_are_swept_along_diagonals():
    graph = grid_factor_graph(12, 12, 2)
    plan = best_elimination([2] * 144, neighbours(144, graph.scopes()), limit=2**40)
    row_by_row = eliminate([2] * 144, neighbours(144, graph.scopes()), range(144), limit=2**40)
    assert plan.width <= row_by_row.width == 13
    assert plan.total < row_by_row.total / 3


def test_long_trees_are_quick_to_order():
    graph = chain_graph([3] * 5000)
    assert best_elimination([3] * 5000, neighbours(5000, graph.scopes()), limit=10**6).width == 2
