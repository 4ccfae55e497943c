"""Time of one 500×375 photo: from the array to its labels, and from the start of the command to the PNG.

    python benchmarks/photo.py --model src/messagenet/bundled/voc-animals --peer deeplabv3_mnv2_pascal_quant.tflite

The peer is Google's DeepLabv3 with a MobileNetV2 in 8-bit integers, at 513×513 pixels, in TensorFlow Lite on the
same number of threads. The two take turns, each in its own process (`peers/photo_labels.py` runs ours). Default model:
the preset `fast` with random weights.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from common import QUICK, fast_preset_model, finish, soft_photo, start
from peer_environments import Absent, Peer

WIDTH, HEIGHT = (64, 48) if QUICK else (500, 375)
THREADS, TURNS, PREDICTIONS = 2, (1 if QUICK else 3), (1 if QUICK else 10)
LITERT = Peer("litert", ("ai-edge-litert", "numpy", "pillow"))


def peer_seconds(network: Path, photo: np.ndarray) -> float:
    """Returns the peer's time; NaN if it is absent."""
    problem = {"photo": photo, "network": np.array(str(network.resolve())), "threads": np.array(THREADS)}
    try:
        return LITERT.solve(problem)[1]["predict"]
    except Absent as reason:
        print(reason)
        return math.nan


def our_seconds(model: Path, photo: Path) -> dict[str, float]:
    """Returns the seconds of loading with the first prediction, and the minimum of the next predictions."""
    script = Path(__file__).parent / "peers" / "photo_labels.py"
    times: dict[str, float] = json.loads(run_python(script, model, photo, THREADS, PREDICTIONS))
    return times


def command_seconds(model: Path, photo: Path, out: Path) -> float:
    """Returns the seconds from the start of `messagenet predict` to its end, with the files written."""
    started = time.perf_counter()
    run_python("-m", "messagenet", "predict", photo, "--out", out, "--model", model, "--save", "mask")
    return time.perf_counter() - started


def run_python(*arguments: object) -> str:
    """Runs Python as a user would, with OpenMP's default waiting policy; returns its output."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    options = start(
        __doc__,
        model={"type": Path, "help": "folder of a saved model"},
        peer={"type": Path, "help": "a .tflite file to compare with"},
    )
    photo = soft_photo(WIDTH, HEIGHT, blobs=(12, 16), noise=0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = options.model or fast_preset_model(7).save(folder / "model")
        np.save(folder / "photo.npy", photo)
        Image.fromarray(photo).save(folder / "photo.jpg", quality=95)
        ours, theirs = [], []
        for _ in range(TURNS):
            ours.append(our_seconds(model, folder / "photo.npy"))
            theirs.append(peer_seconds(options.peer, photo) if options.peer else math.nan)
        command = min(command_seconds(model, folder / "photo.jpg", folder / "out") for _ in range(TURNS))
    labels, first = (min(times[name] for times in ours) for name in ("labels", "first"))
    print(f"{WIDTH}×{HEIGHT} to labels: {1000 * labels:.0f} ms on {THREADS} threads")
    print(f"loading the model and the first prediction: {first:.2f} s")
    print(f"messagenet predict, from its start to the PNG: {command:.1f} s")
    print(f"DeepLabv3-MobileNetV2, 8 bits, LiteRT: {1000 * min(theirs):.0f} ms")
    finish(ours_vs_peer=labels / min(theirs), command_seconds=command)


if __name__ == "__main__":
    main()
