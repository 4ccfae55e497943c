"""Relations as words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.graph import Relation, above, below, four_neighbours, surrounding


@pytest.mark.parametrize(
    ("word", "relation"),
    [
        ("surrounding", surrounding(0.4)),
        ("surrounding:0.25", surrounding(0.25)),
        ("surrounding:13cells", surrounding(cells=13)),
        ("above:0.4:box", above(0.4, form="box")),
        ("below:box", below(0.4, form="box")),
        ("near=surrounding:3cells", surrounding(cells=3, name="near")),
        ("four_neighbours", four_neighbours()),
        ({"name": "knight", "offsets": [[-2, 1], [2, -1]]}, Relation("knight", offsets=((-2, 1), (2, -1)))),
    ],
)
def test_words_mean_relations(word: str | dict[str, object], relation: Relation) -> None:
    assert Relation.from_setting(word) == relation
    assert Relation.from_setting(relation.to_setting()) == relation


@given(
    shape=st.sampled_from(["surrounding", "above", "below", "left", "right"]),
    size=st.integers(2, 40) | st.floats(0.01, 2),
    form=st.sampled_from(["pairwise", "box"]),
    name=st.sampled_from(["", "other"]),
)
@settings(max_examples=40, deadline=None)
def test_relations_survive_being_written(shape: str, size: float, form: str, name: str) -> None:
    values = {"cells": size} if isinstance(size, int) else {"fraction": size}
    relation = Relation.from_dict({"name": name or shape, "shape": shape, "form": form, **values})
    assert Relation.from_setting(relation.to_setting()) == relation


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("abve:0.4", 'did you mean "above"?'),
        ("above:far", 'has the size "far"; write a fraction'),
        ("above:2.5cells", "or a number of nodes, such as 13cells"),
        ("above:0.4:box:box", "too many parts"),
        ("above:13", "take one above 0 and at most 2"),
        ("four_neighbours:3cells", "takes none"),
        ({"name": "x", "shape": "above", "size": 3}, "relation has no setting 'size'"),
        ({"offsets": [[1, 0]]}, "give a name"),
        ({"name": "x", "offsets": [1, 0]}, "incomplete or misshapen"),
    ],
)
def test_mistakes_are_named(word: str | dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as caught:
        Relation.from_setting(word)
    assert said in str(caught.value)


def test_offsets_in_the_place_of_a_shape() -> None:
    with pytest.raises(InputError, match=r"its shape is \[\(0, 1\)\]; write offsets=\["):
        Relation("mine", [(0, 1)])  # type: ignore[arg-type]
