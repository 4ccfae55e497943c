"""Shared by the peers' scripts; runs in the peer's environment, so it imports nothing of messagenet."""

import json
import os
import time

import numpy as np


def fix_to_one_core():
    """Restricts this process and all its threads to one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def smallest(function, turns=5):
    """Returns the minimum time of several calls, in seconds."""
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def finish(path, times, **answer):
    """Writes the answer and prints the times as the last line."""
    np.savez(path, **answer)
    print(json.dumps(times))
