"""Dense-CRF refinement of predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from messagenet.errors import InputError
from messagenet.inference.dense import Bilateral, DenseGraph, DenseMeanField, Gaussian
from messagenet.losses import upsample
from messagenet.models import MessageNet
from messagenet.prediction import Predictor, Refinement

KERNELS = (Gaussian(2.0, 2.0), Bilateral(4.0, 6.0, 20.0))


@pytest.fixture
def image() -> np.ndarray:
    dice = np.random.default_rng(0)
    picture = np.full((90, 41, 3), 60, np.uint8)
    picture[30:, 17:] = (200, 120, 40)
    return (picture + dice.integers(0, 12, picture.shape)).astype(np.uint8)


@pytest.fixture
def net() -> MessageNet:
    torch.manual_seed(0)
    return MessageNet("tiny", 3, hidden=8).eval()


def test_is_mean_field_on_the_image_with_the_enlarged_logits_as_unaries(net, image) -> None:
    refinement = Refinement(KERNELS, iterations=4)
    colours = torch.from_numpy(image).permute(2, 0, 1).float() / 255
    with torch.no_grad():
        unary = upsample(net(colours[None]), (90, 41), net.stride)[0]
        expected = DenseMeanField(4).run(DenseGraph(colours, KERNELS), unary).marginals
    found = Predictor(net, refinement=refinement).marginals(image)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    plain = Predictor(net).marginals(image)
    assert (found - plain).abs().max() > 0.01
    labels = Predictor(net, refinement=refinement).labels(image)
    assert (labels == found.argmax(0).numpy()).all()


def test_bands_agree_with_the_whole(net, image) -> None:
    whole = Predictor(net, refinement=Refinement(KERNELS, iterations=3)).marginals(image)
    bands = Predictor(net, refinement=Refinement(KERNELS, iterations=3, pixels=41 * 40)).marginals(image)
    assert bands.shape == whole.shape
    assert not torch.equal(bands, whole)  # it was cut
    assert (bands - whole).abs().mean() < 5e-3
    narrow = Refinement((Gaussian(2.0, 0.5),), iterations=3, pixels=41 * 8)
    nearly = Predictor(net, refinement=narrow).marginals(image)
    exact = Predictor(net, refinement=Refinement((Gaussian(2.0, 0.5),), iterations=3)).marginals(image)
    assert (nearly - exact).abs().max() < 0.02


def test_refuses_to_refine_nothing() -> None:
    with pytest.raises(InputError, match="at least one"):
        Refinement(pixels=0)
