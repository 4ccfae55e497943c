"""Times messagenet on one photo, with OpenMP's default waiting policy, as users run it.

python benchmarks/peers/photo_labels.py MODEL PHOTO.npy THREADS TURNS        prints one line of JSON

The other benchmarks let idle threads sleep between operations, so that they do not disturb the next function timed. In
a prediction of 60 ms they would be woken some two hundred times, which makes it take 73 to 107 ms.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch

from messagenet import Predictor


def main(model: str, photo: str, threads: str, turns: str) -> None:
    """Prints the seconds of loading with the first prediction, and the minimum of the next ones."""
    torch.set_num_threads(int(threads))
    image = np.load(photo)
    times = [time.perf_counter()]
    predictor = Predictor(model)
    for _ in range(1 + int(turns)):
        predictor.labels(image)
        times.append(time.perf_counter())
    first, *later = np.diff(times).tolist()
    print(json.dumps({"first": first, "labels": min(later)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
