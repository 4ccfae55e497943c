"""Reads the UAI result files that tests compare with."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor


def _numbers(path: str | Path, kind: str) -> list[float]:
    found, *words = Path(path).read_text(encoding="utf-8").split()
    assert found == kind
    return [float(word) for word in words]


def read_pr(path: str | Path) -> float:
    """log10 Z."""
    return _numbers(path, "PR")[0]


def read_mar(path: str | Path) -> list[list[float]]:
    """The marginals of each variable."""
    count, *numbers = _numbers(path, "MAR")
    marginals: list[list[float]] = []
    for _ in range(int(count)):
        size = int(numbers[0])
        marginals.append(numbers[1 : size + 1])
        numbers = numbers[size + 1 :]
    return marginals


def read_map(path: str | Path) -> Tensor:
    """(variables,) the joint state."""
    count, *states = _numbers(path, "MAP")
    return torch.tensor([int(state) for state in states[: int(count)]])
