"""Messages of a group of factors against sums written out, in every range of potentials."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from messagenet.inference.factors import FactorTable, both_directions
from messagenet.inference.log_math import logsumexp, safe_log, subtract

close = torch.testing.assert_close
INF = float("inf")
SHAPES = [(3, 3), (2, 4), (2, 3, 2), (2, 2, 3, 2)]


def naive(logs, incoming, position, maximise):
    """(factors, batch, states) by loops over every joint state, in plain Python floats."""
    factors, batch = incoming[0].shape[:2]
    sizes = [message.shape[-1] for message in incoming]
    out = torch.full((factors, batch, sizes[position]), -INF, dtype=torch.float64)
    for factor, item, own in itertools.product(range(factors), range(batch), range(sizes[position])):
        terms = []
        for state in itertools.product(*map(range, sizes)):
            if state[position] == own:
                term = float(logs[min(factor, logs.shape[0] - 1), min(item, logs.shape[1] - 1)][state])
                for other, value in enumerate(state):
                    if other != position:
                        term += float(incoming[other][factor, item, value])
                terms.append(term)
        top = max(terms)
        if top > -INF:
            total = 0.0 if maximise else math.log(sum(math.exp(term - top) for term in terms))
            out[factor, item, own] = top + total
    return out


def draw(shape, scale, zeros=0.0, shared=False, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lead = (1, 1) if shared else (3, 2)
    logs = scale * torch.randn(*lead, *shape, dtype=dtype, generator=generator)
    logs = logs.masked_fill(torch.rand(logs.shape, generator=generator) < zeros, -INF)
    incoming = [scale * torch.randn(3, 2, size, dtype=dtype, generator=generator) for size in shape]
    return logs, incoming


def relative(message):
    """Messages are right up to a constant."""
    top = message.amax(-1, keepdim=True)
    return message - top.masked_fill(top == -INF, 0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("maximise", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("scale", "zeros"), [(1.0, 0.0), (1.0, 0.5), (400.0, 0.0), (400.0, 0.5)])
def test_messages(shape, maximise, shared, scale, zeros):
    logs, incoming = draw(shape, scale, zeros, shared)
    table = FactorTable.prepare(logs, maximise=maximise)
    for position, message in enumerate(table.messages(incoming)):
        expected = naive(logs, incoming, position, maximise)
        close(relative(message), relative(expected), atol=1e-10, rtol=1e-12)


def test_single_precision_does_not_underflow():
    logs, incoming = draw((4, 4), 100.0, dtype=torch.float32)
    for position, message in enumerate(FactorTable.prepare(logs).messages(incoming)):
        expected = naive(logs.double(), [m.double() for m in incoming], position, maximise=False)
        assert message.isfinite().all()
        close(relative(message).double(), relative(expected), atol=2e-4, rtol=1e-6)


def test_only_doubtful_factors_are_computed_again(monkeypatch):
    logs, incoming = draw((4, 4), 1.0)
    logs[1] *= 500
    recomputed = []
    original = FactorTable._recompute
    monkeypatch.setattr(
        FactorTable,
        "_recompute",
        lambda self, position, message, doubtful, shifted: (
            recomputed.append(doubtful.flatten(1).any(1).tolist())
            or original(self, position, message, doubtful, shifted)
        ),
    )
    FactorTable.prepare(logs).messages(incoming)
    assert recomputed
    assert all(rows == [False, True, False] for rows in recomputed)


@pytest.mark.parametrize("maximise", [False, True])
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_partition_and_beliefs(maximise, zeros):
    logs, incoming = draw((2, 3, 2), 2.0, zeros)
    table = FactorTable.prepare(logs, maximise=maximise)
    joint = logs
    for position, message in enumerate(incoming):
        shape = [1, 1, 1]
        shape[position] = -1
        joint = joint + message.reshape(3, 2, *shape)
    flat = joint.flatten(2)
    close(table.log_partition(incoming), flat.amax(-1) if maximise else flat.logsumexp(-1))
    close(table.log_beliefs(incoming), (flat - flat.logsumexp(-1, keepdim=True)).reshape(joint.shape))


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_gradients(scale):
    logs, incoming = draw((3, 2), scale)
    inputs = [logs.requires_grad_(), *(message.requires_grad_() for message in incoming)]

    def relative_messages(table, *messages):
        sent = FactorTable.prepare(table).messages(messages)
        return tuple(message - message.logsumexp(-1, keepdim=True) for message in sent)

    assert torch.autograd.gradcheck(relative_messages, inputs, atol=1e-4)


def test_both_directions_has_first_and_second_derivatives():
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.rand(2, *shape, dtype=torch.float64, generator=generator).requires_grad_()
        for shape in ((3, 2), (4, 3), (4, 2))
    ]
    assert torch.autograd.gradcheck(both_directions, inputs)
    assert torch.autograd.gradgradcheck(both_directions, inputs)


def test_logspace_gradients_at_zero_probability():
    x = torch.tensor([[0.0, -INF], [-INF, -INF]], dtype=torch.float64, requires_grad=True)
    total = logsumexp(x, [1])
    assert total.flatten().tolist() == [0.0, -INF]
    cavity = subtract(x, x.detach())
    assert torch.equal(cavity, torch.tensor([[0.0, -INF], [-INF, -INF]], dtype=torch.float64))
    (total.exp().sum() + cavity.exp().sum() + safe_log(x.exp()).exp().sum()).backward()
    close(x.grad, torch.tensor([[3.0, 0.0], [0.0, 0.0]], dtype=torch.float64))
