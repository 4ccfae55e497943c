"""Cost of a training step with learned messages and with conventional CRF learning, as the number of classes grows.

The same features (one image, 32×32 nodes, 256 channels), the paper's three relations with their whole range boxes, 256
hidden units: forward, loss and backward of the head,

    messages            T = 1, cross-entropy of the marginals                             K outputs per factor
    piecewise           a softmax over K² for every pair                                  K²
    pseudo-likelihood   every node given its neighbours' labels (fused: no tables)        K²
    likelihood          marginals by belief propagation, at most 20 iterations            K²

Every row has its own process, hence its own peak memory; its time is the minimum over several steps. Beyond 21 classes,
a row that would not fit into memory, or would exceed its budget of seconds, is not run: the table says what it would
need, extrapolated from the last row measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from common import QUICK, finish, isolated, peak_memory, start, status_kib
from messagenet import MessagePassing
from messagenet.graph.relations import PAPER_RELATIONS
from messagenet.losses import LossSum
from messagenet.losses.cross_entropy import marginal_cross_entropy
from messagenet.models import CRFHead
from messagenet.settings import build

NODES, CHANNELS, HIDDEN = (8, 8, 8) if QUICK else (32, 256, 256)
CLASSES = (21, 150) if QUICK else (7, 21, 60, 150)
OBJECTIVES = ("messages", "piecewise", "pseudo_likelihood", "likelihood")
ALWAYS = 21
"""Rows up to this many classes run whatever they need."""
MAX_SECONDS = 0.0 if QUICK else 75.0
"""Of one step, beyond `ALWAYS` classes."""


def build_loss(objective: str, num_classes: int) -> tuple[torch.nn.Module, Callable[[Tensor, Tensor], LossSum]]:
    """Returns a head, and its loss as a function of features and labels."""
    torch.manual_seed(0)
    if objective == "messages":
        head = MessagePassing(CHANNELS, num_classes, PAPER_RELATIONS, hidden=HIDDEN)
        return head, lambda features, labels: marginal_cross_entropy(head(features), labels, stride=1)
    crf = CRFHead(CHANNELS, num_classes, PAPER_RELATIONS, hidden=HIDDEN, neighbours="all")
    loss = build("loss", objective)
    return crf, lambda features, labels: loss.on_features(crf, features, labels)


def measure(objective: str, num_classes: int) -> dict[str, float]:
    """Returns seconds and peak memory (GiB) of a step in this process."""
    head, loss = build_loss(objective, num_classes)
    small = torch.randn(1, CHANNELS, 6, 6, requires_grad=True)
    loss(small, torch.randint(0, num_classes, (1, 6, 6))).mean.backward()  # compiles the kernels
    features = torch.randn(1, CHANNELS, NODES, NODES, requires_grad=True)
    labels = torch.randint(0, 2, (1, NODES // 8, NODES // 8)).repeat_interleave(8, 1).repeat_interleave(8, 2)
    labels = (labels * torch.arange(1, num_classes + 1).repeat(NODES)[:NODES]) % num_classes  # many classes
    before = peak_memory()
    best, started = math.inf, time.perf_counter()
    for _ in range(1 if QUICK else 100):
        head.zero_grad(set_to_none=True)
        start = time.perf_counter()
        loss(features, labels).mean.backward()
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() - started > 5:
            break
    return {"seconds": best, "gib": peak_memory() - before}


def available_memory() -> float:
    """Returns the GiB that a process may still allocate."""
    try:
        return status_kib("/proc/meminfo", "MemAvailable") / 2**20
    except OSError:
        return math.inf


def measure_all(objective: str) -> dict[int, dict[str, Any]]:
    """Returns one row per number of classes: its figures, or why it has none."""
    rows: dict[int, dict[str, Any]] = {}
    for num_classes in CLASSES:
        always = num_classes <= ALWAYS or objective == "messages"
        reason = None if always else too_expensive(rows, num_classes)
        if reason is None:
            try:
                rows[num_classes] = isolated(measure, objective, num_classes, timeout=2 * MAX_SECONDS)
            except ChildProcessError as error:
                reason = str(error)
        if reason is not None:
            rows[num_classes] = {"reason": reason}
        print(f"{objective:18s} K = {num_classes:3d}  {row_text(rows[num_classes])}", flush=True)
    return rows


def too_expensive(rows: dict[int, dict[str, Any]], num_classes: int) -> str | None:
    """Extrapolates the last row measured by K²; returns what is needed if that is too much."""
    last = max(k for k, row in rows.items() if "reason" not in row)
    growth = (num_classes / last) ** 2
    gib, seconds = (rows[last][name] * growth for name in ("gib", "seconds"))
    if gib > 0.8 * available_memory():
        return f"needs {gib:.0f} GiB"
    return f"needs about {seconds:.0f} s and {gib:.1f} GiB" if seconds > MAX_SECONDS else None


def row_text(row: dict[str, Any]) -> str:
    return row["reason"] if "reason" in row else f"{row['seconds']:8.3f} s  {row['gib']:6.2f} GiB"


def main() -> None:
    start(__doc__)
    table = {objective: measure_all(objective) for objective in OBJECTIVES}
    print("\n| objective | " + " | ".join(f"K = {k}" for k in CLASSES) + " |")
    print("|---|" + "---:|" * len(CLASSES))
    for objective, rows in table.items():
        print(f"| {objective} | " + " | ".join(" ".join(row_text(rows[k]).split()) for k in CLASSES) + " |")

    def step_seconds(objective: str, num_classes: int) -> float:
        return float(table[objective][num_classes].get("seconds", math.nan))

    messages = step_seconds("messages", 21)
    finish(
        piecewise_vs_messages_k21=step_seconds("piecewise", 21) / messages,
        pseudo_likelihood_vs_messages_k21=step_seconds("pseudo_likelihood", 21) / messages,
        likelihood_vs_messages_k21=step_seconds("likelihood", 21) / messages,
        messages_k150_vs_k21=step_seconds("messages", 150) / messages,
    )


if __name__ == "__main__":
    main()
