"""Belief propagation on grids: windows equal index lists, and messages without logarithms equal those with."""

from __future__ import annotations

import gc
import weakref
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.graph import GridFactorGraph, GridGraph, Relation, above, below, four_neighbours, surrounding
from messagenet.graph.builders import grid_factor_graph
from messagenet.inference import BeliefPropagation, Exact, MeanField, SequentialTRW, TreeReweighted
from messagenet.inference import grid_propagation as grid_maps
from messagenet.inference import grid_propagation as linear_grid
from messagenet.inference.belief_propagation import Propagator
from messagenet.inference.engine import align
from messagenet.inference.grid_propagation import GridLayout, LinearGrid, LinearSteps
from messagenet.inference.mean_field import colour_classes, grid_plans
from random_graphs import random_potentials

close = torch.testing.assert_close


def build(graph, potentials, maximise=False):
    return LinearGrid.build(Propagator.build(align(graph, potentials), maximise=maximise))


def test_only_grids_whose_potentials_fit():
    graph = grid_factor_graph(4, 4, 3)
    potentials = random_potentials(graph, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    assert build(graph, potentials) is not None
    assert build(graph, potentials, maximise=True) is None
    assert build(graph.to_factor_graph(), potentials) is None
    zero = potentials[1].clone()
    zero[2, 1, 0] = -float("inf")
    assert build(graph, [potentials[0], zero, potentials[2]]) is None
    assert build(graph, [100 * potentials[0], *potentials[1:]]) is None
    assert build(graph, [potentials[0], 20 * potentials[1], potentials[2]]) is None
    assert build(graph, [(15 * p).double() for p in potentials]) is not None
    assert build(GridFactorGraph.from_grid(GridGraph(4, 4), 3), potentials[:1]) is None
    crowd = Relation("crowd", offsets=[(dy, dx) for dy in range(1, 9) for dx in range(9)])
    crowded = GridFactorGraph.from_grid(GridGraph(10, 10, (crowd,)), 3)
    assert build(crowded, [torch.zeros(1, *group.shape) for group in crowded.groups]) is None


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_right_up_to_the_limit_of_single_precision(share):
    """All of the range in one table whose extremes every message meets; just beyond it logarithms take over."""
    graph = grid_factor_graph(6, 6, 2)
    limit = -linear_grid.HEADROOM * float(torch.tensor(torch.finfo(torch.float32).tiny).log())
    table = share * limit / 6 * torch.tensor([[0.0, -1.0], [-1.0, 0.0]])  # two blocks: 2 · 2 ranges and one more
    unary = torch.zeros(36, 2)
    unary[::5, 0] = share * limit / 6
    potentials = [unary, table[None], table[None]]
    assert (build(graph, potentials) is not None) == (share < 1)
    engine = BeliefPropagation(max_iterations=20, tolerance=None)
    found = engine.run(graph, potentials)
    enumerated = engine.run(graph.to_factor_graph(), [p.double() for p in potentials])
    close(found.log_marginals.double(), enumerated.log_marginals, atol=1e-4, rtol=1e-5)
    close(found.log_z.double(), enumerated.log_z, atol=1e-3, rtol=1e-5)


def test_rounding_errors_of_gradients_do_not_grow():
    graph = grid_factor_graph(6, 7, 3)
    potentials = random_potentials(graph, scale=0.3, generator=torch.Generator().manual_seed(2))
    engine = BeliefPropagation(max_iterations=60, tolerance=None)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        leaves = [table.to(dtype).requires_grad_() for table in potentials]
        gradients.append(torch.autograd.grad(engine.run(graph, leaves).marginals[:, 0].sum(), leaves))
    for single, double in zip(*gradients, strict=True):
        close(single.double(), double, atol=2e-6, rtol=1e-4)


def test_gradients_by_finite_differences():
    graph = grid_factor_graph(2, 3, 2)
    leaves = [p.requires_grad_() for p in random_potentials(graph, generator=torch.Generator().manual_seed(0))]
    for damping in (0.0, 0.3):
        engine = BeliefPropagation(damping=damping, max_iterations=3, tolerance=None)

        def outputs(*tables, engine=engine):
            result = engine.run(graph, tables)
            return result.marginals, result.log_z, *result.factor_marginals

        assert torch.autograd.gradcheck(outputs, leaves)


def test_second_derivatives_are_refused():
    graph = grid_factor_graph(2, 2, 2)
    leaves = [p.requires_grad_() for p in random_potentials(graph)]
    total = BeliefPropagation(max_iterations=2, tolerance=None).run(graph, leaves).marginals[:, 0].sum()
    (gradient, *_) = torch.autograd.grad(total, leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_nothing_outlives_the_result(monkeypatch):
    made = []

    class Watched(LinearSteps):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(weakref.ref(self))

    monkeypatch.setattr(linear_grid, "LinearSteps", Watched)
    graph = grid_factor_graph(3, 3, 2)
    leaves = [p.requires_grad_() for p in random_potentials(graph)]
    gc.disable()
    try:
        result = BeliefPropagation().run(graph, leaves)
        result.log_z.backward()
        assert made[0]() is not None
        del result
        assert made[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("batch", "height", "width"), [(1, 5, 7), (3, 300, 400), (50, 16, 16), (2, 1, 9000)])
def test_strips_cover_every_node_once(batch, height, width):
    layout = GridLayout(GridFactorGraph.from_grid(GridGraph(height, width, (four_neighbours(),)), 2), batch)
    assert layout.strips[0].nodes.start == 0
    assert layout.strips[-1].nodes.stop == layout.nodes == batch * height * width
    for strip, following in zip(layout.strips, layout.strips[1:], strict=False):
        assert strip.nodes.stop == following.nodes.start
    nodes = torch.arange(layout.nodes).view(layout.shape)
    for strip in layout.strips:
        assert torch.equal(nodes[strip.images, strip.rows].flatten(), torch.arange(layout.nodes)[strip.nodes])


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
    graph = GridFactorGraph.from_grid(GridGraph(height, width, relations), classes)
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


@given(model=models(), schedule=st.sampled_from(["parallel", "sequential"]), damping=st.sampled_from([0.0, 0.5]))
@settings(max_examples=30, deadline=None)
def test_mean_field(model, schedule, damping):
    assert_same(MeanField(schedule=schedule, damping=damping, max_iterations=4), *model)


def test_chains_are_exact():
    for height, width in ((1, 9), (9, 1)):
        graph = GridFactorGraph.from_grid(GridGraph(height, width, (four_neighbours(),)), 3)
        potentials = random_potentials(graph, scale=2.0, batch=2, generator=torch.Generator().manual_seed(0))
        result, enumerated = (BeliefPropagation(tolerance=1e-13).run(graph, potentials), Exact().run(graph, potentials))
        assert result.converged
        close(result.marginals, enumerated.marginals, atol=1e-10, rtol=0)
        close(result.log_z, enumerated.log_z, atol=1e-10, rtol=0)
        close(result.factor_marginals[1], enumerated.factor_marginals[1], atol=1e-10, rtol=0)


def test_engines_that_know_no_windows():
    graph = GridFactorGraph.from_grid(GridGraph(3, 4, (surrounding(cells=3),)), 2)
    potentials = random_potentials(graph, generator=torch.Generator().manual_seed(1))
    for engine in (Exact(), Exact(temperature=0), SequentialTRW()):
        assert_same(engine, graph, potentials)


@given(name=st.sampled_from(sorted(RELATIONS)), height=st.integers(1, 7), width=st.integers(1, 7))
@settings(max_examples=20, deadline=None)
def test_colours_are_those_of_the_index_lists(name, height, width):
    graph = GridFactorGraph.from_grid(GridGraph(height, width, RELATIONS[name]), 2)
    masks = [plan.mask.flatten().nonzero().flatten().tolist() for plan in grid_plans(graph)]
    assert masks == colour_classes(graph.to_factor_graph())


class CountSteps:
    """Counts the iterations with and without logarithms."""

    def __init__(self, monkeypatch):
        self.linear = self.logarithmic = 0
        advance, update = LinearSteps.advance, Propagator.update

        def counted_advance(steps, *args):
            self.linear += 1
            return advance(steps, *args)

        def counted_update(propagator, *args):
            self.logarithmic += 1
            return update(propagator, *args)

        monkeypatch.setattr(LinearSteps, "advance", counted_advance)
        monkeypatch.setattr(Propagator, "update", counted_update)


@pytest.mark.parametrize("engine", [BeliefPropagation, TreeReweighted])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [None, 2])
def test_a_grid_with_finite_tables_takes_the_path_without_logarithms(monkeypatch, engine, dtype, batch):
    steps = CountSteps(monkeypatch)
    graph = grid_factor_graph(4, 5, 3)
    generator = torch.Generator().manual_seed(0)
    potentials = random_potentials(graph, batch=batch, dtype=dtype, generator=generator)
    run = engine(max_iterations=7, tolerance=None).run
    run(graph, potentials)
    assert (steps.linear, steps.logarithmic) == (7, 0)
    run(graph, [table.requires_grad_() for table in potentials]).log_z.sum().backward()
    assert (steps.linear, steps.logarithmic) == (14, 0)
    run(graph, [table.detach() for table in graph.unpack(potentials)])
    assert (steps.linear, steps.logarithmic) == (21, 0)
    run(graph.to_factor_graph(), potentials)
    assert (steps.linear, steps.logarithmic) == (21, 7)
