"""The cache against a naive one and from many threads, and free memory that goes back to the system."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.explorer import explorer as explorer_module
from messagenet.explorer.explorer import ByteCache, Trimmer


class Load(NamedTuple):
    nbytes: int


def naive(steps: list[tuple[str, int, bool]], max_bytes: int) -> list[tuple[str, int]]:
    cached: list[tuple[str, int]] = []
    for key, size, is_put in steps:
        old = [entry for entry in cached if entry[0] == key]
        cached = [entry for entry in cached if entry[0] != key]
        cached += ([(key, size)] if size <= max_bytes else []) if is_put else old
        while sum(size for _, size in cached) > max_bytes:
            cached.pop(0)
    return cached


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 60), st.booleans())), st.integers(0, 100))
def test_caches_what_a_naive_cache_does(steps, max_bytes):
    cache = ByteCache(max_bytes)
    for key, size, is_put in steps:
        if is_put:
            cache.put(key, Load(size))
        else:
            cache.get(key, Load)
    cached = naive(steps, max_bytes)
    assert cache.nbytes == sum(size for _, size in cached) <= max_bytes
    assert len(cache) == len(cached)
    assert [(key, value.nbytes) for key in "abcde" if (value := cache.get(key, Load))] == sorted(cached)


def test_many_threads():
    cache = ByteCache(1000)

    def work(seed: int) -> None:
        for step in range(2000):
            key = (seed * 7 + step * 13) % 50
            if cache.get(key, Load) is None:
                cache.put(key, Load(10 + key))
            assert cache.nbytes <= 1000 + 60

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    left = [value.nbytes for key in range(50) if (value := cache.get(key, Load))]
    assert cache.nbytes == sum(left) <= 1000


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux" or explorer_module._trim_function() is None, reason="not the GNU C library")
def test_holes_between_used_blocks_are_given_back():
    blocks = [torch.ones(25_000) for _ in range(2000)]  # 100 kB each, too small for pages of their own
    used = blocks[::10]
    full = resident()
    del blocks
    Trimmer(0)()
    assert full - resident() > 100_000_000
    assert all(values.sum() == 25_000 for values in used)


def test_not_too_often(monkeypatch):
    calls = []
    monkeypatch.setattr(explorer_module, "_trim_function", lambda: calls.append)
    rare, often = Trimmer(1000), Trimmer(0)
    for _ in range(5):
        rare()
    assert calls == []
    for _ in range(3):
        often()
    assert calls == [0, 0, 0]


def test_elsewhere_nothing_happens(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    Trimmer(0)()
