"""Peers to measure against, each in a virtual environment of its own, installed from the package index on first use.

A peer runs in its own process because it needs other versions of other libraries than we do. It reads the problem
from an npz file, solves it on one core, and writes its answer and its times: so that answers are compared as well,
and a fast wrong one is noticed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]
HOME = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "messagenet-benchmarks"
SCRIPTS = Path(__file__).parent / "peers"
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


@dataclass(frozen=True)
class Peer:
    """A library to compare with.

    Attributes:
        name: How the tables call it; its script is run_NAME.py.
        requirements: What to install.
    """

    name: str
    requirements: tuple[str, ...]

    def solve(self, problem: Arrays) -> tuple[Arrays, dict[str, float]]:
        """The peer's answer and its times in seconds; raises `Absent` where it cannot be had."""
        python = self._python()
        with tempfile.TemporaryDirectory() as folder:
            given, answer = Path(folder) / "problem.npz", Path(folder) / "answer.npz"
            np.savez(given, **problem)  # type: ignore[arg-type]
            done = subprocess.run(
                [python, SCRIPTS / f"run_{self.name}.py", given, answer],
                env={**os.environ, **ONE_THREAD},
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise Absent(f"{self.name} fails here: {_last_line(done.stderr)}")
            with np.load(answer) as found:
                return dict(found), json.loads(done.stdout.splitlines()[-1])

    def _python(self) -> Path:
        folder = HOME / self.name
        python, ready = folder / "bin" / "python", folder / "ready"
        if not ready.is_file():
            print(f"installing {' '.join(self.requirements)} for comparison", file=sys.stderr)
            for command in (
                [sys.executable, "-m", "venv", "--clear", str(folder)],
                [str(python), "-m", "pip", "install", "-q", *self.requirements],
            ):
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    raise Absent(f"{self.name} does not install here: {_last_line(done.stderr)}")
            ready.touch()
        return python


class Absent(Exception):
    """A peer that does not install or does not run, and why."""


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
