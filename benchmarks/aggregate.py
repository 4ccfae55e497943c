"""The fused sum over a range box against a loop over offsets and against concatenate-and-multiply.

32×32 nodes, 13×13 box (168 senders), 256 hidden units, float32. What each computes, for every node p,

    naive   Σ_q relu(W [f_p ; f_q] + b)          one matrix product per edge, as a first implementation would
    loop    Σ_q relu(P_p + Q_q)                  P, Q per node; a Python loop over 168 offsets
    fused   Σ_q relu(P_p + Q_q)                  `messagenet.estimators.relu_sum`

Forward of naive and fused includes the products that make their inputs from features, so that like is compared
with like; loop against fused is the sum alone.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import time
import tracemalloc

from common import finish, machine, seconds

import torch
from torch import nn

from messagenet import surrounding
from messagenet.estimators import relu_sum, use_backend

SIDE, HIDDEN, CHANNELS = 32, 256, 256
OFFSETS = surrounding(cells=13).offsets_on(SIDE, SIDE)


def naive(features: torch.Tensor, first: nn.Linear, rows: int) -> torch.Tensor:
    """Concatenate-and-multiply for the first `rows` rows of nodes (all of it would need 90 MB an edge type)."""
    side = features.shape[1]
    sums = []
    for y in range(rows):
        for x in range(side):
            senders = [
                features[0, y + dy, x + dx] for dy, dx in OFFSETS if 0 <= y + dy < side and 0 <= x + dx < side
            ]
            pairs = torch.cat([features[0, y, x].expand(len(senders), -1), torch.stack(senders)], 1)
            sums.append(torch.relu(first(pairs)).sum(0))
    return torch.stack(sums).reshape(rows, side, -1)


def trained(backend: str, receiver: torch.Tensor, sender: torch.Tensor) -> None:
    with use_backend(backend):
        total = relu_sum(receiver, sender, OFFSETS)
        torch.autograd.grad(total.sum(), (receiver, sender))


def peak_extra_memory(receiver: torch.Tensor, sender: torch.Tensor) -> float:
    """Peak memory of forward + backward beyond the inputs, in units of N·h floats, by the allocator's own count."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        total = relu_sum(receiver, sender, OFFSETS)
        torch.autograd.grad(total, (receiver, sender), torch.ones_like(total))
    now = peak = 0
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak / (receiver.numel() * receiver.element_size())


def first_call() -> tuple[float, float]:
    """Seconds of a first call, forward and backward, with an empty and with a filled kernel cache."""
    code = (
        "import time, torch\n"
        "from messagenet.estimators import relu_sum\n"
        "p, q = (torch.randn(1, 8, 8, 16, requires_grad=True) for _ in range(2))\n"
        "start = time.perf_counter()\n"
        "relu_sum(p, q, ((0, 1), (1, 0))).sum().backward()\n"
        "print(time.perf_counter() - start)\n"
    )
    with tempfile.TemporaryDirectory() as cache:
        runs = [
            subprocess.run(
                [sys.executable, "-c", code], env={"NUMBA_CACHE_DIR": cache}, capture_output=True, text=True, check=True
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

    def fused_from_features() -> torch.Tensor:
        return relu_sum(features @ to_receiver.T + first.bias, features @ to_sender.T, OFFSETS)

    def looped() -> None:
        with use_backend("loop"):
            relu_sum(receiver, sender, OFFSETS)

    with torch.no_grad():
        rows = 4
        torch.testing.assert_close(
            naive(features, first, rows), fused_from_features()[0, :rows], rtol=1e-3, atol=1e-2
        )
        forward = seconds({"fused": lambda: relu_sum(receiver, sender, OFFSETS), "loop": looped}, turns=30)
        whole = seconds(
            {"naive": lambda: naive(features, first, SIDE), "fused": fused_from_features}, turns=3, budget=120
        )
    train = seconds(
        {name: lambda name=name: trained(name, receiver, sender) for name in ("numba", "loop")}, turns=15
    )
    torch.set_num_threads(1)
    single = seconds({"fused": lambda: relu_sum(receiver.detach(), sender.detach(), OFFSETS), "loop": looped}, turns=10)
    torch.set_num_threads(max(2, torch.get_num_threads()))

    pairs = sum((SIDE - abs(dy)) * (SIDE - abs(dx)) for dy, dx in OFFSETS)
    work = pairs * HIDDEN
    print(f"{len(OFFSETS)} offsets, {pairs} edges inside the map, {work / 1e6:.1f} M relu-adds (3 operations each)")
    print(f"forward            fused {1e3 * forward['fused']:8.2f} ms   loop {1e3 * forward['loop']:8.2f} ms")
    print(f"forward, 1 thread  fused {1e3 * single['fused']:8.2f} ms   loop {1e3 * single['loop']:8.2f} ms")
    print(f"forward + backward fused {1e3 * train['numba']:8.2f} ms   loop {1e3 * train['loop']:8.2f} ms")
    print(f"from features      fused {1e3 * whole['fused']:8.2f} ms   naive {1e3 * whole['naive']:7.0f} ms")
    rate = work / single["fused"] / 1e9
    print(
        f"one core: {rate:.1f} G relu-adds/s. With 8 float32 lanes and two adders, an AVX2 core at 3 GHz can do "
        f"24 G/s (two of the three operations are additions): {100 * rate / 24:.0f}% of that"
    )
    cold, warm = first_call()
    print(f"first call (forward + backward): {cold:.2f} s with an empty cache, {warm:.2f} s afterwards")
    finish(
        forward_vs_loop=forward["loop"] / forward["fused"],
        forward_vs_naive=whole["naive"] / whole["fused"],
        train_vs_loop=train["loop"] / train["numba"],
        extra_memory_nh=peak_extra_memory(receiver, sender),
        forward_vs_loop_one_thread=single["loop"] / single["fused"],
        first_call_seconds=cold,
        cached_call_seconds=warm,
    )


if __name__ == "__main__":
    main()
