"""Shared by all benchmarks: arguments, machine, timing, child processes, test images, and the result line.

Ratios are taken within one run. The functions compared are called in turns, so that a busy machine slows all of them
alike; the time of a function is the minimum over its turns.

Every benchmark has a `--quick` form: the same code on tiny sizes, for the test suite. Its figures mean nothing. In this
form functions are timed once, measurements stay in one process, and peers count as absent.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

if TYPE_CHECKING:
    from messagenet.models import SegmentationModel

if os.environ.get("OMP_WAIT_POLICY") != "PASSIVE":
    # Idle threads must sleep, not spin against the next function timed; OpenMP reads this when torch is loaded.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

QUICK = "--quick" in sys.argv
"""Whether this is the quick form; scripts choose their sizes by it."""

GIB = 2**30
T = TypeVar("T")


def start(description: str | None, **options: dict[str, Any]) -> argparse.Namespace:
    """Parses the command line and prints the machine.

    Args:
        description: The script's docstring.
        options: `add_argument` keywords of further options, by name.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: checks that the script runs")
    for name, keywords in options.items():
        parser.add_argument(f"--{name}", **keywords)
    parsed = parser.parse_args()
    print(machine())
    return parsed


def finish(**results: float) -> None:
    """Prints the last line: one JSON object. What could not be measured (NaN) is null."""
    print(json.dumps({name: None if math.isnan(value) else round(value, 3) for name, value in results.items()}))


def machine() -> str:
    """Returns one line on the machine and the versions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads (passive), "
        f"torch {torch.__version__}, Python {platform.python_version()}, {load}"
    )


def seconds(functions: Mapping[str, Callable[[], Any]], turns: int = 10, budget: float = 60.0) -> dict[str, float]:
    """Returns the minimum time of each function. All are called in turns, after one warm-up call each.

    Args:
        functions: What to time, by name.
        turns: Calls of each function.
        budget: Seconds after which no further turn starts; there are at least three.
    """
    for function in functions.values():
        function()
    best = dict.fromkeys(functions, math.inf)
    started = time.perf_counter()
    for turn in range(1 if QUICK else turns):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - start)
        if turn >= 2 and time.perf_counter() - started > budget:
            break
    return best


def isolated(function: Callable[..., T], *arguments: Any, timeout: float | None = None) -> T:
    """Like `in_new_process`, but the quick form saves the start of a process and calls the function here."""
    return function(*arguments) if QUICK else in_new_process(function, *arguments, timeout=timeout)


def in_new_process(function: Callable[..., T], *arguments: Any, timeout: float | None = None) -> T:
    """Returns function(*arguments), computed in a new process: its memory and its caches are its own.

    Raises `ChildProcessError` if the process fails, is killed, or takes longer than `timeout` seconds.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_result, args=(sender, function, arguments))
    child.start()
    sender.close()
    try:
        if not receiver.poll(timeout):
            raise ChildProcessError(f"took more than {timeout:.0f} s")
        result: T = receiver.recv()
        return result
    except EOFError:
        child.join()
        raise ChildProcessError(f"ended with exit code {child.exitcode}") from None
    finally:
        child.kill()
        child.join()


def _send_result(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    sender.send(function(*arguments))


def peak_memory() -> float:
    """Returns the peak resident memory of this process, in GiB."""
    try:
        return status_kib("/proc/self/status", "VmHWM") / 2**20
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * maxrss_unit() / GIB


def maxrss_unit() -> int:
    """Returns how many bytes one unit of `ru_maxrss` is."""
    return 1 if sys.platform == "darwin" else 1024


def status_kib(path: str, name: str) -> int:
    """Returns one entry, in KiB, of a file such as /proc/meminfo (Linux)."""
    return int(next(line for line in Path(path).read_text().splitlines() if line.startswith(name)).split()[1])


def soft_photo(
    width: int, height: int, *, seed: int = 0, blobs: tuple[int, int] = (6, 8), noise: int = 12
) -> npt.NDArray[np.uint8]:
    """Returns an image (height, width, 3) that compresses like a photo.

    Args:
        width: In pixels.
        height: In pixels.
        seed: Of the random numbers.
        blobs: Rows and columns of random colours, which bicubic interpolation enlarges.
        noise: Largest absolute noise added to a value.
    """
    rng = np.random.default_rng(seed)
    colours = Image.fromarray(rng.integers(0, 256, (*blobs, 3), dtype=np.uint8))
    pixels = np.asarray(colours.resize((width, height), Image.Resampling.BICUBIC))
    noisy = pixels + rng.integers(-noise, noise + 1, pixels.shape, dtype=np.int16)
    return noisy.clip(0, 255).astype(np.uint8)


def fast_preset_model(num_classes: int) -> SegmentationModel:
    """Returns a model of the preset `fast` with random weights; times do not depend on the weights."""
    from messagenet.data.classes import numbered_classes
    from messagenet.training import load_config, override
    from messagenet.training.build import build_model

    config = override(load_config("fast"), {"model.pretrained": None})
    return build_model(config, numbered_classes(num_classes)).model
