"""Dense CRFs on a unary network: the published numbers, gradients, resolutions, what is trained."""

from __future__ import annotations

import json

import pytest
import torch

from messagenet import InputError
from messagenet.inference.dense import DEEPLAB, DenseGraph, DenseMeanField
from messagenet.losses.cross_entropy import upsample
from messagenet.models import CRFRNN, DeepLabCRF, SegmentationNet, UnaryNet


def random_net(kind, **options):
    torch.manual_seed(0)
    return kind("tiny", 3, hidden=6, backbone_options={"width": 6}, **options).double()


def test_deeplab_is_ten_iterations_of_its_published_crf():
    net = random_net(DeepLabCRF).eval()
    images = torch.rand(2, 3, 13, 18, dtype=torch.float64)
    unary = upsample(net.unary_logits(images), (13, 18), 4.0)
    expected = DenseMeanField(10).run(DenseGraph(images, DEEPLAB), unary).logits
    torch.testing.assert_close(net(images), expected, rtol=1e-4, atol=1e-4)


def test_deeplab_is_trained_as_its_unary():
    net, unary = random_net(DeepLabCRF), random_net(UnaryNet)
    unary.load_state_dict(net.state_dict())
    images, masks = torch.rand(2, 3, 13, 18, dtype=torch.float64), torch.randint(0, 3, (2, 13, 18))
    masks[0, :5] = 255
    for options in ({}, {"resolution": "pixels", "label_smoothing": 0.1}, {"cell_label": "majority"}):
        assert net.loss(images, masks, **options) == unary.loss(images, masks, **options)


def test_potts_and_the_given_weights_are_where_crf_rnn_starts():
    weights = {"spatial_weight": 3.0, "bilateral_weight": 10.0}
    net, plain = random_net(CRFRNN, kernels=weights).eval(), random_net(DeepLabCRF).eval()
    assert [kernel.weight for kernel in random_net(CRFRNN).kernels] == [1.0, 1.0]
    plain.load_state_dict({name: v for name, v in net.state_dict().items() if name in plain.state_dict()})
    images = torch.rand(1, 3, 13, 18, dtype=torch.float64)
    torch.testing.assert_close(net(images).softmax(1), plain(images).softmax(1))


def test_crf_rnn_iterates_less_in_training():
    net = random_net(CRFRNN)
    assert (net.train().crf_iterations, net.eval().crf_iterations) == (5, 10)
    images = torch.rand(1, 3, 13, 18, dtype=torch.float64)
    shorter = random_net(CRFRNN, crf_iterations=5).eval()
    torch.testing.assert_close(net.train()(images), shorter(images))


def test_gradients_of_crf_rnn_by_finite_differences():
    net = random_net(
        CRFRNN, training_iterations=2, kernels={"bilateral_weight": 1.5, "spatial_weight": 0.7}
    ).train()
    images, masks = torch.rand(1, 3, 8, 8, dtype=torch.float64), torch.randint(0, 3, (1, 8, 8))
    net.loss(images, masks).total.backward()
    for parameter, place in (
        (net.kernel_weights, (0, 1)),
        (net.kernel_weights, (1, 2)),
        (net.compatibility, (0, 2)),
        (net.compatibility, (1, 1)),
        (net.backbones["shared"].mix.weight, (2, 3, 0, 0)),
    ):
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter[place] += sign * 1e-6
                ends.append(float(net.loss(images, masks).total))
                parameter[place] -= sign * 1e-6
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(float(parameter.grad[place]), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_lengths_are_in_pixels_at_every_resolution(stride):
    net = random_net(DeepLabCRF, working_stride=stride, kernels={"bilateral_position": 20.0}).eval()
    assert net.kernels[1].position == 20.0 / stride
    images = torch.rand(1, 3, 13, 18, dtype=torch.float64)
    assert net(images).shape == (1, 3, -(-13 // stride), -(-18 // stride))
    assert net.marginals(images).shape == (1, 3, 13, 18)


def test_noise_goes_and_boundaries_stay():
    """What the CRF is for: a noisy unary on an image of two colours."""
    images = torch.zeros(1, 3, 24, 24)
    images[..., 13:] = 0.9
    truth = (images[0, 0] > 0.5).long()
    torch.manual_seed(0)
    noisy = torch.nn.functional.one_hot(truth, 3).permute(2, 0, 1)[None] * 1.5 + torch.randn(1, 3, 24, 24)
    net = random_net(DeepLabCRF)
    refined = net.refined(images, noisy)
    assert (noisy.argmax(1)[0] == truth).float().mean() < 0.85
    assert (refined.argmax(1)[0] == truth).float().mean() > 0.99


def test_unknown_kernels_and_resolutions_are_refused():
    with pytest.raises(InputError, match='did you mean "bilateral_colour"'):
        DeepLabCRF("tiny", 3, kernels={"bilateral_color": 3.0})
    with pytest.raises(InputError, match="1, 2 or 4"):
        CRFRNN("tiny", 3, working_stride=3)


@pytest.mark.parametrize("kind", [DeepLabCRF, CRFRNN])
def test_models_saved_with_kernels_among_their_settings_can_be_read(tmp_path, kind):
    net = random_net(kind, kernels={"bilateral_position": 20.0}).eval()
    folder = net.save(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["settings"] |= config["settings"].pop("kernels")
    (folder / "config.json").write_text(json.dumps(config))
    assert SegmentationNet.from_pretrained(folder).settings == net.settings


@pytest.mark.parametrize("value", [0, -1.0, "30", True, None])
def test_kernels_are_positive_numbers(value):
    with pytest.raises(InputError, match=r"bilateral_colour is .*above 0 such as 13"):
        DeepLabCRF("tiny", 3, kernels={"bilateral_colour": value})
