"""Learned messages over a large graph: time per factor, and memory that hidden units take no part in.

Pairwise factors, twice as many as variables, K = 10 classes, 64 hidden units, T = 3 iterations with exact cavities,
float32; forward, loss and backward. Between iterations only messages are kept, so back-propagation needs

    4 bytes · [ (T − 1) · slots · K  +  5 · variables · hidden ]            slots = 2 · factors

(what was told, per slot and iteration; and per variable P, Q, the first iteration's Q, the last one's sum and the
unary factor's hidden units), where a network over a list of edges would keep T · slots · hidden. The peak holds
besides that the graph's index lists (48 bytes per slot), the gradients of what was kept, and PyTorch itself.

Neighbours are at most 1,000 numbers apart, as in graphs whose numbering follows their structure; "scattered" ones are
anywhere, so that every message costs several misses of the cache. Each graph has a process of its own; the time is the
faster of two steps.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import torch

from common import finish, machine
from messagenet.graph.typed import TypedGraph
from messagenet.message_passing import FactorType, GraphMessagePassing

CLASSES, HIDDEN, CHANNELS, ITERATIONS = 10, 64, 32, 3
SMALL, LARGE, NEAR = 100_000, 1_000_000, 1_000


def gib(numbers: float) -> float:
    """GiB of so many float32."""
    return 4 * numbers / 2**30


def measure(factors: int, reach: int) -> tuple[float, float, float]:
    """Seconds of the layout and of a training step, and the process's peak memory in GiB."""
    torch.manual_seed(0)
    variables = factors // 2
    first = torch.randint(variables, (factors,))
    second = (first + torch.randint(1, min(reach, variables), (factors,))) % variables
    graph = TypedGraph.build(variables, {"pair": torch.stack([first, second], 1)})
    head = GraphMessagePassing(
        CHANNELS,
        CLASSES,
        {"pair": FactorType(2, ordered=False, degree=4)},
        hidden=HIDDEN,
        iterations=ITERATIONS,
    )
    features, labels = torch.randn(variables, CHANNELS), torch.randint(CLASSES, (variables,))
    start = time.perf_counter()
    graph.layout("pair", ordered=False, sends_to=None)
    layout = time.perf_counter() - start
    steps = []
    for _ in range(2):
        start = time.perf_counter()
        head.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(head(features, graph), labels).backward()
        steps.append(time.perf_counter() - start)
    return layout, min(steps), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def in_a_process(what: str, factors: int, reach: int) -> tuple[float, float]:
    """Seconds of a step and peak memory, measured in a process of its own and printed."""
    run = subprocess.run(
        [sys.executable, __file__, str(factors), str(reach)], capture_output=True, text=True, check=True
    )
    layout, step, peak = map(float, run.stdout.split())
    print(
        f"{factors:9,} factors, {what}: layout {layout:.2f} s, forward and backward {step:.2f} s "
        f"({1e6 * step / factors:.2f} µs per factor), peak {peak:.2f} GiB",
        flush=True,
    )
    return step, peak


def main() -> None:
    if len(sys.argv) > 1:
        print(*measure(int(sys.argv[1]), int(sys.argv[2])))
        return
    print(machine())
    small, _ = in_a_process("near", SMALL, NEAR)
    large, peak = in_a_process("near", LARGE, NEAR)
    scattered, _ = in_a_process("scattered", LARGE, LARGE)
    finish(
        seconds_per_million_factors=large * 1e6 / LARGE,
        time_ratio_1m_vs_100k_per_factor=(large / LARGE) / (small / SMALL),
        scattered_vs_near=scattered / large,
        peak_gib=peak,
        kept_gib_formula=gib((ITERATIONS - 1) * 2 * LARGE * CLASSES + 5 * (LARGE // 2) * HIDDEN),
        hidden_gib_if_kept=gib(ITERATIONS * 2 * LARGE * HIDDEN),
    )


if __name__ == "__main__":
    main()
