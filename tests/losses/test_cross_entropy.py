"""The cross-entropy of marginals, against loops over nodes and against upsampling and taking logarithms apart."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet import InputError, SegmentationModel
from messagenet.geometry import upsample
from messagenet.losses import CrossEntropy, LossSum, marginal_cross_entropy
from messagenet.losses.cross_entropy import cross_entropy_sum, sum_losses
from oracles.systems import random_batch

VOID = 255


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
    loss = marginal_cross_entropy(logits, masks, 1).mean
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert (gradient[0, :, 1] == 0).all()


@pytest.mark.parametrize("initial", ["zero", "unary"])
def test_every_iteration_is_trained_with_its_weight(initial):
    torch.manual_seed(0)
    head = {"kind": "message", "relations": ["surrounding:0.4"], "hidden": 5, "iterations": 2, "initial": initial}
    model = SegmentationModel("tiny", 3, head).double()
    (batch,) = random_batch([(20, 24)])
    context = model.head.features_by_type(model.forward_features(batch.images))
    totals = [sum(step.values()) for step in model.head.trace(context)]
    if initial == "unary":
        totals.insert(0, model.head.stage(0)["unary"](context["unary"].permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
    alone = [marginal_cross_entropy(logits, batch.target, 4).mean for logits in totals]
    torch.testing.assert_close(CrossEntropy()(model, batch).mean, alone[-1])
    weights = [0.5, 0.25][: len(totals) - 1]
    expected = sum(w * loss for w, loss in zip([*weights, 1], alone, strict=True)) / (sum(weights) + 1)
    torch.testing.assert_close(CrossEntropy(iteration_weights=weights)(model, batch).mean, expected)
    expected = (0.3 * sum(alone[:-1]) + alone[-1]) / (0.3 * len(weights) + 1)
    torch.testing.assert_close(CrossEntropy(iteration_weights=[0.3])(model, batch).mean, expected)
    with pytest.raises(InputError, match=r"3 iteration_weights for . earlier beliefs; give as many, or one for all"):
        CrossEntropy(iteration_weights=[1, 1, 1])(model, batch)
    model.head.iterations, model.head.initial = 1, "zero"
    with pytest.raises(InputError, match="are for the beliefs before the last; set iteration_weights=\\[\\], or"):
        CrossEntropy(iteration_weights=[1])(model, batch)
    with pytest.raises(InputError, match=r"iteration_weights\[1\] is -1; give at least 0"):
        CrossEntropy(iteration_weights=[1, -1])


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.sampled_from([1.0, 2.0, 4.0, 3.3]),
    over=st.tuples(st.integers(-2, 3), st.integers(-2, 3)),
    smoothing=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**31),
)
def test_pixels_are_compared_after_upsampling(nodes, stride, over, smoothing, seed):
    generator = torch.Generator().manual_seed(seed)
    height, width = (max(1, round(n * stride) + extra) for n, extra in zip(nodes, over, strict=True))
    logits = 3 * torch.randn(2, 3, *nodes, dtype=torch.float64, generator=generator)
    logits.requires_grad_()
    masks = torch.tensor([0, 1, 2, VOID])[torch.randint(0, 4, (2, height, width), generator=generator)]
    expected = torch.nn.functional.cross_entropy(
        upsample(logits, (height, width), stride), masks, ignore_index=VOID, reduction="sum", label_smoothing=smoothing
    ) / (masks != VOID).sum().clamp(min=1)
    found = marginal_cross_entropy(logits, masks, stride, resolution="pixels", label_smoothing=smoothing).mean
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(2 * found, logits), torch.autograd.grad(2 * expected, logits), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_pixel_loss_without_gradient_is_the_same():
    logits, masks = torch.randn(2, 3, 2, 2), torch.randint(0, 3, (2, 8, 8))
    plain = marginal_cross_entropy(logits, masks, 4, resolution="pixels").mean
    watched = marginal_cross_entropy(logits.requires_grad_(), masks, 4, resolution="pixels").mean
    assert torch.equal(plain, watched.detach())


def test_nothing_labelled_is_no_loss_and_no_gradient():
    logits = torch.randn(1, 3, 2, 2, requires_grad=True)
    loss = marginal_cross_entropy(logits, torch.full((1, 8, 8), VOID), 4).mean
    loss.backward()
    assert loss == 0
    assert (logits.grad == 0).all()


def test_unknown_words_name_the_nearest():
    with pytest.raises(InputError, match='did you mean "pixels"'):
        marginal_cross_entropy(torch.zeros(1, 2, 1, 1), torch.zeros(1, 1, 1, dtype=torch.long), 1, resolution="pixel")
    with pytest.raises(InputError, match="resolution is 'pixel'; did you mean \"pixels\""):
        CrossEntropy(resolution="pixel")
    with pytest.raises(InputError, match="cell_label is 'center'; did you mean \"centre\""):
        CrossEntropy(cell_label="center")


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 13), st.integers(1, 13)), min_size=2, max_size=3),
    stride=st.sampled_from([1.0, 2.0, 4.0, 3.3]),
    resolution=st.sampled_from(["nodes", "pixels"]),
    cell_label=st.sampled_from(["centre", "majority"]),
    seed=st.integers(0, 2**31),
)
def test_images_of_several_sizes_have_the_loss_they_have_alone(sizes, stride, resolution, cell_label, seed):
    torch.manual_seed(seed)
    options = {"resolution": resolution, "cell_label": cell_label, "label_smoothing": 0.1}
    nodes = [tuple(-int(-side // stride) for side in size) for size in sizes]
    whole, most = ([max(sides) for sides in zip(*each, strict=True)] for each in (sizes, nodes))
    logits = torch.randn(len(sizes), 3, *most, dtype=torch.float64, requires_grad=True)
    target = torch.full((len(sizes), *whole), VOID)
    total = count = 0
    for index, ((height, width), (h, w)) in enumerate(zip(sizes, nodes, strict=True)):
        own = torch.tensor([0, 1, 2, VOID])[torch.randint(0, 4, (height, width))]
        target[index, :height, :width] = own
        alone = marginal_cross_entropy(logits[index : index + 1, :, :h, :w], own[None], stride, **options)
        total, count = total + alone.total, count + alone.count
    found = marginal_cross_entropy(logits, target, stride, **options, sizes=torch.tensor(sizes))
    torch.testing.assert_close(found.total, total, rtol=1e-9, atol=1e-9)
    assert found.count == count
    (gradient,), (right,) = (torch.autograd.grad(each, logits) for each in (found.total, total))
    torch.testing.assert_close(gradient, right, rtol=1e-9, atol=1e-9)


def test_the_sum_over_rows_is_cross_entropy():
    logits = torch.randn(2, 4, 5, 3)
    labels = torch.tensor([0, 1, 2, VOID])[torch.randint(0, 4, (2, 4, 5))]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 2), labels.flatten(), ignore_index=VOID)
    torch.testing.assert_close(cross_entropy_sum(logits, labels).mean, expected)
    assert cross_entropy_sum(logits.bfloat16(), labels).total.dtype == torch.float32
    assert marginal_cross_entropy(logits.movedim(3, 1).bfloat16(), labels, 1).total.dtype == torch.float32


def test_losses_add_up():
    parts = [LossSum(torch.tensor(value), torch.tensor(count)) for value, count in ((3.0, 2), (4.0, 5))]
    assert sum_losses(parts) == LossSum(torch.tensor(7.0), torch.tensor(7))
    assert sum_losses(parts).mean == 1
    assert LossSum(torch.tensor(0.0), torch.tensor(0)).mean == 0


def test_label_smoothing_has_a_range():
    for wrong in (1, -0.1):
        with pytest.raises(InputError, match=r"label_smoothing is .*from 0 to below 1"):
            CrossEntropy(label_smoothing=wrong)
