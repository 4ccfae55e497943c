from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from messagenet.data import FolderData, Subset, SyntheticScenes
from messagenet.errors import InputError
from messagenet.report import contact_sheet


def test_contact_sheet_shows_images_and_legend() -> None:
    data = SyntheticScenes(8, size=32)
    sheet = contact_sheet(data, count=6, columns=3, cell=64, opacity=1.0)
    assert sheet.width == 3 * (64 + 10) + 10
    assert sheet.height > 2 * (64 + 18)
    shown = set(map(tuple, np.asarray(sheet).reshape(-1, 3).tolist()))
    assert set(data.classes.colours) <= shown


def test_contact_sheet_spreads_over_the_data() -> None:
    asked: list[int] = []

    class Watched(SyntheticScenes):
        def load(self, index: int):  # type: ignore[no-untyped-def]
            asked.append(index)
            return super().load(index)

    contact_sheet(Watched(100, size=32), count=4)
    assert asked == [0, 25, 50, 75]


def test_unreadable_and_unlabelled_samples(folder: Path) -> None:
    (folder / "images" / "0.jpg").write_bytes(b"")
    sheet = np.asarray(contact_sheet(FolderData(folder), count=2))
    assert ((sheet[:, :, 0] > 150) & (sheet[:, :, 1] < 60)).any(), "the words in red"
    (folder / "masks").rename(folder / "unused")
    contact_sheet(FolderData(folder), count=2)


def test_long_names_are_shortened(folder: Path) -> None:
    (folder / "images" / "0.jpg").rename(folder / "images" / ("n" * 90 + ".jpg"))
    (folder / "masks" / "0.png").rename(folder / "masks" / ("n" * 90 + ".png"))
    assert contact_sheet(FolderData(folder), count=10, columns=5, cell=60).width == 5 * 70 + 10


def test_nothing_to_show() -> None:
    with pytest.raises(InputError, match="no samples to show"):
        contact_sheet(Subset(SyntheticScenes(3), []))
