"""Dense CRFs on a unary network: the published numbers, gradients, resolutions, what is trained."""

from __future__ import annotations

import pytest
import torch

from messagenet import InputError
from messagenet.data import Batch
from messagenet.geometry import upsample
from messagenet.inference.dense import DEEPLAB, DenseGraph, DenseMeanField
from messagenet.losses import CrossEntropy
from messagenet.models import SegmentationModel
from messagenet.models.dense_crf import mean_cells


def random_model(kind, **options):
    torch.manual_seed(0)
    return SegmentationModel({"kind": "tiny", "width": 6}, 3, {"kind": kind, "hidden": 6, **options}).double()


def batch_of(images, target):
    return Batch(images, None, target, torch.tensor([images.shape[2:]] * len(images)), ("",) * len(images))


def test_deeplab_is_ten_iterations_of_its_published_crf():
    net = random_model("deeplab_crf").eval()
    images = torch.rand(2, 3, 13, 18, dtype=torch.float64)
    logits, stride = net.forward_train(net.forward_features(images))
    assert stride == 4.0
    unary = upsample(logits, (13, 18), 4.0)
    expected = DenseMeanField(10).run(DenseGraph(images, DEEPLAB), unary).logits
    torch.testing.assert_close(net(images), expected, rtol=1e-4, atol=1e-4)


def test_deeplab_is_trained_as_its_unary():
    net, unary = random_model("deeplab_crf"), random_model("unary")
    unary.load_state_dict(net.state_dict())
    images, masks = torch.rand(2, 3, 13, 18, dtype=torch.float64), torch.randint(0, 3, (2, 13, 18))
    masks[0, :5] = 255
    for options in ({}, {"resolution": "pixels", "label_smoothing": 0.1}, {"cell_label": "majority"}):
        loss, batch = CrossEntropy(**options), batch_of(images, masks)
        assert loss(net, batch) == loss(unary, batch)


def test_potts_and_the_given_weights_are_where_crf_rnn_starts():
    weights = {"spatial_weight": 3.0, "bilateral_weight": 10.0}
    net, plain = random_model("crf_rnn", **weights).eval(), random_model("deeplab_crf").eval()
    assert [kernel.weight for kernel in random_model("crf_rnn").head.kernels] == [1.0, 1.0]
    plain.load_state_dict({name: v for name, v in net.state_dict().items() if name in plain.state_dict()})
    images = torch.rand(1, 3, 13, 18, dtype=torch.float64)
    torch.testing.assert_close(net(images).softmax(1), plain(images).softmax(1))


def test_crf_rnn_iterates_less_in_training():
    net = random_model("crf_rnn")
    assert (net.train().head.num_iterations, net.eval().head.num_iterations) == (5, 10)
    images = torch.rand(1, 3, 13, 18, dtype=torch.float64)
    shorter = random_model("crf_rnn", crf_iterations=5).eval()
    torch.testing.assert_close(net.train()(images), shorter(images))


def test_gradients_of_crf_rnn_by_finite_differences():
    net = random_model("crf_rnn", training_iterations=2, bilateral_weight=1.5, spatial_weight=0.7).train()
    images, masks = torch.rand(1, 3, 8, 8, dtype=torch.float64), torch.randint(0, 3, (1, 8, 8))
    loss, batch = CrossEntropy(), batch_of(images, masks)
    loss(net, batch).total.backward()
    for parameter, place in (
        (net.head.kernel_weights, (0, 1)),
        (net.head.kernel_weights, (1, 2)),
        (net.head.compatibility, (0, 2)),
        (net.head.compatibility, (1, 1)),
        (net.backbones["shared"].mix.weight, (2, 3, 0, 0)),
    ):
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter[place] += sign * 1e-6
                ends.append(float(loss(net, batch).total))
                parameter[place] -= sign * 1e-6
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(float(parameter.grad[place]), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_lengths_are_in_pixels_at_every_resolution(stride):
    net = random_model("deeplab_crf", working_stride=stride, bilateral_position=20.0).eval()
    assert net.head.kernels[1].position == 20.0 / stride
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
    net = random_model("deeplab_crf")
    refined = net.head.refine(images, noisy)
    assert (noisy.argmax(1)[0] == truth).float().mean() < 0.85
    assert (refined.argmax(1)[0] == truth).float().mean() > 0.99


def test_cells_are_averages_of_the_pixels_that_exist():
    images = torch.rand(1, 3, 5, 7, dtype=torch.float64)
    cells = mean_cells(images, 4)
    assert cells.shape == (1, 3, 2, 2)
    torch.testing.assert_close(cells[..., 0, 0], images[..., :4, :4].mean((2, 3)))
    torch.testing.assert_close(cells[..., 1, 1], images[..., 4:, 4:].mean((2, 3)))
    assert mean_cells(images, 1) is images


def test_features_alone_do_not_suffice():
    for kind, needed in (("deeplab_crf", {"prediction"}), ("crf_rnn", {"loss", "prediction"})):
        net = random_model(kind)
        assert net.needs_images == needed
        features = net.forward_features(torch.rand(1, 3, 8, 8, dtype=torch.float64))
        with pytest.raises(InputError, match="pass images as well as features"):
            net.forward_head(features)


def test_unknown_kernels_and_resolutions_are_refused():
    with pytest.raises(InputError, match='did you mean "bilateral_colour"'):
        random_model("deeplab_crf", bilateral_color=3.0)
    with pytest.raises(InputError, match="1, 2 or 4"):
        random_model("crf_rnn", working_stride=3)
    for options in ({"crf_iterations": 0}, {"training_iterations": 0}):
        with pytest.raises(InputError, match="iterations is 0; give at least 1"):
            random_model("crf_rnn", **options)


@pytest.mark.parametrize("value", [0, -1.0, "30 pixels", True, None])
def test_kernels_are_positive_numbers(value):
    with pytest.raises(InputError, match=r"bilateral_colour is .*; give a number( above 0 such as 13)?$"):
        random_model("deeplab_crf", bilateral_colour=value)
