"""The factor graph of a grid: which pairs it has, in which orientation, and potentials given as maps."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.graph import GridGraph, Relation, above, below, four_neighbours, left, right, surrounding
from messagenet.graph.builders import from_grid

RELATIONS = [
    four_neighbours(),
    surrounding(cells=3),
    above(cells=2),
    below(cells=2),
    left(0.6),
    right(0.6),
    Relation("knight", offsets=[(-2, -1), (-2, 1), (1, 2), (2, 1)]),
    Relation("far", offsets=[(0, 3), (9, 0), (-1, -7)]),
]


def pairs_by_slots(grid):
    """Unordered pairs of each relation, from its message slots; a slot and its reverse belong to one factor."""
    factors = set()
    for node in itertools.product(range(grid.height), range(grid.width)):
        for slot in grid.slots(node):
            other = grid.rev(slot)
            relation = slot.relation if other is None else min(slot.relation, other.relation)
            factors.add((grid.relations[relation].name, frozenset([slot.receiver, slot.sender])))
    return factors


@given(
    chosen=st.lists(st.sampled_from(RELATIONS), unique_by=lambda relation: relation.name, max_size=4),
    height=st.integers(1, 5),
    width=st.integers(1, 5),
)
@settings(max_examples=40, deadline=None)
def test_one_factor_for_every_pair_that_talks(chosen, height, width):
    grid = GridGraph(height, width, tuple(chosen))
    graph = from_grid(grid, 2)
    assert graph.scopes()[: grid.nodes] == [(node,) for node in range(grid.nodes)]
    found = []
    for block, group in zip(graph.blocks, graph.groups[1:], strict=True):
        for a, b in group.scopes.tolist():
            first, second = divmod(a, width), divmod(b, width)
            assert (second[0] - first[0], second[1] - first[1]) == block.offset
            found.append((block.relation, frozenset([first, second])))
    assert len(found) == len(set(found))
    assert set(found) == pairs_by_slots(grid)


def test_orientation():
    def offsets(*relations):
        return [block.offset for block in from_grid(GridGraph(9, 9, relations), 2).blocks]

    assert offsets(four_neighbours()) == [(0, 1), (1, 0)]
    assert offsets(surrounding(cells=3)) == [(0, 1), (1, -1), (1, 0), (1, 1)]
    assert offsets(above(cells=1)) == [(-1, 0)]
    assert offsets(above(cells=1), below(cells=1)) == [(-1, 0)]
    assert offsets(below(cells=1), above(cells=1)) == [(1, 0)]
    assert offsets(Relation("partly", offsets=[(0, -1), (0, 1), (-2, 0)])) == [(0, 1), (-2, 0)]


def test_box_factors_are_refused():
    grid = GridGraph(9, 9, (surrounding(cells=3, form="box"),))
    with pytest.raises(
        InputError, match=r"'surrounding' has box factors.*5\^9 entries; make it form=\"pairwise\""
    ):
        from_grid(grid, 5)


def test_windows_are_the_scopes():
    graph = from_grid(GridGraph(4, 6, (four_neighbours(), Relation("far", offsets=[(-2, 3)]))), 3)
    nodes = torch.arange(24).view(4, 6)
    for block, group in zip(graph.blocks, graph.groups[1:], strict=True):
        assert len(block) == len(group) == block.shape[0] * block.shape[1]
        assert torch.equal(nodes[block.first].flatten(), group.scopes[:, 0])
        assert torch.equal(nodes[block.second].flatten(), group.scopes[:, 1])
    assert graph.to_factor_graph().scopes() == graph.scopes()
    assert type(graph.to("cpu")) is type(graph)
    assert graph.to("cpu").scopes() == graph.scopes()


def test_potentials_from_maps_score_the_same():
    graph = from_grid(GridGraph(3, 4, (four_neighbours(), above(cells=1, name="over"))), 2)
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(2, 2, 3, 4, generator=generator)
    tables = [
        torch.randn(2, 2, generator=generator),
        torch.randn(2, 2, 2, generator=generator),
        torch.randn(2, *graph.blocks[2].shape, 2, 2, generator=generator),
    ]
    labels = torch.randint(2, (3, 4), generator=generator)
    expected = torch.zeros(2)
    for item, y, x in itertools.product(range(2), range(3), range(4)):
        expected[item] += unary[item, labels[y, x], y, x]
        if x < 3:
            expected[item] += tables[0][labels[y, x], labels[y, x + 1]]
        if y < 2:
            expected[item] += tables[1][item, labels[y, x], labels[y + 1, x]]
        if y > 0:  # the node itself, then the one above it
            expected[item] += tables[2][item, y - 1, x, labels[y, x], labels[y - 1, x]]
    potentials = graph.potentials(unary, tables)
    torch.testing.assert_close(graph.score(potentials, labels.flatten()), expected)
    assert torch.equal(graph.as_map(potentials[0]), unary)
    assert graph.as_map(labels.flatten()).tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("unary", "tables", "message"),
    [
        ((3, 4, 2), [(2, 2)] * 2, r"unary .*\(3, 4, 2\); give \(2, 3, 4\)"),
        ((1, 1, 2, 3, 4), [(2, 2)] * 2, "at most one batch axis"),
        ((2, 3, 4), [(2, 2)], r"1 tables were given for 2 blocks .* offsets \(0, 1\), \(1, 0\)"),
        ((2, 3, 4), [(2, 2), (3, 4, 2, 2)], r"offset \(1, 0\) .* or \(2, 4, 2, 2\)"),
        ((2, 3, 4), [(2, 3), (2, 2)], r"offset \(0, 1\) has shape \(2, 3\)"),
    ],
)
def test_potentials_of_other_shapes_are_refused(unary, tables, message):
    graph = from_grid(GridGraph(3, 4, (four_neighbours(),)), 2)
    with pytest.raises(InputError, match=message):
        graph.potentials(torch.zeros(unary), [torch.zeros(table) for table in tables])


def test_values_of_other_sizes_are_no_map():
    with pytest.raises(InputError, match="each of the 12 nodes"):
        from_grid(GridGraph(3, 4), 2).as_map(torch.zeros(11, 2))
