"""Sums over a range box: the heart of one-iteration message passing.

A two-layer estimator on [receiver; sender] features splits in its first layer and is linear in its last, so

    P = A f + b,   Q = B f                                          two products per node, none per edge
    Σ_q [W₂ relu(P_p + Q_q) + b₂] = W₂ S_p + n_p b₂,     S_p = Σ_{o ∈ O} relu(P_p + Q_{p+o})

and no tensor over edges exists. Nodes outside the map are not summed, nor is padding, where Q = −∞: relu(P − ∞) = 0.
Where senders gate the hidden units, each term is multiplied by the sender's R_q. `relu_sum` computes

    S_p = Σ_{o ∈ O} relu(P_p + Q_{p+o}) ⊙ R_{p+o}                                R = 1 without a gate

for P, Q, R (B, H, W, C) as one registered operator. Its exact gradient recomputes P + Q, so it stores nothing but its
inputs and composes with `torch.compile` and `torch.export`. With A_{pq} = 1[P_p + Q_q > 0]:

    dP_p = G_p Σ_{o ∈ O} A_{p,p+o} R_{p+o}
    dQ_q = R_q Σ_{o ∈ O} A_{q−o,q} G_{q−o}
    dR_q = Σ_{o ∈ O} relu(P_{q−o} + Q_q) G_{q−o}

| backend  | for                | extra memory | compiles                              |
|----------|--------------------|--------------|---------------------------------------|
| numba    | the CPU            | none         | once per dtype, cached on disk        |
| windowed | CUDA               | O(N·C)       | `torch.compile` (Triton), a few times |
| loop     | anything           | O(N·C)       | nothing: a Python loop over offsets   |

All backends give the same values. The device selects one; `use_backend("loop")` forces another within a block.

`box_sum` computes Σ_{o ∈ O} v_{p+o}. For a rectangle O (with or without its centre) the cost does not depend on its
size: totals slide along one axis, then along the other, so rounding grows with the map's edge and not, like that of an
integral image, with its area. On the CPU this is one operator with a Numba kernel, elsewhere two differences of running
totals. Other offsets are summed one by one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache, partial, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from messagenet.errors import InputError, Note, nearest
from messagenet.graph import Offset, window

Offsets = tuple[Offset, ...]
Bounds = tuple[int, int, int, int]  # top, bottom, left, right
P = ParamSpec("P")
R = TypeVar("R")


def cached(function: Callable[P, R]) -> Callable[P, R]:
    """`functools.lru_cache`, bypassed under `torch.compile`, which cannot trace it."""
    wrapped: Callable[P, R] = lru_cache(maxsize=512)(function)  # type: ignore[assignment]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return (function if torch.compiler.is_compiling() else wrapped)(*args, **kwargs)

    return call


def relu_sum(receiver: Tensor, sender: Tensor, offsets: Offsets, gate: Tensor | None = None) -> Tensor:
    """S_p = Σ_{o ∈ offsets} relu(receiver_p + sender_{p+o}) over the senders inside the map; all (B, H, W, C).

    With a `gate`, (B, H, W, C), each term is multiplied by its sender's. Half precision is summed in float32.

    >>> ones = torch.ones(1, 2, 2, 1)
    >>> relu_sum(ones, ones, ((0, 1), (1, 0))).flatten().tolist()      # right and below neighbours
    [4.0, 2.0, 2.0, 0.0]
    """
    given = (receiver, sender) if gate is None else (receiver, sender, gate)
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(values).tangent is not None for values in given):
        raise RuntimeError("messagenet::relu_sum has no forward-mode derivative: use reverse mode")
    operator = torch.ops.messagenet.relu_sum if gate is None else torch.ops.messagenet.gated_relu_sum
    total: Tensor = operator(*to_common_dtype(*given), as_runs(offsets))
    return total.to(receiver.dtype)


@cached
def as_runs(offsets: Offsets) -> list[int]:
    """Offsets as runs (dy, first dx, last dx), flat: far fewer numbers for an operator to be called with.

    >>> as_runs(((0, 1), (-1, 0), (0, -1), (-1, 1)))
    [-1, 0, 1, 0, -1, -1, 0, 1, 1]
    """
    runs: list[list[int]] = []
    for dy, dx in sorted(offsets):
        if runs and runs[-1][0] == dy and runs[-1][2] == dx - 1:
            runs[-1][2] = dx
        else:
            runs.append([dy, dx, dx])
    return [number for run in runs for number in run]


@lru_cache(maxsize=512)
def from_runs(runs: tuple[int, ...]) -> Offsets:
    """The offsets that `as_runs` wrote, in ascending order."""
    rows = zip(runs[::3], runs[1::3], runs[2::3], strict=True)
    return tuple((dy, dx) for dy, first, last in rows for dx in range(first, last + 1))


class Rectangle(NamedTuple):
    """The offsets top ≤ dy ≤ bottom, left ≤ dx ≤ right, less (0, 0) if it is left out."""

    top: int
    bottom: int
    left: int
    right: int
    without_centre: bool


@cached
def as_rectangle(offsets: Offsets) -> Rectangle | None:
    """The rectangle that the offsets fill, if they fill one.

    >>> as_rectangle(((0, -1), (0, 1)))
    Rectangle(top=0, bottom=0, left=-1, right=1, without_centre=True)
    >>> as_rectangle(((0, -1), (1, 1))) is None
    True
    """
    rows, columns = zip(*offsets, strict=True)
    top, bottom, left, right = min(rows), max(rows), min(columns), max(columns)
    missing = {(dy, dx) for dy in range(top, bottom + 1) for dx in range(left, right + 1)} - set(offsets)
    return Rectangle(top, bottom, left, right, bool(missing)) if missing <= {(0, 0)} else None


def _running(values: Tensor, dim: int, low: int, high: int) -> Tensor:
    """Sums of values[i + low … i + high] along one axis, clipped to the map."""
    size = values.shape[dim]
    totals = values.cumsum(dim)
    totals = torch.cat([torch.zeros_like(totals.narrow(dim, 0, 1)), totals], dim)
    index = torch.arange(size, device=values.device)
    upper = totals.index_select(dim, (index + high + 1).clamp(0, size))
    return upper - totals.index_select(dim, (index + low).clamp(0, size))


def box_sum(values: Tensor, offsets: Offsets) -> Tensor:
    """The sum of `values` (B, H, W, C) over the senders of every node.

    >>> box_sum(torch.ones(1, 2, 3, 1), ((-1, 0), (1, 0)))[0, :, :, 0].tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    if not offsets:
        return torch.zeros_like(values)
    working = values.to(accumulation_dtype(values))
    box = as_rectangle(offsets)
    if box is None:
        total = torch.zeros_like(working)
        for offset in offsets:
            if (w := window(values.shape[1:3], offset)) is not None:
                total[w.receivers] += working[w.senders]
    else:
        if not torch.compiler.is_compiling() and backend_for(working) is BACKENDS["numba"]:
            total = _RectangleSum.apply(working, box[:4])  # type: ignore[no-untyped-call]
        else:
            total = _running(_running(working, 1, box.top, box.bottom), 2, box.left, box.right)
        if box.without_centre:
            total = total - working
    return total.to(values.dtype)


class _RectangleSum(torch.autograd.Function):
    """Sums over a rectangle of offsets by the Numba kernel. The map is linear: its gradient is a mirrored rectangle."""

    generate_vmap_rule = False

    @staticmethod
    def forward(values: Tensor, box: Bounds) -> Tensor:
        total: Tensor = torch.ops.messagenet.rectangle_sum(values.detach(), list(box))
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Bounds], output: Tensor) -> None:
        ctx.box = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        top, bottom, left, right = ctx.box
        return _RectangleSum.apply(grad, (-bottom, -top, -right, -left)), None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        total: Tensor = _RectangleSum.apply(tangent, ctx.box)  # type: ignore[no-untyped-call]
        return total

    @staticmethod
    def vmap(info: Any, dims: tuple[int, None], values: Tensor, box: Bounds) -> tuple[Tensor, int]:
        batched = values.movedim(dims[0], 0)
        total = _RectangleSum.apply(batched.flatten(0, 1), box)  # type: ignore[no-untyped-call]
        return total.unflatten(0, batched.shape[:2]), 0


def sum_rectangles(values: Tensor, box: Sequence[int]) -> Tensor:
    """Sums of values (B, H, W, C) over a rectangle of offsets, by the Numba kernel."""
    from messagenet.message_passing import kernels

    kernel: Any = kernels.sum_boxes
    values = values.contiguous()
    out = torch.empty_like(values)
    run = partial(kernel, values.view(-1).numpy(), *values.shape, tuple(box), out.view(-1).numpy())
    in_parts(run, values.shape[-1], torch.get_num_threads() if out.numel() > 1 << 16 else 1)
    return out


torch.library.define("messagenet::rectangle_sum", "(Tensor values, int[] box) -> Tensor")
torch.library.impl("messagenet::rectangle_sum", "CompositeExplicitAutograd", sum_rectangles)
torch.library.register_fake("messagenet::rectangle_sum", lambda values, box: torch.empty_like(values))


class Backend(NamedTuple):
    """The fused sum, `total(P, Q, R, offsets)`, and its gradients, `gradients(G, P, Q, R, offsets)` → dP, dQ[, dR].

    R is None without a gate.
    """

    total: Callable[[Tensor, Tensor, Tensor | None, Offsets], Tensor]
    gradients: Callable[[Tensor, Tensor, Tensor, Tensor | None, Offsets], tuple[Tensor, ...]]


def loop_total(receiver: Tensor, sender: Tensor, gate: Tensor | None, offsets: Offsets) -> Tensor:
    """S by a loop over offsets: the definition."""
    total = torch.zeros_like(receiver)
    for offset in offsets:
        if (w := window(receiver.shape[1:3], offset)) is not None:
            active = torch.relu(receiver[w.receivers] + sender[w.senders])
            total[w.receivers] += active if gate is None else active * gate[w.senders]
    return total


def loop_gradients(
    grad: Tensor, receiver: Tensor, sender: Tensor, gate: Tensor | None, offsets: Offsets
) -> tuple[Tensor, ...]:
    """dP, dQ and, with a gate, dR by a loop over offsets; P + Q is recomputed."""
    gradients = [torch.zeros_like(receiver) for _ in range(2 if gate is None else 3)]
    for offset in offsets:
        if (w := window(receiver.shape[1:3], offset)) is not None:
            total, upstream = receiver[w.receivers] + sender[w.senders], grad[w.receivers]
            part = (upstream if gate is None else upstream * gate[w.senders]) * (total > 0)
            gradients[0][w.receivers] += part
            gradients[1][w.senders] += part
            if gate is not None:
                gradients[2][w.senders] += upstream * torch.relu(total)
    return tuple(gradients)


def _shifted(values: Tensor, box: Bounds, fill: float) -> Tensor:
    """A view (B, H, W, C, rows, columns) of the map's neighbours in a box, `fill` outside the map.

    Not by `unfold`, whose window is a constant to `torch.compile`: every size of box would be compiled anew.
    """
    top, bottom, left, right = box
    down, across = abs(top) + abs(bottom), abs(left) + abs(right)  # enough on either side, whatever the signs
    padded = functional.pad(values, (0, 0, across, across, down, down), value=fill)
    image, row, column, channel = padded.stride()
    shape, stride = (*values.shape, bottom - top + 1, right - left + 1), (image, row, column, channel, row, column)
    return padded.as_strided(shape, stride, (down + top) * row + (across + left) * column)


def windowed_total(receiver: Tensor, sender: Tensor, gate: Tensor | None, box: Bounds, member: Tensor) -> Tensor:
    """S as one expression; `member` is 0 at the offsets of the box that count and −∞ at the others."""
    active = torch.relu(receiver[..., None, None] + (_shifted(sender, box, -torch.inf) + member))
    return (active if gate is None else active * _shifted(gate, box, 0.0)).sum((-1, -2))


def windowed_gradients(
    grad: Tensor, receiver: Tensor, sender: Tensor, gate: Tensor | None, box: Bounds, member: Tensor
) -> tuple[Tensor, ...]:
    """dP, dQ and, with a gate, dR as such expressions, the last two over the negated offsets."""
    active = receiver[..., None, None] + (_shifted(sender, box, -torch.inf) + member) > 0
    top, bottom, left, right = box
    back = (-bottom, -top, -right, -left)
    total = sender[..., None, None] + (_shifted(receiver, back, -torch.inf) + member.flip(0, 1))
    upstream = _shifted(grad, back, 0.0)
    to_sender = torch.where(total > 0, upstream, 0.0).sum((-1, -2))
    if gate is None:
        return grad * active.sum((-1, -2)), to_sender
    to_receiver = torch.where(active, _shifted(gate, box, 0.0), 0.0).sum((-1, -2))
    return grad * to_receiver, gate * to_sender, (torch.relu(total) * upstream).sum((-1, -2))


@lru_cache(maxsize=256)
@torch.inference_mode(False)  # an inference tensor would need a graph of its own
def member_box(
    offsets: Offsets, height: int, width: int, dtype: torch.dtype, device: torch.device
) -> tuple[Bounds, Tensor]:
    """The smallest box around the offsets that can reach the map, and which of its cells are members."""
    inside = [(dy, dx) for dy, dx in offsets if abs(dy) < height and abs(dx) < width] or [(0, 0)]
    rows, columns = zip(*inside, strict=True)
    top, bottom, left, right = min(rows), max(rows), min(columns), max(columns)
    member = torch.full((bottom - top + 1, right - left + 1), -torch.inf, dtype=dtype)
    for dy, dx in set(inside) & set(offsets):
        member[dy - top, dx - left] = 0
    return (top, bottom, left, right), member.to(device)


_uncompilable: list[str] = []


def _compile_or_loop(windowed: Callable[..., R], loop: Callable[..., R]) -> Callable[..., R]:
    """A windowed expression through `torch.compile`, or, once compiling has failed here, the loop over offsets."""
    compiled = cache(lambda: torch.compile(windowed, dynamic=True, fullgraph=True))

    def run(*arguments: Any) -> R:
        *tensors, offsets = arguments
        if not _uncompilable:
            try:
                like = tensors[0]
                box = member_box(offsets, *like.shape[1:3], like.dtype, like.device)
                with torch._dynamo.config.patch(recompile_limit=64):  # 1 or more images, equal sizes, gates, …
                    return compiled()(*tensors, *box)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                _uncompilable.append(type(error).__name__)
                failure = f"torch.compile failed ({type(error).__name__})"
                warnings.warn(f"{failure}; messages are summed by a slower loop over offsets", Note, stacklevel=2)
        return loop(*arguments)

    return run


Ints = npt.NDArray[np.int64]


@lru_cache(maxsize=256)
def group_by_row(offsets: Offsets) -> tuple[Ints, Ints, Ints]:
    """Offsets by row distance: `columns[starts[j]:starts[j + 1]]` go with `rows[j]`, all ascending.

    >>> [part.tolist() for part in group_by_row(((0, 1), (-1, 0), (0, -1)))]
    [[-1, 0], [0, 1, 3], [0, -1, 1]]
    """
    ordered = np.array(sorted(offsets), dtype=np.int64).reshape(-1, 2)
    rows, starts = np.unique(ordered[:, 0], return_index=True)
    return rows, np.append(starts, len(ordered)).astype(np.int64), np.ascontiguousarray(ordered[:, 1])


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="messagenet")


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_threads.cache_clear)


def in_parts(run: Callable[[int, int], None], count: int, parts: int) -> None:
    """Calls `run(first, last)` on parts of range(count), each in a thread."""
    parts = min(parts, count)
    bounds = [(count * part // parts, count * (part + 1) // parts) for part in range(parts)]
    others = [_threads().submit(run, *each) for each in bounds[1:]]
    for each in bounds[:1]:
        run(*each)
    for other in others:
        other.result()


def _accumulate(mode: str, here: Tensor, there: Tensor, weights: Tensor, offsets: Offsets) -> Tensor:
    """The Numba kernel on all rows of the map, split over threads; arguments as for `kernels.accumulate`."""
    from messagenet.message_passing import kernels

    accumulate: Any = kernels.accumulate
    out = torch.empty_like(here, memory_format=torch.contiguous_format)
    images, *shape = here.shape
    flat = [values.detach().contiguous().view(-1).numpy() for values in (here, there, weights)]
    settings = (*shape, *group_by_row(offsets), out.view(-1).numpy(), flat[0].dtype.type(1))
    rows = images * shape[0]
    run = partial(accumulate, getattr(kernels, mode), *flat, *settings)
    in_parts(run, rows, torch.get_num_threads() if out.numel() * len(offsets) > 1 << 18 else 1)
    return out


def numba_total(receiver: Tensor, sender: Tensor, gate: Tensor | None, offsets: Offsets) -> Tensor:
    """S by the Numba kernel."""
    mode, weights = ("RELU", sender) if gate is None else ("GATED_RELU", gate)
    return _accumulate(mode, receiver, sender, weights, offsets)


def numba_gradients(
    grad: Tensor, receiver: Tensor, sender: Tensor, gate: Tensor | None, offsets: Offsets
) -> tuple[Tensor, ...]:
    """dP, dQ and, with a gate, dR by the Numba kernel."""
    back = tuple((-dy, -dx) for dy, dx in offsets)
    to_sender = _accumulate("GATHER", sender, receiver, grad, back)
    if gate is None:
        return _accumulate("COUNT", receiver, sender, sender, offsets).mul_(grad), to_sender
    to_receiver = _accumulate("GATHER", receiver, sender, gate, offsets).mul_(grad)
    return to_receiver, to_sender.mul_(gate), _accumulate("GATED_RELU", sender, receiver, grad, back)


BACKENDS = {
    "numba": Backend(numba_total, numba_gradients),
    "windowed": Backend(
        _compile_or_loop(windowed_total, loop_total), _compile_or_loop(windowed_gradients, loop_gradients)
    ),
    "loop": Backend(loop_total, loop_gradients),
}
_BY_DEVICE = {"cpu": "numba", "cuda": "windowed"}
_forced: ContextVar[str | None] = ContextVar("messagenet_backend", default=None)


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Forces one backend within the block: "numba", "windowed" or "loop"."""
    if name not in BACKENDS:
        raise InputError(f"unknown backend {name!r}; {nearest(name, BACKENDS)}")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


def backend_for(values: Tensor) -> Backend:
    """The backend of a tensor's device, or the one that `use_backend` forces."""
    return BACKENDS[_forced.get() or _BY_DEVICE.get(values.device.type, "loop")]


# `torch.library.define` and not `custom_op`, which loads the whole compiler stack (two seconds) at the first call.
_SCHEMA_TYPES = {Tensor: "Tensor", Sequence[int]: "int[]", Sequence[float]: "float[]", int: "int", bool: "bool"}


def register_operator(name: str, arguments: Callable[..., Any], *, differentiable: int) -> None:
    """Defines `messagenet::name` for every device, and its gradient as an operator of its own.

    `arguments` is a NamedTuple of the operator's arguments, tensors first, with methods `forward()`, `shape()` of the
    result, and `gradients(grad)` of the first `differentiable` arguments.
    """
    types = {name: kind for name, kind in get_type_hints(arguments).items() if name != "return"}
    schema = ", ".join(f"{_SCHEMA_TYPES[kind]} {field}" for field, kind in types.items())
    tensors = sum(kind is Tensor for kind in types.values())

    def define(name: str, schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> None:
        torch.library.define(f"messagenet::{name}", schema)
        torch.library.impl(f"messagenet::{name}", "CompositeExplicitAutograd", implementation)
        torch.library.register_fake(f"messagenet::{name}", fake)

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:tensors])
        ctx.settings = inputs[tensors:]

    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        operator = getattr(torch.ops.messagenet, f"{name}_backward")
        return (*operator(grad, *ctx.saved_tensors, *ctx.settings), *[None] * (len(types) - differentiable))

    def refuse(ctx: Any, *grads: Any) -> Any:  # would otherwise be silently wrong
        raise RuntimeError(f"messagenet::{name}_backward has no derivative: second derivatives are not supported")

    define(
        name,
        f"({schema}) -> Tensor",
        lambda *given: arguments(*given).forward(),
        lambda *given: given[0].new_empty(arguments(*given).shape()),
    )
    define(
        f"{name}_backward",
        f"(Tensor grad, {schema}) -> ({', '.join(['Tensor'] * differentiable)})",
        lambda grad, *given: arguments(*given).gradients(grad),
        lambda grad, *given: tuple(values.new_empty(values.shape) for values in given[:differentiable]),
    )
    torch.library.register_autograd(f"messagenet::{name}", backward, setup_context=save)
    torch.library.register_autograd(f"messagenet::{name}_backward", refuse)


def accumulation_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype to sum in: the common one of the tensors, but float32 for half precision.

    >>> accumulation_dtype(torch.zeros(1, dtype=torch.bfloat16))
    torch.float32
    """
    dtype = tensors[0].dtype
    for values in tensors[1:]:
        dtype = torch.promote_types(dtype, values.dtype)
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def to_common_dtype(*tensors: Tensor) -> list[Tensor]:
    """The tensors in the dtype to sum in."""
    dtype = accumulation_dtype(*tensors)
    return [values.to(dtype) for values in tensors]


class _ReluSum:
    """A fused sum with contiguous tensors; offsets come as runs."""

    def __init__(self, receiver: Tensor, sender: Tensor, gate: Tensor | None, runs: Sequence[int]) -> None:
        tensors = receiver.contiguous(), sender.contiguous(), None if gate is None else gate.contiguous()
        self.arguments = *tensors, from_runs(tuple(runs))

    def shape(self) -> Sequence[int]:
        return self.arguments[0].shape

    def forward(self) -> Tensor:
        return backend_for(self.arguments[0]).total(*self.arguments)

    def gradients(self, grad: Tensor) -> tuple[Tensor, ...]:
        return backend_for(grad).gradients(grad.contiguous(), *self.arguments)


def _relu_sum(receiver: Tensor, sender: Tensor, runs: Sequence[int]) -> _ReluSum:
    return _ReluSum(receiver, sender, None, runs)


def _gated_relu_sum(receiver: Tensor, sender: Tensor, gate: Tensor, runs: Sequence[int]) -> _ReluSum:
    return _ReluSum(receiver, sender, gate, runs)


register_operator("relu_sum", _relu_sum, differentiable=2)
register_operator("gated_relu_sum", _gated_relu_sum, differentiable=3)
