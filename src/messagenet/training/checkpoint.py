"""Checkpoints that survive `kill -9`: a folder that exists is complete.

    checkpoint/step-00000400/tensors.safetensors     network, average, optimiser
    checkpoint/step-00000400/state.json              step, best score, and what else is no tensor

A checkpoint is written under another name, flushed to the disk, and renamed; only then are older ones removed, all
but the one before it, which is read if the newest should be damaged. Nothing in it is executed on reading.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from messagenet.errors import InputError

TENSORS, STATE = "tensors.safetensors", "state.json"
KEPT = 2
PREFIX, PART = "step-", ".part-"


class Checkpoint(NamedTuple):
    """What is needed to go on after `step` steps."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Writes a checkpoint into the folder of checkpoints, whole or not at all."""
    target = folder / f"{PREFIX}{checkpoint.step:08d}"
    part = folder / f"{PART}{uuid.uuid4().hex[:8]}"
    try:
        part.mkdir(parents=True)
        tensors = {name: values.detach().contiguous().cpu() for name, values in checkpoint.tensors.items()}
        save_file(tensors, part / TENSORS)
        state = {"step": checkpoint.step, **checkpoint.state}
        (part / STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        for written in (part / TENSORS, part / STATE, part):
            _flush(written)
        if target.exists():
            shutil.rmtree(target)
        os.replace(part, target)
        _flush(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise InputError(f"cannot write {target} ({error}); make room, then go on with --resume") from None
    for old in _steps(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    for left in folder.glob(f"{PART}*"):
        shutil.rmtree(left, ignore_errors=True)
    return target


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read; None when there is none at all."""
    problems = []
    for place in reversed(_steps(folder)):
        try:
            state = json.loads((place / STATE).read_text(encoding="utf-8"))
            return Checkpoint(int(state.pop("step")), load_file(place / TENSORS), state)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            problems.append(f"{place} ({error})")
    if problems:
        raise InputError(f"no checkpoint can be read: {'; '.join(problems)}; start again in another folder")
    return None


def _steps(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(folder.glob(f"{PREFIX}*")) if folder.is_dir() else []


def _flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk; folders only where the system allows it."""
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
