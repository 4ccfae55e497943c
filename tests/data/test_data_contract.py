"""What every data set promises to everything that uses it: a new reader or view is one line in `DATA`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, random_split

from messagenet.data import (
    VOID,
    ClassSubset,
    ConcatData,
    FolderData,
    Sample,
    SbdData,
    SegmentationData,
    Subset,
    SyntheticScenes,
    VocData,
    as_data,
    collate,
    open_data,
)
from messagenet.data.scenes import NoisyScenes
from messagenet.data.voc import train_aug
from messagenet.errors import InputError


class Folders(NamedTuple):
    """The data sets on disk that the readers open."""

    folder: Path
    devkit: Path
    sbd: Path


def scenes(count: int = 4, split: str = "train") -> SyntheticScenes:
    return SyntheticScenes(count, size=32, split=split)


class Pairs(Dataset[tuple[torch.Tensor, torch.Tensor | None]]):
    """A torch data set as users write it."""

    classes = ("ground", "sky", "sea")

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 5 + index, 7, generator=generator)
        mask = torch.randint(0, 3, (5 + index, 7), generator=generator)
        mask[0, 0] = VOID
        return image, mask if index else None


DATA: dict[str, Callable[[Folders], SegmentationData]] = {
    "synthetic": lambda on: scenes(),
    "noisy": lambda on: NoisyScenes(4, size=32),
    "folder": lambda on: FolderData(on.folder),
    "folder, one split": lambda on: open_data(on.folder, "val"),
    "voc": lambda on: VocData(on.devkit),
    "voc test": lambda on: VocData(on.devkit, "test"),
    "sbd": lambda on: SbdData(on.sbd),
    "train_aug": lambda on: train_aug(on.devkit, on.sbd),
    "torch data set": lambda on: as_data(Pairs()),
    "list of pairs": lambda on: as_data([Pairs()[0], Pairs()[1]], classes=3),
    "torch subset": lambda on: as_data(random_split(scenes(5), [2, 3])[0]),
    "torch concatenation": lambda on: as_data(scenes(2) + scenes(3, "val")),
    "subset": lambda on: Subset(scenes(9), [7, 2]),
    "class subset": lambda on: ClassSubset(scenes(), ["water", "sky"]),
    "class subset with background": lambda on: ClassSubset(FolderData(on.folder), ["road"], "background"),
    "concatenation": lambda on: ConcatData([scenes(2), scenes(3, "val")], "both"),
}


@pytest.fixture(params=DATA)
def data(request: pytest.FixtureRequest, folder: Path, devkit: Path, sbd: Path) -> SegmentationData:
    return DATA[request.param](Folders(folder, devkit, sbd))


def content(sample: Sample) -> tuple[str, bytes, bytes | None]:
    return sample.name, sample.image.tobytes(), None if sample.mask is None else sample.mask.tobytes()


class TestDataContract:
    def test_is_a_torch_data_set_with_a_name(self, data: SegmentationData) -> None:
        assert isinstance(data, Dataset)
        assert isinstance(data, SegmentationData)
        assert data.name
        assert len(data) > 0
        assert all("\n" not in issue for issue in data.issues)

    def test_samples(self, data: SegmentationData) -> None:
        for sample in data:
            assert sample.image.dtype == np.uint8
            assert sample.image.shape == (*sample.image.shape[:2], 3)
            if sample.mask is not None:
                assert sample.mask.dtype == np.uint8
                assert sample.mask.shape == sample.image.shape[:2]
                assert ((sample.mask < data.classes.num_classes) | (sample.mask == VOID)).all()

    def test_names_are_unique_and_known_without_reading(
        self, data: SegmentationData, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        samples = [sample.name for sample in data]
        with monkeypatch.context() as patch:
            for kind in type(data).__mro__:
                if "load" in vars(kind):
                    patch.setattr(kind, "load", None)
            patch.setattr(Path, "read_bytes", None)
            names = [data.sample_name(index) for index in range(len(data))]
        assert names == samples
        assert len(set(names)) == len(names)

    def test_an_index_always_gives_the_same_bytes(self, data: SegmentationData) -> None:
        first = [content(sample) for sample in data]
        assert len(first) == len(data)
        for index in reversed(range(len(data))):
            assert content(data[index]) == content(data[index - len(data)]) == first[index]

    def test_labels_alone(self, data: SegmentationData) -> None:
        for index, sample in enumerate(data):
            labels = data.read_labels(index)
            assert (labels is None) == (sample.mask is None)
            assert labels is None or np.array_equal(labels, sample.mask)

    def test_indices_outside(self, data: SegmentationData) -> None:
        for index in (len(data), -len(data) - 1):
            with pytest.raises(IndexError):
                data[index]

    def test_pickled_for_workers(self, data: SegmentationData) -> None:
        again = pickle.loads(pickle.dumps(data))
        assert again.classes == data.classes
        assert [content(sample) for sample in again] == [content(sample) for sample in data]

    def test_a_torch_loader_batches_it(self, data: SegmentationData) -> None:
        (batch,) = DataLoader(data, batch_size=len(data), collate_fn=collate)
        assert batch.ids == tuple(data.sample_name(index) for index in range(len(data)))
        assert batch.sizes.tolist() == [list(sample.image.shape[:2]) for sample in data]


def broken_folder(on: Folders) -> SegmentationData:
    (on.folder / "masks" / "0.png").write_bytes(b"nonsense")
    return FolderData(on.folder)


def broken_devkit(on: Folders) -> SegmentationData:
    (on.devkit / "JPEGImages" / "a.jpg").write_bytes(b"")
    return VocData(on.devkit)


def broken_sbd(on: Folders) -> SegmentationData:
    (on.sbd / "cls" / "a.mat").unlink()
    return SbdData(on.sbd)


BROKEN: dict[str, Callable[[Folders], object]] = {
    "synthetic": lambda on: SyntheticScenes(0),
    "noisy": lambda on: NoisyScenes(split="dev"),
    "folder": lambda on: broken_folder(on)[0],
    "folder without images": lambda on: FolderData(on.devkit),
    "voc": lambda on: broken_devkit(on)[0],
    "voc without split": lambda on: VocData(on.devkit, "dev"),
    "sbd": lambda on: broken_sbd(on)[0],
    "train_aug": lambda on: train_aug(on.folder, on.sbd),
    "torch data set": lambda on: as_data(Pairs(), classes=2)[1],
    "torch data set without classes": lambda on: as_data([Pairs()[0], Pairs()[1]]),
    "subset": lambda on: Subset(broken_folder(on), [0])[0],
    "class subset": lambda on: ClassSubset(broken_folder(on), ["sky", "road"])[0],
    "class subset of an unknown class": lambda on: ClassSubset(scenes(), ["sea", "sky"]),
    "concatenation": lambda on: ConcatData([scenes(), FolderData(on.folder)], "both"),
    "concatenation of nothing": lambda on: ConcatData([], "none"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_errors_are_one_line_with_the_fix(kind: str, folder: Path, devkit: Path, sbd: Path) -> None:
    with pytest.raises(InputError) as raised:
        BROKEN[kind](Folders(folder, devkit, sbd))
    assert "\n" not in str(raised.value)
    assert any(mark in str(raised.value) for mark in (";", "did you mean"))
