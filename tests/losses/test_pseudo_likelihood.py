"""Pseudo-likelihood against conditionals of the joint score."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.losses.crf import PairTable, conditional_logits, pseudo_likelihood

VOID = 255
OFFSETS = [(0, 1), (1, -1), (1, 0), (-2, 0), (-1, -1), (7, 0)]


def joint_score(unary, tables, labels):
    """Σ_p θ_p + Σ_pq θ_pq of one labelling; a node without a label has no factors."""
    height, width = labels.shape
    score = torch.zeros((), dtype=torch.float64)
    for y in range(height):
        for x in range(width):
            if labels[y, x] == VOID:
                continue
            score = score + unary[y, x, labels[y, x]]
            for (dy, dx), values in tables.items():
                inside = 0 <= y + dy < height and 0 <= x + dx < width
                if inside and labels[y + dy, x + dx] != VOID:
                    pair = values[y - max(0, -dy), x - max(0, -dx)]
                    score = score + pair[labels[y, x], labels[y + dy, x + dx]]
    return score


def naive(unary, tables, labels):
    """− Σ_p log of the joint score's softmax over y_p alone."""
    total = torch.zeros((), dtype=torch.float64)
    for y, x in (labels != VOID).nonzero().tolist():
        scores = []
        for other in range(unary.shape[-1]):
            changed = labels.clone()
            changed[y, x] = other
            scores.append(joint_score(unary, tables, changed))
        total = total - torch.log_softmax(torch.stack(scores), 0)[labels[y, x]]
    return total


@settings(max_examples=15, deadline=None)
@given(
    size=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    num_classes=st.integers(2, 3),
    offsets=st.lists(st.sampled_from(OFFSETS), unique=True, max_size=3),
    seed=st.integers(0, 2**31),
)
def test_equals_the_conditionals_of_the_joint_in_value_and_gradient(size, num_classes, offsets, seed):
    torch.manual_seed(seed)
    labels = torch.randint(0, num_classes, size)
    labels[torch.rand(size) < 0.25] = VOID
    unary = torch.randn(*size, num_classes, dtype=torch.float64, requires_grad=True)
    shapes = {(dy, dx): (max(0, size[0] - abs(dy)), max(0, size[1] - abs(dx))) for dy, dx in offsets}
    tables = {
        offset: torch.randn(*shape, num_classes, num_classes, dtype=torch.float64, requires_grad=True)
        for offset, shape in shapes.items()
    }
    pairs = [PairTable(offset, lambda values=values: values[None] * 1.0) for offset, values in tables.items()]

    total, nodes = pseudo_likelihood(unary[None], [pairs[:1], pairs[1:]], labels[None])
    expected = naive(unary, tables, labels)
    torch.testing.assert_close(total, expected)
    assert nodes == (labels != VOID).sum()
    inputs = [unary, *tables.values()]
    found = torch.autograd.grad(total + 0 * unary.sum(), inputs, allow_unused=True)
    wanted = torch.autograd.grad(expected + 0 * unary.sum(), inputs, allow_unused=True)
    for gradient, right, value in zip(found, wanted, inputs, strict=True):
        zeros = torch.zeros_like(value)
        torch.testing.assert_close(zeros if gradient is None else gradient, zeros if right is None else right)


def test_both_ends_of_a_pair_hear_each_other_in_their_own_order():
    table = torch.arange(9.0).reshape(1, 1, 1, 3, 3)
    logits = conditional_logits(
        torch.zeros(1, 1, 2, 3), [[PairTable((0, 1), lambda: table)]], torch.tensor([[[1, 2]]])
    )
    assert logits[0, 0, 0].tolist() == [2, 5, 8]  # the column of the second node's class
    assert logits[0, 0, 1].tolist() == [3, 4, 5]  # the row of the first node's class


def test_a_neighbour_without_a_label_tells_nothing():
    table = torch.full((1, 1, 1, 3, 3), torch.inf)
    logits = conditional_logits(
        torch.zeros(1, 1, 2, 3), [[PairTable((0, 1), lambda: table)]], torch.tensor([[[VOID, VOID]]])
    )
    assert (logits == 0).all()
