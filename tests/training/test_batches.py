"""Who sees what in which step."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.data import epoch_order
from messagenet.training.batches import Plan
from messagenet.training.config import RunConfig


def steps_of(plan: Plan, start: int = 0) -> list[list[tuple[int, int]]]:
    """The keys of every step in order of batches, then processes."""
    ranks = [list(plan.batches(rank, start)) for rank in range(plan.processes)]
    steps = []
    for first in range(0, len(ranks[0]), plan.accumulate):
        keys = [key for number in range(plan.accumulate) for rank in ranks for key in rank[first + number]]
        steps.append(keys)
    return steps


@given(
    samples=st.integers(1, 30),
    batch=st.integers(1, 3),
    accumulate=st.integers(1, 3),
    processes=st.integers(1, 3),
    steps=st.integers(1, 12),
    start=st.integers(0, 12),
)
@settings(max_examples=60, deadline=None)
def test_steps_depend_on_the_global_batch_alone(
    samples: int, batch: int, accumulate: int, processes: int, steps: int, start: int
) -> None:
    plan = Plan(samples, batch, accumulate, processes, steps, seed=3)
    whole = Plan(samples, plan.global_batch, 1, 1, steps, seed=3)
    assert steps_of(plan) == steps_of(whole)
    assert steps_of(plan, start) == steps_of(plan)[start:]


@given(samples=st.integers(1, 30), batch=st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_an_epoch_shows_every_sample_in_its_order(samples: int, batch: int) -> None:
    plan = Plan.of(RunConfig(epochs=2, batch_size=batch, seed=5), samples, 1)
    keys = [key for step in steps_of(plan) for key in step]
    each = plan.steps_per_epoch * batch
    assert len(keys) == 2 * each
    for epoch in range(2):
        part = keys[epoch * each : (epoch + 1) * each]
        assert {number for number, _ in part} == {epoch}
        order = epoch_order(samples, 5, epoch).tolist()
        assert [index for _, index in part][:samples] == order
        assert [index for _, index in part][samples:] == (order * batch)[: each - samples]


def test_steps_win_over_epochs() -> None:
    assert Plan.of(RunConfig(epochs=3, batch_size=2), 5, 1).total_steps == 9
    assert Plan.of(RunConfig(epochs=3, steps=4, batch_size=2), 5, 1).total_steps == 4


KILLED = """
import multiprocessing, time
import numpy as np
from messagenet.training.batches import make_loader, only

class Large:
    def __getitem__(self, index):
        return np.zeros(10**6)

batches = iter(make_loader(Large(), [[index] for index in range(100)], only, workers=2))
next(batches)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
time.sleep(600)
"""


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_workers_do_not_outlive_a_killed_process() -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2
        assert all(map(is_running, workers))
        parent.kill()
    limit = time.monotonic() + 30  # they were waiting for ever
    while any(map(is_running, workers)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(map(is_running, workers))
