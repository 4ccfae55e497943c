"""A fused network stands for the network: whatever becomes of it, wherever it goes."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from messagenet.models import SegmentationNet
from messagenet.models.kinds import KINDS
from messagenet.prediction import Predictor
from messagenet.prediction.predictor import Ready

LITE = {"width": 16, "output_stride": 32, "levels": [3, 5, 7]}
IMAGE = np.random.default_rng(0).integers(0, 256, (70, 90, 3), np.uint8)


def network(kind: str = "message", seed: int = 0) -> SegmentationNet:
    torch.manual_seed(seed)
    build, fixed = KINDS[kind]
    net = build("efficientnet_lite0", 3, backbone_options=LITE, **fixed)
    for module in net.modules():  # values as after a training, so that differences can be seen
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.3, 1.2)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.3)
    return net.eval()


def logits(net: SegmentationNet) -> torch.Tensor:
    pixels = torch.from_numpy(IMAGE.transpose(2, 0, 1).copy())[None].float() / 255
    with torch.inference_mode():
        return net(pixels)[0]


@pytest.mark.parametrize("kind", ["message", "unary", "fcn8s", "context_crf", "deeplab_crf"])
def test_every_kind_predicts_as_it_does_itself(kind: str) -> None:
    net = network(kind)
    assert logits(net).std() > 0.1
    torch.testing.assert_close(Predictor(net).node_logits(IMAGE), logits(net), rtol=1e-3, atol=1e-3)


def test_it_is_fused_and_made_once() -> None:
    ready = Ready(network())
    with torch.inference_mode():
        first, second = ready._network(torch.device("cpu")), ready._network(torch.device("cpu"))
    assert first is second
    assert first is not ready.net
    assert not list(first.backbones.parameters())


def test_changes_of_the_weights_are_seen() -> None:
    net, other = network(seed=0), network(seed=1)
    predictor = Predictor(net)
    before = predictor.node_logits(IMAGE)
    net.load_state_dict(other.state_dict())
    after = predictor.node_logits(IMAGE)
    torch.testing.assert_close(after, logits(other), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(before, after, atol=1e-2)
    with torch.no_grad():
        net.backbones["shared"].stem.norm.running_mean += 1.0
    torch.testing.assert_close(predictor.node_logits(IMAGE), logits(net), rtol=1e-3, atol=1e-3)


def test_another_precision_is_followed() -> None:
    net = network()
    predictor = Predictor(net)
    single = predictor.node_logits(IMAGE)
    net.double()
    torch.testing.assert_close(predictor.node_logits(IMAGE), single, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("travel", [copy.deepcopy, lambda predictor: pickle.loads(pickle.dumps(predictor))])
def test_a_predictor_can_be_copied_and_sent(travel) -> None:
    predictor = Predictor(network())
    wanted = predictor.node_logits(IMAGE)
    torch.testing.assert_close(travel(predictor).node_logits(IMAGE), wanted)


def test_under_autocast_the_network_itself_is_called() -> None:
    net = network()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(Predictor(net).node_logits(IMAGE), logits(net).float())
