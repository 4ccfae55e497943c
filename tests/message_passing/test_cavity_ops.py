"""The operators on single messages pass the checks of torch: schema, tracing, gradients."""

from __future__ import annotations

import itertools

import torch

import messagenet.message_passing.cavity_ops  # noqa: F401


def test_edge_operator():
    torch.manual_seed(0)

    def values(*shape):
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    for gated, keep in itertools.product((False, True), repeat=2):
        tensors = [values(1, 3, 3, 2), values(1, 3, 3, 2), values(2, 3), values(1, 3, 3, 3), values(1, 2, 3, 3, 3)]
        tensors += [values(3, 2), values(3), torch.ones(1, 3, 3).double(), torch.ones(1, 3, 3).double()]
        arguments = (*tensors, [1, 0], [0, 1, 0, -1], gated, keep)
        torch.library.opcheck(torch.ops.messagenet.pass_edges, arguments)
        assert torch.autograd.gradcheck(torch.ops.messagenet.pass_edges, arguments)


def test_slot_operator():
    torch.manual_seed(0)

    def values(*shape):
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    receivers, senders = torch.tensor([0, 0, 2]), torch.tensor([[1, 2], [2, 1], [0, 1]])
    rows = torch.tensor([[0, 1], [2, 2], [1, 0]])
    for gated, keep in itertools.product((False, True), repeat=2):
        tensors = [values(3, 4), values(3, 4), values(3, 3), values(4, 5), values(3, 2), values(4, 2)]
        tensors += [values(2, 4), values(2), torch.ones(3, dtype=torch.float64)]
        arguments = (*tensors, receivers, senders, rows, [0, 2], [2, 3], [1.0, 0.5], 2, gated, keep)
        if keep:
            torch.library.opcheck(torch.ops.messagenet.pass_slots, arguments)
        assert torch.autograd.gradcheck(torch.ops.messagenet.pass_slots, arguments)
