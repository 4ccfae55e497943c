"""Memory and time of `messagenet predict` on a photo of 20 megapixels (a 5184×3888 JPEG).

The command runs in its own process; the system reports its peak resident memory at the end (Linux, macOS). The model
is an efficientnet_lite0 with messages and random weights; the time does not depend on the weights.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image

from common import GIB, QUICK, finish, maxrss_unit, soft_photo, start
from messagenet import MessageNet

WIDTH, HEIGHT = (192, 192) if QUICK else (5184, 3888)


def measure(command: list[str]) -> tuple[float, float, float]:
    """Returns wall-clock seconds, processor seconds and peak memory in GiB of a command, its start included."""
    started = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - started
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(command)} ended with {code}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * maxrss_unit() / GIB


def main() -> None:
    start(__doc__)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        MessageNet("efficientnet_lite0").save(folder / "model")
        photo = soft_photo(WIDTH, HEIGHT, blobs=(HEIGHT // 96, WIDTH // 96))
        Image.fromarray(photo).save(folder / "photo.jpg", quality=90)
        megabytes = (folder / "photo.jpg").stat().st_size / 1e6
        command = [sys.executable, "-m", "messagenet", "predict", str(folder / "photo.jpg")]
        command += ["--model", str(folder / "model"), "--out", str(folder / "out")]
        seconds, busy, peak = measure(command)
        files = ", ".join(sorted(file.name for file in (folder / "out").iterdir()))
    print(f"{WIDTH}×{HEIGHT} JPEG of {megabytes:.1f} MB to {files}")
    print(f"{seconds:.1f} s ({busy:.1f} s of processor time), peak memory {peak:.2f} GiB")
    finish(peak_gib=peak, seconds=seconds, processor_seconds=busy)


if __name__ == "__main__":
    main()
