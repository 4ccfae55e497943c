"""Typed graphs: their slots, their batches, and what is refused."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet import InputError
from messagenet.graph.typed import TypedGraph, batch_graphs, index_messages


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    ordered=st.booleans(),
    sends_to=st.sampled_from([None, (0,), (1,), (0, 1)]),
    orders=st.sampled_from([[2], [3], [2, 4]]),
)
def test_every_slot_knows_its_factor(seed, ordered, sends_to, orders):
    dice = random.Random(seed)
    scopes = [dice.sample(range(6), dice.choice(orders)) for _ in range(dice.randint(0, 8))]
    graph = TypedGraph.build(6, {"f": scopes})
    layout = graph.message_index("f", ordered=ordered, sends_to=sends_to)
    found = []
    for part in layout.slots:
        assert part.receivers.tolist() == sorted(part.receivers.tolist())
        assert torch.equal(layout.receivers[part.rows], part.receivers)
        scope_of, count = graph.factors["f"][part.block].scopes, len(graph.factors["f"][part.block].scopes)
        for row, (number, origin) in enumerate(
            zip(part.factors.tolist(), part.origin.tolist(), strict=True), start=part.first
        ):
            position = origin // count
            assert scope_of[origin % count].tolist() == scopes[number]
            assert part.receivers[row - part.first] == scopes[number][position]
            others = [v for i, v in enumerate(scopes[number]) if i != position]
            assert part.senders[row - part.first].tolist() == others
            for sender, back in zip(others, part.reverse[row - part.first].tolist(), strict=True):
                answered = sends_to is None or scopes[number].index(sender) in sends_to
                assert (back >= 0) is answered
                assert back < 0 or layout.receivers[back] == sender
            assert part.estimator == (list(sends_to or range(9)).index(position) if ordered else 0)
            found.append((number, position))
    positions = [(f, i) for f, s in enumerate(scopes) for i in (range(len(s)) if sends_to is None else sends_to)]
    assert sorted(found) == sorted(positions)
    assert len(layout) == len(positions)
    assert sum(int(count.sum()) for count in layout.counts) == len(positions)


def test_reverse_of_the_reverse_is_the_slot_itself():
    pairs = torch.tensor([[0, 3], [2, 1], [1, 0], [3, 1]])
    for ordered in (True, False):
        layout = index_messages([(pairs, torch.arange(4))], 4, ordered=ordered)
        reverse = torch.cat([part.reverse[:, 0] for part in layout.slots])
        assert torch.equal(reverse[reverse], torch.arange(8))


def test_message_indices_are_computed_once():
    graph = TypedGraph.build(3, {"f": [[0, 1]]})
    assert graph.message_index("f", ordered=True, sends_to=None) is graph.message_index(
        "f", ordered=True, sends_to=None
    )
    assert len(graph.message_index("absent", ordered=True, sends_to=None)) == 0
    moved = graph.to("cpu")
    assert torch.equal(moved.factors["f"][0].scopes, graph.factors["f"][0].scopes)


def test_batches_keep_the_order_of_factors_within_a_type():
    first = TypedGraph.build(4, {"f": [[0, 1, 2], [2, 3]]}, {"x": [0, 1], "y": [2, 3]})
    second = TypedGraph.build(3, {"g": [[0, 1]], "f": [[1, 2], [0, 1, 2]]}, {"x": [2], "y": [0, 1]})
    both = batch_graphs([first, second])
    assert both.sizes == (4, 3)
    blocks = {b.scopes.shape[1]: (b.scopes.tolist(), b.factor_ids.tolist()) for b in both.factors["f"]}
    assert blocks == {2: ([[2, 3], [5, 6]], [1, 2]), 3: ([[0, 1, 2], [4, 5, 6]], [0, 3])}
    assert both.factors["g"][0].scopes.tolist() == [[4, 5]]
    assert both.variable_types.tolist() == [0, 0, 1, 1, 1, 1, 0]
    assert both.orders == {"f": None, "g": 2}


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: TypedGraph.build(3, {"a": [[0]]}), "order 1; list factors of order 2 or more"),
        (
            lambda: TypedGraph.build(3, {"a": [[0, 1], [1, 3]]}),
            "factors 'a': factor 1: variable 3 does not exist; variables are 0 to 2",
        ),
        (
            lambda: TypedGraph.build(3, {"a": [[0, 1], [1, 2, 1]]}),
            "factors 'a': factor 1: its scope repeats variable 1",
        ),
        (lambda: TypedGraph.build(3, {"a": torch.zeros(3)}), r"give \(factors, order\)"),
        (lambda: TypedGraph.build(-1, {}), "number of variables"),
        (lambda: TypedGraph.build(2, {}, {"x": [0]}), "variable 1 has no type"),
        (lambda: TypedGraph.build(2, {}, {"x": [0, 1], "y": [1]}), "'y' names a variable twice"),
        (lambda: TypedGraph.build(2, {}, {"x": [0, 2]}), "outside 0 to 1"),
        (lambda: batch_graphs([]), "at least one graph"),
        (
            lambda: batch_graphs([TypedGraph.build(1, {}), TypedGraph.build(1, {}, {"x": [0]})]),
            "different types of variables",
        ),
    ],
)
def test_bad_graphs(build, words):
    with pytest.raises(InputError, match=words):
        build()


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ([[0, 1]], 'factors is a list; name their type, as in {"next"'),
        ({"next": [0, 1]}, "give a list of scopes, as in"),
    ],
)
def test_factors_without_a_type_or_a_list_of_scopes(factors, words):
    with pytest.raises(InputError, match=words):
        TypedGraph.build(4, factors)
