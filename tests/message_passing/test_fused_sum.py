"""Every backend of the fused sum gives the definition's values and gradients."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet import InputError, above, below, four_neighbours, surrounding
from messagenet.message_passing import kernels, relu_sum, use_backend
from messagenet.message_passing.fused_sum import (
    BACKENDS,
    backend_for,
    box_sum,
    in_parts,
    member_box,
    windowed_gradients,
    windowed_total,
)


def by_definition(receiver, sender, offsets, gate=None):
    images, height, width, channels = receiver.shape
    rows = []
    for y in range(height):
        for x in range(width):
            total = torch.zeros(images, channels, dtype=receiver.dtype)
            for dy, dx in offsets:
                if 0 <= y + dy < height and 0 <= x + dx < width:
                    active = torch.clamp(receiver[:, y, x] + sender[:, y + dy, x + dx], min=0)
                    total = total + (active if gate is None else active * gate[:, y + dy, x + dx])
            rows.append(total)
    return torch.stack(rows, 1).reshape(receiver.shape)


def random_offsets():
    offset = st.tuples(st.integers(-6, 6), st.integers(-6, 6)).filter(lambda o: o != (0, 0))
    return st.lists(offset, min_size=1, max_size=14, unique=True).map(tuple)


def sums(inputs, offsets, weights):
    receiver, sender, *gate = inputs
    total = relu_sum(receiver, sender, offsets, *gate)
    return total, *torch.autograd.grad((total * weights).sum(), inputs)


@settings(max_examples=60, deadline=None)
@given(
    offsets=random_offsets(),
    shape=st.tuples(st.integers(1, 2), st.integers(1, 7), st.integers(1, 7), st.integers(1, 9)),
    seed=st.integers(0, 2**31),
    gated=st.booleans(),
)
def test_backends_equal_the_definition(offsets, shape, seed, gated):
    torch.manual_seed(seed)
    weights, *inputs = (torch.randn(shape, dtype=torch.float64) for _ in range(4 if gated else 3))
    for values in inputs:
        values.requires_grad_()
    receiver, sender, *gate = inputs
    expected = by_definition(receiver, sender, offsets, *gate) + 0 * sum(inputs)
    gradients = torch.autograd.grad((expected * weights).sum(), inputs)
    for backend in ("numba", "loop"):
        with use_backend(backend):
            for value, right in zip(sums(inputs, offsets, weights), (expected, *gradients), strict=True):
                torch.testing.assert_close(value, right, rtol=1e-12, atol=1e-12)
    box, member = member_box(offsets, *sender.shape[1:3], sender.dtype, sender.device)
    detached = [*(values.detach() for values in inputs), None][:3]
    torch.testing.assert_close(windowed_total(*detached, box, member), expected.detach())
    for value, right in zip(windowed_gradients(weights, *detached, box, member), gradients, strict=True):
        torch.testing.assert_close(value, right)


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_compiled_backend_gives_the_same_values(gated):
    torch.manual_seed(0)
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    for relation, shape in (
        (below(cells=2), (4, 8, 5, 16)),  # no two sizes equal, for which torch would compile another graph
        (above(cells=3), (2, 7, 11, 16)),
        (surrounding(cells=5), (3, 9, 9, 16)),
    ):
        offsets = relation.offsets_on(*shape[1:3])
        weights, *inputs = (torch.randn(shape) for _ in range(4 if gated else 3))
        for values in inputs:
            values.requires_grad_()
        expected = sums(inputs, offsets, weights)
        with use_backend("windowed"), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # a failure to compile would fall back to the loop
            for value, right in zip(sums(inputs, offsets, weights), expected, strict=True):
                torch.testing.assert_close(value, right, rtol=1e-4, atol=1e-4)
    assert graphs["unique_graphs"] - before == 2, "sizes without a coincidence share a graph"


def test_masked_senders_add_nothing_and_get_no_gradient():
    receiver = torch.randn(1, 4, 4, 3, dtype=torch.float64, requires_grad=True)
    sender = torch.randn(1, 4, 4, 3, dtype=torch.float64).index_fill(2, torch.tensor([1]), -torch.inf)
    sender.requires_grad_()
    offsets = four_neighbours().offsets_on(4, 4)
    for backend in ("numba", "loop"):
        with use_backend(backend):
            total, _, to_sender = sums([receiver, sender], offsets, torch.ones(1, 4, 4, 3))
            gate = torch.randn(1, 4, 4, 3, dtype=torch.float64, requires_grad=True)
            gated = sums([receiver, sender, gate], offsets, torch.ones(1, 4, 4, 3))
        assert total.isfinite().all()
        assert (to_sender[:, :, 1] == 0).all()
        assert all(values.isfinite().all() for values in gated)
        assert (gated[2][:, :, 1] == 0).all()
        assert (gated[3][:, :, 1] == 0).all()


def test_operator_passes_torchs_own_checks():
    arguments = [torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    torch.library.opcheck(torch.ops.messagenet.relu_sum, (*arguments[:2], [-1, 0, 0, 0, 1, 1]))
    torch.library.opcheck(torch.ops.messagenet.gated_relu_sum, (*arguments, [-1, 0, 0, 0, 1, 1]))
    assert torch.autograd.gradcheck(lambda p, q: relu_sum(p, q, ((0, 1), (-1, 0))), arguments[:2])
    assert torch.autograd.gradcheck(lambda p, q, r: relu_sum(p, q, ((0, 1), (-1, 0)), r), arguments)


def test_half_precision_is_summed_in_single():
    receiver, sender = torch.full((1, 20, 20, 1), 1.0), torch.full((1, 20, 20, 1), 0.004)
    offsets = surrounding(cells=39).offsets_on(20, 20)
    total = relu_sum(receiver.bfloat16(), sender.bfloat16(), offsets)
    assert total.dtype == torch.bfloat16
    expected = relu_sum(receiver.bfloat16().float(), sender.bfloat16().float(), offsets)
    torch.testing.assert_close(total.float(), expected, rtol=2**-8, atol=0)


def test_large_maps_are_split_over_threads_without_a_seam():
    torch.manual_seed(0)
    offsets = surrounding(cells=5).offsets_on(37, 29)
    receiver, sender = torch.randn(3, 37, 29, 16), torch.randn(3, 37, 29, 16)
    with use_backend("loop"):
        expected = relu_sum(receiver, sender, offsets)
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    results: list[torch.Tensor] = []
    callers = [threading.Thread(target=lambda: results.append(relu_sum(receiver, sender, offsets))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    torch.set_num_threads(threads)
    for result in results:
        torch.testing.assert_close(result, expected)
    assert len(results) == 4


def test_works_in_a_forked_child():
    code = (
        "import os, torch\n"
        "from messagenet.message_passing import relu_sum\n"
        "x = torch.ones(2, 64, 64, 32); o = ((0, 1), (1, 0))\n"
        "relu_sum(x, x, o)\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(0 if relu_sum(x, x, o)[0, 0, 0, 0].item() == 4 else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


def test_unknown_backend_names_the_nearest():
    with pytest.raises(InputError, match='did you mean "numba"'), use_backend("numbe"):
        pass
    assert backend_for(torch.zeros(1, device="meta")) is BACKENDS["loop"]


def test_second_derivatives_are_refused():
    receiver, sender = (torch.randn(1, 3, 3, 2, requires_grad=True) for _ in range(2))
    total = relu_sum(receiver, sender, ((0, 1),)).square().sum()
    gradient, _ = torch.autograd.grad(total, (receiver, sender), create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        gradient.sum().backward()


def test_inputs_may_lie_in_memory_in_any_way():
    torch.manual_seed(0)
    receiver, sender = (torch.randn(1, 5, 4, 3).permute(0, 2, 3, 1).requires_grad_() for _ in range(2))
    torch.library.opcheck(torch.ops.messagenet.relu_sum, (receiver, sender, [0, 1, 1]))
    torch.testing.assert_close(relu_sum(receiver, sender, ((0, 1),)), by_definition(receiver, sender, ((0, 1),)))


def box_by_definition(values, offsets):
    _, height, width, _ = values.shape
    rows = []
    for y in range(height):
        for x in range(width):
            inside = [(y + dy, x + dx) for dy, dx in offsets if 0 <= y + dy < height and 0 <= x + dx < width]
            rows.append(sum((values[:, row, column] for row, column in inside), torch.zeros_like(values[:, 0, 0])))
    return torch.stack(rows, 1).reshape(values.shape) + 0 * values


@st.composite
def rectangles(draw):
    top, left = draw(st.integers(-9, 9)), draw(st.integers(-9, 9))
    bottom, right = top + draw(st.integers(0, 12)), left + draw(st.integers(0, 12))
    centre = draw(st.booleans())
    cells = tuple((y, x) for y in range(top, bottom + 1) for x in range(left, right + 1) if centre or (y, x) != (0, 0))
    return cells or ((0, 1),)


@settings(max_examples=80, deadline=None)
@given(
    offsets=st.one_of(rectangles(), random_offsets()),
    shape=st.tuples(st.integers(1, 2), st.integers(1, 8), st.integers(1, 8), st.integers(1, 9)),
    seed=st.integers(0, 2**31),
)
def test_box_sums_equal_the_definition(offsets, shape, seed):
    torch.manual_seed(seed)
    values, weights = (torch.randn(shape, dtype=torch.float64) for _ in range(2))
    values.requires_grad_()
    expected = box_by_definition(values, offsets)
    (right,) = torch.autograd.grad((expected * weights).sum(), values)
    for backend in ("numba", "loop"):
        with use_backend(backend):
            total = box_sum(values, offsets) + 0 * values  # a graph even where no sender is inside
            (gradient,) = torch.autograd.grad((total * weights).sum(), values)
        torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient, right, rtol=1e-12, atol=1e-12)


def test_box_sums_by_parts_of_the_channels():
    values, box = torch.randn(2, 7, 9, 11, dtype=torch.float64), (-2, 3, -1, 4)
    whole, parts = (np.empty(values.numel()) for _ in range(2))
    flat = values.view(-1).numpy()
    kernels.sum_boxes(flat, *values.shape, box, whole, 0, 11)
    for bounds in ((0, 4), (4, 5), (5, 11)):
        kernels.sum_boxes(flat, *values.shape, box, parts, *bounds)
    np.testing.assert_array_equal(parts, whole)


def test_box_sums_are_linear_for_every_kind_of_derivative():
    offsets = tuple((dy, dx) for dy in range(-1, 3) for dx in range(-2, 1))
    values, tangent = (torch.randn(2, 5, 4, 3, dtype=torch.float64) for _ in range(2))
    assert torch.autograd.gradcheck(lambda v: box_sum(v, offsets), values.requires_grad_(), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda v: box_sum(v, offsets), values)
    values = values.detach()
    _, moved = torch.func.jvp(lambda v: box_sum(v, offsets), (values,), (tangent,))
    torch.testing.assert_close(moved, box_sum(tangent, offsets))
    several = torch.stack([values, tangent], 1)
    mapped = torch.func.vmap(lambda v: box_sum(v, offsets), in_dims=1)(several)
    torch.testing.assert_close(mapped, torch.stack([box_sum(values, offsets), box_sum(tangent, offsets)]))


def test_fused_sums_refuse_forward_mode():
    values, offsets = torch.randn(1, 3, 3, 2), ((0, 1),)
    with pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.func.jvp(lambda v: relu_sum(v, values, offsets), (values,), (values,))
    torch.func.jvp(lambda v: v * relu_sum(values, values, offsets), (values,), (values,))


def test_parts_cover_a_range_once():
    for count, parts in ((0, 2), (1, 4), (7, 3)):
        seen: list[tuple[int, int]] = []
        in_parts(lambda *bounds, into=seen: into.append(bounds), count, parts)
        assert sorted(i for bounds in seen for i in range(*bounds)) == list(range(count))
