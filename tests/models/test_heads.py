"""The contract of heads, met by each of them."""

from __future__ import annotations

import pytest
import torch

from messagenet import InputError, Relation
from messagenet.models.base import marginal_loss
from messagenet.models.controls import ConvolutionHead, UnaryEnsemble
from messagenet.models.inference_machine import InferenceMachine

VOID = 255
NEAR = Relation("near", offsets=[(-2, 0), (0, 1), (1, 0), (0, -1)])
HEADS = {
    "ensemble": lambda: UnaryEnsemble(4, 3, hidden=6, members=2),
    "convolution": lambda: ConvolutionHead(4, 3, width=5, hidden=6),
    "dilated": lambda: ConvolutionHead(4, 3, width=5, hidden=6, dilations=(1, 2)),
    "machine": lambda: InferenceMachine(4, 3, NEAR),
    "machine, untied, mean field": lambda: InferenceMachine(4, 3, tied=False, cavity="none", position=False),
}


@pytest.fixture(params=sorted(HEADS))
def head(request):
    torch.manual_seed(0)
    head = HEADS[request.param]().double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return head


def padded_batch():
    sizes = [(5, 6), (6, 4), (3, 7)]
    features = torch.full((3, 4, 6, 7), 100.0, dtype=torch.float64)
    labels, valid = torch.ones(3, 6, 7, dtype=torch.long), torch.zeros(3, 6, 7, dtype=torch.bool)
    for i, (h, w) in enumerate(sizes):
        features[i, :, :h, :w] = torch.randn(4, h, w)
        labels[i, :h, :w] = torch.tensor([0, 1, 2, VOID])[torch.randint(0, 4, (h, w))]
        valid[i, :h, :w] = True
    return sizes, features, labels, valid


def test_a_padded_map_is_judged_as_if_alone(head):
    sizes, features, labels, valid = padded_batch()
    logits, loss = head(features, valid), head.loss(features, labels, valid)
    assert logits.shape == (3, 3, 6, 7)
    assert (logits.permute(0, 2, 3, 1)[~valid] == 0).all()
    total = nodes = 0
    for i, (h, w) in enumerate(sizes):
        one, truth = features[i : i + 1, :, :h, :w], labels[i : i + 1, :h, :w]
        torch.testing.assert_close(logits[i : i + 1, :, :h, :w], head(one))
        alone = head.loss(one, truth)
        total, nodes = total + alone.total, nodes + alone.nodes
    torch.testing.assert_close(loss.total, total)
    assert loss.nodes == nodes


def test_void_labels_are_left_out(head):
    features = torch.randn(1, 4, 5, 6, dtype=torch.float64)
    loss = head.loss(features, torch.full((1, 5, 6), VOID))
    assert loss.mean == 0
    labels = torch.full((1, 5, 6), VOID)
    labels[0, 2, 3] = 1
    alone = head.loss(features, labels)
    assert alone.nodes == 1
    assert alone.mean > 0


def test_gradients_are_those_of_differences(head):
    features = torch.randn(1, 4, 3, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 2, VOID])[torch.randint(0, 4, (1, 3, 4))]
    valid = torch.ones(1, 3, 4, dtype=torch.bool)
    valid[0, 1, 1] = False
    assert torch.autograd.gradcheck(lambda f: head.loss(f, labels, valid).total, (features,))


def test_every_parameter_is_trained(head):
    head.loss(torch.randn(2, 4, 5, 6, dtype=torch.float64), torch.randint(0, 3, (2, 5, 6))).total.backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_bad_features_name_the_fix(head):
    with pytest.raises(InputError, match=r"this head takes \(batch, 4, height, width\)"):
        head(torch.zeros(1, 5, 3, 3, dtype=torch.float64))
    broken = torch.zeros(1, 4, 3, 3, dtype=torch.float64)
    broken[0, 0, 0, 0] = torch.nan
    with pytest.raises(InputError, match="NaN"):
        head(broken)
    head.check_finite = False
    head(broken)


def test_heads_that_cannot_classify_are_refused():
    with pytest.raises(InputError, match="at least 2 classes"):
        UnaryEnsemble(4, 1, hidden=3, members=2)
    with pytest.raises(InputError, match="in_channels"):
        InferenceMachine(0, 3)


def test_marginal_loss_is_cross_entropy():
    logits = torch.randn(2, 3, 4, 5)
    labels = torch.tensor([0, 1, 2, VOID])[torch.randint(0, 4, (2, 4, 5))]
    expected = torch.nn.functional.cross_entropy(logits, labels, ignore_index=VOID)
    torch.testing.assert_close(marginal_loss(logits, labels).mean, expected)
    assert marginal_loss(logits.bfloat16(), labels).total.dtype == torch.float32
