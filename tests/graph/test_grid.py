"""The grid graph: slots, mirrors and windows; its factor graph."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.graph import (
    GridFactorGraph,
    GridGraph,
    Relation,
    Slot,
    above,
    below,
    four_neighbours,
    left,
    right,
    surrounding,
    window,
)

PAPER = (surrounding(0.4), above(0.4), below(0.4))
sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))


def reverse_slot(graph, slot):
    """The slot of the same factor's message to its other end; None where the factor sends one way."""
    mirror, (dy, dx) = graph.mirrors[slot.relation], slot.offset
    return None if mirror is None else Slot(mirror, (-dy, -dx), slot.sender)


@given(
    size=sizes,
    relations=st.sampled_from(
        [PAPER, (below(cells=3), surrounding(cells=5), above(cells=3)), (left(cells=2), right(cells=2))]
    ),
)
def test_rev_is_an_involution_between_ends_of_one_factor(size, relations):
    graph = GridGraph(*size, relations)
    partner = {"surrounding": "surrounding", "above": "below", "below": "above", "left": "right", "right": "left"}
    for y in range(size[0]):
        for x in range(size[1]):
            for slot in graph.slots((y, x)):
                back = reverse_slot(graph, slot)
                assert back is not None
                assert back.receiver == slot.sender
                assert back.sender == slot.receiver
                assert reverse_slot(graph, back) == slot
                assert graph.contains(back.receiver)
                names = [relations[s.relation].name for s in (slot, back)]
                assert names[1] == partner[names[0]]
                places = graph.reverse_offsets[slot.relation]
                place = places[graph.offsets[slot.relation].index(slot.offset)]
                assert graph.offsets[back.relation][place] == back.offset


def test_slots_are_every_sender_inside_the_map():
    graph = GridGraph(3, 4, (above(cells=2), four_neighbours()))
    assert graph.nodes == 12
    expected = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [slot.sender for slot in graph.slots((2, 0)) if slot.relation == 0] == expected
    assert [slot.sender for slot in graph.slots((0, 0)) if slot.relation == 1] == [(0, 1), (1, 0)]


def test_one_way_relations_have_no_reverse():
    graph = GridGraph(4, 4, (above(cells=2), surrounding(cells=3, form="box")))
    assert graph.mirrors == (None, None)
    assert reverse_slot(graph, Slot(0, (-1, 0), (2, 2))) is None


@given(size=sizes, offset=st.tuples(st.integers(-10, 10), st.integers(-10, 10)))
def test_window_holds_exactly_the_pairs_inside(size, offset):
    height, width = size
    inside = {
        (y, x)
        for y in range(height)
        for x in range(width)
        if 0 <= y + offset[0] < height and 0 <= x + offset[1] < width
    }
    found = window(size, offset)
    if found is None:
        assert not inside
        return
    _, rows, columns = found.receivers
    _, sender_rows, sender_columns = found.senders
    assert {(y, x) for y in range(rows.start, rows.stop) for x in range(columns.start, columns.stop)} == inside
    assert (sender_rows.start - rows.start, sender_columns.start - columns.start) == offset


@pytest.mark.parametrize("edge", range(1, 60))
def test_sizes_follow_the_paper(edge):
    half, full = int(0.2 * edge + 1e-9), int(0.4 * edge + 1e-9)
    assert set(surrounding(0.4).offsets_on(edge, edge + 7)) == {
        (dy, dx) for dy in range(-half, half + 1) for dx in range(-half, half + 1)
    } - {(0, 0)}
    up = set(above(0.4).offsets_on(edge + 7, edge))
    assert up == {(dy, dx) for dy in range(-full, 0) for dx in range(-half, half + 1)}
    assert set(below(0.4).offsets_on(edge, edge)) == {(-dy, -dx) for dy, dx in up}


def test_relations_survive_a_json_round_trip():
    for relation in (*PAPER, four_neighbours(form="box"), surrounding(cells=7, name="near")):
        assert Relation.from_dict(relation.to_dict()) == relation


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Relation("empty", offsets=[]), "at least one"),
        (lambda: Relation("self", offsets=[(0, 0)]), "itself"),
        (lambda: Relation("twice", offsets=[(0, 1), (0, 1)]), "twice"),
        (lambda: surrounding(0.0), "no offsets"),
        (lambda: surrounding(13), "at most 2"),
        (lambda: surrounding(cells=1), "at least cells=2"),
        (lambda: surrounding(0.4, cells=3), "either"),
        (lambda: surrounding(0.4, form="boxes"), 'did you mean "box"'),
        (lambda: Relation("x", "sorrounding", fraction=0.4), 'did you mean "surrounding"'),
        (lambda: above(0.4, name="no good"), "letters"),
        (lambda: above(0.4, name="unary"), "unary"),
        (lambda: Relation.from_dict({"name": "a", "fractoin": 1}), 'did you mean "fraction"'),
        (lambda: GridGraph(0, 3), "at least 1×1"),
    ],
)
def test_bad_relations_name_the_fix(build, words):
    with pytest.raises(InputError, match=words):
        build()


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
            other = reverse_slot(grid, slot)
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
    graph = GridFactorGraph.from_grid(grid, 2)
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
        return [block.offset for block in GridFactorGraph.from_grid(GridGraph(9, 9, relations), 2).blocks]

    assert offsets(four_neighbours()) == [(0, 1), (1, 0)]
    assert offsets(surrounding(cells=3)) == [(0, 1), (1, -1), (1, 0), (1, 1)]
    assert offsets(above(cells=1)) == [(-1, 0)]
    assert offsets(above(cells=1), below(cells=1)) == [(-1, 0)]
    assert offsets(below(cells=1), above(cells=1)) == [(1, 0)]
    assert offsets(Relation("partly", offsets=[(0, -1), (0, 1), (-2, 0)])) == [(0, 1), (-2, 0)]


def test_box_factors_are_refused():
    grid = GridGraph(9, 9, (surrounding(cells=3, form="box"),))
    with pytest.raises(InputError, match=r"'surrounding' has box factors.*5\^9 entries; make it form=\"pairwise\""):
        GridFactorGraph.from_grid(grid, 5)


def test_windows_are_the_scopes():
    graph = GridFactorGraph.from_grid(GridGraph(4, 6, (four_neighbours(), Relation("far", offsets=[(-2, 3)]))), 3)
    nodes = torch.arange(24).view(4, 6)
    for block, group in zip(graph.blocks, graph.groups[1:], strict=True):
        assert len(block) == len(group) == block.shape[0] * block.shape[1]
        assert torch.equal(nodes[block.first].flatten(), group.scopes[:, 0])
        assert torch.equal(nodes[block.second].flatten(), group.scopes[:, 1])
    assert graph.to_factor_graph().scopes() == graph.scopes()
    assert type(graph.to("cpu")) is type(graph)
    assert graph.to("cpu").scopes() == graph.scopes()


def test_potentials_from_maps_score_the_same():
    graph = GridFactorGraph.from_grid(GridGraph(3, 4, (four_neighbours(), above(cells=1, name="over"))), 2)
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
    graph = GridFactorGraph.from_grid(GridGraph(3, 4, (four_neighbours(),)), 2)
    with pytest.raises(InputError, match=message):
        graph.potentials(torch.zeros(unary), [torch.zeros(table) for table in tables])


def test_values_of_other_sizes_are_no_map():
    with pytest.raises(InputError, match="each of the 12 nodes"):
        GridFactorGraph.from_grid(GridGraph(3, 4), 2).as_map(torch.zeros(11, 2))
