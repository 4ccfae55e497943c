"""Filters: the exact one by loops, the fast ones by the exact one, transposes, both backends."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.inference.dense.filters import (
    NORMALISATIONS,
    Bilateral,
    ExactFilter,
    Gaussian,
    LatticeFilter,
    SpatialFilter,
    build_lattice,
)

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


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
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


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
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
@given(
    seed=st.integers(0, 1000), height=st.integers(1, 12), width=st.integers(1, 12), classes=st.integers(1, 40)
)
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
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
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
