"""Times a model on one photograph in a process of its own, whose threads wait as they do for users.

python benchmarks/photo_labels.py MODEL PHOTO.npy THREADS        one line of json

Threads that sleep between operations, as those of the other benchmarks do so as not to disturb what is timed next, must
be woken some two hundred times in a prediction of 60 ms, which makes it take 73 to 107. Here nothing is timed next.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch

from messagenet import Predictor
from messagenet.models import SegmentationNet

TURNS = 10


def main(model: str, photo: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    image = np.load(photo)
    times = [time.perf_counter()]
    predictor = Predictor(SegmentationNet.from_pretrained(model))
    for _ in range(1 + TURNS):
        predictor.labels(image)
        times.append(time.perf_counter())
    first, *later = np.diff(times).tolist()
    print(json.dumps({"first": first, "labels": min(later)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
