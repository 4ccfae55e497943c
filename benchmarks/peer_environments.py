"""Libraries to compare with, each in its own virtual environment, installed from the package index on first use.

A peer runs in its own process because it needs other versions of our dependencies. It reads the problem from an npz
file, solves it on one core, and writes its result and its times, so that results are compared as well as times.
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

from common import QUICK

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
        name: Its name in the tables; its script is peers/run_NAME.py.
        requirements: Packages to install.
    """

    name: str
    requirements: tuple[str, ...]

    def solve(self, problem: Arrays) -> tuple[Arrays, dict[str, float]]:
        """Returns the peer's answer and its times in seconds; raises `Absent` if it does not install or run."""
        python = self._python()
        with tempfile.TemporaryDirectory() as folder:
            problem_file, answer_file = Path(folder) / "problem.npz", Path(folder) / "answer.npz"
            np.savez(problem_file, **problem)  # type: ignore[arg-type]
            done = subprocess.run(
                [python, SCRIPTS / f"run_{self.name}.py", problem_file, answer_file],
                env={**os.environ, **ONE_THREAD},
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise Absent(f"{self.name} fails here: {_last_line(done.stderr)}")
            with np.load(answer_file) as answer:
                return dict(answer), json.loads(done.stdout.splitlines()[-1])

    def _python(self) -> Path:
        if QUICK:
            raise Absent(f"{self.name} is absent in the quick form")
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
    """The peer does not install or does not run; the text says why."""


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
