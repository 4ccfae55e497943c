"""The fused sum over a range box against a loop over offsets and against concatenate-and-multiply.

32×32 nodes, 13×13 box (168 senders), 512 features (the paper's), 256 hidden units, float32. For every node p,

    naive   Σ_q relu(W [f_p ; f_q] + b)      one product per edge, over a list of all edges
    loop    Σ_q relu(P_p + Q_q)              P, Q per node; a Python loop over the 168 offsets
    fused   Σ_q relu(P_p + Q_q)              `messagenet.message_passing.relu_sum`

`forward_vs_naive` compares the two ways from edges to sums; what P and Q cost (two products per node) is
printed as well, and included in `forward_vs_naive_with_projections`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

import torch
from torch import nn

from common import finish, machine, seconds
from messagenet import surrounding
from messagenet.graph import window
from messagenet.message_passing import relu_sum, use_backend

SIDE, HIDDEN, CHANNELS = 32, 256, 512
OFFSETS = surrounding(cells=13).offsets_on(SIDE, SIDE)


def edge_list() -> tuple[torch.Tensor, torch.Tensor]:
    """Receiver and sender of every edge inside the map."""
    nodes = torch.arange(SIDE * SIDE).reshape(1, SIDE, SIDE)
    windows = [window((SIDE, SIDE), offset) for offset in OFFSETS]
    receivers = torch.cat([nodes[w.receivers].flatten() for w in windows])
    return receivers, torch.cat([nodes[w.senders].flatten() for w in windows])


def naive(
    features: torch.Tensor, first: nn.Linear, receivers: torch.Tensor, senders: torch.Tensor
) -> torch.Tensor:
    """Concatenates receiver and sender of every edge, multiplies, sums."""
    nodes = features.flatten(0, 2)
    hidden = torch.relu(first(torch.cat([nodes[receivers], nodes[senders]], 1)))
    return (
        torch.zeros(len(nodes), HIDDEN).index_add_(0, receivers, hidden).reshape(*features.shape[:3], HIDDEN)
    )


def trained(backend: str, receiver: torch.Tensor, sender: torch.Tensor) -> None:
    with use_backend(backend):
        total = relu_sum(receiver, sender, OFFSETS)
        torch.autograd.grad(total.sum(), (receiver, sender))


def peak_extra_memory(receiver: torch.Tensor, sender: torch.Tensor) -> float:
    """Peak memory of forward + backward beyond the inputs, in units of N·h floats, as PyTorch allocates it."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        total = relu_sum(receiver, sender, OFFSETS)
        torch.autograd.grad(total, (receiver, sender), torch.ones_like(total))
    now = peak = 0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak / (receiver.numel() * receiver.element_size())


def first_call() -> tuple[float, float]:
    """Seconds of a first call, forward and backward, with an empty and with a filled kernel cache."""
    code = (
        "import time, torch\n"
        "from messagenet.message_passing import relu_sum\n"
        "p, q = (torch.randn(1, 8, 8, 16, requires_grad=True) for _ in range(2))\n"
        "start = time.perf_counter()\n"
        "relu_sum(p, q, ((0, 1), (1, 0))).sum().backward()\n"
        "print(time.perf_counter() - start)\n"
    )
    with tempfile.TemporaryDirectory() as cache:
        runs = [
            subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "NUMBA_CACHE_DIR": cache},
                capture_output=True,
                text=True,
                check=True,
            )
            for _ in range(2)
        ]
    cold, warm = (float(run.stdout) for run in runs)
    return cold, warm


def main() -> None:
    print(machine())
    torch.manual_seed(0)
    features = torch.randn(1, SIDE, SIDE, CHANNELS)
    first = nn.Linear(2 * CHANNELS, HIDDEN)
    to_receiver, to_sender = first.weight[:, :CHANNELS], first.weight[:, CHANNELS:]
    receiver = (features @ to_receiver.T + first.bias).detach().requires_grad_()
    sender = (features @ to_sender.T).detach().requires_grad_()

    def from_features() -> torch.Tensor:
        return relu_sum(features @ to_receiver.T + first.bias, features @ to_sender.T, OFFSETS)

    def summed(backend: str) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            with use_backend(backend):
                return relu_sum(receiver, sender, OFFSETS)

        return run

    with torch.no_grad():
        edges = edge_list()
        torch.testing.assert_close(naive(features, first, *edges), from_features(), rtol=1e-3, atol=1e-2)
        ways = {"fused": summed("numba"), "loop": summed("loop"), "from features": from_features}
        forward = seconds(ways, turns=40)
        forward |= seconds({"naive": lambda: naive(features, first, *edges)}, turns=3)
        short, narrow = features[..., :256].contiguous(), nn.Linear(2 * 256, HIDDEN)
        forward |= seconds({"naive, 256 features": lambda: naive(short, narrow, *edges)}, turns=3)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        single = seconds({"fused": summed("numba"), "loop": summed("loop")}, turns=15)
        torch.set_num_threads(threads)
    train = seconds(
        {name: lambda name=name: trained(name, receiver, sender) for name in ("numba", "loop")}, turns=15
    )
    cold, warm = first_call()

    work = len(edges[0]) * HIDDEN
    rate = work / single["fused"] / 1e9
    print(f"{len(OFFSETS)} offsets, {len(edges[0])} edges inside the map, {work / 1e6:.1f} M relu-adds")
    print(
        f"forward             fused {1e3 * forward['fused']:7.2f} ms   loop {1e3 * forward['loop']:7.2f} ms"
    )
    print(f"forward, 1 thread   fused {1e3 * single['fused']:7.2f} ms   loop {1e3 * single['loop']:7.2f} ms")
    print(f"forward + backward  fused {1e3 * train['numba']:7.2f} ms   loop {1e3 * train['loop']:7.2f} ms")
    print(
        f"with projections    fused {1e3 * forward['from features']:7.2f} ms   naive {1e3 * forward['naive']:6.0f} ms"
    )
    print(
        f"one core: {rate:.1f} G relu-adds/s. One is an addition, a maximum and an addition; at 3 GHz with 8 float32 "
        f"lanes and two such operations a cycle the limit is 16 G/s, and 24 G/s with the second addition on the "
        f"multipliers: {100 * rate / 24:.0f}% of that"
    )
    print(f"first call, forward and backward: {cold:.2f} s with an empty cache, {warm:.2f} s from the cache")
    finish(
        forward_vs_loop=forward["loop"] / forward["fused"],
        forward_vs_naive=forward["naive"] / forward["fused"],
        forward_vs_naive_256_features=forward["naive, 256 features"] / forward["fused"],
        train_vs_loop=train["loop"] / train["numba"],
        extra_memory_nh=peak_extra_memory(receiver, sender),
        forward_vs_naive_with_projections=forward["naive"] / forward["from features"],
        forward_vs_loop_one_thread=single["loop"] / single["fused"],
        first_call_seconds=cold,
        cached_call_seconds=warm,
    )


if __name__ == "__main__":
    main()
