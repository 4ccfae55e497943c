"""What a photograph of 20 megapixels takes: the memory and time of `messagenet predict` on a 5184×3888 JPEG.

The command runs in a process of its own, whose largest resident set the system reports when it ends (Linux, macOS).
The model is an efficientnet_lite0 with messages and random weights, as the time does not depend on them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from common import finish, machine
from messagenet import MessageNet

WIDTH, HEIGHT = 5184, 3888
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def save_photo(path: Path) -> None:
    """Soft shapes with some noise, which compress as a photograph does."""
    rng = np.random.default_rng(0)
    soft = Image.fromarray(rng.integers(0, 256, (HEIGHT // 96, WIDTH // 96, 3), dtype=np.uint8))
    pixels = np.asarray(soft.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))
    noise = rng.integers(-12, 13, pixels.shape, dtype=np.int16)
    Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8)).save(path, quality=90)


def measured(command: list[str]) -> tuple[float, float, float]:
    """Seconds, seconds of processor time, and peak memory in GiB of a command, its start included."""
    started = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - started
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(command)} ended with {code}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * MAXRSS_UNIT / 2**30


def main() -> None:
    print(machine())
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        MessageNet("efficientnet_lite0").save(folder / "model")
        save_photo(folder / "photo.jpg")
        megabytes = (folder / "photo.jpg").stat().st_size / 1e6
        command = [sys.executable, "-m", "messagenet", "predict", str(folder / "photo.jpg")]
        command += ["--model", str(folder / "model"), "--out", str(folder / "out")]
        seconds, busy, peak = measured(command)
        written = ", ".join(sorted(file.name for file in (folder / "out").iterdir()))
    print(f"{WIDTH}×{HEIGHT} JPEG of {megabytes:.1f} MB to {written}")
    print(f"{seconds:.1f} s ({busy:.1f} s of processor time), peak memory {peak:.2f} GiB")
    finish(peak_gib=peak, seconds=seconds, processor_seconds=busy)


if __name__ == "__main__":
    main()
