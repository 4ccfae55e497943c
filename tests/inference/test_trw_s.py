"""TRW-S: the bound holds, never falls, and never contradicts the state, in either precision."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.graph import FactorGraph, grid_factor_graph
from messagenet.inference import Exact, SequentialTRW
from random_graphs import random_graph, random_potentials

close = torch.testing.assert_close


@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.3, 1.0, 3.0]))
@settings(max_examples=12, deadline=None)
def test_bound_holds_and_never_gets_worse(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    graph = random_graph(7, 10, cardinality=(1, 3), generator=generator)
    potentials = random_potentials(graph, scale=scale, generator=generator)
    best = float(Exact(temperature=0).run(graph, potentials).log_z)
    result = SequentialTRW(tolerance=1e-9).run(graph, potentials)
    assert float(result.log_z) >= best - 1e-9
    assert float(graph.score(potentials, result.map_state)) <= best + 1e-9
    assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(result.history))
    assert result.history[-1] == pytest.approx(-float(result.log_z))


def test_proves_optimality_of_attractive_grids():
    graph = grid_factor_graph(8, 9, 2)
    unary = torch.randn(72, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    attract = torch.eye(2, dtype=torch.float64)[None]
    result = SequentialTRW().run(graph, [unary, attract, attract])
    exact = Exact(temperature=0).run(graph, [unary, attract, attract])
    assert result.converged
    close(result.log_z, exact.log_z, atol=1e-6, rtol=0)
    assert torch.equal(result.map_state, exact.map_state)


def test_gradient_of_the_bound_is_finite_with_zeros():
    graph = grid_factor_graph(3, 3, 2)
    potentials = list(random_potentials(graph, generator=torch.Generator().manual_seed(0)))
    potentials[1][0, 0, 1] = -float("inf")
    leaves = [table.requires_grad_() for table in potentials]
    result = SequentialTRW(max_iterations=3).run(graph, leaves)
    for gradient in torch.autograd.grad(result.log_z, leaves):
        assert gradient.isfinite().all()


def test_refuses_high_order_factors():
    graph = FactorGraph([2, 2, 2], [[0], [0, 1, 2]])
    with pytest.raises(InputError, match="factor 1 touches 3 variables"):
        SequentialTRW().run(graph, [torch.zeros(1, *group.shape) for group in graph.groups])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 10.0, 1e4]), offset=st.sampled_from([0.0, 1e5]))
@settings(max_examples=25, deadline=None)
def test_state_and_bound_never_contradict_each_other(dtype, seed, scale, offset):
    """Large offsets take most digits of a float32 away, so that rounding decides between state and bound."""
    generator = torch.Generator().manual_seed(seed)
    graph = grid_factor_graph(3, 4, 3)
    potentials = [(scale * table + offset).to(dtype) for table in random_potentials(graph, generator=generator)]
    for iterations in (1, 3, 40):
        result = SequentialTRW(max_iterations=iterations).run(graph, potentials)
        assert float(result.log_z) >= float(graph.score(potentials, result.map_state))
        assert result.history[-1] == pytest.approx(-float(result.log_z), rel=1e-6)


def test_rounding_is_not_convergence():
    """In single precision the computed bound falls now and then by rounding, long before it has converged."""
    graph = grid_factor_graph(12, 12, 4)
    potentials = random_potentials(graph, scale=1000, generator=torch.Generator().manual_seed(1))
    potentials = [table + 1e4 for table in potentials]  # the bound is about 4e6, so that 4 is within the tolerance
    single = SequentialTRW().run(graph, [table.float() for table in potentials])
    double = SequentialTRW(max_iterations=100, tolerance=1e-12).run(graph, potentials)
    assert single.converged
    assert float(single.log_z) <= float(double.log_z) + 4
    assert all(later >= earlier for earlier, later in itertools.pairwise(single.history))


@pytest.fixture(scope="module")
def stereo(published):
    """A crop of the Middlebury stereo problem in float32: graph and log-potentials."""
    stored = np.load(published / "middlebury" / "tsukuba.npz")
    rows, columns = slice(100, 140), slice(100, 150)
    costs = {name: torch.from_numpy(stored[name].astype(np.float32)) for name in ("unary", "table", "right", "down")}
    graph = grid_factor_graph(40, 50, 16)
    right, down = costs["right"][rows, columns][:, :-1], costs["down"][rows, columns][:-1]
    potentials = graph.potentials(
        -costs["unary"][rows, columns].permute(2, 0, 1),
        [-weights[..., None, None] * costs["table"] for weights in (right, down)],
    )
    return graph, potentials


@pytest.mark.shared
def test_stereo_in_single_precision(stereo):
    graph, potentials = stereo
    single = SequentialTRW().run(graph, potentials)
    double = SequentialTRW().run(graph, [table.double() for table in potentials])
    assert single.converged
    assert single.iterations == double.iterations
    assert torch.equal(single.map_state, double.map_state)
    close(single.log_z.double(), double.log_z, rtol=1e-6, atol=0)
    assert float(single.log_z) >= float(graph.score(potentials, single.map_state))
    assert all(later >= earlier for earlier, later in itertools.pairwise(single.history))
