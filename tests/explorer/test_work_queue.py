"""The queue: order, groups, bounds, failures."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref

import pytest

from explorer.running import until
from messagenet.explorer.work_queue import Group, Overloaded, WorkQueue


class Gate:
    """Work that waits until it is let through, and remembers what came together."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.seen: list[list[str]] = []

    def __call__(self, items):
        self.seen.append(list(items))
        assert self.open.wait(30)
        return [item.upper() for item in items]


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


def test_groups_join_the_one_that_waited_longest(gate):
    queue = WorkQueue("test", gate, group=lambda item: Group(item[0], 3))
    futures = [queue.submit("x0")]
    until(lambda: gate.seen)
    futures += [queue.submit(item) for item in ("a1", "b1", "a2", "b2", "a3", "a4", "c1")]
    assert len(queue) == 7
    gate.open.set()
    assert [future.result(30) for future in futures] == ["X0", "A1", "B1", "A2", "B2", "A3", "A4", "C1"]
    assert gate.seen == [["x0"], ["a1", "a2", "a3"], ["b1", "b2"], ["a4"], ["c1"]]
    queue.close()


def test_a_full_queue_refuses_at_once_and_recovers(gate):
    queue = WorkQueue("test", gate, waiting=2)
    first = queue.submit("a")
    until(lambda: gate.seen)
    others = [queue.submit("b"), queue.submit("c")]
    with pytest.raises(Overloaded):
        queue.submit("d")
    gate.open.set()
    assert [future.result(30) for future in (first, *others)] == ["A", "B", "C"]
    assert queue.submit("d").result(30) == "D"
    queue.close()


def test_a_failure_is_told_to_those_it_concerns():
    def work(items):
        return [1 / item for item in items]

    queue = WorkQueue("test", work)
    bad, good = queue.submit(0), queue.submit(4)
    with pytest.raises(ZeroDivisionError):
        bad.result(30)
    assert good.result(30) == 0.25
    queue.close()


def test_who_stops_waiting_takes_the_job_back(gate):
    queue = WorkQueue("test", gate)
    first = queue.submit("a")
    until(lambda: gate.seen)

    async def impatient():
        await asyncio.wait_for(queue.run("b"), 0.05)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(impatient())
    gate.open.set()
    assert first.result(30) == "A"
    assert queue.submit("c").result(30) == "C"
    assert gate.seen == [["a"], ["c"]]
    queue.close()


def test_closing_cancels_what_waits(gate):
    queue = WorkQueue("test", gate)
    first, second = queue.submit("a"), queue.submit("b")
    until(lambda: gate.seen)
    threading.Timer(0.1, gate.open.set).start()
    queue.close()
    assert first.result(30) == "A"
    assert second.cancelled()
    with pytest.raises(Overloaded):
        queue.submit("c")


def test_nothing_of_a_job_is_kept():
    class Thing:
        pass

    queue = WorkQueue("test", lambda items: [None for _ in items])
    thing = Thing()
    watched = weakref.ref(thing)
    queue.submit(thing).result(30)
    del thing
    for _ in range(100):
        gc.collect()
        if watched() is None:
            break
        time.sleep(0.01)
    assert watched() is None
    queue.close()
