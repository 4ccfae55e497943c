"""How much messages add where local appearance is uninformative: the demo's comparison with three seeds.

Each seed has its own scenes and its own initial weights. Takes several minutes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from common import QUICK, finish, start
from messagenet.demo import compare_on_scenes

SEEDS = (0,) if QUICK else (0, 1, 2)
OPTIONS: dict[str, Any] = {"test_scenes": 4, "settings": {"run.steps": 2, "data.val_limit": 4}} if QUICK else {}


def main() -> None:
    start(__doc__)
    gains = []
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            scores = compare_on_scenes(Path(folder) / "demo", seed, Console(quiet=True), **OPTIONS)
        unary, messages = (100 * (scores[name].mean_iou or 0.0) for name in ("unary", "messages"))
        gains.append(messages - unary)
        print(f"seed {seed}: unary {unary:.1f}, messages {messages:.1f} mean IoU", flush=True)
    finish(smallest_gain_points=min(gains), mean_gain_points=sum(gains) / len(gains))


if __name__ == "__main__":
    main()
