"""The permutohedral lattice: geometry, both builders, and how near its filter is to the kernel."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.inference.dense.filters import Bilateral, ExactFilter, Gaussian, LatticeFilter, build_lattice

close = torch.testing.assert_close


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


@given(
    seed=st.integers(0, 10_000),
    pixels=st.integers(1, 300),
    dimensions=st.integers(1, 6),
    scale=st.floats(0.1, 9),
)
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


@pytest.mark.parametrize(
    ("kernel", "limit"), [(Gaussian(1.0, 3.0), 0.03), (Bilateral(1.0, 12.0, 20.0), 0.05)]
)
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
