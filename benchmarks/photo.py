"""What one photograph of 500×375 pixels takes: from the array to its labels, and from the command to the PNG.

    python benchmarks/photo.py --model src/messagenet/bundled/voc-animals --peer deeplabv3_mnv2_pascal_quant.tflite

The peer is Google's DeepLabv3 with a MobileNetV2 in 8-bit integers, at its 513×513 pixels, in TensorFlow Lite on the
same number of threads; the two take turns, each in a process of its own (`photo_labels.py`). Without --model a network
of the preset `fast` with random weights is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from common import finish, machine
from messagenet.data.classes import numbered_classes
from messagenet.models import SegmentationNet
from messagenet.training import load_config
from messagenet.training.build import build_network
from peer_environments import Absent, Peer

WIDTH, HEIGHT, THREADS, TURNS = 500, 375, 2, 3
LITERT = Peer("litert", ("ai-edge-litert", "numpy", "pillow"))


def photograph() -> np.ndarray:
    rng = np.random.default_rng(0)
    soft = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    return np.asarray(soft.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))


def like_the_preset() -> SegmentationNet:
    model = replace(load_config("fast").model, pretrained=None)
    return build_network(model, numbered_classes(7)).net


def peer_seconds(network: Path, photo: np.ndarray) -> float:
    """The peer's time; NaN where it cannot be had."""
    given = {"photo": photo, "network": np.array(str(network.resolve())), "threads": np.array(THREADS)}
    try:
        return LITERT.solve(given)[1]["predict"]
    except Absent as reason:
        print(reason)
        return math.nan


def our_seconds(model: Path, photo: Path) -> dict[str, float]:
    """What loading the model and the first prediction take, and the fastest of the next ones."""
    script = Path(__file__).with_name("photo_labels.py")
    done = _run([str(script), str(model), str(photo), str(THREADS)])
    return json.loads(done.splitlines()[-1])


def command_seconds(model: Path, photo: Path, out: Path) -> float:
    """From the start of `messagenet predict` to its end, with the files written."""
    started = time.perf_counter()
    _run(
        [
            "-m",
            "messagenet",
            "predict",
            str(photo),
            "--out",
            str(out),
            "--model",
            str(model),
            "--save",
            "mask",
        ]
    )
    return time.perf_counter() - started


def _run(arguments: list[str]) -> str:
    """What a Python process prints that is started as a user would start it."""
    usual = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    return subprocess.run(
        [sys.executable, *arguments], env=usual, check=True, capture_output=True, text=True
    ).stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="folder of a saved model")
    parser.add_argument("--peer", type=Path, help="a .tflite file to compare with")
    arguments = parser.parse_args()
    print(machine())
    photo = photograph()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = arguments.model or like_the_preset().save(folder / "model")
        np.save(folder / "photo.npy", photo)
        Image.fromarray(photo).save(folder / "photo.jpg", quality=95)
        ours, theirs = [], []
        for _ in range(TURNS):
            ours.append(our_seconds(model, folder / "photo.npy"))
            theirs.append(peer_seconds(arguments.peer, photo) if arguments.peer else math.nan)
        whole = min(command_seconds(model, folder / "photo.jpg", folder / "out") for _ in range(TURNS))
    labels, first = (min(each[kind] for each in ours) for kind in ("labels", "first"))
    print(f"{WIDTH}×{HEIGHT} to labels: {1000 * labels:.0f} ms on {THREADS} threads")
    print(f"loading the model and the first prediction: {first:.2f} s")
    print(f"messagenet predict, from its start to the PNG: {whole:.1f} s")
    print(f"DeepLabv3-MobileNetV2, 8 bits, LiteRT: {1000 * min(theirs):.0f} ms")
    finish(ours_vs_peer=labels / min(theirs), command_seconds=whole)


if __name__ == "__main__":
    main()
