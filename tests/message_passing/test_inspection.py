from __future__ import annotations

import pytest
import torch

from messagenet import InputError, MessagePassing, above, below, four_neighbours, surrounding
from messagenet.message_passing import received_messages

RELATIONS = [
    surrounding(cells=3),
    above(cells=2),
    below(cells=2),
    surrounding(cells=5, form="box", name="box"),
]


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("cavity", ["factor", "none"])
@pytest.mark.parametrize("aggregation", ["fixed", "mean"])
@pytest.mark.parametrize("initial", ["zero", "unary"])
def test_single_messages_sum_to_the_logits(iterations, cavity, aggregation, initial):
    torch.manual_seed(0)
    head = MessagePassing(
        3,
        4,
        RELATIONS,
        hidden=6,
        iterations=iterations,
        cavity=cavity,
        aggregation=aggregation,
        initial=initial,
    ).double()
    features = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    valid = torch.ones(2, 5, 6, dtype=torch.bool)
    valid[1, 4:] = False
    valid[1, 1, 3] = False
    logits = head(features, valid)
    for image, node in [(0, (0, 0)), (0, (2, 3)), (1, (2, 2)), (1, (3, 5))]:
        messages = received_messages(head, features, node, image=image, valid=valid)
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
