"""A study: the systems of a comparison, what they share, and the seeds, in one YAML file.

    preset: fast                                            what all systems start from
    settings: [run.freeze_backbone=true]                    and what they all change
    seeds: [0, 1, 2]
    held_out: 100                                           training images to tune on
    score: val                                              or held_out, to choose among systems without seeing val
    systems:
      unary: [unary]                                        a system by name, and settings of its own
      messages, T = 2: [message, model.head.iterations=2]
    contrasts: [[unary, "messages, T = 2"]]                 pairs whose differences are listed

Only the location of the data is left out, so that a published table can be regenerated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from messagenet.errors import InputError, nearest
from messagenet.training.systems import System, custom_system

KEYS = ("preset", "settings", "seeds", "held_out", "score", "systems", "contrasts")
ScoredOn = Literal["val", "held_out"]


@dataclass(frozen=True)
class Study:
    """Content of a study file."""

    systems: tuple[System, ...] = ()  # none to choose them elsewhere
    preset: str | None = None  # None to choose by the data
    settings: tuple[str, ...] = ()  # what all systems change
    seeds: tuple[int, ...] = (0, 1, 2)
    held_out: int | None = None  # training images to tune on; None for one in ten, at most 20
    score: ScoredOn = "val"  # or "held_out": half of those images to tune on, the others to score
    contrasts: tuple[tuple[str, str], ...] = ()  # pairs of system labels whose differences are listed


def read_study(path: str | Path) -> Study:
    """Reads a study; unknown keys are errors."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no study {path}: check the path")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" in line {mark.line + 1}"
        raise InputError(f"{path} is not YAML{where}: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict) or not isinstance(content.get("systems"), dict) or not content["systems"]:
        raise InputError(f"{path} has no systems; give at least one, as in `systems: {{unary: [unary]}}`")
    for key in content:
        if key not in KEYS:
            raise InputError(f"{path}: there is no {key!r} in a study; {nearest(str(key), KEYS)}")
    systems = [
        custom_system(folder_name(str(label)), _texts(path, f"systems.{label}", settings), str(label))
        for label, settings in content["systems"].items()
    ]
    seeds, held_out = content.get("seeds", list(Study.seeds)), content.get("held_out", Study.held_out)
    if not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds):
        raise InputError(f"{path}: seeds are {seeds!r}; give a list of whole numbers")
    if held_out is not None and type(held_out) is not int:
        raise InputError(f"{path}: held_out is {held_out!r}; give a whole number")
    score = content.get("score", Study.score)
    if score not in get_args(ScoredOn):
        raise InputError(f"{path}: score is {score!r}; {nearest(str(score), get_args(ScoredOn))}")
    settings = _texts(path, "settings", content.get("settings", []))
    contrasts = _pairs(path, content.get("contrasts", []), [system.label for system in systems])
    return Study(tuple(systems), content.get("preset"), settings, tuple(seeds), held_out, score, contrasts)


def folder_name(label: str) -> str:
    """A label as a name for files.

    >>> folder_name("messages, T = 2")
    'messages-t-2'
    """
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")


def _texts(path: Path, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise InputError(f"{path}: {key} is {value!r}; give a list such as [message, model.head.hidden=64]")
    return tuple(value)


def _pairs(path: Path, value: Any, labels: Sequence[str]) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise InputError(f"{path}: contrasts is {value!r}; give pairs of systems, such as [[unary, messages]]")
    pairs = tuple((str(base), str(other)) for base, other in value)
    for label in (label for pair in pairs for label in pair):
        if label not in labels:
            raise InputError(f"{path}: contrasts name a system {label!r}; {nearest(label, labels)}")
    return pairs
