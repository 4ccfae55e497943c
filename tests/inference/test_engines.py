"""What every engine promises: exact answers on trees, odd graphs, batches, zeros, precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.graph.builders import chain_graph, random_potentials, random_tree
from messagenet.graph.factor_graph import FactorGraph
from messagenet.inference import BeliefPropagation, Exact, MeanField, SequentialTRW, TreeReweighted

close = torch.testing.assert_close
INF = float("inf")

PRECISE = {"tolerance": 1e-13, "max_iterations": 400}
SUM = {
    "enumerate": Exact(method="enumerate"),
    "eliminate": Exact(method="eliminate"),
    "synchronous": BeliefPropagation(**PRECISE),
    "sequential": BeliefPropagation(schedule="sequential", **PRECISE),
    "residual": BeliefPropagation(schedule="residual", **PRECISE),
    "damped": BeliefPropagation(damping=0.3, **PRECISE),
    "reweighted": TreeReweighted(damping=0.0, **PRECISE),
    "reweighted sequential": TreeReweighted(schedule="sequential", damping=0.0, **PRECISE),
}
MAX = {
    "exact": Exact(temperature=0),
    "synchronous": BeliefPropagation(temperature=0, **PRECISE),
    "sequential": BeliefPropagation(temperature=0, schedule="sequential", **PRECISE),
    "residual": BeliefPropagation(temperature=0, schedule="residual", **PRECISE),
    "reweighted": TreeReweighted(temperature=0, damping=0.0, **PRECISE),
    "sequential trees": SequentialTRW(tolerance=1e-12),
}
ALL = {
    **SUM,
    "mean field": MeanField(tolerance=1e-12),
    "parallel": MeanField(schedule="parallel", damping=0.5, tolerance=1e-12, max_iterations=150),
}
EVERY = {**ALL, **{f"max {name}": engine for name, engine in MAX.items()}}


def by_name(engines):
    return pytest.mark.parametrize("engine", engines.values(), ids=engines.keys())


@by_name(SUM)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=4, deadline=None)
def test_exact_on_trees(brute_force, engine, seed):
    generator = torch.Generator().manual_seed(seed)
    graph = random_tree(6, cardinality=(1, 3), generator=generator)
    potentials = random_potentials(graph, scale=2.0, generator=generator)
    truth = brute_force(graph, potentials)
    result = engine.run(graph, potentials)
    assert result.converged
    close(result.marginals, truth.marginals, atol=1e-9, rtol=0)
    assert float(result.log_z) == pytest.approx(truth.log_z, abs=1e-9)
    for found, expected in zip(graph.unpack(result.factor_marginals), truth.factor_marginals, strict=True):
        close(found, expected, atol=1e-9, rtol=0)


@by_name(MAX)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=4, deadline=None)
def test_most_probable_state_of_trees(brute_force, engine, seed):
    generator = torch.Generator().manual_seed(seed)
    graph = random_tree(6, cardinality=(1, 3), generator=generator)
    potentials = random_potentials(graph, scale=2.0, generator=generator)
    truth = brute_force(graph, potentials)
    result = engine.run(graph, potentials)
    assert result.map_state.tolist() == truth.map_state
    assert float(result.log_z) == pytest.approx(truth.max_score, abs=1e-9)
    if not isinstance(engine, SequentialTRW):
        close(result.log_marginals, truth.max_marginals.log_softmax(-1), atol=1e-9, rtol=0)


@by_name({name: engine for name, engine in SUM.items() if name not in ("enumerate", "eliminate")})
def test_exact_on_trees_of_high_order_factors(brute_force, engine):
    graph = FactorGraph.from_scopes([2, 3, 2, 2, 3, 2], [[1, 0, 2], [2, 3], [5, 2, 4], [4], [0]])
    potentials = random_potentials(graph, scale=2.0, generator=torch.Generator().manual_seed(5))
    truth = brute_force(graph, potentials)
    result = engine.run(graph, potentials)
    close(result.marginals, truth.marginals, atol=1e-9, rtol=0)
    assert float(result.log_z) == pytest.approx(truth.log_z, abs=1e-9)
    close(graph.unpack(result.factor_marginals)[2], truth.factor_marginals[2], atol=1e-9, rtol=0)


@by_name(SUM)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=4, deadline=None)
def test_zeros_on_trees(brute_force, engine, seed):
    generator = torch.Generator().manual_seed(seed)
    graph = random_tree(5, cardinality=(2, 3), generator=generator)
    hidden = [int(torch.randint(int(size), (), generator=generator)) for size in graph.cardinalities]
    tables = []
    for scope, table in zip(
        graph.scopes(), graph.unpack(random_potentials(graph, generator=generator)), strict=True
    ):
        forbidden = torch.rand(table.shape, generator=generator) < 0.4
        forbidden[tuple(hidden[v] for v in scope)] = False
        tables.append(table.masked_fill(forbidden, -INF))
    leaves = [p.requires_grad_() for p in graph.pack(tables)]
    truth = brute_force(graph, [leaf.detach() for leaf in leaves])
    result = engine.run(graph, leaves)
    close(result.marginals.detach(), truth.marginals, atol=1e-9, rtol=0)
    assert float(result.log_z.detach()) == pytest.approx(truth.log_z, abs=1e-9)
    gradients = torch.autograd.grad(result.log_z, leaves)
    for gradient, expected in zip(graph.unpack(gradients), truth.factor_marginals, strict=True):
        close(gradient, expected, atol=1e-8, rtol=0)


@by_name(EVERY)
def test_zeros_never_give_nan_even_in_gradients(random_model, engine):
    orders = (1, 1, 2, 2, 2, 2) if isinstance(engine, SequentialTRW) else (1, 2, 2, 2, 3)
    for seed in range(3):
        graph, potentials = random_model(seed, zeros=0.3, orders=orders)
        leaves = [p.requires_grad_() for p in potentials]
        result = engine.run(graph, leaves)
        possible = result.log_marginals.isfinite()
        assert not result.log_marginals.isnan().any()
        total = result.log_marginals[possible].sum()
        total = total + (result.log_z if result.log_z.isfinite() else 0)
        total = total + sum(table.sum() for table in result.factor_marginals)
        for gradient in torch.autograd.grad(total, leaves, allow_unused=True):
            assert gradient is None or gradient.isfinite().all()


@by_name(EVERY)
def test_odd_graphs(engine):
    untouched = FactorGraph.from_scopes([2, 3, 1, 2], [[0, 3], [2], [2, 0]])  # 1 is touched by nothing
    result = engine.run(untouched, [torch.zeros(1, *group.shape) for group in untouched.groups])
    close(result.marginals.sum(-1), torch.ones(4))
    close(result.marginals[1], torch.full((3,), 1 / 3))
    assert result.marginals[2].tolist() == [1.0, 0.0, 0.0]
    bare = engine.run(FactorGraph.from_scopes([2, 4], []), [])
    close(bare.marginals, torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25] * 4]))
    assert bare.factor_marginals == ()
    single = FactorGraph.from_scopes([3], [[0]])
    result = engine.run(single, [torch.tensor([[0.0, 1.0, 2.0]])])
    close(result.marginals[0], torch.tensor([0.0, 1.0, 2.0]).softmax(0))
    assert result.map_state.tolist() == [2]


@by_name(EVERY)
def test_constants_only_shift_log_z(engine):
    with_constants = FactorGraph.from_scopes([2, 2], [[0], [0, 1], [], []])
    without = FactorGraph.from_scopes([2, 2], [[0], [0, 1]])
    tables = [torch.tensor([0.0, 1.0]), torch.eye(2), torch.tensor(3.0), torch.tensor(0.5)]
    result = engine.run(with_constants, with_constants.pack(tables))
    plain = engine.run(without, without.pack(tables[:2]))
    close(result.marginals, plain.marginals)
    close(result.log_z, plain.log_z + 3.5)
    by_group = dict(zip((g.shape for g in with_constants.groups), result.factor_marginals, strict=True))
    assert by_group[()].tolist() == [1.0, 1.0]


@by_name(EVERY)
def test_scope_order_does_not_matter(engine):
    potentials = random_potentials(
        graph := FactorGraph.from_scopes([2, 3, 2], [[0, 1], [1, 2], [0]]),
        generator=torch.Generator().manual_seed(2),
    )
    first, second, unary = graph.unpack(potentials)
    turned = FactorGraph.from_scopes([2, 3, 2], [[0], [2, 1], [1, 0]])
    result = engine.run(graph, potentials)
    same = engine.run(turned, turned.pack([unary, second.T, first.T]))
    close(result.marginals, same.marginals, atol=1e-6, rtol=0)
    close(result.log_z, same.log_z, atol=1e-6, rtol=0)


@by_name(EVERY)
def test_batch_equals_one_at_a_time(engine):
    generator = torch.Generator().manual_seed(3)
    graph = random_tree(5, cardinality=(2, 3), generator=generator)
    batched = list(random_potentials(graph, batch=3, generator=generator))
    batched[0] = batched[0][0]  # one group without a batch axis
    together = engine.run(graph, batched)
    assert together.log_z.shape == (3,)
    for item in range(3):
        alone = engine.run(graph, [batched[0], *(table[item] for table in batched[1:])])
        close(together.marginals[item], alone.marginals, atol=1e-6, rtol=0)
        close(together.log_z[item], alone.log_z, atol=1e-6, rtol=0)
        assert torch.equal(together.map_state[item], alone.map_state)
        for whole, part in zip(together.factor_marginals, alone.factor_marginals, strict=True):
            close(whole[item], part, atol=1e-6, rtol=0)


@by_name(EVERY)
def test_single_precision(engine):
    generator = torch.Generator().manual_seed(4)
    graph = random_tree(5, cardinality=3, generator=generator)
    potentials = random_potentials(graph, generator=generator)
    double = engine.run(graph, potentials)
    single = engine.run(graph, [table.float() for table in potentials])
    assert single.log_z.dtype == single.marginals.dtype == torch.float32
    close(single.marginals.double(), double.marginals, atol=1e-5, rtol=0)
    close(single.log_z.double(), double.log_z, atol=1e-5, rtol=1e-5)


@by_name(EVERY)
def test_bad_potentials_are_refused(engine):
    graph = chain_graph([2, 2])
    unary, pair = torch.zeros(2, 2), torch.zeros(1, 2, 2)
    with pytest.raises(InputError, match="factor 1: log-potential inf is not finite"):
        engine.run(graph, [torch.tensor([[0.0, 0.0], [0.0, INF]]), pair])
    with pytest.raises(InputError, match="factor 2: log-potential nan"):
        engine.run(graph, [unary, pair * float("nan")])
    with pytest.raises(InputError, match=r"factor 2: .*got \(1, 2, 3\)"):
        engine.run(graph, [unary, torch.zeros(1, 2, 3)])
    with pytest.raises(InputError, match="for 2 groups of factors; give one each"):
        engine.run(graph, [unary])
    with pytest.raises(InputError, match="one floating-point dtype"):
        engine.run(graph, [unary, pair.double()])
    with pytest.raises(InputError, match="different batch sizes"):
        engine.run(graph, [unary.expand(2, 2, 2), pair.expand(3, 1, 2, 2)])


@by_name({name: engine for name, engine in EVERY.items() if "mean" not in name and name != "parallel"})
def test_contradictory_potentials_are_refused(engine):
    graph = chain_graph([2, 2])
    equal = torch.tensor([[[0.0, -INF], [-INF, 0.0]]])
    with pytest.raises(InputError, match="contradict"):
        engine.run(graph, [torch.tensor([[0.0, -INF], [-INF, 0.0]]), equal])
