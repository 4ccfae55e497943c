"""The network that passes messages and the one that does not."""

from __future__ import annotations

import torch

from messagenet import surrounding
from messagenet.data import Classes
from messagenet.models import MessageNet, SegmentationModel, UnaryHead, UnaryNet

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
