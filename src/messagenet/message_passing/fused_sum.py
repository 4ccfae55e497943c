"""The fused sum over a range box: the heart of one-iteration message passing.

A two-layer estimator on [receiver; sender] features splits in its first layer and is linear in its last, so

    P = A f + b,   Q = B f                                          two products per node, none per edge
    Σ_q [W₂ relu(P_p + Q_q) + b₂] = W₂ S_p + n_p b₂,     S_p = Σ_q relu(P_p + Q_q)

and no tensor over edges exists. `relu_sum` computes S as one registered operator with an exact gradient that
recomputes the signs of P + Q, so that it stores nothing beyond its inputs and composes with `torch.compile`
and `torch.export`. A sender that must stay silent (padding) has Q = −∞: relu(P − ∞) = 0.

Ways to compute the fused sum over a range box, and its gradients; all give the same values.

With receivers P and senders Q (B, H, W, C) and offsets O,

    S_p  = Σ_{o ∈ O} relu(P_p + Q_{p+o})                    nothing outside the map is summed
    dP_p = G_p · #{o ∈ O : P_p + Q_{p+o} > 0}
    dQ_q = Σ_{o ∈ O} G_{q−o} · 1[P_{q−o} + Q_q > 0]

| backend  | for                | extra memory | compiles                              |
|----------|--------------------|--------------|---------------------------------------|
| numba    | the CPU            | none         | once per dtype, cached on disk        |
| windowed | CUDA               | O(N·C)       | `torch.compile` (Triton), once        |
| loop     | anything           | O(N·C)       | nothing: a Python loop over offsets   |

The choice is automatic; `use_backend("loop")` forces one for a while.

What operators need from PyTorch: registration, caches that `torch.compile` accepts, a precision to sum in.

`torch.library.define` is used rather than `torch.library.custom_op`, which loads the whole compiler stack
(two seconds) the first time an operator is called.

Sums over a node's range box at a cost that does not depend on the size of the box.

    sum_{o ∈ O} v_{p+o},     nothing outside the map is summed

For a rectangle O (with or without its centre) this is two differences of running totals, one per axis, as in
an integral image but separable, so that rounding grows with one edge of the map and not with its area. Any
other set of offsets is summed one by one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache, wraps
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from messagenet.errors import InputError, Note, nearest
from messagenet.graph import Offset, window

Offsets = tuple[Offset, ...]


class Backend(NamedTuple):
    """The fused sum and its gradients: `total(P, Q, offsets)`, `gradients(G, P, Q, offsets)` → dP, dQ."""

    total: Callable[[Tensor, Tensor, Offsets], Tensor]
    gradients: Callable[[Tensor, Tensor, Tensor, Offsets], tuple[Tensor, Tensor]]


# -- loop: the definition, one offset at a time ------------------------------------------------------------


def loop_total(receiver: Tensor, sender: Tensor, offsets: Offsets) -> Tensor:
    """S by a loop over offsets."""
    total = torch.zeros_like(receiver)
    for offset in offsets:
        if (w := window(receiver.shape[1:3], offset)) is not None:
            total[w.receivers] += torch.relu(receiver[w.receivers] + sender[w.senders])
    return total


def loop_gradients(grad: Tensor, receiver: Tensor, sender: Tensor, offsets: Offsets) -> tuple[Tensor, Tensor]:
    """dP and dQ by a loop over offsets; the signs are recomputed."""
    to_receiver, to_sender = torch.zeros_like(receiver), torch.zeros_like(sender)
    for offset in offsets:
        if (w := window(receiver.shape[1:3], offset)) is not None:
            active = receiver[w.receivers] + sender[w.senders] > 0
            part = grad[w.receivers] * active
            to_receiver[w.receivers] += part
            to_sender[w.senders] += part
    return to_receiver, to_sender


# -- windowed: one expression that a compiler fuses into a single kernel -----------------------------------


def _shifted(values: Tensor, box: tuple[int, int, int, int], fill: float) -> Tensor:
    """A view (B, H, W, C, rows, columns) of the map's neighbours in a box, `fill` outside the map."""
    top, bottom, left, right = box
    down, across = abs(top) + abs(bottom), abs(left) + abs(right)  # enough on either side, whatever the signs
    padded = functional.pad(values, (0, 0, across, across, down, down), value=fill)
    height, width = values.shape[1:3]
    y, x = down + top, across + left
    padded = padded[:, y : y + height + bottom - top, x : x + width + right - left]
    return padded.unfold(1, bottom - top + 1, 1).unfold(2, right - left + 1, 1)


def windowed_total(
    receiver: Tensor, sender: Tensor, box: tuple[int, int, int, int], member: Tensor
) -> Tensor:
    """S as one expression; `member` is 0 at the offsets of the box that count and −∞ at the others."""
    return torch.relu(receiver[..., None, None] + (_shifted(sender, box, -torch.inf) + member)).sum((-1, -2))


def windowed_gradients(
    grad: Tensor,
    receiver: Tensor,
    sender: Tensor,
    box: tuple[int, int, int, int],
    member: Tensor,
) -> tuple[Tensor, Tensor]:
    """dP and dQ as two such expressions, the second over the negated offsets."""
    active = receiver[..., None, None] + (_shifted(sender, box, -torch.inf) + member) > 0
    top, bottom, left, right = box
    back = (-bottom, -top, -right, -left)
    senders_active = sender[..., None, None] + (_shifted(receiver, back, -torch.inf) + member.flip(0, 1)) > 0
    to_sender = torch.where(senders_active, _shifted(grad, back, 0.0), 0.0).sum((-1, -2))
    return grad * active.sum((-1, -2)), to_sender


def _box(offsets: Offsets, like: Tensor) -> tuple[tuple[int, int, int, int], Tensor]:
    """The smallest box around the offsets that can reach the map, and which of its cells are members."""
    return _box_on(offsets, like.shape[1], like.shape[2], like.dtype, like.device)


@lru_cache(maxsize=256)
def _box_on(
    offsets: Offsets, height: int, width: int, dtype: torch.dtype, device: torch.device
) -> tuple[tuple[int, int, int, int], Tensor]:
    inside = [(dy, dx) for dy, dx in offsets if abs(dy) < height and abs(dx) < width] or [(0, 0)]
    rows, columns = [dy for dy, _ in inside], [dx for _, dx in inside]
    top, bottom, left, right = min(rows), max(rows), min(columns), max(columns)
    member = torch.full((bottom - top + 1, right - left + 1), -torch.inf, dtype=dtype)
    for dy, dx in set(inside) & set(offsets):
        member[dy - top, dx - left] = 0
    return (top, bottom, left, right), member.to(device)


@cache
def _compiled() -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, Tensor]]]:
    """The two expressions, compiled; a graph that cannot be compiled is an error rather than run as it is."""
    return (
        torch.compile(windowed_total, dynamic=True, fullgraph=True),
        torch.compile(windowed_gradients, dynamic=True, fullgraph=True),
    )


_uncompilable: list[str] = []


def _give_up_compiling(error: Exception) -> None:
    """Remembers that compiling fails here, so that it is not tried again; running out of memory is no such sign."""
    if isinstance(error, torch.OutOfMemoryError):
        raise error
    _uncompilable.append(type(error).__name__)
    warnings.warn(
        f"torch.compile failed ({type(error).__name__}); messages are summed by a slower loop over offsets",
        Note,
        stacklevel=3,
    )


def compiled_total(receiver: Tensor, sender: Tensor, offsets: Offsets) -> Tensor:
    """S through `torch.compile`; by the loop where nothing can be compiled."""
    if not _uncompilable:
        try:
            return _compiled()[0](receiver, sender, *_box(offsets, sender))
        except Exception as error:
            _give_up_compiling(error)
    return loop_total(receiver, sender, offsets)


def compiled_gradients(
    grad: Tensor, receiver: Tensor, sender: Tensor, offsets: Offsets
) -> tuple[Tensor, Tensor]:
    """dP and dQ through `torch.compile`; by the loop where nothing can be compiled."""
    if not _uncompilable:
        try:
            return _compiled()[1](grad, receiver, sender, *_box(offsets, sender))
        except Exception as error:
            _give_up_compiling(error)
    return loop_gradients(grad, receiver, sender, offsets)


# -- numba: rows of the map, split over threads ------------------------------------------------------------

Ints = npt.NDArray[np.int64]


@lru_cache(maxsize=256)
def grouped(offsets: Offsets) -> tuple[Ints, Ints, Ints]:
    """Offsets by row distance: `columns[starts[j]:starts[j + 1]]` go with `rows[j]`, all ascending.

    >>> [part.tolist() for part in grouped(((0, 1), (-1, 0), (0, -1)))]
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


def _accumulate(mode: int, here: Tensor, there: Tensor, weights: Tensor, offsets: Offsets) -> Tensor:
    from messagenet.message_passing import kernels

    accumulate: Any = kernels.accumulate
    here, there, weights = here.contiguous(), there.contiguous(), weights.contiguous()
    out = torch.empty_like(here)
    images, *shape = here.shape
    flat = [values.detach().view(-1).numpy() for values in (here, there, weights)]
    arguments: tuple[Any, ...] = (
        mode,
        *flat,
        *shape,
        *grouped(offsets),
        out.view(-1).numpy(),
        flat[0].dtype.type(1),
    )
    rows = images * shape[0]
    parts = min(torch.get_num_threads(), rows) if out.numel() * len(offsets) > 1 << 18 else 1
    edges = [rows * part // parts for part in range(parts + 1)]
    first, *rest = pairwise(edges)
    others = [_threads().submit(lambda part: accumulate(*arguments, *part), part) for part in rest]
    accumulate(*arguments, *first)
    for other in others:
        other.result()
    return out


def numba_total(receiver: Tensor, sender: Tensor, offsets: Offsets) -> Tensor:
    """S by the Numba kernel."""
    from messagenet.message_passing.kernels import RELU

    return _accumulate(RELU, receiver, sender, sender, offsets)


def numba_gradients(
    grad: Tensor, receiver: Tensor, sender: Tensor, offsets: Offsets
) -> tuple[Tensor, Tensor]:
    """dP and dQ by the Numba kernel."""
    from messagenet.message_passing.kernels import COUNT, GATHER

    back = tuple((-dy, -dx) for dy, dx in offsets)
    to_receiver = _accumulate(COUNT, receiver, sender, sender, offsets).mul_(grad)
    return to_receiver, _accumulate(GATHER, sender, receiver, grad, back)


# -- choice ------------------------------------------------------------------------------------------------

BACKENDS = {
    "numba": Backend(numba_total, numba_gradients),
    "windowed": Backend(compiled_total, compiled_gradients),
    "loop": Backend(loop_total, loop_gradients),
}
_BY_DEVICE = {"cpu": "numba" if find_spec("numba") else "loop", "cuda": "windowed"}
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
    """The fastest backend for a tensor's device, unless one is forced."""
    return BACKENDS[_forced.get() or _BY_DEVICE.get(values.device.type, "loop")]


P = ParamSpec("P")
R = TypeVar("R")


def remembered(function: Callable[P, R]) -> Callable[P, R]:
    """`functools.lru_cache`, stepping aside under `torch.compile`, which cannot see through it."""
    kept: Callable[P, R] = lru_cache(maxsize=512)(function)  # type: ignore[assignment]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return (function if torch.compiler.is_compiling() else kept)(*args, **kwargs)

    return call


def register_operator(schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Defines `messagenet::<schema>` for every device, with a shape-only twin for tracing."""
    name = f"messagenet::{schema.partition('(')[0]}"
    torch.library.define(name, schema[schema.index("(") :])
    torch.library.impl(name, "CompositeExplicitAutograd", implementation)
    torch.library.register_fake(name, fake)


def refuse_second_derivatives(name: str) -> None:
    """Makes differentiating a gradient an error, where it would otherwise be silently wrong."""

    def refuse(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(f"messagenet::{name} has no derivative: second derivatives are not supported")

    torch.library.register_autograd(f"messagenet::{name}", refuse)


def like(values: Tensor) -> Tensor:
    """An empty, contiguous tensor of the same shape: what operators return."""
    return torch.empty_like(values, memory_format=torch.contiguous_format)


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """The precision to add many numbers in: the tensors' common one, but float32 for half precision.

    >>> working_dtype(torch.zeros(1, dtype=torch.bfloat16))
    torch.float32
    """
    dtype = tensors[0].dtype
    for values in tensors[1:]:
        dtype = torch.promote_types(dtype, values.dtype)
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def relu_sum(receiver: Tensor, sender: Tensor, offsets: Offsets) -> Tensor:
    """S_p = Σ_{o ∈ offsets} relu(receiver_p + sender_{p+o}), over the senders inside the map.

    Half-precision inputs are summed in float32.

    Args:
        receiver: P, (B, H, W, C).
        sender: Q, (B, H, W, C).
        offsets: The (dy, dx) of the senders.

    >>> ones = torch.ones(1, 2, 2, 1)
    >>> relu_sum(ones, ones, ((0, 1), (1, 0))).flatten().tolist()      # right and below neighbours
    [4.0, 2.0, 2.0, 0.0]
    """
    dtype = working_dtype(receiver, sender)
    total: Tensor = torch.ops.messagenet.relu_sum(receiver.to(dtype), sender.to(dtype), as_runs(offsets))
    return total.to(receiver.dtype)


@remembered
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


def _total(receiver: Tensor, sender: Tensor, runs: Sequence[int]) -> Tensor:
    return backend_for(receiver).total(receiver.contiguous(), sender.contiguous(), from_runs(tuple(runs)))


def _gradients(grad: Tensor, receiver: Tensor, sender: Tensor, runs: Sequence[int]) -> tuple[Tensor, Tensor]:
    grad, receiver, sender = grad.contiguous(), receiver.contiguous(), sender.contiguous()
    return backend_for(receiver).gradients(grad, receiver, sender, from_runs(tuple(runs)))


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Sequence[int]], output: Tensor) -> None:
    receiver, sender, ctx.runs = inputs
    ctx.save_for_backward(receiver, sender)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    to_receiver, to_sender = torch.ops.messagenet.relu_sum_backward(grad, *ctx.saved_tensors, ctx.runs)
    return to_receiver, to_sender, None


register_operator(
    "relu_sum(Tensor receiver, Tensor sender, int[] runs) -> Tensor",
    _total,
    fake=lambda receiver, sender, runs: like(receiver),
)
register_operator(
    "relu_sum_backward(Tensor grad, Tensor receiver, Tensor sender, int[] runs) -> (Tensor, Tensor)",
    _gradients,
    fake=lambda grad, receiver, sender, runs: (like(receiver), like(sender)),
)
torch.library.register_autograd("messagenet::relu_sum", _backward, setup_context=_keep)
refuse_second_derivatives("relu_sum_backward")


class Rectangle(NamedTuple):
    """The offsets top ≤ dy ≤ bottom, left ≤ dx ≤ right, less (0, 0) if it is left out."""

    top: int
    bottom: int
    left: int
    right: int
    without_centre: bool


@remembered
def as_rectangle(offsets: tuple[Offset, ...]) -> Rectangle | None:
    """The rectangle that the offsets fill, if they fill one.

    >>> as_rectangle(((0, -1), (0, 1)))
    Rectangle(top=0, bottom=0, left=-1, right=1, without_centre=True)
    >>> as_rectangle(((0, -1), (1, 1))) is None
    True
    """
    rows, columns = [dy for dy, _ in offsets], [dx for _, dx in offsets]
    top, bottom, left, right = min(rows), max(rows), min(columns), max(columns)
    full = {(dy, dx) for dy in range(top, bottom + 1) for dx in range(left, right + 1)}
    missing = full - set(offsets)
    return Rectangle(top, bottom, left, right, bool(missing)) if missing <= {(0, 0)} else None


def _running(values: Tensor, dim: int, low: int, high: int) -> Tensor:
    """Sums of values[i + low … i + high] along one axis, clipped to the map."""
    size = values.shape[dim]
    totals = values.cumsum(dim)
    totals = torch.cat([torch.zeros_like(totals.narrow(dim, 0, 1)), totals], dim)
    places = torch.arange(size, device=values.device)
    upper = totals.index_select(dim, (places + high + 1).clamp(0, size))
    return upper - totals.index_select(dim, (places + low).clamp(0, size))


def box_sum(values: Tensor, offsets: tuple[Offset, ...]) -> Tensor:
    """The sum of `values` (B, H, W, C) over the senders of every node.

    >>> box_sum(torch.ones(1, 2, 3, 1), ((-1, 0), (1, 0)))[0, :, :, 0].tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    if not offsets:
        return torch.zeros_like(values)
    working = values.to(working_dtype(values))
    box = as_rectangle(offsets)
    if box is None:
        total = torch.zeros_like(working)
        for offset in offsets:
            if (w := window(values.shape[1:3], offset)) is not None:
                total[w.receivers] += working[w.senders]
    else:
        total = _running(_running(working, 1, box.top, box.bottom), 2, box.left, box.right)
        if box.without_centre:
            total = total - working
    return total.to(values.dtype)
