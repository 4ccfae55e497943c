"""Evidence and restricted states against the same thing done by zero potentials."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.graph.builders import grid_factor_graph
from messagenet.graph.factor_graph import FactorGraph
from messagenet.inference import BeliefPropagation, Exact, MeanField, TreeReweighted, observe, restrict
from messagenet.inference.evidence import possible_states
from random_graphs import random_potentials

close = torch.testing.assert_close
INF = float("inf")


def clamped(graph, potentials, evidence):
    """The same evidence as extra factors that forbid every other state."""
    scopes, tables = graph.scopes(), graph.unpack(potentials)
    for variable, state in evidence.items():
        table = torch.full((int(graph.cardinalities[variable]),), -INF, dtype=torch.float64)
        table[state] = 0
        scopes.append((variable,))
        tables.append(table)
    longer = FactorGraph(graph.cardinalities, scopes)
    return longer, longer.pack(tables)


@given(seed=st.integers(0, 10_000), data=st.data())
@settings(max_examples=12, deadline=None)
def test_observing_equals_clamping(brute_force, random_model, seed, data):
    graph, potentials = random_model(seed)
    chosen = data.draw(st.sets(st.integers(0, graph.num_variables - 1), max_size=graph.num_variables))
    evidence = {v: data.draw(st.integers(0, int(graph.cardinalities[v]) - 1)) for v in chosen}
    enumerated = brute_force(*clamped(graph, potentials, evidence))
    result = observe(graph, potentials, evidence).run(Exact(method="eliminate"))
    assert float(result.log_z) == pytest.approx(enumerated.log_z, abs=1e-10)
    close(result.marginals, enumerated.marginals, atol=1e-12, rtol=0)
    assert float(graph.score(potentials, result.map_state)) == pytest.approx(enumerated.max_score, abs=1e-10)
    assert all(int(result.map_state[v]) == state for v, state in evidence.items())
    expected = enumerated.factor_marginals[: graph.num_factors]
    for found, table in zip(graph.unpack(result.factor_marginals), expected, strict=True):
        close(found, table, atol=1e-12, rtol=0)


@pytest.mark.parametrize("engine", [BeliefPropagation(tolerance=1e-12), TreeReweighted(tolerance=1e-12), MeanField()])
def test_every_engine_takes_evidence(engine):
    graph = grid_factor_graph(3, 3, 2)
    potentials = random_potentials(graph, scale=0.3, batch=2, generator=torch.Generator().manual_seed(0))
    result = observe(graph, potentials, {4: 1, 0: 0}).run(engine)
    assert result.marginals.shape == (2, 9, 2)
    assert result.marginals[:, 4].tolist() == [[0.0, 1.0]] * 2
    assert result.map_state[:, 0].tolist() == [0, 0]
    assert [tuple(table.shape) for table in result.factor_marginals] == [(2, 9, 2), (2, 6, 2, 2), (2, 6, 2, 2)]
    close(result.factor_marginals[1].sum((-1, -2)), torch.ones(2, 6, dtype=torch.float64))
    forbidden = [table.clone() for table in potentials]
    forbidden[0][:, 4, 0] = forbidden[0][:, 0, 1] = -INF
    same = engine.run(graph, forbidden)
    if not isinstance(engine, TreeReweighted):  # which has other trees on the smaller graph
        close(result.marginals, same.marginals, atol=1e-6, rtol=0)


def test_evidence_breaks_loops_and_lets_gradients_through():
    graph = grid_factor_graph(2, 2, 2)
    leaves = [t.requires_grad_() for t in random_potentials(graph, generator=torch.Generator().manual_seed(0))]
    seen = observe(graph, leaves, {0: 1})
    assert max(len(scope) for scope in seen.graph.scopes()) == 2
    result = seen.run(Exact())
    result.log_z.backward()
    for leaf, marginal in zip(leaves, result.factor_marginals, strict=True):
        close(leaf.grad, marginal.detach())


def test_shared_tables_stay_shared_where_nothing_is_observed():
    graph = grid_factor_graph(3, 3, 2)
    seen = observe(graph, [torch.zeros(9, 2), torch.zeros(1, 2, 2), torch.zeros(1, 2, 2)], {0: 0})
    shapes = {group.shape: tuple(table.shape) for group, table in zip(seen.graph.groups, seen.potentials, strict=True)}
    assert shapes[2, 2] == (1, 2, 2)


def test_impossible_states_are_found():
    graph = FactorGraph([2, 3], [[1], [0, 1]])
    tables = [torch.tensor([0.0, -INF, 0.0]), torch.tensor([[0.0, 0.0, -INF], [0.0, 0.0, -INF]])]
    allowed = possible_states(graph, graph.pack(tables))
    assert allowed.tolist() == [[True, True, False], [True, False, False]]
    assert restrict(graph, graph.pack(tables), allowed).graph.cardinalities.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("evidence", "message"),
    [
        ({9: 0}, "variable 9 does not exist"),
        ({0: 2}, "variable 0 has no state 2; its states are 0 to 1"),
        ({0: -1}, "no state -1"),
    ],
)
def test_evidence_out_of_range_is_refused(evidence, message):
    graph = grid_factor_graph(3, 3, 2)
    with pytest.raises(InputError, match=message):
        observe(graph, [torch.zeros(1, *group.shape) for group in graph.groups], evidence)


def test_impossible_evidence_is_refused():
    graph = FactorGraph([2], [[0]])
    with pytest.raises(InputError, match="contradict"):
        observe(graph, [torch.tensor([[0.0, -INF]])], {0: 1}).run(Exact())
