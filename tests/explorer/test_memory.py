"""Free memory goes back, now and then."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from messagenet.explorer import explorer as memory
from messagenet.explorer.explorer import Trimmer


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(
    sys.platform != "linux" or memory._trim_function() is None, reason="not the GNU C library"
)
def test_holes_between_kept_pieces_are_given_back():
    pieces = [torch.ones(25_000) for _ in range(2000)]  # 100 kB each, too small for pages of their own
    kept = pieces[::10]
    full = resident()
    del pieces
    Trimmer(0)()
    assert full - resident() > 100_000_000
    assert all(values.sum() == 25_000 for values in kept)


def test_not_too_often(monkeypatch):
    calls = []
    monkeypatch.setattr(memory, "_trim_function", lambda: calls.append)
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
