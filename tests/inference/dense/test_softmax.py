"""The softmax kernel against torch in double precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.inference.dense.mean_field import softmax, softmax_into

close = torch.testing.assert_close


@given(
    seed=st.integers(0, 1000),
    pixels=st.integers(1, 200),
    classes=st.integers(1, 40),
    scale=st.sampled_from([0.0, 1.0, 10.0, 1e4, 1e30]),
)
@settings(max_examples=40, deadline=None)
def test_values_and_gradient(seed, pixels, classes, scale):
    generator = torch.Generator().manual_seed(seed)
    potentials, message, grad = torch.randn(3, pixels, classes, generator=generator)
    potentials, message = (scale * potentials).requires_grad_(), message.requires_grad_()
    double = (potentials.detach() + message.detach()).double().requires_grad_()
    expected = double.softmax(-1)
    result = softmax(potentials, message, compiled=True)
    close(result.double(), expected, atol=3e-7, rtol=0)
    likely = expected > 1e-20
    close(result.double()[likely], expected[likely], atol=0, rtol=1e-5)
    result.backward(grad)
    expected.backward(grad.double())
    close(potentials.grad.double(), double.grad, atol=2e-6, rtol=0)
    close(message.grad, potentials.grad)


def test_without_a_message():
    logits = torch.randn(100, 7)
    close(softmax(logits, compiled=True), logits.softmax(-1), atol=3e-7, rtol=0)


def test_into_the_same_memory():
    potentials, message = torch.randn(2, 300, 5)
    expected = (potentials + message).softmax(-1)
    softmax_into(potentials, message, message, compiled=True)
    close(message, expected, atol=3e-7, rtol=0)


def test_no_denormal_numbers():
    """They would slow the filters down a hundredfold on some processors."""
    result = softmax(torch.tensor([[0.0, -1e3, -80.0]]), compiled=True)
    assert float(result.min()) > torch.finfo(torch.float32).tiny
    assert float(result.min()) < 1e-25


def test_double_precision_goes_through_torch():
    logits = torch.randn(10, 3, dtype=torch.float64)
    close(softmax(logits, compiled=True), logits.softmax(-1), atol=0, rtol=0)
    with pytest.raises(RuntimeError, match="does not require grad"):
        softmax(logits, compiled=True).sum().backward()
