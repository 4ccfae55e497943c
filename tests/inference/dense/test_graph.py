"""Input that cannot be used is refused in one line that names the fix."""

from __future__ import annotations

import pytest
import torch

from messagenet.errors import InputError
from messagenet.graph import FactorGraph
from messagenet.inference import Exact
from messagenet.inference.dense import Bilateral, DenseGraph, DenseMeanField, Gaussian


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(position=-3.0), "position of Gaussian is -3.0; give a positive"),
        (lambda: Gaussian(position=float("nan")), "position of Gaussian"),
        (lambda: Bilateral(colour=0.0), "colour of Bilateral is 0.0; give a positive"),
        (lambda: Bilateral(position=float("inf")), "position of Bilateral"),
        (lambda: Bilateral(weight=float("nan")), "weight of Bilateral"),
        (lambda: DenseMeanField(iterations=0), "iterations is 0; it must be at least 1"),
    ],
)
def test_settings(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("engine", [DenseMeanField, Exact])
@pytest.mark.parametrize("graph", [FactorGraph([2, 2], [[0, 1]]), DenseGraph(torch.rand(3, 4, 5))])
def test_a_graph_is_no_setting(engine, graph):
    with pytest.raises(InputError, match=r"takes settings, not a graph; write \w+\(\).run\(") as error:
        engine(graph)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (torch.rand(4, 5), {}, r"shape \(4, 5\); give \(batch, 3, height, width\)"),
        (torch.rand(1, 4, 5), {}, r"shape \(1, 4, 5\)"),
        (torch.rand(2, 3, 0, 5), {}, "shape"),
        (torch.randint(0, 255, (3, 4, 5)), {}, r"images are torch.int64; .*divide by 255"),
        (255 * torch.ones(3, 4, 5), {}, r"from 255 to 255; .*divide 0..255 by 255"),
        (-torch.ones(3, 4, 5), {}, "range from -1 to -1"),
        (torch.full((3, 4, 5), torch.nan), {}, "range from nan"),
        (torch.rand(3, 4, 5), {"kernels": ()}, "kernels must be one or more"),
        (torch.rand(3, 4, 5), {"kernels": [80.0]}, "kernels must be one or more"),
        (torch.rand(3, 4, 5), {"method": "exakt"}, 'did you mean "exact"'),
        (torch.rand(3, 4, 5), {"normalisation": "symetric"}, 'did you mean "symmetric"'),
        (torch.rand(3, 4, 5), {"backend": "cuda"}, "choose one of: auto, numba, torch"),
    ],
)
def test_images(images, options, message):
    with pytest.raises(InputError, match=message) as error:
        DenseGraph(images, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("shape", "given", "message"),
    [
        ((2, 4, 5), {}, r"shape \(2, 4, 5\); for these images give \(2, classes, 4, 5\)"),
        ((1, 3, 4, 5), {}, "for these images"),
        ((2, 3, 5, 4), {}, "for these images"),
        ((2, 0, 4, 5), {}, "for these images"),
        ((2, 3, 4, 5), {"weights": torch.ones(3)}, r"weights have shape \(3,\); give \(2,\) or \(2, 3\)"),
        ((2, 3, 4, 5), {"weights": torch.ones(2, 4)}, r"give \(2,\) or \(2, 3\)"),
        ((2, 3, 4, 5), {"weights": torch.tensor([1.0, torch.nan])}, "weights must be finite"),
        ((2, 3, 4, 5), {"weights": torch.tensor([1, 2])}, "weights must be finite floating-point"),
        ((2, 3, 4, 5), {"compatibility": torch.ones(2, 2)}, r"for 3 classes give \(3, 3\)"),
        ((2, 3, 4, 5), {"compatibility": torch.full((3, 3), torch.inf)}, "compatibility must be finite"),
    ],
)
def test_arguments_of_a_run(shape, given, message):
    graph = DenseGraph(torch.rand(2, 3, 4, 5))
    with pytest.raises(InputError, match=message) as error:
        DenseMeanField().run(graph, torch.zeros(shape), **given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_potentials_have_to_be_finite(value):
    potentials = torch.zeros(3, 4, 5)
    potentials[1, 2, 3] = value
    with pytest.raises(InputError, match="log_potentials must be finite"):
        DenseMeanField().run(DenseGraph(torch.rand(3, 4, 5)), potentials)


def test_everything_on_one_device():
    with pytest.raises(InputError, match="log_potentials are on meta, the images on cpu; move them there"):
        DenseMeanField().run(DenseGraph(torch.rand(3, 4, 5)), torch.zeros(2, 4, 5, device="meta"))


def test_a_resized_image_may_overshoot():
    DenseGraph(torch.full((3, 4, 5), 1.005))
