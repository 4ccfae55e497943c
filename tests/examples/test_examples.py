"""The examples run as they are, at a size that takes seconds."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, *arguments: str):
    return runpy.run_path(str(EXAMPLES / name))["main"](list(arguments))


def test_snakes_need_more_than_one_iteration():
    scores = run("snakes.py", "--count", "24", "--epochs", "3", "--iterations", "1", "2")
    assert len(scores) == 2
    assert all(0 < snake_cells < cells < 1 for cells, snake_cells in scores)


@pytest.mark.parametrize("name", ["snakes.py", "words.py"])
def test_a_missing_file_is_one_line(name):
    command = [sys.executable, str(EXAMPLES / name), "--file", "missing.npz"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: missing.npz cannot be read as ")
    assert ended.stderr.count("\n") == 1


def test_chains_gain_from_their_neighbours():
    scores = run("chain_tagging.py", "--count", "300", "--epochs", "14")
    assert scores["symbol alone"] + 0.03 < scores["learned messages"] < scores["exact CRF"] + 0.005


def test_decoders_start_as_belief_propagation():
    wrong = run("ldpc.py", "--steps", "0", "--batches", "3")
    assert wrong.shape == (3, 2)
    assert (wrong[:, 0] == wrong[:, 1]).all()
    trained = run("ldpc.py", "--steps", "3", "--batches", "3")
    assert trained[:, 1] == pytest.approx(wrong[:, 0], abs=0.15)


def test_regions_gain_from_their_neighbours():
    scores = run("regions.py", "--data", "synthetic:40", "--epochs", "10", "--iterations", "2", "--regions", "60")
    alone, one, two, perfect = (
        scores[name]
        for name in ("zoom-out features alone", "learned messages, T = 1", "learned messages, T = 2", "perfect labels")
    )
    assert alone + 0.03 < one < perfect
    assert alone + 0.03 < two < perfect


def test_regions_are_adjacent_along_their_longest_border():
    adjacent = runpy.run_path(str(EXAMPLES / "regions.py"))["adjacent"]
    regions = np.array([[0, 0, 0, 1], [2, 2, 3, 1], [2, 2, 3, 1]])
    assert adjacent(regions) == {"above": [(0, 2), (0, 3)], "beside": [(0, 1), (1, 3), (2, 3)]}
    assert adjacent(regions[::-1]) == {"above": [(2, 0), (3, 0)], "beside": [(0, 1), (1, 3), (2, 3)]}


def test_features_of_a_region_are_means_over_it():
    zoom_out = runpy.run_path(str(EXAMPLES / "regions.py"))["zoom_out"]
    regions = np.repeat(np.repeat(np.array([[0, 0, 1], [2, 1, 1]]), 4, 0), 4, 1)
    fine = torch.nn.functional.pad(torch.arange(6.0).reshape(1, 1, 2, 3), (0, 1, 0, 2), value=99)  # beyond the image
    coarse = torch.tensor([[[[7.0]], [[8.0]]]])
    expected = [[0.5, 7, 8, 7, 8], [(2 + 4 + 5) / 3, 7, 8, 7, 8], [3, 7, 8, 7, 8]]
    torch.testing.assert_close(zoom_out([fine, coarse], [4, 16], regions), torch.tensor(expected))
