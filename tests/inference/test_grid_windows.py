"""On a grid engines use windows: the same answers as with index lists, to the last digits, gradients included."""

from __future__ import annotations

from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.graph import GridGraph, Relation, above, below, four_neighbours, surrounding
from messagenet.graph.builders import from_grid, random_potentials
from messagenet.inference import BeliefPropagation, Exact, MeanField, SequentialTRW, TreeReweighted
from messagenet.inference import grid_propagation as grid_maps
from messagenet.inference.mean_field import colour_classes, grid_plans

close = torch.testing.assert_close
INF = float("inf")
KNIGHT = Relation("knight", offsets=[(-2, -1), (-2, 1), (1, 2), (2, 1)])
RELATIONS = {
    "four neighbours": (four_neighbours(),),
    "eight neighbours": (surrounding(cells=3),),
    "above and below": (above(cells=2), below(cells=2)),
    "one way": (above(cells=1),),
    "knight": (KNIGHT,),
    "several": (four_neighbours(), KNIGHT, Relation("far", offsets=[(0, 3), (9, 0)])),
    "none": (),
}


@st.composite
def models(draw, zeros=True):
    """A grid, potentials of mixed kinds (shared or not, batched or not), and a state of positive probability."""
    relations = RELATIONS[draw(st.sampled_from(sorted(RELATIONS)))]
    height, width = draw(st.sampled_from([(1, 1), (1, 6), (5, 1), (2, 2), (3, 4), (4, 3)]))
    classes = draw(st.integers(1, 4))
    graph = from_grid(GridGraph(height, width, relations), classes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    batch = draw(st.sampled_from([None, None, 2]))
    share = draw(st.sampled_from([0.0, 0.0, 0.3])) if zeros else 0.0
    scale = draw(st.sampled_from([0.3, 1.0, 30.0]))
    hidden = torch.randint(classes, (height * width,), generator=generator)
    potentials = []
    for group in graph.groups:
        lead = () if batch is None or draw(st.booleans()) else (draw(st.sampled_from([1, batch])),)
        factors = len(group) if group.order == 1 or draw(st.booleans()) else 1
        table = scale * torch.randn(*lead, factors, *group.shape, dtype=torch.float64, generator=generator)
        forbidden = torch.rand(table.shape, generator=generator) < share
        for row, scope in enumerate(group.scopes):
            forbidden[(..., min(row, factors - 1), *hidden[scope])] = False
        potentials.append(table.masked_fill(forbidden, -INF))
    return graph, potentials


def assert_same(engine, graph, potentials, atol=1e-10):
    """Every answer and every gradient of a run with windows and of one with index lists."""
    answers = []
    for structure in (graph, graph.to_factor_graph()):
        leaves = [table.clone().requires_grad_() for table in potentials]
        result = engine.run(structure, leaves)
        generator = torch.Generator().manual_seed(0)
        total = torch.zeros((), dtype=torch.float64)
        for values in (result.marginals, result.log_z, *result.factor_marginals):
            if values.isfinite().all():  # a bound may be -inf
                weights = torch.rand(values.shape, dtype=torch.float64, generator=generator)
                total = total + (weights * values).sum()
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
        answers.append((result, gradients))
    (found, found_gradients), (expected, expected_gradients) = answers
    assert (found.iterations, found.converged) == (expected.iterations, expected.converged)
    close(torch.tensor(found.history), torch.tensor(expected.history), atol=atol, rtol=atol)
    close(found.log_marginals, expected.log_marginals, atol=atol, rtol=atol)
    close(found.log_z, expected.log_z, atol=atol, rtol=atol)
    for one, other in zip(found.log_factor_marginals, expected.log_factor_marginals, strict=True):
        close(one, other, atol=atol, rtol=atol)
    for one, other in zip(found_gradients, expected_gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            close(one, other, atol=atol, rtol=atol)
    top = expected.log_marginals.topk(min(2, graph.num_classes), -1).values
    clear = top[..., 0] - top[..., -1] > 1e-6 if graph.num_classes > 1 else top[..., 0] == 0
    assert torch.equal(found.map_state[clear], expected.map_state[clear])


@given(
    model=models(),
    damping=st.sampled_from([0.0, 0.4]),
    temperature=st.sampled_from([0.5, 1.0, 0.0]),
    nodes_per_strip=st.sampled_from([1, 5, 30, 4096]),
)
@settings(max_examples=80, deadline=None)
def test_belief_propagation(model, damping, temperature, nodes_per_strip):
    engine = BeliefPropagation(damping=damping, temperature=temperature, max_iterations=6, tolerance=1e-7)
    with patch.object(grid_maps, "NODES_PER_STRIP", nodes_per_strip):
        assert_same(engine, *model)


@given(model=models(), schedule=st.sampled_from(["sequential", "residual"]))
@settings(max_examples=12, deadline=None)
def test_other_schedules(model, schedule):
    assert_same(BeliefPropagation(schedule=schedule, max_iterations=3), *model)


@given(model=models(), damping=st.sampled_from([0.0, 0.5]), temperature=st.sampled_from([1.0, 0.0]))
@settings(max_examples=30, deadline=None)
def test_tree_reweighted(model, damping, temperature):
    assert_same(TreeReweighted(damping=damping, temperature=temperature, max_iterations=5), *model)


@given(
    model=models(),
    schedule=st.sampled_from(["parallel", "sequential"]),
    damping=st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=30, deadline=None)
def test_mean_field(model, schedule, damping):
    assert_same(MeanField(schedule=schedule, damping=damping, max_iterations=4), *model)


def test_chains_are_exact():
    for height, width in ((1, 9), (9, 1)):
        graph = from_grid(GridGraph(height, width, (four_neighbours(),)), 3)
        potentials = random_potentials(graph, scale=2.0, batch=2, generator=torch.Generator().manual_seed(0))
        result, truth = (
            BeliefPropagation(tolerance=1e-13).run(graph, potentials),
            Exact().run(graph, potentials),
        )
        assert result.converged
        close(result.marginals, truth.marginals, atol=1e-10, rtol=0)
        close(result.log_z, truth.log_z, atol=1e-10, rtol=0)
        close(result.factor_marginals[1], truth.factor_marginals[1], atol=1e-10, rtol=0)


def test_engines_that_know_no_windows():
    graph = from_grid(GridGraph(3, 4, (surrounding(cells=3),)), 2)
    potentials = random_potentials(graph, generator=torch.Generator().manual_seed(1))
    for engine in (Exact(), Exact(temperature=0), SequentialTRW()):
        assert_same(engine, graph, potentials)


@given(
    name=st.sampled_from(sorted(RELATIONS)),
    height=st.integers(1, 7),
    width=st.integers(1, 7),
)
@settings(max_examples=20, deadline=None)
def test_colours_are_those_of_the_index_lists(name, height, width):
    graph = from_grid(GridGraph(height, width, RELATIONS[name]), 2)
    masks = [plan.mask.flatten().nonzero().flatten().tolist() for plan in grid_plans(graph)]
    assert masks == colour_classes(graph.to_factor_graph())
