from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagenet import (
    GridGraph,
    InputError,
    Relation,
    above,
    below,
    four_neighbours,
    left,
    right,
    surrounding,
)
from messagenet.graph import Slot, window

PAPER = (surrounding(0.4), above(0.4), below(0.4))
sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))


@given(
    size=sizes,
    relations=st.sampled_from(
        [PAPER, (below(cells=3), surrounding(cells=5), above(cells=3)), (left(cells=2), right(cells=2))]
    ),
)
def test_rev_is_an_involution_between_ends_of_one_factor(size, relations):
    graph = GridGraph(*size, relations)
    partner = {
        "surrounding": "surrounding",
        "above": "below",
        "below": "above",
        "left": "right",
        "right": "left",
    }
    for y in range(size[0]):
        for x in range(size[1]):
            for slot in graph.slots((y, x)):
                back = graph.rev(slot)
                assert back is not None
                assert back.receiver == slot.sender
                assert back.sender == slot.receiver
                assert graph.rev(back) == slot
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
    assert graph.rev(Slot(0, (-1, 0), (2, 2))) is None


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
    assert {
        (y, x) for y in range(rows.start, rows.stop) for x in range(columns.start, columns.stop)
    } == inside
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
