"""Snakes, drawn and published: every cell shows the way to the next, however the image is turned."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from messagenet import InputError
from messagenet.data.classes import VOID

SNAKES = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "snakes.py"))
LENGTH, STEPS = SNAKES["LENGTH"], SNAKES["STEPS"]
draw_snakes, read_snakes, rotate = (SNAKES[name] for name in ("draw_snakes", "read_snakes", "rotate"))
PUBLISHED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "snakes.npz"


def check(snakes):
    for shown, labels in zip(snakes.shown, snakes.labels, strict=True):
        cells = [np.argwhere(labels == 1 + position) for position in range(LENGTH)]
        assert all(len(cell) == 1 for cell in cells)
        path = [tuple(cell[0]) for cell in cells]
        assert ((shown > 0) == ((labels > 0) & (labels != VOID))).all()
        for position, (y, x) in enumerate(path):
            dy, dx = STEPS[shown[y, x] - 1]
            after = labels[y + dy, x + dx]
            assert after == position + 2 if position + 1 < LENGTH else after in (0, VOID)


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("quarters", [0, 1, 2, 3])
def test_turned_snakes_are_snakes(quarters, mirror):
    snakes = draw_snakes(20, seed=1)
    check(rotate(snakes, quarters, mirror=mirror))
    assert np.bincount(rotate(snakes, quarters, mirror=mirror).shown.ravel()).shape == (5,)


def test_snakes_depend_on_the_seed_and_their_index_alone():
    many, few = draw_snakes(30, seed=3), draw_snakes(5, seed=3)
    assert (many.shown[:5] == few.shown).all()
    assert (draw_snakes(5, seed=4).shown != few.shown).any()
    check(many)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="needs the published snakes beside the checkout")
@pytest.mark.parametrize(("split", "count"), [("train", 200), ("test", 100)])
def test_published_snakes_mean_the_same(split, count):
    snakes = read_snakes(PUBLISHED, split)
    assert snakes.shown.shape == (count, 12, 12)
    check(snakes)
    check(rotate(snakes, 3, mirror=True))


def test_two_mirrored_quarters_restore_the_snakes():
    snakes = draw_snakes(2)
    again = rotate(rotate(snakes, 1, mirror=True), 1, mirror=True)
    assert (again.shown == snakes.shown).all()


def test_bad_files_and_sizes(tmp_path):
    with pytest.raises(InputError, match="cannot be read as snakes"):
        read_snakes(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", x_train=np.zeros(1))
    with pytest.raises(InputError, match="cannot be read as snakes"):
        read_snakes(tmp_path / "other.npz")
    size = np.array([[2, 2]])
    np.savez(tmp_path / "grey.npz", x_train=np.full((1, 2, 2, 3), 9), y_train=np.zeros((1, 2, 2)), size_train=size)
    with pytest.raises(InputError, match="shows no direction"):
        read_snakes(tmp_path / "grey.npz")
    with pytest.raises(InputError, match="need 12"):
        draw_snakes(1, size=11)
    blue = np.broadcast_to(np.array([0, 0, 255]), (1, 14, 14, 3))
    np.savez(tmp_path / "big.npz", x_train=blue, y_train=np.zeros((1, 14, 14)), size_train=np.array([[14, 14]]))
    with pytest.raises(InputError, match="larger size"):
        read_snakes(tmp_path / "big.npz")
