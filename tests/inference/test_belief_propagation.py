"""Loopy belief propagation: free energy, schedules, gradients, size, initial messages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from messagenet.errors import InputError
from messagenet.graph.builders import grid_factor_graph
from messagenet.graph.factor_graph import FactorGraph
from messagenet.inference import BeliefPropagation, Exact, TreeReweighted
from messagenet.inference.engine import align
from messagenet.inference.grid_propagation import GridLayout
from messagenet.inference.tree_reweighted import spanning_tree_probabilities
from random_graphs import random_graph, random_potentials

close = torch.testing.assert_close
PRECISE = {"tolerance": 1e-13, "max_iterations": 2000}


def loopy_model(seed, scale=0.7):
    generator = torch.Generator().manual_seed(seed)
    pairs = random_graph(6, 8, cardinality=(2, 3), generator=generator)
    triples = random_graph(6, 2, order=3, generator=generator).scopes()[6:]
    graph = FactorGraph(pairs.cardinalities, [*pairs.scopes(), *triples])
    return graph, random_potentials(graph, scale=scale, generator=generator)


def free_energy(graph, potentials, weights, marginals, joints):
    """Σ_F <θ_F> + Σ_F ρ_F H_F + Σ_p (1 − Σ_F ρ_F) H_p of given beliefs; unaries have ρ = 1 and no say in H_p."""

    def entropy(p):
        return -(p * p.log()).sum()

    total = torch.zeros((), dtype=torch.float64)
    counts = [1.0] * graph.num_variables
    for scope, theta, joint, weight in zip(graph.scopes(), graph.unpack(potentials), joints, weights, strict=True):
        total = total + (theta * joint).sum()
        if len(scope) > 1:
            total = total + weight * entropy(joint)
            for variable in scope:
                counts[variable] -= float(weight)
    for variable, count in enumerate(counts):
        total = total + count * entropy(marginals[variable, : int(graph.cardinalities[variable])])
    return total


def consistent_direction(graph, seed):
    """A random change of the beliefs that keeps every factor's marginals equal to its variables'."""
    generator = torch.Generator().manual_seed(seed)

    def zero_sum(size):
        values = torch.randn(size, dtype=torch.float64, generator=generator)
        return values - values.mean()

    moves = [zero_sum(int(size)) for size in graph.cardinalities]
    joints = []
    for scope in graph.scopes():
        sizes = [int(graph.cardinalities[v]) for v in scope]
        flat = [torch.full((size,), 1.0 / size, dtype=torch.float64) for size in sizes]
        joint = torch.zeros(sizes, dtype=torch.float64)
        for position, variable in enumerate(scope):
            joint = joint + outer([*flat[:position], moves[variable], *flat[position + 1 :]])
        if len(scope) > 1:  # and a part that no marginal sees
            joint = joint + outer([zero_sum(sizes[0]), zero_sum(sizes[1]), *flat[2:]])
        joints.append(joint)
    width = graph.max_cardinality
    return torch.stack([torch.nn.functional.pad(move, (0, width - len(move))) for move in moves]), joints


def outer(vectors):
    product = vectors[0]
    for vector in vectors[1:]:
        product = product[..., None] * vector
    return product


@pytest.mark.parametrize("engine", [BeliefPropagation(damping=0.2, **PRECISE), TreeReweighted(**PRECISE)])
@given(seed=st.integers(0, 1000))
@settings(max_examples=5, deadline=None)
def test_fixed_points_are_stationary_points_of_the_free_energy(engine, seed):
    graph, potentials = loopy_model(seed)
    result = engine.run(graph, potentials)
    assert result.converged
    reweighted = isinstance(engine, TreeReweighted)
    weights = spanning_tree_probabilities(graph) if reweighted else torch.ones(graph.num_factors)
    joints = graph.unpack(result.factor_marginals)
    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    move, joint_moves = consistent_direction(graph, seed)
    energy = free_energy(
        graph,
        potentials,
        weights,
        result.marginals + step * move,
        [joint + step * delta for joint, delta in zip(joints, joint_moves, strict=True)],
    )
    close(energy.detach(), result.log_z, atol=1e-9, rtol=0)
    (slope,) = torch.autograd.grad(energy, step)
    assert abs(float(slope)) < 1e-8
    for scope, joint in zip(graph.scopes(), joints, strict=True):
        for position, variable in enumerate(scope):
            others = [axis for axis in range(len(scope)) if axis != position]
            close(joint.sum(others) if others else joint, result.marginals[variable, : joint.shape[position]])


def test_gradient_of_the_bethe_log_z_is_the_factor_marginals():
    graph, potentials = loopy_model(3)
    leaves = [table.clone().requires_grad_() for table in potentials]
    result = BeliefPropagation(damping=0.2, **PRECISE).run(graph, leaves)
    result.log_z.backward()
    for leaf, marginal in zip(leaves, result.factor_marginals, strict=True):
        close(leaf.grad, marginal.detach(), atol=1e-9, rtol=0)


@pytest.mark.parametrize("schedule", ["synchronous", "sequential", "residual"])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_autograd_through_iterations(schedule, temperature):
    graph = FactorGraph([2, 3, 2], [[0], [0, 1], [2, 1], [0, 2]])
    leaves = [p.requires_grad_() for p in random_potentials(graph, generator=torch.Generator().manual_seed(0))]
    engine = BeliefPropagation(
        schedule=schedule, temperature=temperature, max_iterations=3, tolerance=None, residual_fraction=0.5, damping=0.1
    )

    def outputs(*tables):
        result = engine.run(graph, tables)
        return result.marginals, result.log_z, *result.factor_marginals

    assert torch.autograd.gradcheck(outputs, leaves)


@pytest.mark.parametrize("settings_", [{"schedule": "sequential"}, {"schedule": "residual"}, {"damping": 0.6}])
def test_schedules_share_their_fixed_point(settings_):
    graph, potentials = loopy_model(11, scale=0.5)
    expected = BeliefPropagation(**PRECISE).run(graph, potentials)
    result = BeliefPropagation(**settings_, **PRECISE).run(graph, potentials)
    assert expected.converged
    assert result.converged
    close(result.marginals, expected.marginals, atol=1e-10, rtol=0)
    close(result.log_z, expected.log_z, atol=1e-9, rtol=0)


def test_sequential_is_one_factor_after_another():
    graph, potentials = loopy_model(5)
    scopes = graph.scopes()
    tables = graph.unpack(potentials)
    messages = {
        (f, v): torch.zeros(int(graph.cardinalities[v]), dtype=torch.float64) for f, s in enumerate(scopes) for v in s
    }
    for factor, scope in enumerate(scopes):
        if len(scope) == 1:
            messages[factor, scope[0]] = tables[factor]
    long = [factor for factor, scope in enumerate(scopes) if len(scope) > 1]
    for factor in [*long, *reversed(long)]:
        incoming = {
            v: sum(messages[f, v] for f, s in enumerate(scopes) if v in s and f != factor) for v in scopes[factor]
        }
        for position, variable in enumerate(scopes[factor]):
            joint = tables[factor]
            for axis, other in enumerate(scopes[factor]):
                if other != variable:
                    shape = [1] * joint.ndim
                    shape[axis] = -1
                    joint = joint + incoming[other].reshape(shape)
            messages[factor, variable] = joint.movedim(position, 0).flatten(1).logsumexp(1)
    result = BeliefPropagation(schedule="sequential", max_iterations=1, tolerance=None).run(graph, potentials)
    for variable, size in enumerate(graph.cardinalities.tolist()):
        belief = sum(messages[f, variable] for f, s in enumerate(scopes) if variable in s)
        close(result.marginals[variable, :size], belief.softmax(0), atol=1e-12, rtol=0)


def test_history_and_convergence_are_reported():
    graph, potentials = loopy_model(2)
    done = BeliefPropagation(tolerance=1e-6).run(graph, potentials)
    assert done.converged
    assert done.iterations == len(done.history)
    assert done.history[-1] <= 1e-6 < done.history[-2]
    cut = BeliefPropagation(tolerance=1e-6, max_iterations=2).run(graph, potentials)
    assert not cut.converged
    assert cut.history == done.history[:2]
    blind = BeliefPropagation(tolerance=None, max_iterations=done.iterations).run(graph, potentials)
    assert blind.history == ()
    assert torch.equal(blind.log_marginals, done.log_marginals)


def test_one_shared_table_equals_a_table_per_edge():
    graph = grid_factor_graph(4, 5, 3)
    unary, horizontal, vertical = random_potentials(graph, generator=torch.Generator().manual_seed(0))
    shared = [unary, horizontal[:1], vertical[:1]]
    spread = [unary, horizontal[:1].repeat(len(horizontal), 1, 1), vertical[:1].repeat(len(vertical), 1, 1)]
    for temperature in (1.0, 0.0):
        engine = BeliefPropagation(temperature=temperature, max_iterations=7, tolerance=None)
        one, many = engine.run(graph, shared), engine.run(graph, spread)
        close(one.log_marginals, many.log_marginals)
        close(one.log_z, many.log_z)
        close(one.factor_marginals[1], many.factor_marginals[1])


def test_expanded_tables_are_not_copied_and_get_their_whole_gradient():
    graph = grid_factor_graph(3, 3, 2)
    table = torch.randn(2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    unary = torch.zeros(9, 2, dtype=torch.float64)
    expanded = [unary, table.expand(6, 2, 2), table.expand(5, 6, 2, 2)]
    assert [tuple(aligned.shape) for aligned in align(graph, expanded).aligned[1:]] == [(1, 1, 2, 2), (1, 1, 2, 2)]
    engine = BeliefPropagation(max_iterations=3, tolerance=None)
    result = engine.run(graph, expanded)
    assert result.marginals.shape == (5, 9, 2)
    (gradient,) = torch.autograd.grad(result.log_z.sum(), table)
    copied = [unary, table.repeat(6, 1, 1), table.repeat(5, 6, 1, 1)]
    (expected,) = torch.autograd.grad(engine.run(graph, copied).log_z.sum(), table)
    close(gradient, expected)


def test_forbidden_neighbours_on_a_loopy_grid_in_single_precision():
    graph = grid_factor_graph(5, 5, 3)
    table = torch.zeros(1, 3, 3)
    table[0, 0, 2] = table[0, 2, 0] = -float("inf")
    unary = 5 * torch.randn(25, 3, generator=torch.Generator().manual_seed(1))
    unary[0] = torch.tensor([0.0, -float("inf"), -float("inf")])
    leaves = [t.requires_grad_() for t in (unary, table.clone(), table.clone())]
    result = BeliefPropagation(damping=0.3).run(graph, leaves)
    assert result.converged
    assert result.marginals[0].tolist() == [1.0, 0.0, 0.0]
    assert result.marginals[1, 2] == 0
    precise = BeliefPropagation(damping=0.3, **PRECISE).run(graph, [leaf.detach().double() for leaf in leaves])
    close(result.marginals.double(), precise.marginals, atol=1e-4, rtol=0)
    assert all(g.isfinite().all() for g in torch.autograd.grad(result.log_z, leaves))


class CountOperations(TorchDispatchMode):
    """Counts the tensor operations inside a `with`."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_hundred_thousand_factors_are_a_few_tensor_operations():
    counts = {"lists": [], "windows": []}
    for side in (5, 183):
        graph = grid_factor_graph(side, side, 2)
        potentials = random_potentials(graph, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
        for name, structure in (("lists", graph.to_factor_graph()), ("windows", graph)):
            with CountOperations() as operations:
                BeliefPropagation(max_iterations=5, tolerance=None).run(structure, potentials)
            counts[name].append(operations.count)
    assert graph.num_factors > 100_000
    assert len(graph.groups) == 3
    assert counts["lists"][0] == counts["lists"][1] < 700
    assert counts["windows"][0] < 700
    strips = len(GridLayout(graph, 1).strips)
    assert counts["windows"][1] < strips * counts["windows"][0]


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"schedule": "sequentially"}, 'did you mean "sequential"'),
        ({"damping": 1.0}, "damping is 1.0"),
        ({"max_iterations": 0}, "max_iterations is 0"),
        ({"residual_fraction": 0.0}, "residual_fraction"),
    ],
)
def test_bad_settings_are_refused(settings_, message):
    with pytest.raises(InputError, match=message):
        BeliefPropagation(**settings_)


def test_negative_temperature_is_refused():
    graph, potentials = loopy_model(0)
    with pytest.raises(InputError, match="temperature is -1"):
        BeliefPropagation(temperature=-1.0).run(graph, potentials)


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
    warm = engine(schedule=schedule, tolerance=1e-9, max_iterations=5000).run(graph, potentials, cold.messages)
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
    assert torch.autograd.gradcheck(lambda *tables: engine.run(graph, tables, begun).marginals, inputs, fast_mode=True)


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
