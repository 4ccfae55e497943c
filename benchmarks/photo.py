"""What one photograph of 500×375 pixels takes: from the array to its labels, and from the command to the PNG.

    python benchmarks/photo.py --model runs/animals/last --peer deeplabv3_mnv2_pascal_quant.tflite

The peer is Google's DeepLabv3 with a MobileNetV2 in 8-bit integers, at its 513×513 pixels, in TensorFlow Lite on the
same number of threads; the two take turns. Without --model a network of the same size with random weights is
timed, as the time does not depend on them.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from common import finish, machine, seconds
from messagenet import Predictor
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


def command_seconds(model: Path, photo: np.ndarray) -> float:
    """From the start of `messagenet predict` to its end, with the files written."""
    with tempfile.TemporaryDirectory() as folder:
        Image.fromarray(photo).save(Path(folder) / "photo.jpg", quality=95)
        command = [
            sys.executable,
            "-m",
            "messagenet",
            "predict",
            f"{folder}/photo.jpg",
            "--out",
            f"{folder}/out",
        ]
        started = time.perf_counter()
        subprocess.run(
            [*command, "--model", str(model), "--save", "mask"], check=True, stdout=subprocess.DEVNULL
        )
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="folder of a saved model")
    parser.add_argument("--peer", type=Path, help="a .tflite file to compare with")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    print(machine())
    photo = photograph()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or like_the_preset().save(Path(folder) / "model")
        started = time.perf_counter()
        predictor = Predictor(SegmentationNet.from_pretrained(model))
        predictor.labels(photo)
        first = time.perf_counter() - started
        ours, theirs = [], []
        for _ in range(TURNS):
            ours.append(seconds({"labels": lambda: predictor.labels(photo)})["labels"])
            theirs.append(peer_seconds(arguments.peer, photo) if arguments.peer else math.nan)
        whole = min(command_seconds(model, photo) for _ in range(TURNS))
    print(f"{WIDTH}×{HEIGHT} to labels: {1000 * min(ours):.0f} ms on {THREADS} threads")
    print(f"loading the model and the first prediction: {first:.2f} s")
    print(f"messagenet predict, from its start to the PNG: {whole:.1f} s")
    print(f"DeepLabv3-MobileNetV2, 8 bits, LiteRT: {1000 * min(theirs):.0f} ms")
    finish(ours_vs_peer=min(ours) / min(theirs), command_seconds=whole)


if __name__ == "__main__":
    main()
