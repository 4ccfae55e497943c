"""Every pair of neighbours once, and the lattice of 24."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet import InputError, Relation, above, below, four_neighbours, left, right, surrounding
from messagenet.models.crf import lattice, pair_offsets, paired_relations

OFFSET = st.tuples(st.integers(-3, 3), st.integers(-3, 3)).filter(lambda offset: offset != (0, 0))


def unordered_pairs(offsets, size=(7, 8)):
    nodes = [(y, x) for y in range(size[0]) for x in range(size[1])]
    pairs = [
        frozenset(((y, x), (y + dy, x + dx)))
        for y, x in nodes
        for dy, dx in offsets
        if (y + dy, x + dx) in nodes
    ]
    return pairs


@settings(max_examples=40, deadline=None)
@given(st.lists(OFFSET, unique=True, min_size=1, max_size=10))
def test_each_pair_once_and_none_lost(offsets):
    pairs = unordered_pairs(pair_offsets(tuple(offsets), "all"))
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == set(unordered_pairs(offsets))


@pytest.mark.parametrize("relation", [surrounding(0.4), above(0.4), surrounding(1.0), left(0.7), below(0.3)])
@pytest.mark.parametrize("size", [(13, 20), (32, 32), (50, 41)])
def test_the_lattice_is_part_of_the_box_and_spans_it(relation, size):
    box = relation.offsets_on(*size)
    chosen = lattice(box)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(box)
    assert len(chosen) == min(len(box), 24)
    for axis in (0, 1):
        assert {min(o[axis] for o in chosen), max(o[axis] for o in chosen)} == {
            min(o[axis] for o in box),
            max(o[axis] for o in box),
        }


def test_the_lattice_of_a_symmetric_box_is_symmetric():
    for cells in range(5, 30):
        chosen = lattice(surrounding(cells=cells).offsets_on(99, 99))
        assert {(-dy, -dx) for dy, dx in chosen} == set(chosen)
        assert len(pair_offsets(chosen)) == 12


def test_small_boxes_and_odd_sets_stay_whole():
    for offsets in (
        surrounding(cells=3).offsets_on(9, 9),
        tuple((i, i * i % 7) for i in range(1, 40)),
        (),
    ):
        assert lattice(offsets) == offsets


def test_narrow_boxes_lose_only_the_node_itself():
    row = Relation("row", offsets=tuple((0, dx) for dx in range(-20, 21) if dx)).offsets_on(9, 9)
    assert lattice(row) == ((0, -20), (0, -10), (0, 10), (0, 20))


def test_a_mirror_image_adds_no_pairs():
    def names(*relations):
        return [relation.name for relation in paired_relations(relations)]

    assert names(below(0.4), surrounding(0.4), above(0.4)) == ["below", "surrounding"]
    assert names(left(0.4), right(0.2)) == ["left", "right"]
    assert names(four_neighbours()) == ["four_neighbours"]
    with pytest.raises(InputError, match="make it pairwise"):
        names(surrounding(0.4, form="box"))
