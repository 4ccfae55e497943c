"""How much messages add where local appearance says nothing: the demonstration with three seeds.

Each seed draws its own scenes and its own first weights. Takes several minutes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

from common import finish, machine
from messagenet.demo import compare_on_scenes

SEEDS = (0, 1, 2)


def main() -> None:
    print(machine())
    gains = []
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            scores = compare_on_scenes(Path(folder) / "demo", seed, Console(quiet=True))
        unary, messages = (100 * (scores[name].mean_iou or 0.0) for name in ("unary", "messages"))
        gains.append(messages - unary)
        print(f"seed {seed}: unary {unary:.1f}, messages {messages:.1f} mean IoU", flush=True)
    finish(smallest_gain_points=min(gains), mean_gain_points=sum(gains) / len(gains))


if __name__ == "__main__":
    main()
