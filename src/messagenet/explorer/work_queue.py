"""One thread that works through a bounded queue, taking jobs that go together at once.

The job that has waited longest is always next, so nobody starves; of those behind it, the ones of its group join it.
A full queue refuses at once instead of falling behind.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Overloaded(Exception):
    """Too much is waiting already."""


class Group(NamedTuple):
    """Which jobs go together, and how many of them at most."""

    name: Hashable
    most: int


def alone(_: object) -> Group:
    """Every job by itself."""
    return Group(None, 1)


@dataclass(frozen=True)
class Job(Generic[Item, Result]):
    """What waits."""

    item: Item
    group: Group
    future: Future[Result]


class WorkQueue(Generic[Item, Result]):
    """A bounded queue and the thread that serves it.

    >>> queue = WorkQueue("double", lambda numbers: [2 * number for number in numbers])
    >>> queue.submit(21).result()
    42
    >>> queue.close()

    Args:
        name: Of the thread.
        work: Answers jobs that go together, in their order.
        waiting: How many jobs may wait.
        group: Which jobs go together.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        waiting: int = 64,
        group: Callable[[Item], Group] = alone,
    ) -> None:
        self.name = name
        self._work, self._most_waiting, self._group = work, waiting, group
        self._jobs: deque[Job[Item, Result]] = deque()
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._serve, name=f"messagenet {name}", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._jobs)

    def submit(self, item: Item) -> Future[Result]:
        """Puts a job in the queue; raises `Overloaded` if it is full."""
        job: Job[Item, Result] = Job(item, self._group(item), Future())
        with self._changed:
            if self._closed or len(self._jobs) >= self._most_waiting:
                raise Overloaded(self.name)
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    async def run(self, item: Item) -> Result:
        """Puts a job in the queue and waits for its result; who stops waiting takes the job back."""
        return await asyncio.wrap_future(self.submit(item))

    def close(self) -> None:
        """Ends the thread after its present work; jobs that still wait are cancelled."""
        with self._changed:
            self._closed = True
            for job in self._jobs:
                job.future.cancel()
            self._jobs.clear()
            self._changed.notify()
        self._thread.join()

    def _serve(self) -> None:
        while not self._closed:
            self._answer(self._next())  # nothing of a job outlives its call

    def _answer(self, jobs: Sequence[Job[Item, Result]]) -> None:
        wanted = [job for job in jobs if job.future.set_running_or_notify_cancel()]
        if not wanted:
            return
        try:
            results = self._work([job.item for job in wanted])
        except Exception as error:
            for job in wanted:
                job.future.set_exception(error)
            return
        for job, result in zip(wanted, results, strict=True):
            job.future.set_result(result)

    def _next(self) -> list[Job[Item, Result]]:
        """The job that has waited longest with those of its group; none when the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if self._closed:
                return []
            group, taken, left = self._jobs[0].group, list[Job[Item, Result]](), deque[Job[Item, Result]]()
            for job in self._jobs:
                joins = not taken or (job.group == group and len(taken) < group.most)
                (taken if joins else left).append(job)
            self._jobs = left
            return taken
