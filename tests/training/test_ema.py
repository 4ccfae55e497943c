"""The average, against the recurrence written out."""

from __future__ import annotations

import torch
from torch import nn

from messagenet.training.learner import Average, decay_at


def test_the_recurrence() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    average = Average(net, decay=0.6)
    expected = {name: values.clone() for name, values in net.state_dict().items()}
    for step in range(12):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter += torch.randn_like(parameter)
        net(torch.randn(5, 3, dtype=torch.float64))
        average.update(step)
        decay = min(0.6, (1 + step) / (10 + step))
        for name, values in net.state_dict().items():
            mean = decay * expected[name] + (1 - decay) * values
            expected[name] = mean if values.is_floating_point() else values.clone()
    for name, values in average.net.state_dict().items():
        torch.testing.assert_close(values, expected[name], rtol=1e-12, atol=1e-12)
    assert not average.net.training
    assert not any(parameter.requires_grad for parameter in average.net.parameters())


def test_frozen_parameters_are_left_alone() -> None:
    net = nn.Linear(2, 2)
    net.weight.requires_grad_(False)
    before = net.weight.clone()
    average = Average(net, decay=0.5)
    with torch.no_grad():
        net.weight += 1
        net.bias += 1
    average.update(100)
    assert torch.equal(average.net.weight, before)
    torch.testing.assert_close(average.net.bias, (net.bias - 0.5).detach())


def test_a_network_that_was_moved_is_still_followed() -> None:
    net = nn.Linear(2, 2)
    average = Average(net, decay=0.5)
    net.weight.data = net.weight.data.clone() + 2
    average.update(100)
    torch.testing.assert_close(average.net.weight.detach(), net.weight.detach() - 1)


def test_the_decay_rises_to_its_limit() -> None:
    decays = [decay_at(step, 0.99) for step in range(2000)]
    assert decays[0] == 0.1
    assert decays == sorted(decays)
    assert decays[-1] == 0.99
