"""The fused sum over a range box, against a loop over offsets and against concatenate-and-multiply.

32×32 nodes, 13×13 box (168 senders), 512 features (the paper's), 256 hidden units, float32. For every node p,

    naive   Σ_q relu(W [f_p ; f_q] + b)      one product per edge, over a list of all edges
    loop    Σ_q relu(P_p + Q_q)              P, Q per node; a Python loop over the 168 offsets
    fused   Σ_q relu(P_p + Q_q)              `messagenet.message_passing.relu_sum`
    gated   Σ_q relu(P_p + Q_q) ⊙ R_q        the same with a gate

`forward_vs_naive` compares the step from edges to sums. The cost of P and Q (two products per node) is printed as well,
and included in `forward_vs_naive_with_projections`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import Tensor, nn

from common import QUICK, finish, in_new_process, seconds, start
from messagenet import surrounding
from messagenet.graph import window
from messagenet.message_passing import relu_sum, use_backend

SIDE, BOX, HIDDEN, CHANNELS = (8, 3, 16, 32) if QUICK else (32, 13, 256, 512)
OFFSETS = surrounding(cells=BOX).offsets_on(SIDE, SIDE)


def edge_list() -> tuple[Tensor, Tensor]:
    """Returns receiver and sender of every edge inside the map."""
    nodes = torch.arange(SIDE * SIDE).reshape(1, SIDE, SIDE)
    windows = [w for offset in OFFSETS if (w := window((SIDE, SIDE), offset)) is not None]
    receivers = torch.cat([nodes[w.receivers].flatten() for w in windows])
    return receivers, torch.cat([nodes[w.senders].flatten() for w in windows])


def naive_sum(features: Tensor, first: nn.Linear, receivers: Tensor, senders: Tensor) -> Tensor:
    """Concatenates receiver and sender of every edge, multiplies, and sums over senders."""
    nodes = features.flatten(0, 2)
    hidden = torch.relu(first(torch.cat([nodes[receivers], nodes[senders]], 1)))
    total = torch.zeros(len(nodes), HIDDEN).index_add_(0, receivers, hidden)
    return total.reshape(*features.shape[:3], HIDDEN)


def forward(backend: str, receiver: Tensor, sender: Tensor, *gate: Tensor) -> Callable[[], Tensor]:
    """Returns a function that sums with a backend."""

    def run() -> Tensor:
        with use_backend(backend):
            return relu_sum(receiver, sender, OFFSETS, *gate)

    return run


def forward_backward(backend: str, receiver: Tensor, sender: Tensor, *gate: Tensor) -> Callable[[], object]:
    """Returns a function that sums and computes all gradients with a backend."""

    def run() -> object:
        with use_backend(backend):
            total = relu_sum(receiver, sender, OFFSETS, *gate)
            return torch.autograd.grad(total, (receiver, sender, *gate), torch.ones_like(total))

    return run


def peak_extra_memory(receiver: Tensor, sender: Tensor) -> float:
    """Peak memory of forward + backward beyond the inputs, in units of N·h floats, as PyTorch allocates it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        total = relu_sum(receiver, sender, OFFSETS)
        torch.autograd.grad(total, (receiver, sender), torch.ones_like(total))
    now = peak = 0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak / (receiver.numel() * receiver.element_size())


def first_call() -> float:
    """Seconds of this process's first call, forward and backward."""
    receiver, sender = (torch.randn(1, 8, 8, 16, requires_grad=True) for _ in range(2))
    start = time.perf_counter()
    relu_sum(receiver, sender, ((0, 1), (1, 0))).sum().backward()
    return time.perf_counter() - start


def first_calls() -> tuple[float, float]:
    """Seconds of a first call with an empty and with a filled kernel cache."""
    with tempfile.TemporaryDirectory() as cache, patch.dict(os.environ, NUMBA_CACHE_DIR=cache):
        return in_new_process(first_call), in_new_process(first_call)


def main() -> None:
    start(__doc__)
    torch.manual_seed(0)
    features = torch.randn(1, SIDE, SIDE, CHANNELS)
    first = nn.Linear(2 * CHANNELS, HIDDEN)
    to_receiver, to_sender = first.weight[:, :CHANNELS], first.weight[:, CHANNELS:]
    receiver = (features @ to_receiver.T + first.bias).detach().requires_grad_()
    sender = (features @ to_sender.T).detach().requires_grad_()
    gate = torch.randn_like(sender, requires_grad=True)
    fused, loop = (forward(backend, receiver, sender) for backend in ("numba", "loop"))
    gated = forward("numba", receiver, sender, gate)

    def from_features() -> Tensor:
        return relu_sum(features @ to_receiver.T + first.bias, features @ to_sender.T, OFFSETS)

    with torch.no_grad():
        edges = edge_list()
        torch.testing.assert_close(naive_sum(features, first, *edges), from_features(), rtol=1e-3, atol=1e-2)
        both = seconds({"fused": fused, "gated": gated, "loop": loop, "from features": from_features}, turns=40)
        both |= seconds({"naive": lambda: naive_sum(features, first, *edges)}, turns=3)
        half, narrow = features[..., : CHANNELS // 2].contiguous(), nn.Linear(CHANNELS, HIDDEN)
        both |= seconds({"naive, 256 features": lambda: naive_sum(half, narrow, *edges)}, turns=3)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        single = seconds({"fused": fused, "loop": loop}, turns=15)
        torch.set_num_threads(threads)
    trained = {name: forward_backward(name, receiver, sender) for name in ("numba", "loop")}
    train = seconds({**trained, "gated": forward_backward("numba", receiver, sender, gate)}, turns=15)
    cold, warm = first_calls()

    work = len(edges[0]) * HIDDEN
    rate = work / single["fused"] / 1e9
    print(f"{len(OFFSETS)} offsets, {len(edges[0])} edges inside the map, {work / 1e6:.1f} M relu-adds")
    for name, ours, other, theirs in (
        ("forward", both["fused"], "loop", both["loop"]),
        ("forward, 1 thread", single["fused"], "loop", single["loop"]),
        ("forward + backward", train["numba"], "loop", train["loop"]),
        ("forward", both["fused"], "gated", both["gated"]),
        ("forward + backward", train["numba"], "gated", train["gated"]),
        ("with projections", both["from features"], "naive", both["naive"]),
    ):
        print(f"{name:19} fused {1e3 * ours:7.2f} ms   {other:5} {1e3 * theirs:7.2f} ms")
    print(
        f"one core: {rate:.1f} G relu-adds/s. One is an addition, a maximum and an addition; at 3 GHz with 8 float32 "
        f"lanes and two such operations a cycle the limit is 16 G/s, and 24 G/s with the second addition on the "
        f"multipliers: {100 * rate / 24:.0f}% of that"
    )
    print(f"first call, forward and backward: {cold:.2f} s with an empty cache, {warm:.2f} s from the cache")
    finish(
        forward_vs_loop=both["loop"] / both["fused"],
        forward_vs_naive=both["naive"] / both["fused"],
        forward_vs_naive_256_features=both["naive, 256 features"] / both["fused"],
        train_vs_loop=train["loop"] / train["numba"],
        gated_forward_vs_plain=both["gated"] / both["fused"],
        gated_train_vs_plain=train["gated"] / train["numba"],
        extra_memory_nh=peak_extra_memory(receiver, sender),
        forward_vs_naive_with_projections=both["naive"] / both["from features"],
        forward_vs_loop_one_thread=single["loop"] / single["fused"],
        first_call_seconds=cold,
        cached_call_seconds=warm,
    )


if __name__ == "__main__":
    main()
