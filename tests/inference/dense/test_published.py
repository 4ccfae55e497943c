"""pydensecrf's own answers and an independent exact computation (skipped where they are not beside the checkout)."""

from __future__ import annotations

import pytest
import torch

from messagenet.inference.dense import Bilateral, DenseGraph, DenseMeanField, Gaussian
from messagenet.inference.dense.filters import LatticeFilter, build_lattice

pytestmark = pytest.mark.shared
KERNELS = (Gaussian(3.0, 3.0), Bilateral(10.0, 20.0, 13.0))
ITERATIONS = [1, 5, 10]


def run(published, iterations, dtype=torch.float64, graph=None, **options):
    image = published["image"].permute(2, 0, 1).double() / 255
    graph = DenseGraph(image, KERNELS, **options) if graph is None else graph
    energy = published["unary_energy"].to(dtype).view(5, 32, 40)
    return DenseMeanField(iterations).run(graph, -energy).marginals.flatten(1).double()


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_exact(published, iterations):
    gap = run(published, iterations, method="exact") - published[f"Q_bruteforce_it{iterations}"]
    assert float(gap.abs().max()) < 1e-6


@pytest.mark.parametrize("iterations", ITERATIONS)
@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_same_lattice(published, iterations, backend, dtype, monkeypatch):
    """With both kernels on a lattice, as in pydensecrf, its answers come out to single precision."""
    image = published["image"].permute(2, 0, 1).double() / 255
    compiled, like = backend == "numba", torch.zeros(0, dtype=dtype)
    filters = tuple(
        LatticeFilter(build_lattice(kernel.features(image), compiled=compiled), "symmetric", like, compiled)
        for kernel in KERNELS
    )
    graph = DenseGraph(image, KERNELS, backend=backend)
    monkeypatch.setattr(graph, "filters", lambda dtype: (filters,))
    gap = run(published, iterations, dtype, graph) - published[f"Q_it{iterations}"]
    assert float(gap.abs().max()) < 1e-6


@pytest.mark.parametrize(("iterations", "to_exact", "to_peer"), [(1, 0.03, 5e-3), (5, 1e-3, 2e-4), (10, 1e-3, 2e-4)])
def test_gaps_of_the_fast_filters(published, iterations, to_exact, to_peer):
    """What `lattice_filter` states."""
    q = run(published, iterations, torch.float32)
    assert to_exact / 2 < float((q - published[f"Q_bruteforce_it{iterations}"]).abs().max()) < to_exact
    assert to_peer / 2 < float((q - published[f"Q_it{iterations}"]).abs().max()) < to_peer
    assert q.argmax(0).tolist() == published[f"Q_bruteforce_it{iterations}"].argmax(0).tolist()
