"""Rare classes come more often, in total as often as they are due; the order of an epoch is a permutation."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.data import VOID, ClassSubset, SyntheticScenes, balanced_indices, epoch_order
from messagenet.data.dataset import ConcatData, Subset
from messagenet.data.sampling import class_presence, repeat_factors, repeat_indices


@given(factors=st.lists(st.floats(1, 9), min_size=1, max_size=60), seed=st.integers(0, 99))
@settings(deadline=None)
def test_everyone_comes_as_often_as_due_give_or_take_one(factors: list[float], seed: int) -> None:
    due = np.array(factors)
    times = np.bincount(repeat_indices(due, seed), minlength=len(due))
    assert (times >= 1).all()
    assert (np.abs(times - due) < 1 + 1e-6).all()
    assert abs(times.sum() - due.sum()) <= 1 + 1e-6


def test_rounding_is_right_on_average() -> None:
    due = np.array([1.0, 1.3, 2.5, 1.9])
    times = np.mean([np.bincount(repeat_indices(due, seed), minlength=4) for seed in range(2000)], axis=0)
    np.testing.assert_allclose(times, due, atol=0.05)


def test_with_power_1_classes_that_never_meet_come_equally_often() -> None:
    presence = np.zeros((120, 3), bool)
    presence[:80, 0] = presence[80:110, 1] = presence[110:, 2] = True
    shown = presence[repeat_indices(repeat_factors(presence, 1.0), seed=0)].sum(0)
    assert shown.max() - shown.min() <= 2
    assert (repeat_factors(presence, 0.0) == 1).all()


def test_presence_is_read_from_masks_through_all_views() -> None:
    scenes = SyntheticScenes(12)
    kept = ClassSubset(scenes, ["sky", "house", "foam"])
    mixed = ConcatData([Subset(kept, [5, 1]), kept], "both")
    presence = class_presence(mixed)
    for row, sample in zip(presence, mixed, strict=True):
        assert sample.mask is not None
        assert set(np.flatnonzero(row)) == set(np.unique(sample.mask)) - {VOID}


def test_an_epoch_shows_the_same_samples_the_rare_ones_more_often() -> None:
    scenes = SyntheticScenes(40)
    shown = balanced_indices(scenes, 0.5)
    assert set(shown) == set(range(40))
    presence = class_presence(scenes)
    rarest = presence.sum(0).argmin()
    assert presence[shown][:, rarest].mean() > presence[:, rarest].mean()


def test_images_without_labels_count_once_and_change_nothing() -> None:
    presence = np.eye(10, dtype=bool).repeat(10, 0)
    with_void = np.concatenate([presence, np.zeros((1, 10), bool)])
    for power in (0.5, 1.0):
        assert (repeat_factors(with_void, power) == 1).all()
    assert (repeat_factors(np.zeros((3, 2), bool), 0.5) == 1).all()


@given(st.integers(1, 60), st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_is_a_permutation_given_by_seed_and_epoch(count: int, seed: int, epoch: int) -> None:
    order = epoch_order(count, seed, epoch)
    assert sorted(order.tolist()) == list(range(count))
    assert np.array_equal(order, epoch_order(count, seed, epoch))


def test_epochs_and_seeds_differ() -> None:
    orders = [tuple(epoch_order(50, seed, epoch)) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9
