"""The loss and the labels of nodes, against loops over pixels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet import InputError
from messagenet.geometry import node_labels
from messagenet.losses import marginal_cross_entropy, upsample

VOID = 255


def naive_labels(mask, size, stride, rule):
    height, width = mask.shape
    out = torch.full(size, VOID)
    for i in range(size[0]):
        for j in range(size[1]):
            if rule == "centre":
                y, x = min(int((i + 0.5) * stride), height - 1), min(int((j + 0.5) * stride), width - 1)
                out[i, j] = mask[y, x]
                continue
            cell = mask[i * stride : (i + 1) * stride, j * stride : (j + 1) * stride].flatten().tolist()
            votes = [label for label in cell if label != VOID]
            if votes:
                out[i, j] = max(sorted(set(votes)), key=votes.count)
    return out


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 13), st.integers(1, 13)),
    stride=st.sampled_from([1, 2, 4, 5]),
    rule=st.sampled_from(["centre", "majority"]),
    seed=st.integers(0, 2**31),
)
def test_node_labels_equal_a_loop_over_cells(size, stride, rule, seed):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.tensor([0, 1, 2, VOID])[torch.randint(0, 4, size, generator=generator)]
    nodes = (-(-size[0] // stride), -(-size[1] // stride))
    found = node_labels(mask[None], nodes, stride, rule)[0]
    assert torch.equal(found, naive_labels(mask, nodes, stride, rule))


def test_loss_is_the_mean_over_labelled_nodes():
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    masks = torch.randint(0, 3, (2, 4, 5))
    masks[0, 1] = VOID
    expected = torch.stack(
        [
            -torch.log_softmax(logits[b, :, y, x], 0)[masks[b, y, x]]
            for b in range(2)
            for y in range(4)
            for x in range(5)
            if masks[b, y, x] != VOID
        ]
    ).mean()
    loss = marginal_cross_entropy(logits, masks, 1)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert (gradient[0, :, 1] == 0).all()


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.sampled_from([1.0, 2.0, 4.0, 3.3]),
    over=st.tuples(st.integers(-2, 3), st.integers(-2, 3)),
    smoothing=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**31),
)
def test_pixels_are_judged_after_upsampling(nodes, stride, over, smoothing, seed):
    generator = torch.Generator().manual_seed(seed)
    height, width = (max(1, round(n * stride) + extra) for n, extra in zip(nodes, over, strict=True))
    logits = 3 * torch.randn(2, 3, *nodes, dtype=torch.float64, generator=generator)
    logits.requires_grad_()
    masks = torch.tensor([0, 1, 2, VOID])[torch.randint(0, 4, (2, height, width), generator=generator)]
    expected = torch.nn.functional.cross_entropy(
        upsample(logits, (height, width), stride),
        masks,
        ignore_index=VOID,
        reduction="sum",
        label_smoothing=smoothing,
    ) / (masks != VOID).sum().clamp(min=1)
    found = marginal_cross_entropy(logits, masks, stride, resolution="pixels", label_smoothing=smoothing)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(2 * found, logits), torch.autograd.grad(2 * expected, logits), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_pixel_loss_without_gradient_is_the_same():
    logits, masks = torch.randn(2, 3, 2, 2), torch.randint(0, 3, (2, 8, 8))
    plain = marginal_cross_entropy(logits, masks, 4, resolution="pixels")
    watched = marginal_cross_entropy(logits.requires_grad_(), masks, 4, resolution="pixels")
    assert torch.equal(plain, watched.detach())


def test_nothing_labelled_is_no_loss_and_no_gradient():
    logits = torch.randn(1, 3, 2, 2, requires_grad=True)
    loss = marginal_cross_entropy(logits, torch.full((1, 8, 8), VOID), 4)
    loss.backward()
    assert loss == 0
    assert (logits.grad == 0).all()


def test_upsampling_keeps_cells_in_place_where_the_last_one_is_cut():
    logits = torch.arange(4.0).reshape(1, 1, 1, 4)
    whole, cut = upsample(logits, (4, 16), 4), upsample(logits, (4, 13), 4)
    torch.testing.assert_close(cut, whole[..., :13])


def test_unknown_words_name_the_nearest():
    with pytest.raises(InputError, match='did you mean "pixels"'):
        marginal_cross_entropy(
            torch.zeros(1, 2, 1, 1), torch.zeros(1, 1, 1, dtype=torch.long), 1, resolution="pixel"
        )
    with pytest.raises(InputError, match='did you mean "centre"'):
        node_labels(torch.zeros(1, 1, 1), (1, 1), 1, "center")
