"""What every peer's script needs; it runs in the peer's environment and so imports nothing of ours."""

import json
import os
import time

import numpy as np


def fix_to_one_core():
    """One core for this process and all threads it starts."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def smallest(function, turns=5):
    """The smallest time of several calls, in seconds."""
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def finish(path, times, **answer):
    """Writes the answer; the last line printed is the times."""
    np.savez(path, **answer)
    print(json.dumps(times))
