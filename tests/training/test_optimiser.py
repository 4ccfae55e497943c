"""Which parameters decay and which learn slowly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from messagenet.training.config import OptimiserConfig
from messagenet.training.learner import build_optimiser, parameter_groups, set_rate


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2), nn.LayerNorm(2)
    )


def test_every_trainable_parameter_is_in_one_group() -> None:
    net = network()
    net[0].weight.requires_grad_(False)
    groups = parameter_groups(
        net, frozenset({"0.bias", "1.weight"}), OptimiserConfig(lr=0.1, backbone_lr=0.5)
    )
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in net.parameters() if p.requires_grad)


def test_decay_spares_biases_and_norms_and_pretrained_parameters_learn_slowly() -> None:
    net = network()
    pretrained = frozenset({"0.weight", "0.bias", "1.weight", "1.bias"})
    config = OptimiserConfig(lr=0.1, backbone_lr=0.5, weight_decay=0.3)
    found = {
        name: (group["weight_decay"], group["lr"])
        for group in parameter_groups(net, pretrained, config)
        for name, parameter in net.named_parameters()
        if any(parameter is each for each in group["params"])
    }
    assert found == {
        "0.weight": (0.3, 0.05),
        "0.bias": (0.0, 0.05),
        "1.weight": (0.0, 0.05),
        "1.bias": (0.0, 0.05),
        "3.weight": (0.3, 0.1),
        "3.bias": (0.0, 0.1),
        "4.weight": (0.0, 0.1),
        "4.bias": (0.0, 0.1),
    }


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_rate_scales_all_groups(name: str) -> None:
    net = network()
    optimiser = build_optimiser(
        net,
        frozenset({"0.weight"}),
        OptimiserConfig(name=name, lr=0.2, backbone_lr=0.1),  # type: ignore[arg-type]
    )
    for factor in (0.5, 1.0, 0.25):
        set_rate(optimiser, factor)
        assert {group["lr"] for group in optimiser.param_groups} == {0.2 * factor, 0.2 * 0.1 * factor}


def test_sgd_is_the_textbook_rule() -> None:
    net = nn.Linear(2, 1).double()
    weight, velocity = net.weight.detach().clone(), torch.zeros(1, 2, dtype=torch.float64)
    optimiser = build_optimiser(
        net, frozenset(), OptimiserConfig("sgd", lr=0.1, weight_decay=0.2, momentum=0.7)
    )
    for _ in range(3):
        optimiser.zero_grad()
        net(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        optimiser.step()
        velocity = 0.7 * velocity + (1 + 0.2 * weight)
        weight = weight - 0.1 * velocity
    torch.testing.assert_close(net.weight.detach(), weight)
