"""What every benchmark here needs: the machine it ran on, and times that can be compared.

Ratios are taken within one run, between functions that are timed in turns, so that a busy machine slows all of
them alike. The time of a function is the smallest of its turns.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

if os.environ.get("OMP_WAIT_POLICY") != "PASSIVE":
    # Idle threads must sleep, not spin against the next function timed; OpenMP reads this when torch is loaded.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def machine() -> str:
    """One line on the machine and the versions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads (passive), "
        f"torch {torch.__version__}, Python {platform.python_version()}, {load}"
    )


def seconds(
    functions: Mapping[str, Callable[[], Any]], turns: int = 10, budget: float = 60.0
) -> dict[str, float]:
    """The smallest time of each function, all of them called in turns, after one call to warm up."""
    best = {}
    for name, function in functions.items():
        function()
        best[name] = float("inf")
    started = time.perf_counter()
    for turn in range(turns):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - start)
        if turn >= 2 and time.perf_counter() - started > budget:
            break
    return best


def finish(**ratios: float) -> None:
    """The last line: one JSON object of the named ratios; what could not be measured (NaN) is null."""
    print(
        json.dumps({name: None if math.isnan(value) else round(value, 3) for name, value in ratios.items()})
    )
