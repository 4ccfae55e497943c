"""The messages of one node, against the passing of all of them."""

from __future__ import annotations

import pytest
import torch

from messagenet.errors import InputError
from messagenet.graph import Relation, above, below, left, surrounding
from messagenet.message_passing import MessagePassing, received_messages
from messagenet.message_passing.grid import fields
from messagenet.message_passing.inspect import node_messages

SETTINGS = {
    "one iteration": {"iterations": 1},
    "cavities": {"iterations": 4},
    "untied": {"iterations": 3, "tied": False, "aggregation": "mean"},
    "no cavities": {"iterations": 3, "cavity": "none", "aggregation": "sqrt"},
    "from the unary": {"iterations": 3, "initial": "unary", "aggregation": "sum"},
    "mean of boxes": {"iterations": 2, "dependent": "mean"},
}
RELATIONS = [
    surrounding(cells=3),
    above(0.5),
    below(0.5),
    left(cells=2),
    Relation("leap", offsets=((0, 3), (2, 2))),
    surrounding(0.6, form="box", name="around"),
]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("node", [(0, 0), (2, 3), (4, 6)])
@pytest.mark.parametrize("holes", [False, True])
def test_as_passing_makes_them(name, node, holes):
    """Totals of every relation in every iteration; single messages wherever passing keeps them for its cavities."""
    torch.manual_seed(1)
    head = MessagePassing(5, 3, RELATIONS, hidden=7, **SETTINGS[name]).double()
    features = torch.randn(1, 5, 5, 7, dtype=torch.float64)
    valid = torch.ones(1, 5, 7, dtype=torch.bool)
    valid[0, 1, 2] = valid[0, 3, 4] = not holes
    ((_, field),) = fields(head.features_by_type(features, valid), valid, head.relations)
    with torch.no_grad():
        steps = list(head.iterate(field, open_end=True))
    compared = 0
    for iteration, step in enumerate(steps, start=1):
        before = [beliefs.logits[0] for beliefs in steps[: iteration - 1]]
        found = node_messages(head, field, before, node, iteration)
        assert [factor.name for factor in found] == list(step.totals)
        for factor in found:
            torch.testing.assert_close(factor.values.sum(0), step.totals[factor.name][(0, *node)])
            if factor.name not in step.messages:
                continue
            index = [relation.name for relation in head.relations].index(factor.name)
            kept = step.messages[factor.name][0]  # (n, h, w, K)
            for sender, values in zip(factor.senders, factor.values, strict=True):
                offset = (sender[0] - node[0], sender[1] - node[1])
                place = field.graph.offsets[index].index(offset)
                torch.testing.assert_close(values, kept[(place, *node)])
                compared += 1
        single = [(factor.name, *message) for factor in found for message in factor.each()]
        listed = received_messages(head, features, node, iteration=iteration, valid=valid)
        assert [(name, senders) for name, senders, _ in single] == [(m.factor, m.senders) for m in listed]
        for (_, _, values), message in zip(single, listed, strict=True):
            torch.testing.assert_close(values, message.values)
    assert (compared > 0) == (head.rules.cavity == "factor")


def test_before_messages_there_is_the_unary_alone():
    torch.manual_seed(1)
    head = MessagePassing(5, 3, RELATIONS, hidden=7, iterations=2, tied=False)
    ((_, field),) = fields(head.features_by_type(torch.randn(1, 5, 5, 7)), None, head.relations)
    (unary,) = node_messages(head, field, [], (1, 1), 0)
    assert (unary.name, unary.form, unary.senders) == ("unary", None, ())
    torch.testing.assert_close(
        unary.values[0], head.stage(0)["unary"](field.features["unary"][0, 1, 1]).detach()
    )


def test_a_relation_that_nobody_sends_through_is_listed_empty():
    head = MessagePassing(5, 3, [above(cells=1)], hidden=7)
    ((_, field),) = fields(head.features_by_type(torch.randn(1, 5, 3, 3)), None, head.relations)
    _, silent = node_messages(head, field, [], (0, 1), 1)
    assert silent.senders == ()
    assert silent.values.shape == (0, 3)


def test_iterations_that_there_are_not():
    head = MessagePassing(5, 3, [above(cells=1)], hidden=7, iterations=2)
    for wrong in (-1, 3, 1.0):
        with pytest.raises(InputError, match="from 0 to 2"):
            received_messages(head, torch.randn(1, 5, 3, 3), (0, 1), iteration=wrong)
