"""Learned messages over a large graph: time per factor, and memory that does not grow with the hidden units.

Pairwise factors, twice as many as variables, K = 10 classes, 64 hidden units, T = 3 iterations with exact cavities,
float32; forward, loss and backward. Between iterations only messages are stored, so back-propagation needs

    4 bytes · [ (T − 1) · slots · K  +  5 · variables · hidden ]            slots = 2 · factors

(incoming messages per slot and iteration; per variable P, Q, the first iteration's Q, the last one's sum, and the unary
factor's hidden units). A network over a list of edges would store T · slots · hidden. The peak also holds the graph's
index lists (48 bytes per slot), the gradients of the stored tensors, and PyTorch itself.

The indices of neighbours differ by at most 1,000 ("near"), as in graphs numbered along their structure, or by any
amount ("scattered"), so that every message costs several cache misses. Each graph has its own process; the time is the
minimum of two steps.
"""

from __future__ import annotations

import time

import torch

from common import GIB, QUICK, finish, isolated, peak_memory, start
from messagenet.graph.typed import TypedGraph
from messagenet.message_passing import FactorType, GraphMessagePassing

CLASSES, HIDDEN, CHANNELS, ITERATIONS = 10, 64, 32, 3
SMALL, LARGE, NEAR = (100, 1_000, 10) if QUICK else (100_000, 1_000_000, 1_000)


def float32_gib(count: float) -> float:
    """GiB of `count` float32 values."""
    return 4 * count / GIB


def measure(factors: int, reach: int) -> tuple[float, float, float]:
    """Returns seconds of indexing and of a training step, and the process's peak memory in GiB."""
    torch.manual_seed(0)
    variables = factors // 2
    first = torch.randint(variables, (factors,))
    second = (first + torch.randint(1, min(reach, variables), (factors,))) % variables
    graph = TypedGraph.build(variables, {"pair": torch.stack([first, second], 1)})
    pair = FactorType(2, ordered=False, degree=4)
    head = GraphMessagePassing(CHANNELS, CLASSES, {"pair": pair}, hidden=HIDDEN, iterations=ITERATIONS)
    features, labels = torch.randn(variables, CHANNELS), torch.randint(CLASSES, (variables,))
    start = time.perf_counter()
    graph.message_index("pair", ordered=False, sends_to=None)
    indexing = time.perf_counter() - start
    steps = []
    for _ in range(2):
        start = time.perf_counter()
        head.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(head(features, graph), labels).backward()
        steps.append(time.perf_counter() - start)
    return indexing, min(steps), peak_memory()


def report(name: str, factors: int, reach: int) -> tuple[float, float]:
    """Measures a graph in its own process and prints the figures; returns seconds of a step and peak memory."""
    indexing, step, peak = isolated(measure, factors, reach)
    print(
        f"{factors:9,} factors, {name}: indexing {indexing:.2f} s, forward and backward {step:.2f} s "
        f"({1e6 * step / factors:.2f} µs per factor), peak {peak:.2f} GiB",
        flush=True,
    )
    return step, peak


def main() -> None:
    start(__doc__)
    small, _ = report("near", SMALL, NEAR)
    large, peak = report("near", LARGE, NEAR)
    scattered, _ = report("scattered", LARGE, LARGE)
    finish(
        seconds_per_million_factors=large * 1e6 / LARGE,
        time_ratio_1m_vs_100k_per_factor=(large / LARGE) / (small / SMALL),
        scattered_vs_near=scattered / large,
        peak_gib=peak,
        stored_gib_formula=float32_gib((ITERATIONS - 1) * 2 * LARGE * CLASSES + 5 * (LARGE // 2) * HIDDEN),
        hidden_gib_if_stored=float32_gib(ITERATIONS * 2 * LARGE * HIDDEN),
    )


if __name__ == "__main__":
    main()
