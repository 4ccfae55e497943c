"""The network that passes messages and the one that does not; learned corrections of computed messages."""

from __future__ import annotations

import pytest
import torch

from messagenet import InputError, surrounding
from messagenet.data import Classes
from messagenet.graph.typed import TypedGraph
from messagenet.inference import BeliefPropagation
from messagenet.message_passing import FactorType, GraphMessagePassing
from messagenet.models import MessageNet, SegmentationModel, UnaryHead, UnaryNet
from messagenet.models.message import table_messages
from random_graphs import random_graph, random_potentials

CLASSES = Classes(("ground", "sky", "tree"), ((1, 2, 3), (4, 5, 6), (7, 8, 9)))


def test_unary_net_is_the_network_without_relations():
    torch.manual_seed(0)
    unary = UnaryNet("tiny", CLASSES, hidden=8)
    torch.manual_seed(0)
    same = MessageNet("tiny", CLASSES, [], hidden=8)
    images = torch.rand(1, 3, 20, 20)
    torch.testing.assert_close(unary(images), same(images))
    assert same.head.factor_types == ["unary"]
    assert [p.shape for p in unary.parameters()] == [p.shape for p in same.parameters()]


def test_a_unary_head_is_two_layers():
    torch.manual_seed(0)
    head = UnaryHead(4, 3, hidden=5).double()
    features = torch.randn(2, 4, 6, 7, dtype=torch.float64)
    hidden = torch.einsum("oc,bchw->bohw", head.unary.receiver.weight, features)
    hidden = (hidden + head.unary.receiver.bias[:, None, None]).clamp(min=0)
    logits = torch.einsum("ko,bohw->bkhw", head.unary.output.weight, hidden)
    torch.testing.assert_close(head(features), logits + head.unary.output.bias[:, None, None])


def test_keywords_are_the_settings_of_the_head():
    torch.manual_seed(0)
    by_name = MessageNet("tiny", 3, [surrounding(0.4)], hidden=8, iterations=2, cavity="none")
    torch.manual_seed(0)
    head = {"kind": "message", "relations": ["surrounding:0.4"], "hidden": 8, "iterations": 2, "cavity": "none"}
    by_mapping = SegmentationModel("tiny", 3, head)
    assert by_name.config == by_mapping.config
    assert by_name.relations == by_mapping.relations == (surrounding(0.4),)
    images = torch.rand(1, 3, 40, 40)
    assert torch.equal(by_name(images), by_mapping(images))


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_an_untrained_head_is_belief_propagation(order, iterations):
    generator = torch.Generator().manual_seed(order)
    graph = random_graph(7, 9, order=order, cardinality=3, generator=generator)
    unary, tables = random_potentials(graph, generator=generator)
    head = GraphMessagePassing(
        2,
        3,
        {"f": FactorType(order, features=1)},
        iterations=iterations,
        initial="unary",
        hidden=4,
        computed=["unary", "f"],
    ).double()
    typed = TypedGraph.build(7, {"f": graph.groups[1].scopes})
    computed = {"unary": unary, "f": table_messages(tables)}
    features, extra = torch.randn(7, 2).double(), {"f": torch.randn(9, 1).double()}
    logits = head(features, typed, extra, computed)
    engine = BeliefPropagation(max_iterations=iterations, tolerance=None)
    expected = engine.run(graph, [unary, tables]).log_marginals
    torch.testing.assert_close(logits.log_softmax(-1), expected, rtol=1e-9, atol=1e-9)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    changed = head(features, typed, extra, computed)
    assert not torch.allclose(changed.log_softmax(-1), expected, atol=1e-3)
    context = head.context(features, typed, extra, computed)
    *_, kept = head.iterate(context, keep_messages=True)
    torch.testing.assert_close(kept.logits, changed, rtol=1e-9, atol=1e-9)


def test_tables_of_several_orders_and_impossible_states():
    pair, triple = torch.zeros(1, 2, 2), torch.zeros(1, 2, 2, 2)
    pair[0, 0, 1] = pair[0, 1, 0] = -torch.inf
    triple[0, 1] = -torch.inf
    head = GraphMessagePassing(1, 2, {"f": None}, iterations=3, initial="unary", hidden=4, computed=["unary", "f"])
    graph = TypedGraph.build(4, {"f": [[0, 1, 2], [2, 3]]})
    unary = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.5, 0.0], [0.0, 2.0]])
    logits = head(torch.zeros(4, 1), graph, computed={"unary": unary, "f": table_messages({2: pair, 3: triple})})
    marginals = logits.softmax(-1)
    torch.testing.assert_close(marginals[0], torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(marginals[2], marginals[3])
    torch.testing.assert_close(marginals[3], torch.softmax(torch.tensor([0.5, 2.0]), 0))
    with pytest.raises(InputError, match="no table for factors of order 3"):
        head(torch.zeros(4, 1), graph, computed={"unary": unary, "f": table_messages({2: pair})})
    with pytest.raises(InputError, match=r"give \(1 or 1, 2, 2\)"):
        head(torch.zeros(4, 1), graph, computed={"unary": unary, "f": table_messages({2: pair[..., :1], 3: triple})})


def test_corrections_learn_what_the_tables_do_not_say():
    """The tables say "equal", the truth is "different": only the correction can know."""
    torch.manual_seed(0)
    head = GraphMessagePassing(1, 2, {"f": 2}, initial="unary", hidden=8, computed=["unary", "f"])
    graph = TypedGraph.build(40, {"f": torch.arange(40).reshape(20, 2)})
    computed = {"unary": torch.zeros(40, 2), "f": table_messages(torch.eye(2)[None])}
    labels = torch.randint(2, (20,))
    labels = torch.stack([labels, 1 - labels], 1).flatten()
    computed["unary"][::2] = 4 * torch.nn.functional.one_hot(labels[::2], 2).float()
    features = torch.zeros(40, 1)
    before = head(features, graph, computed=computed).argmax(1)
    assert (before[1::2] != labels[1::2]).all()
    optimiser = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(60):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(head(features, graph, computed=computed), labels).backward()
        optimiser.step()
    assert torch.equal(head(features, graph, computed=computed).argmax(1), labels)


def test_functions_must_answer_every_position():
    head = GraphMessagePassing(1, 2, {"f": 2}, hidden=4, computed=["f"])
    graph = TypedGraph.build(2, {"f": [[0, 1]]})
    with pytest.raises(InputError, match="return one for each position"):
        head(torch.zeros(2, 1), graph, computed={"f": lambda told, numbers: told[:1]})
    with pytest.raises(InputError, match="as a function"):
        head(torch.zeros(2, 1), graph, computed={"f": torch.zeros(1, 2)})
    unary = GraphMessagePassing(1, 2, {"f": 2}, hidden=4, computed=["unary"])
    with pytest.raises(InputError, match=r"of shape \(2, 2\)"):
        unary(torch.zeros(2, 1), graph, computed={"unary": torch.zeros(3, 2)})
