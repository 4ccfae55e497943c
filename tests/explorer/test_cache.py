"""The cache against a naive one, and with many hands on it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.explorer.explorer import ByteCache


class Load(NamedTuple):
    nbytes: int


def naive(steps: list[tuple[str, int, bool]], most: int) -> list[tuple[str, int]]:
    kept: list[tuple[str, int]] = []
    for key, size, is_put in steps:
        old = [entry for entry in kept if entry[0] == key]
        kept = [entry for entry in kept if entry[0] != key]
        kept += ([(key, size)] if size <= most else []) if is_put else old
        while sum(size for _, size in kept) > most:
            kept.pop(0)
    return kept


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 60), st.booleans())), st.integers(0, 100))
def test_keeps_what_a_naive_cache_keeps(steps, most):
    cache = ByteCache(most)
    for key, size, is_put in steps:
        if is_put:
            cache.put(key, Load(size))
        else:
            cache.get(key, Load)
    kept = naive(steps, most)
    assert cache.nbytes == sum(size for _, size in kept) <= most
    assert len(cache) == len(kept)
    assert [(key, value.nbytes) for key in "abcde" if (value := cache.get(key, Load))] == sorted(kept)


def test_many_hands():
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
