"""Mean field: bound, stationarity, ascent, zeros."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.graph.builders import chain_graph, grid_factor_graph
from messagenet.graph.factor_graph import FactorGraph
from messagenet.inference import Exact, MeanField
from messagenet.inference.mean_field import colour_classes
from random_graphs import random_potentials

close = torch.testing.assert_close
INF = float("inf")


def free_energy(graph, potentials, q):
    """E_q[θ] + H(q) by the definition."""
    total = torch.zeros((), dtype=torch.float64)
    for scope, theta in zip(graph.scopes(), graph.unpack(potentials), strict=True):
        for position, variable in enumerate(scope):
            shape = [1] * len(scope)
            shape[position] = -1
            theta = theta * q[variable][: theta.shape[position]].reshape(shape)
        total = total + theta.sum()
    for variable, size in enumerate(graph.cardinalities.tolist()):
        row = q[variable][:size]
        total = total - (row * row.log()).sum()
    return total


@pytest.mark.parametrize("schedule", ["sequential", "parallel"])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=6, deadline=None)
def test_bounds_log_z_from_below_at_a_stationary_point(random_model, schedule, seed):
    graph, potentials = random_model(seed)
    engine = MeanField(schedule=schedule, damping=0.5 if schedule == "parallel" else 0.0, tolerance=1e-13)
    result = engine.run(graph, potentials)
    assert float(result.log_z) <= float(Exact().run(graph, potentials).log_z) + 1e-9
    q = result.marginals.clone().requires_grad_()
    energy = free_energy(graph, potentials, q)
    close(energy.detach(), result.log_z, atol=1e-10, rtol=0)
    if result.converged:
        (gradient,) = torch.autograd.grad(energy, q)
        for variable, size in enumerate(graph.cardinalities.tolist()):
            row = gradient[variable, :size]
            close(row, row.mean().expand(size), atol=1e-7, rtol=0)


def test_sequential_never_loosens_the_bound():
    graph = grid_factor_graph(5, 5, 3)
    potentials = random_potentials(graph, scale=2.0, generator=torch.Generator().manual_seed(0))
    bounds = [
        float(MeanField(max_iterations=steps, tolerance=None).run(graph, potentials).log_z) for steps in range(1, 12)
    ]
    assert bounds == sorted(bounds)


def test_exact_without_couplings():
    graph = chain_graph([2, 3])
    potentials = [torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0, 3.0]]), torch.zeros(1, 2, 3)]
    result, exact = MeanField().run(graph, potentials), Exact().run(graph, potentials)
    close(result.marginals, exact.marginals)
    close(result.log_z, exact.log_z)
    close(result.factor_marginals[2], exact.factor_marginals[2])


def test_gradients_through_the_updates():
    graph = FactorGraph([2, 3, 2], [[0], [0, 1, 2], [2, 1]])
    leaves = [p.requires_grad_() for p in random_potentials(graph, generator=torch.Generator().manual_seed(0))]
    for schedule in ("parallel", "sequential"):
        engine = MeanField(schedule=schedule, max_iterations=3, tolerance=None)
        assert torch.autograd.gradcheck(
            lambda *tables, engine=engine: (engine.run(graph, tables).marginals, engine.run(graph, tables).log_z),
            leaves,
        )


def test_starts_where_it_is_told():
    graph = FactorGraph([2, 2], [[0, 1]])
    attract = [4.0 * torch.eye(2, dtype=torch.float64)[None]]
    for state in (0, 1):
        start = torch.full((2, 2), 0.1, dtype=torch.float64)
        start[:, state] = 0.9
        assert MeanField().run(graph, attract, initial=start).map_state.tolist() == [state, state]
    with pytest.raises(InputError, match=r"it must end with \(2, 2\)"):
        MeanField().run(graph, attract, initial=torch.ones(3, 2))


def test_small_probabilities_keep_their_logs():
    graph = FactorGraph([2], [[0]])
    assert float(MeanField().run(graph, [torch.tensor([[0.0, -500.0]])]).log_marginals[0, 1]) == -500.0


def test_zeros_are_avoided_where_possible():
    graph = chain_graph([2, 2])
    implies = torch.tensor([[[0.0, 0.0], [-INF, 0.0]]], dtype=torch.float64)  # y_0 = 1 demands y_1 = 1
    result = MeanField().run(graph, [torch.zeros(2, 2, dtype=torch.float64), implies])
    assert result.log_z.isfinite()
    assert float(result.log_z) <= float(torch.tensor(3.0).log()) + 1e-9
    assert float(result.factor_marginals[1][0, 1, 0]) == 0


def test_an_unbroken_symmetry_of_zeros_gives_no_bound():
    graph = FactorGraph([2, 2], [[0, 1]])
    differ = torch.tensor([[[-INF, 0.0], [0.0, -INF]]], dtype=torch.float64)
    assert float(MeanField(schedule="parallel").run(graph, [differ]).log_z) == -INF


def test_classes_share_no_factor():
    graph = FactorGraph([2] * 6, [[0, 1, 2], [2, 3], [3, 4], [4, 5, 0]])
    classes = colour_classes(graph)
    assert sorted(v for members in classes for v in members) == list(range(6))
    for members in classes:
        for scope in graph.scopes():
            assert len(set(members) & set(scope)) <= 1


@pytest.mark.parametrize(
    ("settings_", "message"),
    [({"schedule": "serial"}, "schedule"), ({"damping": -0.1}, "damping"), ({"max_iterations": 0}, "max_iterations")],
)
def test_bad_settings_are_refused(settings_, message):
    with pytest.raises(InputError, match=message):
        MeanField(**settings_)
