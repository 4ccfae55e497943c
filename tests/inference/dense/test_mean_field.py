"""Mean field in the dense CRF: equations, bound, gradients, and its softmax."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.inference.dense import Bilateral, DenseGraph, DenseMeanField, Gaussian
from messagenet.inference.dense.filters import Normalisation
from messagenet.inference.dense.mean_field import softmax, softmax_into

close = torch.testing.assert_close
KERNELS = (Gaussian(1.5, 1.2), Bilateral(2.0, 3.0, 40.0))


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def listed(potentials):
    """(K, H, W) as unary[pixel][class]."""
    return potentials.flatten(1).T.tolist()


@pytest.mark.parametrize("normalisation", get_args(Normalisation))
@given(
    seed=st.integers(0, 1000),
    height=st.integers(1, 3),
    width=st.integers(1, 4),
    classes=st.integers(1, 4),
    iterations=st.integers(1, 4),
    learned=st.booleans(),
)
@settings(max_examples=8, deadline=None)
def test_is_the_definition(naive, photograph, normalisation, seed, height, width, classes, iterations, learned):
    image, potentials = photograph(seed, height, width, noise=0.1), draw(seed, classes, height, width)
    weights = draw(seed + 1, 2, classes) if learned else torch.tensor([[1.5], [2.0]]).expand(2, classes).double()
    compatibility = draw(seed + 2, classes, classes) if learned else None
    tables = [naive.normalised(naive.kernel_table(kernel, image), normalisation) for kernel in KERNELS]
    costs = naive.potts(classes) if compatibility is None else compatibility.tolist()
    expected = naive.mean_field(listed(potentials), tables, weights.tolist(), costs, iterations)
    graph = DenseGraph(image, KERNELS, method="exact", normalisation=normalisation)
    given_ = {"weights": weights, "compatibility": compatibility} if learned else {}
    result = DenseMeanField(iterations).run(graph, potentials, **given_)
    marginals = torch.tensor(expected, dtype=torch.float64).T.view(classes, height, width)
    close(result.marginals, marginals, atol=1e-12, rtol=0)
    close(result.log_marginals.exp(), marginals, atol=1e-12, rtol=0)
    assert result.map_state.tolist() == result.logits.argmax(0).tolist()


@pytest.mark.parametrize("learned", [False, True])
@given(seed=st.integers(0, 1000))
@settings(max_examples=5, deadline=None)
def test_bound(naive, photograph, learned, seed):
    """log_z is E_q[score] + H(q), by listing joint states, and so below log Z."""
    image, potentials = photograph(seed, 2, 2, noise=0.2), draw(seed, 3, 2, 2)
    weights = draw(seed + 1, 2, 3) if learned else torch.tensor([[1.5], [2.0]]).expand(2, 3).double()
    compatibility = draw(seed + 2, 3, 3) if learned else None
    tables = [naive.normalised(naive.kernel_table(kernel, image), "symmetric") for kernel in KERNELS]
    costs = naive.potts(3) if compatibility is None else compatibility.tolist()
    given_ = {"weights": weights, "compatibility": compatibility} if learned else {}
    result = DenseMeanField(3).run(DenseGraph(image, KERNELS, method="exact"), potentials, **given_)
    model = (listed(potentials), tables, weights.tolist(), costs)
    expected = naive.bound(*model, listed(result.marginals))
    assert float(result.log_z) == pytest.approx(expected, abs=1e-10)
    assert expected <= naive.log_z(*model)


def test_bound_is_tight_without_ties(photograph):
    potentials = draw(0, 2, 3, 4, 5)
    for method in ("exact", "fast"):
        graph = DenseGraph(torch.stack([photograph(0, 4, 5), photograph(1, 4, 5)]), KERNELS, method=method)
        result = DenseMeanField(2).run(graph, potentials, weights=torch.zeros(2))
        close(result.log_z, potentials.logsumexp(1).sum((1, 2)))


def test_bound_of_the_fast_filters_is_near(photograph):
    image, potentials = photograph(0, 12, 14), draw(0, 3, 12, 14)
    exact, fast = (
        DenseMeanField(5).run(DenseGraph(image, KERNELS, method=method), potentials).log_z
        for method in ("exact", "fast")
    )
    assert abs(float(fast - exact)) < 0.03 * abs(float(exact))


@pytest.mark.parametrize(("method", "backend"), [("exact", "auto"), ("fast", "numba"), ("fast", "torch")])
def test_gradients(photograph, method, backend):
    images = torch.stack([photograph(0, 1, 3), photograph(1, 1, 3)])
    graph = DenseGraph(images, KERNELS, method=method, backend=backend, normalisation="after")
    potentials, compatibility = draw(0, 2, 3, 1, 3).requires_grad_(), draw(1, 3, 3).requires_grad_()
    engine = DenseMeanField(2)

    def answers(u, w=None, c=None):
        result = engine.run(graph, u, weights=w, compatibility=c)
        return result.marginals, result.log_z

    plain, by_class = draw(2, 2).requires_grad_(), draw(3, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(answers, (potentials, plain))
    assert torch.autograd.gradcheck(answers, (potentials, by_class, compatibility))
    assert torch.autograd.gradcheck(answers, potentials)
    assert torch.autograd.gradcheck(lambda c: answers(potentials.detach(), c=c), compatibility)


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_single_precision(photograph, backend):
    """Values and gradients in float32 are those in float64 to rounding."""
    images = torch.stack([photograph(seed, 13, 17) for seed in range(2)])
    answers = []
    for dtype in (torch.float32, torch.float64):
        leaves = [
            part.to(dtype).requires_grad_()
            for part in (2 * draw(0, 2, 21, 13, 17), 1 + 0.1 * draw(1, 2, 21), 1 + 0.1 * draw(2, 21, 21))
        ]
        graph = DenseGraph(images, KERNELS, backend=backend)
        result = DenseMeanField(4).run(graph, leaves[0], weights=leaves[1], compatibility=leaves[2])
        (result.marginals * draw(3, 2, 21, 13, 17).to(dtype)).sum().backward()
        assert result.marginals.dtype == dtype
        with torch.no_grad():
            plain = DenseMeanField(4).run(graph, leaves[0], weights=leaves[1], compatibility=leaves[2])
        close(plain.marginals, result.marginals, atol=1e-6, rtol=0)
        answers.append([result.marginals.detach(), *(leaf.grad for leaf in leaves)])
    for single, double in zip(*answers, strict=True):
        close(single.double(), double, atol=2e-5 * float(double.abs().max()), rtol=0)


def test_keeps_one_tensor_per_iteration_for_the_gradient(photograph):
    """Of N·K numbers each: the probabilities of every iteration and the final log-marginals."""
    potentials = draw(0, 6, 11, 13).float().requires_grad_()
    weights, compatibility = torch.ones(2, requires_grad=True), torch.eye(6, requires_grad=True)
    graph, kept = DenseGraph(photograph(0, 11, 13)), {}
    for given_ in ({"weights": weights}, {"weights": weights, "compatibility": compatibility}):
        kept.clear()

        def keep(tensor):
            if tensor.numel() >= potentials.numel():
                kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = DenseMeanField(5).run(graph, potentials, **given_)
            assert len(kept) == 5
            result.log_marginals.sum()
        assert len(kept) == 6


@pytest.mark.parametrize("threads", [1, 2])
def test_a_batch_is_its_images(photograph, threads, monkeypatch):
    monkeypatch.setattr("messagenet.inference.dense.graph.WORTH_A_THREAD", 0)
    images = torch.stack([photograph(seed, 9, 12) for seed in range(3)])
    potentials = draw(0, 3, 4, 9, 12).float()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = DenseMeanField(3).run(DenseGraph(images), potentials)
        for number in range(3):
            alone = DenseMeanField(3).run(DenseGraph(images[number]), potentials[number])
            close(together.marginals[number], alone.marginals, atol=0, rtol=0)
            close(together.log_z[number], alone.log_z)
        learned = potentials.requires_grad_()
        close(DenseMeanField(3).run(DenseGraph(images), learned).marginals, together.marginals, atol=1e-6, rtol=0)
    finally:
        torch.set_num_threads(before)


def test_a_graph_is_built_once(photograph, monkeypatch):
    from messagenet.inference.dense import graph as module

    built = []
    build = module.build_lattice
    monkeypatch.setattr(module, "build_lattice", lambda *a, **k: built.append(1) or build(*a, **k))
    graph = DenseGraph(torch.stack([photograph(0, 5, 6), photograph(1, 5, 6)]))
    assert not built
    potentials = draw(0, 2, 3, 5, 6)
    first = DenseMeanField(2).run(graph, potentials)
    other = DenseMeanField(2).run(graph, potentials.float(), weights=torch.tensor([0.0, 1.0]))
    assert len(built) == 2
    assert not torch.allclose(first.marginals, other.marginals.double(), atol=1e-3)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (7, 1), (2, 30)])
@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_odd_sizes(photograph, size, classes, backend):
    image, potentials = photograph(0, *size), draw(0, classes, *size).float()
    kernels = (Gaussian(1.0, 3.0), Bilateral(2.0, 30.0, 60.0))
    result = DenseMeanField(3).run(DenseGraph(image, kernels, backend=backend), potentials)
    close(result.marginals.sum(0), torch.ones(size), atol=1e-5, rtol=0)
    exact = DenseMeanField(3).run(DenseGraph(image, kernels, method="exact"), potentials)
    close(result.marginals, exact.marginals, atol=0.1, rtol=0)
    if classes == 1:
        close(result.log_z, potentials.sum())


def test_constant_colour_smooths_without_edges():
    potentials = torch.zeros(2, 20, 20)
    potentials[0] = 0.2
    potentials[1, 9:11, 9:11] = 1.0  # four lonely pixels
    result = DenseMeanField().run(DenseGraph(torch.full((3, 20, 20), 0.5)), potentials)
    assert int(result.map_state.sum()) == 0


def test_edges_of_colour_are_respected():
    """A boundary of the potentials two pixels off the colours' moves to it."""
    image = torch.zeros(3, 16, 16)
    image[:, :, 8:] = 1.0
    potentials = torch.zeros(2, 16, 16)
    potentials[0, :, :6], potentials[1, :, 6:] = 0.5, 0.5
    potentials[:, :, 6:8] *= 0.2
    result = DenseMeanField().run(DenseGraph(image), potentials)
    assert result.map_state.tolist() == [[0] * 8 + [1] * 8] * 16


def test_large_logits_stay_finite(photograph):
    potentials = 1e4 * draw(0, 3, 8, 8).float()
    potentials.requires_grad_()
    result = DenseMeanField(3).run(DenseGraph(photograph(0, 8, 8)), potentials, weights=torch.tensor([1e3, -1e3]))
    assert bool(result.log_marginals.isfinite().all())
    result.marginals[0].sum().backward()
    assert bool(potentials.grad.isfinite().all())


def test_half_precision_is_computed_in_single(photograph):
    potentials = draw(0, 3, 8, 8).half()
    result = DenseMeanField(3).run(DenseGraph(photograph(0, 8, 8).half()), potentials)
    assert result.marginals.dtype == torch.float32
    expected = DenseMeanField(3).run(DenseGraph(photograph(0, 8, 8)), potentials.double())
    close(result.marginals.double(), expected.marginals, atol=0.02, rtol=0)


def test_without_gradients_nothing_is_attached(photograph):
    graph, potentials = DenseGraph(photograph(0, 5, 6)), draw(0, 3, 5, 6).requires_grad_()
    with torch.no_grad():
        result = DenseMeanField(2).run(graph, potentials)
    assert not any(part.requires_grad for part in (result.marginals, result.log_marginals, result.log_z))
    close(result.log_z, DenseMeanField(2).run(graph, potentials).log_z.detach())


def test_numba_is_the_default_and_equals_torch(photograph):
    image, potentials = photograph(0, 7, 8), draw(0, 3, 7, 8).float()
    default, plain = DenseGraph(image), DenseGraph(image, backend="torch")
    assert default.compiled
    assert not plain.compiled
    expected = DenseMeanField(3).run(default, potentials).marginals
    close(DenseMeanField(3).run(plain, potentials).marginals, expected, atol=1e-5, rtol=0)


def test_result_vocabulary(photograph):
    potentials = draw(0, 3, 5, 6)
    result = DenseMeanField(2).run(DenseGraph(photograph(0, 5, 6)), potentials)
    assert result.log_marginals.shape == result.marginals.shape == result.messages.shape == (3, 5, 6)
    assert result.map_state.shape == (5, 6)
    close(result.messages, result.logits - potentials)
    assert (result.iterations, result.converged, result.history) == (2, False, ())


def test_a_graph_is_no_setting(photograph):
    with pytest.raises(InputError, match=r"write DenseMeanField\(\)\.run"):
        DenseMeanField(DenseGraph(photograph(0, 5, 6)))


@given(
    seed=st.integers(0, 1000),
    pixels=st.integers(1, 200),
    classes=st.integers(1, 40),
    scale=st.sampled_from([0.0, 1.0, 10.0, 1e4, 1e30]),
)
@settings(max_examples=40, deadline=None)
def test_values_and_gradient(seed, pixels, classes, scale):
    generator = torch.Generator().manual_seed(seed)
    potentials, message, grad = torch.randn(3, pixels, classes, generator=generator)
    potentials, message = (scale * potentials).requires_grad_(), message.requires_grad_()
    double = (potentials.detach() + message.detach()).double().requires_grad_()
    expected = double.softmax(-1)
    result = softmax(potentials, message, compiled=True)
    close(result.double(), expected, atol=3e-7, rtol=0)
    likely = expected > 1e-20
    close(result.double()[likely], expected[likely], atol=0, rtol=1e-5)
    result.backward(grad)
    expected.backward(grad.double())
    close(potentials.grad.double(), double.grad, atol=2e-6, rtol=0)
    close(message.grad, potentials.grad)


def test_without_a_message():
    logits = torch.randn(100, 7)
    close(softmax(logits, compiled=True), logits.softmax(-1), atol=3e-7, rtol=0)


def test_into_the_same_memory():
    potentials, message = torch.randn(2, 300, 5)
    expected = (potentials + message).softmax(-1)
    softmax_into(potentials, message, message, compiled=True)
    close(message, expected, atol=3e-7, rtol=0)


def test_no_denormal_numbers():
    """They would slow the filters down a hundredfold on some processors."""
    result = softmax(torch.tensor([[0.0, -1e3, -80.0]]), compiled=True)
    assert float(result.min()) > torch.finfo(torch.float32).tiny
    assert float(result.min()) < 1e-25


def test_double_precision_goes_through_torch():
    logits = torch.randn(10, 3, dtype=torch.float64)
    close(softmax(logits, compiled=True), logits.softmax(-1), atol=0, rtol=0)
    with pytest.raises(RuntimeError, match="does not require grad"):
        softmax(logits, compiled=True).sum().backward()
