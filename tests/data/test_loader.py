from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.data import epoch_order


@given(st.integers(1, 60), st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_is_a_permutation_given_by_seed_and_epoch(count: int, seed: int, epoch: int) -> None:
    order = epoch_order(count, seed, epoch)
    assert sorted(order.tolist()) == list(range(count))
    assert np.array_equal(order, epoch_order(count, seed, epoch))


def test_epochs_and_seeds_differ() -> None:
    orders = [tuple(epoch_order(50, seed, epoch)) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9
