"""Beginning with given messages: same fixed point, fewer iterations, both on index lists and on grids."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet import InputError
from messagenet.graph.builders import grid_factor_graph, random_graph, random_potentials
from messagenet.inference import BeliefPropagation, Exact, TreeReweighted


def problem(kind, seed, batch, strength=0.6):
    generator = torch.Generator().manual_seed(seed)
    if kind == "lists":
        graph = random_graph(6, 8, order=3, cardinality=(2, 4), generator=generator)
    else:
        graph = grid_factor_graph(3, 4, 3)
    return graph, random_potentials(graph, scale=strength, batch=batch, generator=generator)


CASES = pytest.mark.parametrize("kind", ["lists", "windows"])


@CASES
@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("engine", [BeliefPropagation, TreeReweighted])
@pytest.mark.parametrize("schedule", ["synchronous", "sequential", "residual"])
def test_a_fixed_point_stays(kind, batch, engine, schedule):
    graph, potentials = problem(kind, 0, batch)
    cold = engine(schedule=schedule, tolerance=1e-12, max_iterations=5000).run(graph, potentials)
    assert cold.converged
    assert cold.iterations > 5
    warm = engine(schedule=schedule, tolerance=1e-9, max_iterations=5000).run(
        graph, potentials, cold.messages
    )
    assert warm.iterations == 1
    torch.testing.assert_close(warm.log_marginals, cold.log_marginals, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(warm.log_z, cold.log_z, rtol=1e-8, atol=1e-8)


@CASES
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), first=st.integers(1, 4), second=st.integers(1, 4))
def test_two_runs_are_one_long_run(kind, seed, first, second):
    graph, potentials = problem(kind, seed, 2)

    def run(iterations, messages=None):
        return BeliefPropagation(max_iterations=iterations, tolerance=None).run(graph, potentials, messages)

    whole, halves = run(first + second), run(second, run(first).messages)
    torch.testing.assert_close(halves.log_marginals, whole.log_marginals, rtol=1e-9, atol=1e-9)


@CASES
def test_the_gradient_is_that_of_the_iterations_run(kind):
    graph, potentials = problem(kind, 3, 2)
    begun = BeliefPropagation(max_iterations=3, tolerance=None).run(graph, potentials).messages
    engine = BeliefPropagation(max_iterations=2, tolerance=None)
    inputs = tuple(table.requires_grad_() for table in potentials)
    assert torch.autograd.gradcheck(
        lambda *tables: engine.run(graph, tables, begun).marginals, inputs, fast_mode=True
    )


def test_far_too_strong_messages_are_forgotten():
    graph, potentials = problem("windows", 4, None)
    strong = -300 * torch.rand_like(BeliefPropagation(max_iterations=1).run(graph, potentials).messages)
    result = BeliefPropagation(tolerance=1e-12).run(graph, potentials, strong)
    expected = BeliefPropagation(tolerance=1e-12).run(graph, potentials)
    torch.testing.assert_close(result.log_marginals, expected.log_marginals, rtol=1e-8, atol=1e-8)


def test_bad_messages_are_refused():
    graph, potentials = problem("lists", 5, 2)
    right = BeliefPropagation(max_iterations=1).run(graph, potentials).messages
    with pytest.raises(InputError, match="this graph's are"):
        BeliefPropagation().run(graph, potentials, right[0])
    with pytest.raises(InputError, match="finite"):
        BeliefPropagation().run(graph, potentials, right.log())
    assert Exact().run(graph, potentials).messages is None
