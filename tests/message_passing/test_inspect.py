"""Single messages against the head that sums them, and a grid head against its graph head."""

from __future__ import annotations

import pytest
import torch

from messagenet.errors import InputError
from messagenet.graph import Relation, above, below, four_neighbours, left, right, surrounding
from messagenet.graph.typed import batch_graphs
from messagenet.message_passing import MessagePassing, received_messages
from messagenet.message_passing.grid import split_by_size
from messagenet.message_passing.inspect import node_messages
from oracles.grid_as_graph import as_graph_head

SETTINGS = {
    "one iteration": {"iterations": 1},
    "cavities": {"iterations": 4},
    "untied": {"iterations": 3, "tied": False, "aggregation": "mean"},
    "no cavities": {"iterations": 3, "cavity": "none", "aggregation": "mean"},
    "from the unary": {"iterations": 3, "initial": "unary", "aggregation": "sum"},
    "mean of boxes": {"iterations": 2, "dependent": "mean"},
    "gate": {"iterations": 3, "dependent": "gate", "initial": "unary"},
    "gate, no cavities": {"iterations": 2, "dependent": "gate", "cavity": "none"},
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
    ((_, context),) = split_by_size(head.features_by_type(features, valid), valid, head.relations)
    with torch.no_grad():
        steps = list(head.iterate(context, keep_messages=True))
    compared = 0
    for iteration, step in enumerate(steps, start=1):
        before = [beliefs.logits[0] for beliefs in steps[: iteration - 1]]
        found = node_messages(head, context, before, node, iteration)
        assert [factor.name for factor in found] == list(step.totals)
        for factor in found:
            torch.testing.assert_close(factor.values.sum(0), step.totals[factor.name][(0, *node)])
            if factor.name not in step.messages:
                continue
            index = [relation.name for relation in head.relations].index(factor.name)
            kept = step.messages[factor.name][0]  # (n, h, w, K)
            for sender, values in zip(factor.senders, factor.values, strict=True):
                offset = (sender[0] - node[0], sender[1] - node[1])
                position = context.graph.offsets[index].index(offset)
                torch.testing.assert_close(values, kept[(position, *node)])
                compared += 1
        single = [(factor.name, *message) for factor in found for message in factor.each()]
        listed = received_messages(head, features, node, iteration=iteration, mask=valid)
        assert [(name, senders) for name, senders, _ in single] == [(m.factor, m.senders) for m in listed]
        for (_, _, values), message in zip(single, listed, strict=True):
            torch.testing.assert_close(values, message.values)
    assert (compared > 0) == (head.cavity == "factor")


def test_before_messages_there_is_the_unary_alone():
    torch.manual_seed(1)
    head = MessagePassing(5, 3, RELATIONS, hidden=7, iterations=2, tied=False)
    ((_, context),) = split_by_size(head.features_by_type(torch.randn(1, 5, 5, 7)), None, head.relations)
    (unary,) = node_messages(head, context, [], (1, 1), 0)
    assert (unary.name, unary.form, unary.senders) == ("unary", None, ())
    torch.testing.assert_close(unary.values[0], head.stage(0)["unary"](context.features["unary"][0, 1, 1]).detach())


def test_a_relation_that_nobody_sends_through_is_listed_empty():
    head = MessagePassing(5, 3, [above(cells=1)], hidden=7)
    ((_, context),) = split_by_size(head.features_by_type(torch.randn(1, 5, 3, 3)), None, head.relations)
    _, empty = node_messages(head, context, [], (0, 1), 1)
    assert empty.senders == ()
    assert empty.values.shape == (0, 3)


def test_iterations_that_there_are_not():
    head = MessagePassing(5, 3, [above(cells=1)], hidden=7, iterations=2)
    for wrong in (-1, 3, 1.0):
        with pytest.raises(InputError, match="from 0 to 2"):
            received_messages(head, torch.randn(1, 5, 3, 3), (0, 1), iteration=wrong)


SUM_RELATIONS = [surrounding(cells=3), above(cells=2), below(cells=2), surrounding(cells=5, form="box", name="box")]


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("cavity", ["factor", "none"])
@pytest.mark.parametrize("aggregation", ["fixed", "mean"])
@pytest.mark.parametrize("initial", ["zero", "unary"])
def test_single_messages_sum_to_the_logits(iterations, cavity, aggregation, initial):
    torch.manual_seed(0)
    head = MessagePassing(
        3, 4, SUM_RELATIONS, hidden=6, iterations=iterations, cavity=cavity, aggregation=aggregation, initial=initial
    ).double()
    features = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    valid = torch.ones(2, 5, 6, dtype=torch.bool)
    valid[1, 4:] = False
    valid[1, 1, 3] = False
    logits = head(features, valid)
    for image, node in [(0, (0, 0)), (0, (2, 3)), (1, (2, 2)), (1, (3, 5))]:
        messages = received_messages(head, features, node, image=image, mask=valid)
        total = sum(message.values for message in messages)
        torch.testing.assert_close(total, logits[(image, slice(None), *node)], rtol=1e-9, atol=1e-9)


def test_messages_say_where_they_come_from():
    head = MessagePassing(3, 2, [four_neighbours(), above(cells=1, form="box")], hidden=4)
    messages = received_messages(head, torch.randn(1, 3, 4, 4), (1, 0))
    assert [(m.factor, m.senders) for m in messages] == [
        ("unary", ()),
        ("four_neighbours", ((0, 0),)),
        ("four_neighbours", ((1, 1),)),
        ("four_neighbours", ((2, 0),)),
        ("above", ((0, 0),)),
    ]


def test_node_outside_the_map_is_refused():
    head = MessagePassing(3, 2, [four_neighbours()], hidden=4)
    with pytest.raises(InputError, match="4×5 nodes"):
        received_messages(head, torch.randn(1, 3, 4, 5), (4, 0))


GRIDS = [
    ([four_neighbours()], {}),
    ([surrounding(0.6), above(0.4), below(0.4)], {"iterations": 3}),
    ([below(cells=2), above(cells=2)], {"iterations": 2, "tied": False, "aggregation": "mean"}),
    ([left(cells=1), right(cells=1)], {"iterations": 3, "cavity": "none", "aggregation": "mean"}),
    ([above(cells=2)], {"iterations": 2, "initial": "unary", "aggregation": "sum"}),
    ([surrounding(cells=3), surrounding(cells=3, form="box", name="box")], {"iterations": 2}),
    ([below(cells=2, form="box")], {"iterations": 3, "dependent": "mean"}),
    ([Relation("arrow", offsets=[(0, 2), (1, 1)])], {"iterations": 2}),
    ([surrounding(cells=3), above(cells=2), below(cells=2)], {"iterations": 3, "dependent": "gate"}),
    ([left(cells=1), surrounding(cells=3, form="box")], {"iterations": 2, "dependent": "gate", "initial": "unary"}),
]


@pytest.mark.parametrize(("relations", "options"), GRIDS)
def test_grid_and_graph_give_the_same_numbers_and_gradients(relations, options):
    torch.manual_seed(0)
    height, width, images = 5, 6, 2
    head = MessagePassing(3, 4, relations, hidden=5, **options).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    graph_head, graph = as_graph_head(head, height, width)
    features = torch.randn(images, 3, height, width, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(images, 4, height, width, dtype=torch.float64)
    inputs = [features, *head.parameters()]
    logits = head(features)
    rows = features.flatten(2).transpose(1, 2).flatten(0, 1)
    by_graph = graph_head(rows, batch_graphs([graph] * images))
    by_graph = by_graph.reshape(images, height, width, 4).permute(0, 3, 1, 2)
    torch.testing.assert_close(by_graph, logits, rtol=1e-9, atol=1e-9)
    found = torch.autograd.grad((by_graph * weights).sum(), inputs)
    expected = torch.autograd.grad((logits * weights).sum(), inputs)
    for gradient, right_gradient in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, right_gradient, rtol=1e-9, atol=1e-9)


def test_other_heads_and_nodes_name_the_fix():
    head, features = MessagePassing(4, 3, [four_neighbours()], hidden=8), torch.zeros(1, 4, 5, 6)
    for node in (5, (1,), (1, 2, 3), (1.5, 2), ("a", "b")):
        with pytest.raises(InputError, match="give a row and a column"):
            received_messages(head, features, node=node)
    assert len(received_messages(head, features, torch.tensor([1, 2]))) == 5
    with pytest.raises(InputError, match=r"the head is a Conv2d; give a MessagePassing, such as model\.head"):
        received_messages(torch.nn.Conv2d(4, 3, 1), features, (0, 0))
