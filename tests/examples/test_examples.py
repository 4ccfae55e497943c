"""The examples run as they are, at a size that takes seconds."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

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
