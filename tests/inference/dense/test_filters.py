"""Filters of the dense CRF against the definition, and the permutohedral lattice."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.inference.dense import Bilateral, Gaussian
from messagenet.inference.dense.filters import ExactFilter, LatticeFilter, Normalisation, SpatialFilter, build_lattice

close = torch.testing.assert_close
LIKE = torch.zeros(0, dtype=torch.float64)


def applied(filter_, values, weights=None, **options):
    out = torch.full_like(values, torch.nan)
    filter_.apply(values, torch.ones_like(values[0]) if weights is None else weights, out, **options)
    return out


def matrix(filter_, pixels):
    return applied(filter_, torch.eye(pixels, dtype=torch.float64))


def make(name, image, normalisation="symmetric", like=LIKE, position=2.5):
    if name == "exact":
        return ExactFilter(Bilateral(1.0, position, 20.0).features(image).to(like), normalisation)
    kind, backend = name.split("-")
    compiled = backend == "numba"
    if kind == "spatial":
        return SpatialFilter(tuple(image.shape[1:]), position, normalisation, like, compiled)
    lattice = build_lattice(Bilateral(1.0, position, 20.0).features(image), compiled=compiled)
    return LatticeFilter(lattice, normalisation, like, compiled)


NAMES = ["exact", "spatial-numba", "spatial-torch", "lattice-numba", "lattice-torch"]


@pytest.mark.parametrize("normalisation", get_args(Normalisation))
def test_exact_is_the_definition(naive, photograph, normalisation):
    image = photograph(0, 3, 4)
    for kernel in (Gaussian(1.0, 1.5), Bilateral(1.0, 2.0, 30.0)):
        expected = naive.normalised(naive.kernel_table(kernel, image), normalisation)
        filter_ = ExactFilter(kernel.features(image), normalisation)
        close(matrix(filter_, 12), torch.tensor(expected, dtype=torch.float64), atol=1e-14, rtol=0)


def test_exact_by_blocks_of_rows(photograph, monkeypatch):
    features, values = Gaussian().features(photograph(0, 5, 7)), torch.rand(35, 2, dtype=torch.float64)
    whole = applied(ExactFilter(features, "symmetric"), values)
    monkeypatch.setattr("messagenet.inference.dense.filters.ENTRIES", 35 * 4)
    close(applied(ExactFilter(features, "symmetric"), values), whole, atol=1e-15, rtol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("normalisation", ["symmetric", "after"])
def test_linear_with_a_transpose(photograph, name, normalisation):
    generator = torch.Generator().manual_seed(1)
    image = photograph(1, 9, 14)
    filter_ = make(name, image, normalisation)
    x, y = torch.randn(2, 126, 3, generator=generator, dtype=torch.float64)
    weights = torch.randn(3, generator=generator, dtype=torch.float64)
    moved, returned = applied(filter_, x, weights), applied(filter_, y, weights, transpose=True)
    close((moved * y).sum(), (x * returned).sum(), atol=1e-10, rtol=0)
    close(applied(filter_, 2 * x - 3 * y, weights), 2 * moved - 3 * applied(filter_, y, weights))
    close(applied(filter_, x, weights), applied(filter_, x) * weights)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("transpose", [False, True])
def test_adds_to_what_is_there(photograph, name, transpose):
    filter_ = make(name, photograph(1, 6, 5), "before")
    x, start = torch.rand(2, 30, 2, dtype=torch.float64)
    weights = torch.tensor([2.0, -1.0], dtype=torch.float64)
    out = start.clone()
    filter_.apply(x, weights, out, add=True, transpose=transpose)
    close(out, start + applied(filter_, x, weights, transpose=transpose))


@pytest.mark.parametrize("normalisation", get_args(Normalisation))
@given(height=st.integers(1, 19), width=st.integers(1, 19), position=st.sampled_from([0.3, 1.0, 1.7, 6.0]))
@settings(max_examples=12, deadline=None)
def test_spatial_is_exact_but_for_the_far_tail(photograph, normalisation, height, width, position):
    image = photograph(0, height, width)
    exact = ExactFilter(Gaussian(1.0, position).features(image), normalisation)
    expected = matrix(exact, height * width)
    for name in ("spatial-numba", "spatial-torch"):
        fast = matrix(make(name, image, normalisation, position=position), height * width)
        assert float((fast - expected).abs().sum(1).max() / expected.sum(1).min()) < 2e-4
    reach = 4 * position + 1
    if height < reach and width < reach:  # nothing is left out
        close(fast, expected, atol=1e-13, rtol=0)


@pytest.mark.parametrize("kind", ["spatial", "lattice"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=st.integers(0, 1000), height=st.integers(1, 12), width=st.integers(1, 12), classes=st.integers(1, 40))
@settings(max_examples=12, deadline=None)
def test_both_backends_agree(photograph, kind, dtype, seed, height, width, classes):
    image, like = photograph(seed, height, width, noise=0.1), torch.zeros(0, dtype=dtype)
    values = torch.randn(height * width, classes, generator=torch.Generator().manual_seed(seed)).to(dtype)
    weights = torch.linspace(-1, 2, classes, dtype=dtype)
    compiled, plain = (make(f"{kind}-{backend}", image, "after", like) for backend in ("numba", "torch"))
    tolerance = {"atol": 2e-6 if dtype == torch.float32 else 1e-13, "rtol": 0}
    for transpose in (False, True):
        expected = applied(plain, values, weights, transpose=transpose)
        close(applied(compiled, values, weights, transpose=transpose), expected, **tolerance)
    close(compiled.diagonal(), plain.diagonal(), **tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_means_keep_constants(photograph, name):
    filter_ = make(name, photograph(3, 11, 13), "after")
    ones = torch.ones(143, 1, dtype=torch.float64)
    close(applied(filter_, ones), ones, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["exact", "spatial-numba", "spatial-torch"])
@pytest.mark.parametrize("normalisation", get_args(Normalisation))
def test_diagonal(photograph, name, normalisation):
    filter_ = make(name, photograph(3, 5, 6), normalisation)
    close(filter_.diagonal(), matrix(filter_, 30).diagonal())


def test_diagonal_of_a_lattice_without_gaps():
    """Where vertices are present all around a pixel, its response to itself is the closed form."""
    size = 21
    features = Gaussian(1.0, 1.5).features(torch.zeros(3, size, size))
    filter_ = LatticeFilter(build_lattice(features, compiled=False), "none", LIKE, compiled=False)
    whole = matrix(filter_, size * size).diagonal().view(size, size)[7:14, 7:14]
    close(filter_.diagonal().view(size, size)[7:14, 7:14], whole)


def positions(lattice):
    """A place in d + 1 coordinates for every vertex, found by walking from neighbour to neighbour."""
    corners = lattice.neighbours.shape[0]
    place = {0: (0,) * corners}
    waiting = [0]
    while waiting:
        vertex = waiting.pop()
        for axis, side in itertools.product(range(corners), range(2)):
            other = int(lattice.neighbours[axis, side, vertex])
            step = [-1 if side == 0 else 1] * corners
            step[axis] = corners - 1 if side == 0 else 1 - corners
            there = tuple(a + b for a, b in zip(place[vertex], step, strict=True))
            if other == lattice.size:
                continue
            if other not in place:
                place[other] = there
                waiting.append(other)
            assert place[other] == there
    return torch.tensor([place[vertex] for vertex in range(lattice.size)], dtype=torch.float64)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kernel", [Gaussian(1.0, 2.0), Bilateral(1.0, 4.0, 300.0)])
def test_weights_interpolate_features(photograph, compiled, kernel):
    """Barycentric weights of the vertices give back the pixel's place, so any linear function of features."""
    features = kernel.features(photograph(0, 9, 8))
    lattice = build_lattice(features, compiled=compiled)
    places = positions(lattice)
    close(lattice.weights.sum(1), torch.ones(72, dtype=torch.float64))
    assert float(lattice.weights.min()) > -1e-12
    found = torch.einsum("nc,ncd->nd", lattice.weights, places[lattice.vertices.long()])
    apart = torch.cdist(found, found) / (math.sqrt(2 / 3) * features.new_tensor(places.shape[1]))
    close(apart, torch.cdist(features, features), atol=1e-6, rtol=1e-6)


@given(seed=st.integers(0, 10_000), pixels=st.integers(1, 300), dimensions=st.integers(1, 6), scale=st.floats(0.1, 9))
@settings(max_examples=25, deadline=None)
def test_both_builders_agree(seed, pixels, dimensions, scale):
    generator = torch.Generator().manual_seed(seed)
    features = scale * torch.randn(pixels, dimensions, generator=generator, dtype=torch.float64)
    features[::3] = features[::3].round()  # on the border of several simplices
    compiled, plain = (build_lattice(features, compiled=flag) for flag in (True, False))
    assert compiled.size == plain.size
    close(compiled.weights, plain.weights, atol=0, rtol=0)
    renamed = torch.full((plain.size + 1,), plain.size)
    renamed[compiled.vertices.long().flatten()] = plain.vertices.long().flatten()
    close(renamed[compiled.vertices.long()], plain.vertices.long())
    for axis, side in itertools.product(range(dimensions + 1), range(2)):
        theirs = plain.neighbours[axis, side, renamed[:-1]].long()
        close(renamed[compiled.neighbours[axis, side].long()], theirs)


def test_the_table_grows():
    """From 32768 vertices, and again from 131072."""
    features = 300 * torch.randn(50_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    compiled, plain = (build_lattice(features, compiled=flag) for flag in (True, False))
    assert compiled.size == plain.size > 131072
    assert sorted(compiled.vertices.flatten().unique().tolist()) == list(range(compiled.size))
    renamed = torch.empty(plain.size, dtype=torch.int32)
    renamed[compiled.vertices.flatten().long()] = plain.vertices.flatten()
    close(renamed[compiled.vertices.long()], plain.vertices)


def test_neighbours_are_mutual(photograph):
    lattice = build_lattice(Bilateral(1.0, 3.0, 10.0).features(photograph(0, 12, 12)), compiled=True)
    vertices = torch.arange(lattice.size)
    for ahead, behind in lattice.neighbours.long():
        present = ahead < lattice.size
        close(behind[ahead[present]], vertices[present])
        assert int(present.sum()) == int((behind < lattice.size).sum())


@pytest.mark.parametrize(("kernel", "limit"), [(Gaussian(1.0, 3.0), 0.03), (Bilateral(1.0, 12.0, 20.0), 0.05)])
def test_gap_to_the_kernel(photograph, kernel, limit):
    """Filtered probabilities are within some per cent of the exact ones; halving the limits fails."""
    features = kernel.features(photograph(5, 30, 40))
    lattice = LatticeFilter(build_lattice(features, compiled=True), "symmetric", features[:0], compiled=True)
    exact = ExactFilter(features, "symmetric")
    q = (3 * torch.randn(1200, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).softmax(1)
    ours, theirs = torch.empty_like(q), torch.empty_like(q)
    lattice.apply(q, q.new_ones(4), ours)
    exact.apply(q, q.new_ones(4), theirs)
    gap = float((ours - theirs).abs().max())
    assert limit / 2 < gap < limit


def test_constant_colour_is_a_spatial_filter():
    features = Bilateral(1.0, 3.0, 13.0).features(torch.full((3, 20, 20), 0.4))
    for compiled in (True, False):
        filter_ = LatticeFilter(build_lattice(features, compiled=compiled), "after", features[:0], compiled)
        values = torch.zeros(400, 1, dtype=torch.float64)
        values[210] = 1
        filter_.apply(values, values.new_ones(1), out := torch.empty_like(values))
        assert int(out.argmax()) in range(188, 233)
        assert float(out[210]) > 5 * float(out[0])


def test_kernels_too_narrow_for_a_lattice_are_refused():
    features = Bilateral(1.0, 0.001, 0.001).features(torch.rand(3, 50, 50))
    with pytest.raises(InputError, match=r'larger ones .* or use method="exact"'):
        build_lattice(features, compiled=True)
