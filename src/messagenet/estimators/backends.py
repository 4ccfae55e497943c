"""Ways to compute the fused sum over a range box, and its gradients; all give the same values.

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
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple

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
    from messagenet.estimators import kernels

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
    from messagenet.estimators.kernels import RELU

    return _accumulate(RELU, receiver, sender, sender, offsets)


def numba_gradients(
    grad: Tensor, receiver: Tensor, sender: Tensor, offsets: Offsets
) -> tuple[Tensor, Tensor]:
    """dP and dQ by the Numba kernel."""
    from messagenet.estimators.kernels import COUNT, GATHER

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
