"""Optimisers: groups of parameters, their rates, their rules; one of one's own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from messagenet import settings
from messagenet.settings import build, kinds, register
from messagenet.training import TrainConfig, override
from messagenet.training.optimisers import SGD, AdamW, Optimiser, set_rate


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2), nn.LayerNorm(2))


def test_every_trainable_parameter_is_in_one_group() -> None:
    net = network()
    net[0].weight.requires_grad_(False)
    groups = AdamW(lr=0.1, backbone_lr=0.5).groups(net, frozenset({"0.bias", "1.weight"}))
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in net.parameters() if p.requires_grad)


def test_decay_spares_biases_and_norms_and_pretrained_parameters_learn_slowly() -> None:
    net = network()
    pretrained = frozenset({"0.weight", "0.bias", "1.weight", "1.bias"})
    rates = SGD(lr=0.1, backbone_lr=0.5, weight_decay=0.3)
    found = {
        name: (group["weight_decay"], group["lr"])
        for group in rates.groups(net, pretrained)
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


@pytest.mark.parametrize("kind", kinds("optimiser"))
def test_the_rate_scales_all_groups(kind: str) -> None:
    net = network()
    rates = build("optimiser", {"kind": kind, "lr": 0.2, "backbone_lr": 0.1})
    optimiser = rates.build(net, frozenset({"0.weight"}))
    for factor in (0.5, 1.0, 0.25):
        set_rate(optimiser, factor)
        assert {group["lr"] for group in optimiser.param_groups} == {0.2 * factor, 0.2 * 0.1 * factor}


def test_sgd_is_the_textbook_rule() -> None:
    net = nn.Linear(2, 1).double()
    weight, velocity = net.weight.detach().clone(), torch.zeros(1, 2, dtype=torch.float64)
    rates = SGD(lr=0.1, weight_decay=0.2, momentum=0.7)
    optimiser = rates.build(net, frozenset())
    for _ in range(3):
        optimiser.zero_grad()
        net(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        optimiser.step()
        velocity = 0.7 * velocity + (1 + 0.2 * weight)
        weight = weight - 0.1 * velocity
    torch.testing.assert_close(net.weight.detach(), weight)


def test_adamw_is_the_one_of_torch() -> None:
    net, ref = nn.Linear(2, 1), nn.Linear(2, 1)
    ref.load_state_dict(net.state_dict())
    ours = AdamW(lr=0.1, weight_decay=0.2)
    theirs = torch.optim.AdamW(
        [{"params": [ref.weight]}, {"params": [ref.bias], "weight_decay": 0}], 0.1, weight_decay=0.2
    )
    for model, optimiser in ((net, ours.build(net, frozenset())), (ref, theirs)):
        for _ in range(3):
            optimiser.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimiser.step()
    torch.testing.assert_close(net.state_dict(), ref.state_dict())


def test_one_of_ones_own_is_named_in_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings._REGISTRY, "optimiser", dict(settings._REGISTRY["optimiser"]))

    @register("optimiser", "rmsprop")
    @dataclass(frozen=True)
    class RMSprop(Optimiser):
        rule = torch.optim.RMSprop
        alpha: float = 0.99

    config = override(TrainConfig(), {"optimiser": {"kind": "rmsprop", "alpha": 0.9}})
    rates = build("optimiser", config.optimiser)
    (group, _) = rates.build(nn.Linear(2, 1), frozenset()).param_groups
    assert (group["alpha"], group["lr"], group["weight_decay"]) == (0.9, 1e-3, 0.01)
