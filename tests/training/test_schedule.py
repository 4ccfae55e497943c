"""The learning rate, against one written out step by step."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.training.learner import poly_factor


def written_out(total: int, warmup: int, power: float) -> list[float]:
    factors = []
    while warmup > total / 2:
        warmup -= 1
    for step in range(total):
        if step < warmup:
            factors.append((step + 1) / warmup)
        else:
            left = total - step
            factors.append((left / (total - warmup)) ** power)
    return factors


@given(total=st.integers(1, 60), warmup=st.integers(0, 70), power=st.floats(0, 3))
@settings(max_examples=60, deadline=None)
def test_poly_with_warm_up(total: int, warmup: int, power: float) -> None:
    found = [poly_factor(step, total, warmup, power) for step in range(total)]
    for value, expected in zip(found, written_out(total, warmup, power), strict=True):
        assert abs(value - expected) < 1e-12
    assert max(found) == 1.0
    assert min(found) > 0


def test_it_begins_low_peaks_and_ends_near_zero() -> None:
    found = [poly_factor(step, 100, 10, 0.9) for step in range(100)]
    assert found[0] == 0.1
    assert found[9] == found[10] == 1.0
    assert sorted(found[10:], reverse=True) == found[10:]
    assert found[-1] < 0.02
