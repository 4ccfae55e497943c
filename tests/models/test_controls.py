"""Controls have the parameters they claim, and compute what they say."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from messagenet import InputError, MessageNet, MessagePassing, above, below, four_neighbours, surrounding
from messagenet.data import Batch
from messagenet.losses import MemberCrossEntropy
from messagenet.models import SegmentationModel
from messagenet.models.controls import (
    DILATIONS,
    ASPPHead,
    AttentionHead,
    ConvolutionHead,
    PyramidPoolingHead,
    UnaryEnsemble,
    matched_ensemble,
    matching_width,
    parameter_count,
)

PAPER = [surrounding(0.4), above(0.4), below(0.4)]
HEADS = {
    "paper": {"in_channels": 256, "num_classes": 21, "relations": PAPER, "hidden": 256},
    "scenes": {"in_channels": 32, "num_classes": 9, "relations": PAPER, "hidden": 64},
    "one relation": {"in_channels": 48, "num_classes": 150, "relations": [four_neighbours()], "hidden": 128},
}


@pytest.mark.parametrize("name", sorted(HEADS))
@pytest.mark.parametrize(
    "control",
    [
        matched_ensemble,
        ConvolutionHead,
        partial(ConvolutionHead, dilations=DILATIONS),
        PyramidPoolingHead,
        ASPPHead,
        AttentionHead,
        partial(AttentionHead, layers=2, feed_forward=True),
    ],
    ids=["ensemble", "convolution", "dilated", "pyramid pooling", "aspp", "attention", "transformer"],
)
def test_parameters_match_within_two_per_cent(name, control):
    head = MessagePassing(**HEADS[name])
    wanted = sum(parameter.numel() for parameter in head.parameters())
    found = sum(parameter.numel() for parameter in control(**HEADS[name]).parameters())
    assert abs(found - wanted) <= 0.02 * wanted


def test_whole_models_have_the_parameters_of_the_message_head():
    messages = parameter_count(MessageNet("tiny", 5, hidden=64))
    for head in ({"kind": "ensemble"}, {"kind": "convolution"}, {"kind": "convolution", "dilations": [1, 2, 4]}):
        control = SegmentationModel("tiny", 5, {**head, "hidden": 64})
        assert abs(parameter_count(control) - messages) < 0.02 * messages


def test_an_ensemble_has_a_member_for_every_factor_type_by_default():
    assert len(matched_ensemble(32, 9, relations=PAPER[:2], hidden=64).members) == 3
    assert len(matched_ensemble(32, 9, relations=PAPER, hidden=64, members=6).members) == 6


def test_the_matching_width_is_the_nearest():
    for parameters in range(60, 400, 7):
        width = matching_width(lambda width: nn.Linear(4, width), parameters, tolerance=1)
        assert width == min(range(1, 200), key=lambda width: (abs(5 * width - parameters), width))
    with pytest.raises(InputError, match="compare with a larger head"):
        matching_width(lambda width: nn.Linear(1000, width), 1500)
    assert parameter_count(nn.Linear(4, 3)) == 15


def test_looking_for_a_width_draws_no_random_numbers():
    state = torch.get_rng_state()
    matching_width(lambda width: UnaryEnsemble(32, 9, width, members=4), 10_000)
    assert torch.equal(torch.get_rng_state(), state)


class Pixels(nn.Module):
    """One node per pixel."""

    channels, stride = 5, 1


def test_an_ensemble_averages_probabilities_and_trains_its_members_apart():
    torch.manual_seed(0)
    ensemble = UnaryEnsemble(5, 4, hidden=6, members=3).double()
    features = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    labels = torch.randint(0, 4, (2, 3, 4))
    labels[0, 0] = 255
    single = [member(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) for member in ensemble.members]
    mean = torch.stack([torch.softmax(logits, 1) for logits in single]).mean(0)
    torch.testing.assert_close(ensemble(features).exp(), mean)

    model = SegmentationModel(Pixels(), 4, ensemble)
    loss = MemberCrossEntropy()(model, Batch(None, features, labels, torch.tensor([[3, 4], [3, 4]]), ("a", "b")))
    apart = [nn.functional.cross_entropy(logits, labels, ignore_index=255, reduction="sum") for logits in single]
    torch.testing.assert_close(loss.total, sum(apart) / 3)
    assert loss.count == 20
    parameter = ensemble.members[1].output.weight
    (gradient,) = torch.autograd.grad(loss.total, parameter)
    torch.testing.assert_close(gradient, torch.autograd.grad(apart[1], parameter)[0] / 3)


def reach(head, size=21):
    """How far from the middle a change of the features is felt."""
    features = torch.randn(1, 4, size, size, dtype=torch.float64)
    changed = features.clone()
    changed[:, :, size // 2, size // 2] += 5
    moved = (head(changed) != head(features)).any(1)[0].nonzero() - size // 2
    return int(moved.abs().max())


def test_how_far_controls_see():
    torch.manual_seed(0)
    assert reach(UnaryEnsemble(4, 3, hidden=64, members=2).double()) == 0
    assert reach(ConvolutionHead(4, 3, width=16, hidden=64).double()) == 1
    assert reach(ConvolutionHead(4, 3, width=32, hidden=64, dilations=DILATIONS).double()) == 7


def test_a_convolution_head_is_convolutions_and_a_unary_classifier():
    torch.manual_seed(0)
    head = ConvolutionHead(4, 3, width=6, hidden=5, dilations=(1, 2)).double()
    x = features = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    for layer, dilation in zip(head.body[::2], (1, 2), strict=True):
        columns = nn.functional.unfold(x, 3, dilation=dilation, padding=dilation)  # (B, C·9, N)
        x = layer.weight.flatten(1) @ columns + layer.bias[:, None]
        x = x.clamp(min=0).unflatten(2, (5, 6))
    hidden = torch.einsum("oc,bchw->bohw", head.unary.receiver.weight, x) + head.unary.receiver.bias[:, None, None]
    logits = torch.einsum("ko,bohw->bkhw", head.unary.output.weight, hidden.clamp(min=0))
    torch.testing.assert_close(head(features), logits + head.unary.output.bias[:, None, None])


def test_pyramid_pooling_is_means_of_bins_beside_the_features():
    torch.manual_seed(0)
    head = PyramidPoolingHead(4, 3, width=6, hidden=5, bins=[1, 2]).double()
    features = torch.randn(1, 4, 6, 8, dtype=torch.float64)
    whole = features.mean((2, 3), keepdim=True)
    quarters = features.unflatten(3, (2, 4)).unflatten(2, (2, 3)).mean((3, 5))
    first, second = head.body.project
    maps = [torch.relu(first(whole)).expand(-1, -1, 6, 8)]
    maps.append(nn.functional.interpolate(torch.relu(second(quarters)), (6, 8), mode="bilinear"))
    body = torch.relu(head.body.fuse(torch.cat([features, *maps], 1)))
    torch.testing.assert_close(head(features), head.unary(body.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


def test_attention_is_a_softmax_over_all_nodes():
    torch.manual_seed(0)
    height, width, heads = 3, 4, 4
    head = AttentionHead(5, 3, width=8, hidden=5).double()
    features = torch.randn(1, 5, height, width, dtype=torch.float64)
    layer = head.body.layers[0]
    nodes = head.body.project(features[0].flatten(1).T)  # (N, 8)
    q, k, v = layer.qkv(layer.norm(nodes)).unflatten(1, (3, heads, 2)).unbind(1)  # (N, heads, 2)
    mixed = torch.zeros(height * width, heads, 2, dtype=torch.float64)
    for p in range(height * width):
        for h in range(heads):
            scores = []
            for s in range(height * width):
                dy, dx = p // width - s // width, p % width - s % width
                bias = layer.position(torch.tensor([dy, dx], dtype=torch.float64) / min(height, width))[h]
                scores.append(q[p, h] @ k[s, h] / 2**0.5 + bias)
            mixed[p, h] = torch.softmax(torch.stack(scores), 0) @ v[:, h]
    body = nodes + layer.output(mixed.flatten(1))
    torch.testing.assert_close(head(features)[0].flatten(1).T, head.unary(body))


def test_aspp_is_convolutions_side_by_side():
    torch.manual_seed(0)
    head = ASPPHead(4, 3, width=6, hidden=5, rates=[2]).double()
    features = torch.randn(1, 4, 5, 6, dtype=torch.float64)
    near, far = head.body.branches
    columns = nn.functional.unfold(features, 3, dilation=2, padding=2)
    dilated = (far.weight.flatten(1) @ columns + far.bias[:, None]).unflatten(2, (5, 6))
    image = head.body.image(features.mean((2, 3), keepdim=True)).expand(-1, -1, 5, 6)
    body = torch.relu(head.body.fuse(torch.relu(torch.cat([near(features), dilated, image], 1))))
    torch.testing.assert_close(head(features), head.unary(body.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


def test_a_width_of_ones_own():
    assert ConvolutionHead(16, 5, width=7, hidden=32).body[0].out_channels == 7
    with pytest.raises(InputError, match="width is 0"):
        ConvolutionHead(16, 5, width=0, hidden=32)


def test_bad_dilations_name_the_fix():
    with pytest.raises(InputError, match=r"\[1, 2, 4\]"):
        ConvolutionHead(4, 3, width=6, hidden=5, dilations=[1, 0])
