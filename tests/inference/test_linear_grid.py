"""Messages without logarithms: when they may be used, how far they reach, and what they keep alive."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from messagenet.graph import GridGraph, Relation, four_neighbours
from messagenet.graph.builders import from_grid, grid_factor_graph, random_potentials
from messagenet.inference import BeliefPropagation
from messagenet.inference import grid_propagation as linear_grid
from messagenet.inference.belief_propagation import Network
from messagenet.inference.engine import align
from messagenet.inference.grid_propagation import Layout, LinearGrid, LinearSteps

close = torch.testing.assert_close


def build(graph, potentials, maximise=False):
    return LinearGrid.build(Network.build(align(graph, potentials), maximise=maximise))


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
    assert build(from_grid(GridGraph(4, 4), 3), potentials[:1]) is None
    crowd = Relation("crowd", offsets=[(dy, dx) for dy in range(1, 9) for dx in range(9)])
    crowded = from_grid(GridGraph(10, 10, (crowd,)), 3)
    assert build(crowded, [torch.zeros(1, *group.shape) for group in crowded.groups]) is None


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_right_up_to_the_limit_of_single_precision(share):
    """All of the range in one table whose extremes every message meets; just beyond it logarithms take over."""
    graph = grid_factor_graph(6, 6, 2)
    limit = -linear_grid.HEADROOM * float(torch.tensor(torch.finfo(torch.float32).tiny).log())
    table = (
        share * limit / 6 * torch.tensor([[0.0, -1.0], [-1.0, 0.0]])
    )  # two blocks: 2 · 2 ranges and one more
    unary = torch.zeros(36, 2)
    unary[::5, 0] = share * limit / 6
    potentials = [unary, table[None], table[None]]
    assert (build(graph, potentials) is not None) == (share < 1)
    engine = BeliefPropagation(max_iterations=20, tolerance=None)
    found = engine.run(graph, potentials)
    truth = engine.run(graph.to_factor_graph(), [p.double() for p in potentials])
    close(found.log_marginals.double(), truth.log_marginals, atol=1e-4, rtol=1e-5)
    close(found.log_z.double(), truth.log_z, atol=1e-3, rtol=1e-5)


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
    leaves = [
        p.requires_grad_() for p in random_potentials(graph, generator=torch.Generator().manual_seed(0))
    ]
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
    layout = Layout(from_grid(GridGraph(height, width, (four_neighbours(),)), 2), batch)
    assert layout.strips[0].nodes.start == 0
    assert layout.strips[-1].nodes.stop == layout.nodes == batch * height * width
    for strip, following in zip(layout.strips, layout.strips[1:], strict=False):
        assert strip.nodes.stop == following.nodes.start
    nodes = torch.arange(layout.nodes).view(layout.shape)
    for strip in layout.strips:
        assert torch.equal(nodes[strip.images, strip.rows].flatten(), torch.arange(layout.nodes)[strip.nodes])
