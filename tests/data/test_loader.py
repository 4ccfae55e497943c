from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from messagenet.data import Augment, BatchSampler, EpochData, SyntheticScenes, collate, epoch_order
from messagenet.errors import InputError


class TestOrder:
    @given(st.integers(1, 60), st.integers(0, 9), st.integers(0, 9))
    @settings(max_examples=40, deadline=None)
    def test_is_a_permutation_given_by_seed_and_epoch(self, count: int, seed: int, epoch: int) -> None:
        order = epoch_order(count, seed, epoch)
        assert sorted(order.tolist()) == list(range(count))
        assert np.array_equal(order, epoch_order(count, seed, epoch))

    def test_epochs_and_seeds_differ(self) -> None:
        orders = [tuple(epoch_order(50, seed, epoch)) for seed in range(3) for epoch in range(3)]
        assert len(set(orders)) == 9


class TestBatchSampler:
    @given(
        count=st.integers(1, 40),
        batch=st.integers(1, 6),
        world=st.integers(1, 4),
        start=st.integers(0, 5),
        fill=st.booleans(),
    )
    @settings(max_examples=150, deadline=None)
    def test_processes_together_see_the_global_stream(
        self, count: int, batch: int, world: int, start: int, fill: bool
    ) -> None:
        order = epoch_order(count, 0, 0)
        one = [list(b) for b in BatchSampler(order, batch * world, start, fill_last=fill)]
        parts = [list(BatchSampler(order, batch, start, rank, world, fill)) for rank in range(world)]
        steps = [[part[i] for part in parts if i < len(part)] for i in range(len(one))]
        joined = [[index for batch in step for index in batch] for step in steps]
        assert joined == one
        if fill:
            assert {len(part) for part in parts} == {len(one)}
            assert all(len(b) == batch for part in parts for b in part)

    @given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 9))
    @settings(max_examples=50, deadline=None)
    def test_resuming_goes_on_where_it_stopped(self, count: int, batch: int, start: int) -> None:
        order = epoch_order(count, 0, 0)
        assert list(BatchSampler(order, batch, start)) == list(BatchSampler(order, batch))[start:]

    def test_scoring_sees_each_sample_once(self) -> None:
        order = np.arange(10)
        seen = [
            i for rank in range(3) for b in BatchSampler(order, 2, 0, rank, 3, fill_last=False) for i in b
        ]
        assert sorted(seen) == list(range(10))

    def test_filling_wraps_around(self) -> None:
        assert list(BatchSampler(np.array([4, 2, 7]), 2)) == [[4, 2], [7, 4]]
        assert list(BatchSampler(np.array([4]), 3)) == [[4, 4, 4]]

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"batch_size": 0}, "batch_size is 0"),
            ({"batch_size": 1, "rank": 2, "world_size": 2}, "from 0 to 1"),
            ({"batch_size": 1, "start_batch": -1}, "start_batch is -1"),
        ],
    )
    def test_refusals(self, options: dict[str, int], expected: str) -> None:
        with pytest.raises(InputError, match=expected):
            BatchSampler(np.arange(4), **options)

    def test_no_samples(self) -> None:
        with pytest.raises(InputError, match="no samples"):
            BatchSampler(np.arange(0), 2)


class TestEpochData:
    @pytest.fixture
    def data(self) -> EpochData:
        augment = Augment(scale_range=(0.7, 1.4), crop=32, mirror=True, brightness=0.2)
        return EpochData(SyntheticScenes(8, size=32), augment, seed=3)

    def test_changes_with_the_epoch_only(self, data: EpochData) -> None:
        first = data[2].image
        assert np.array_equal(data[2].image, first)
        data.set_epoch(1)
        assert data.epoch == 1
        assert not np.array_equal(data[2].image, first)
        data.set_epoch(0)
        assert np.array_equal(data[2].image, first)

    def test_without_augmentation(self) -> None:
        scenes = SyntheticScenes(2, size=32)
        assert np.array_equal(EpochData(scenes)[1].image, scenes[1].image)

    def test_workers_change_nothing(self, data: EpochData) -> None:
        """With processes kept alive over two epochs, the batches are those of a single process."""

        def epochs(workers: int) -> list[torch.Tensor]:
            sampler = BatchSampler(epoch_order(8, 3, 0), 4)
            loader = DataLoader(
                data,
                batch_sampler=sampler,
                collate_fn=collate,
                num_workers=workers,
                persistent_workers=workers > 0,
            )
            batches = []
            for epoch in range(2):
                data.set_epoch(epoch)
                batches += [batch.images.clone() for batch in loader]
            return batches

        alone, helped = epochs(0), epochs(2)
        assert len(alone) == len(helped) == 4
        assert all(torch.equal(a, b) for a, b in zip(alone, helped, strict=True))
        assert not torch.equal(alone[0], alone[2])
