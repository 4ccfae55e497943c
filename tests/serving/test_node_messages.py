"""The messages of one node, against the inspection of the estimators, which keeps every message of every node."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from messagenet.estimators import MessagePassing, received_messages
from messagenet.estimators.field import fields
from messagenet.graph import Relation, above, below, left, surrounding
from messagenet.serving.node_messages import node_messages

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


def stopped_after(head: MessagePassing, iteration: int) -> MessagePassing:
    """The same head as if it ended with this iteration."""
    shorter = copy.deepcopy(head)
    shorter.rules = replace(head.rules, iterations=iteration)
    return shorter


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("node", [(0, 0), (2, 3), (4, 6)])
def test_as_the_inspection_finds_them(name, node):
    torch.manual_seed(1)
    head = MessagePassing(5, 3, RELATIONS, hidden=7, **SETTINGS[name]).double()
    features = torch.randn(1, 5, 5, 7, dtype=torch.float64)
    ((_, field),) = fields(head.features_by_type(features), None, head.relations)
    with torch.no_grad():
        logits = [beliefs.logits[0] for beliefs in head.iterate(field)]
    for iteration in range(1, head.rules.iterations + 1):
        found = node_messages(head, field, logits[: iteration - 1], node, iteration)
        single = [
            (factor.name, factor.senders if factor.form == "box" else factor.senders[i : i + 1], values)
            for factor in found
            for i, values in enumerate(factor.values)
        ]
        expected = received_messages(stopped_after(head, iteration), features, node)
        assert [(name, senders) for name, senders, _ in single] == [(m.factor, m.senders) for m in expected]
        for (_, _, values), message in zip(single, expected, strict=True):
            torch.testing.assert_close(values, message.values)
        total = sum(factor.values.sum(0) for factor in found)
        torch.testing.assert_close(total, logits[iteration - 1][node])


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
