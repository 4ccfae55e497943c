"""The folder of a run, and checkpoints that survive `kill -9`: a checkpoint that exists is complete.

    checkpoint/step-00000400/tensors.safetensors     network, average, optimiser
    checkpoint/step-00000400/state.json              step, best score, and what else is no tensor

A checkpoint is written under another name, flushed to the disk, and renamed. Only then are older ones removed, except
the last one before it, which is read if the newest is damaged. Reading executes nothing.
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

from messagenet.data import Classes
from messagenet.errors import InputError
from messagenet.settings import flat
from messagenet.training.batches import Plan
from messagenet.training.config import TrainConfig, load_config

TENSORS, STATE = "tensors.safetensors", "state.json"
MAX_CHECKPOINTS = 2
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
        raise InputError(f"cannot write {target} ({error}); free some space, then continue with --resume") from None
    for old in _steps(folder)[:-MAX_CHECKPOINTS]:
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
    return sorted(folder.glob(f"{PREFIX}*")) if folder.is_dir() else []


def _flush(path: Path) -> None:
    """Waits until a file, or a folder where the system allows it, is on the disk."""
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RunFolder:
    """The folder of a run, and what lies where in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.yaml"  # every setting
        self.checkpoints = root / "checkpoint"  # what resuming needs
        self.last = root / "last"  # the model at the last checkpoint
        self.best = root / "best"  # the model with the best score
        self.features = root / "features"  # cached features, unless `run.cache_folder` says otherwise


FREE = ("run.workers", "run.log_every", "run.checkpoint_every", "run.cache_folder", "run.batch_size", "run.accumulate")
"""Settings that do not change the result, as long as a step sees the same number of images."""
LENGTHS = ("run.steps", "run.epochs")  # may grow; the learning rate is then that of a run of the new length
BEFORE_THE_FIRST_CHECKPOINT = {"config.yaml", "log.jsonl", "tensorboard"}


def check_folder(folder: Path, resume: bool) -> None:
    """Refuses to overwrite anything but the files of a run that failed before its first checkpoint."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder to write the run into")
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if not resume and not found <= BEFORE_THE_FIRST_CHECKPOINT:
        raise InputError(f"{folder} is not empty; resume the run in it (--resume), or choose another folder")


def remove_leftovers(run: RunFolder) -> None:
    """Removes files that a killed run was just writing (see `messagenet.errors`)."""
    for folder in (run.root, run.last, run.best):
        for left in folder.glob(".*.part"):
            left.unlink(missing_ok=True)


def find_checkpoint(run: RunFolder, config: TrainConfig, plan: Plan, classes: Classes) -> Checkpoint | None:
    """The checkpoint to resume from, if there is one; refuses one of another run."""
    if run.config.is_file():
        _check_same(run.config, load_config(run.config), config)
    checkpoint = read_checkpoint(run.checkpoints)
    if checkpoint is None:
        return None
    theirs = checkpoint.state["classes"]
    if theirs != list(classes.names):
        raise InputError(
            f"the run in {run.root} has {len(theirs)} classes ({', '.join(theirs)}), the data have "
            f"{classes.num_classes} ({', '.join(classes.names)}); give it the data it began with"
        )
    if checkpoint.state["global_batch"] != plan.global_batch:
        raise InputError(
            f"the run in {run.root} took {checkpoint.state['global_batch']} images per step, now it would be "
            f"{plan.global_batch}; change run.batch_size or run.accumulate to fit the number of processes"
        )
    return checkpoint


def _check_same(path: Path, before: TrainConfig, now: TrainConfig) -> None:
    old, new = flat(before), flat(now)
    for name in {**old, **new}:  # a kind comes before its options, which another kind may not have
        was, value = old.get(name), new.get(name)
        is_length = bool(name in LENGTHS and was and value)
        if was == value or name in FREE or (is_length and int(value or 0) > int(was or 0)):
            continue
        fix = "give at least as many" if is_length else "resume with the same settings"
        raise InputError(f"{name} is {value}, but {was} in {path}; {fix}, or start in another folder")
