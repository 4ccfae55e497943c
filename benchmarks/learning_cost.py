"""What a training step costs with learned messages and with conventional CRF learning, as the classes grow.

The same features (one image, 32×32 nodes, 256 channels), the paper's three relations with their whole range boxes, 256
hidden units: forward, loss and backward of the head,

    messages            T = 1, cross-entropy of the marginals                             K outputs per factor
    piecewise           a softmax over K² for every pair                                  K²
    pseudo-likelihood   every node given its neighbours' labels (fused: no tables)        K²
    likelihood          marginals by belief propagation, at most 20 iterations            K²

Every row is a process of its own, so that its peak memory is its own; its time is the smallest of several steps.
Beyond 21 classes, a row that would not fit the memory, or take longer than its budget of seconds, is not run: the table
says what it would need, from the row before it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from common import finish, machine
from messagenet import MessagePassing
from messagenet.losses.cross_entropy import Loss
from messagenet.models import PAPER_RELATIONS
from messagenet.models.base import marginal_loss
from messagenet.models.crf import CRFHead

NODES, CHANNELS, HIDDEN = 32, 256, 256
CLASSES = (7, 21, 60, 150)
OBJECTIVES = ("messages", "piecewise", "pseudo_likelihood", "likelihood")
ALWAYS = 21
BUDGET = 75.0
GIB = 2.0**30


def loss_of(objective: str, num_classes: int) -> tuple[torch.nn.Module, Any]:
    """A head, and the function that gives the loss of its features and labels."""
    torch.manual_seed(0)
    if objective == "messages":
        head = MessagePassing(CHANNELS, num_classes, PAPER_RELATIONS, hidden=HIDDEN)

        def loss(features: torch.Tensor, labels: torch.Tensor) -> Loss:
            return marginal_loss(head(features), labels)

        return head, loss
    crf = CRFHead(
        CHANNELS,
        num_classes,
        PAPER_RELATIONS,
        hidden=HIDDEN,
        neighbours="all",
        objective=objective,  # type: ignore[arg-type]
    )
    return crf, crf.loss


def run_row(objective: str, num_classes: int) -> dict[str, float]:
    """Seconds and peak memory of a step, in this process."""
    head, loss = loss_of(objective, num_classes)
    small = torch.randn(1, CHANNELS, 6, 6, requires_grad=True)
    loss(small, torch.randint(0, num_classes, (1, 6, 6))).mean.backward()  # compiles what is compiled
    features = torch.randn(1, CHANNELS, NODES, NODES, requires_grad=True)
    labels = torch.randint(0, 2, (1, NODES // 8, NODES // 8)).repeat_interleave(8, 1).repeat_interleave(8, 2)
    labels = (labels * torch.arange(1, num_classes + 1).repeat(NODES)[:NODES]) % num_classes  # many classes
    before = peak()
    best, started = float("inf"), time.perf_counter()
    for _ in range(100):
        head.zero_grad(set_to_none=True)
        start = time.perf_counter()
        loss(features, labels).mean.backward()
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() - started > 5:
            break
    return {"seconds": best, "gib": (peak() - before) / GIB}


def peak() -> float:
    """The largest memory that this process has had, in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024.0 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    except OSError:
        import resource

        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def available() -> float:
    """GiB that a process may still take."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) / GIB
    except OSError:
        return float("inf")


def rows_of(objective: str) -> dict[int, dict[str, Any]]:
    """All rows of an objective: measured, or why not."""
    found: dict[int, dict[str, Any]] = {}
    for num_classes in CLASSES:
        row: dict[str, Any] = {}
        if num_classes > ALWAYS and objective != "messages":
            last = max(known for known, figures in found.items() if "gib" in figures)
            growth = (num_classes / last) ** 2
            needs = {"gib": found[last]["gib"] * growth, "seconds": found[last]["seconds"] * growth}
            if needs["gib"] > 0.8 * available():
                row = {"why": f"needs {needs['gib']:.0f} GiB"}
            elif needs["seconds"] > BUDGET:
                row = {"why": f"needs about {needs['seconds']:.0f} s and {needs['gib']:.1f} GiB"}
        found[num_classes] = row or measured(objective, num_classes)
        print(f"{objective:18s} K = {num_classes:3d}  {described(found[num_classes])}", flush=True)
    return found


def measured(objective: str, num_classes: int) -> dict[str, Any]:
    """A row in a process of its own."""
    command = [sys.executable, __file__, "--row", objective, str(num_classes)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * BUDGET, check=False)
    except subprocess.TimeoutExpired:
        return {"why": f"took more than {2 * BUDGET:.0f} s"}
    if done.returncode:
        return {"why": (done.stderr.strip().splitlines() or [f"killed ({done.returncode})"])[-1]}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def described(row: dict[str, Any]) -> str:
    return row["why"] if "why" in row else f"{row['seconds']:8.3f} s  {row['gib']:6.2f} GiB"


def main() -> None:
    print(machine())
    table = {objective: rows_of(objective) for objective in OBJECTIVES}
    print("\n| objective | " + " | ".join(f"K = {k}" for k in CLASSES) + " |")
    print("|---|" + "---:|" * len(CLASSES))
    for objective, rows in table.items():
        print(f"| {objective} | " + " | ".join(" ".join(described(rows[k]).split()) for k in CLASSES) + " |")

    def ratio(above: str, k: int, below: str, other: int) -> float:
        figures = table[above][k].get("seconds"), table[below][other].get("seconds")
        return float("nan") if None in figures else figures[0] / figures[1]

    finish(
        piecewise_vs_messages_k21=ratio("piecewise", 21, "messages", 21),
        pseudo_likelihood_vs_messages_k21=ratio("pseudo_likelihood", 21, "messages", 21),
        likelihood_vs_messages_k21=ratio("likelihood", 21, "messages", 21),
        messages_k150_vs_k21=ratio("messages", 150, "messages", 21),
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--row"]:
        print(json.dumps(run_row(sys.argv[2], int(sys.argv[3]))))
    else:
        main()
