"""Factor graphs: grouping, packing, scoring, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.graph.builders import grid_factor_graph
from messagenet.graph.factor_graph import FactorGraph
from random_graphs import random_graph, random_potentials


def test_factors_of_equal_shape_are_gathered():
    graph = FactorGraph([2, 3, 2, 3], [[0], [0, 1], [3], [2, 3], [1, 0], [], [2]])
    found = {group.shape: (group.scopes.tolist(), group.factor_ids.tolist()) for group in graph.groups}
    assert found == {
        (): ([[]], [5]),
        (2,): ([[0], [2]], [0, 6]),
        (3,): ([[3]], [2]),
        (2, 3): ([[0, 1], [2, 3]], [1, 3]),
        (3, 2): ([[1, 0]], [4]),
    }
    assert graph.num_factors == 7
    assert graph.scopes() == [(0,), (0, 1), (3,), (2, 3), (1, 0), (), (2,)]


def test_blocks_stay_apart():
    edges = torch.tensor([[0, 1], [1, 2]])
    graph = FactorGraph.from_blocks([2, 2, 2], [edges, edges.flip(1)])
    assert [group.factor_ids.tolist() for group in graph.groups] == [[0, 1], [2, 3]]


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_pack_and_unpack_are_inverse(seed):
    graph = random_graph(5, 6, order=2, cardinality=(1, 3), generator=torch.Generator().manual_seed(seed))
    for batch in (None, 2):
        potentials = random_potentials(graph, batch=batch)
        again = graph.pack(graph.unpack(potentials))
        assert all(torch.equal(a, b) for a, b in zip(potentials, again, strict=True))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_score_is_the_sum_of_table_entries(seed):
    generator = torch.Generator().manual_seed(seed)
    base = random_graph(4, 4, order=3, cardinality=(1, 3), generator=generator)
    graph = FactorGraph(base.cardinalities, [*base.scopes(), ()])
    potentials = random_potentials(graph, generator=generator)
    tables = graph.unpack(potentials)
    states = torch.tensor(list(itertools.product(*(range(int(size)) for size in graph.cardinalities))))
    expected = [
        sum(float(table[tuple(state[v] for v in scope)]) for scope, table in zip(graph.scopes(), tables, strict=True))
        for state in states.tolist()
    ]
    torch.testing.assert_close(graph.score(potentials, states), torch.tensor(expected, dtype=torch.float64))


def test_score_takes_shared_tables_batches_and_gradients():
    graph = grid_factor_graph(2, 3, 2)
    unary = torch.randn(4, 6, 2, requires_grad=True)
    shared = torch.eye(2)[None]
    states = torch.randint(2, (4, 6))
    scores = graph.score([unary, shared, shared], states)
    assert scores.shape == (4,)
    edges = torch.cat([group.scopes for group in graph.groups[1:]])
    agree = (states[:, edges[:, 0]] == states[:, edges[:, 1]]).sum(1)
    torch.testing.assert_close(scores, unary.gather(2, states[..., None]).sum((1, 2)) + agree)
    scores.sum().backward()
    assert torch.equal(unary.grad, torch.nn.functional.one_hot(states, 2).float())
    assert graph.score([unary, shared, shared], states[0]).shape == (4,)


def test_incidence_lists_every_end_of_every_edge():
    graph = FactorGraph([2, 3, 2], [[0], [0, 1], [2, 0], [2, 1, 0]])
    incidence = graph.incidence
    ends = []
    for group, starts in zip(graph.groups, incidence.starts, strict=True):
        for position, start in enumerate(starts):
            ends += [(start + row, variable) for row, variable in enumerate(group.scopes[:, position].tolist())]
    assert sorted(ends) == list(enumerate(incidence.variables.tolist()))
    assert incidence.variables[incidence.by_variable].tolist() == sorted(incidence.variables.tolist())
    assert incidence.offsets.tolist() == [0, 3, 5]


def test_large_graphs_have_few_groups():
    graph = grid_factor_graph(200, 200, 3)
    assert graph.num_factors == 40_000 + 2 * 200 * 199
    assert len(graph.groups) == 3


@pytest.mark.parametrize(
    ("cardinalities", "scopes", "message"),
    [
        ([], [], "at least one variable"),
        ([2, 0], [[0]], "variable 1 has 0 states"),
        ([2, 2], [[0], [0, 2]], "factor 1: variable 2 does not exist; variables are 0 to 1"),
        ([2, 2], [[-1]], "factor 0: variable -1 does not exist"),
        ([2, 2], [[0], [1, 0, 1]], "factor 1: its scope repeats variable 1"),
        ([2, 2], [0, 1], r"factor 0: its scope is 0; list the indices of its variables, such as \[0, 1\]"),
        ([2, 2], [[0], [0.5, 1]], "factor 1: its scope is"),
        ([2, 2], ["01"], "factor 0: its scope is '01'"),
        ([2, 2.5], [[0]], "^cardinalities are whole numbers"),
        (3, [[0]], "^cardinalities are whole numbers"),
        (None, [[0]], "^cardinalities are whole numbers"),
    ],
)
def test_bad_scopes_are_refused(cardinalities, scopes, message):
    with pytest.raises(InputError, match=message):
        FactorGraph(cardinalities, scopes)


def test_bad_tables_are_refused():
    graph = FactorGraph([2, 3], [[0], [0, 1]])
    with pytest.raises(InputError, match="2 factors but 1 tables"):
        graph.pack([torch.zeros(2)])
    with pytest.raises(InputError, match=r"factor 1: its table is \(3, 2\), its scope needs \(2, 3\)"):
        graph.pack([torch.zeros(2), torch.zeros(3, 2)])
    with pytest.raises(InputError, match=r"\(factors, order\)"):
        FactorGraph.from_blocks([2], [torch.zeros(3)])


def test_factors_of_too_many_variables_are_refused():
    with pytest.raises(InputError, match="factor 0 touches 60 variables"):
        FactorGraph([1] * 60, [range(60)])


def test_scopes_may_be_lists_arrays_or_tensors():
    scopes = [[0, 1], [1, 2], [0, 2]]
    graphs = [FactorGraph([2, 3, 2], form) for form in (scopes, torch.tensor(scopes), np.array(scopes))]
    graphs.append(FactorGraph(np.array([2, 3, 2]), [torch.tensor(scope) for scope in scopes]))
    graphs.append(FactorGraph(torch.tensor([2, 3, 2]), [tuple(map(np.int64, scope)) for scope in scopes]))
    for graph in graphs:
        assert graph.scopes() == [(0, 1), (1, 2), (0, 2)]
        assert [group.shape for group in graph.groups] == [(2, 2), (2, 3), (3, 2)]


def test_which_form_potentials_have():
    ring = FactorGraph([2, 2, 2], [[0, 1], [1, 2], [0, 2]])
    assert ring.is_per_factor([torch.zeros(2, 2)] * 3)
    assert ring.is_per_factor(torch.zeros(3, 2, 2))
    assert not ring.is_per_factor([torch.zeros(3, 2, 2)])
    apart = FactorGraph([2, 3], [[0], [0, 1]])  # as many groups as factors
    assert apart.is_per_factor([torch.zeros(2), torch.zeros(2, 3)])
    assert apart.is_per_factor([torch.zeros(4, 2), torch.zeros(4, 2, 3)])
    assert apart.is_per_factor([torch.zeros(1, 2), torch.zeros(4, 2, 3)])
    assert not apart.is_per_factor([torch.zeros(4, 1, 2), torch.zeros(1, 2, 3)])
    assert not apart.is_per_factor([torch.zeros(1, 2), torch.zeros(1, 2, 3)])  # the one case that could be either
    assert [tuple(table.shape) for table in apart.pack([torch.zeros(1, 2), torch.zeros(1, 2, 3)])] == [
        (1, 1, 2),
        (1, 1, 2, 3),
    ]


def test_tables_of_one_group_may_share_a_batch():
    graph = FactorGraph([2, 2], [[0], [1], [0]])
    tables = [torch.randn(2, requires_grad=True), torch.randn(5, 2), torch.randn(1, 2)]
    (packed,) = graph.pack(tables)
    assert packed.shape == (5, 3, 2)
    for item in range(5):
        assert torch.equal(packed[item], torch.stack([tables[0], tables[1][item], tables[2][0]]))
    packed.sum().backward()
    assert tables[0].grad.tolist() == [5.0, 5.0]
    scores = graph.score(tables, torch.zeros(2, dtype=torch.long))
    torch.testing.assert_close(scores, packed[..., 0].sum(1))


def test_scores_are_summed_in_double_precision():
    graph = FactorGraph([1] * 3, [[0], [1], [2]])
    tables = [torch.tensor([2.0**25]), torch.tensor([1.0]), torch.tensor([-(2.0**25)])]
    assert float(graph.score(tables, torch.zeros(3, dtype=torch.long))) == 1.0
