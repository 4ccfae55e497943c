"""Which settings a run starts from: a preset or a file, then single settings, the later ones winning."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from messagenet.data import is_generated
from messagenet.errors import InputError
from messagenet.models import KINDS
from messagenet.training.config import TrainConfig
from messagenet.training.config_files import load_config
from messagenet.training.overrides import apply_overrides
from messagenet.training.settings import merged


def choose_config(
    *,
    data: str | None = None,
    preset: str | None = None,
    file: str | Path | None = None,
    overrides: Iterable[str] = (),
    run_folder: str | Path | None = None,
    photographs: str = "finetune",
    **shortcuts: Any,
) -> TrainConfig:
    """The configuration of a run.

    Without a preset or a file, generated scenes start from "tiny" and photographs from "finetune", which needs no
    other package.

    >>> choose_config(data="synthetic:200", kind="unary").model.backbone
    'tiny'

    Args:
        data: The data set.
        preset: A configuration that comes with the package.
        file: A configuration file, instead of a preset.
        overrides: Settings such as "run.epochs=3".
        run_folder: A run to resume, whose own configuration is the start.
        photographs: The preset for these.
        **shortcuts: Settings by their own name (kind, classes, void_values, keep, rest, epochs); None is not set.
    """
    if preset and file:
        raise InputError("give either --preset or --config, not both")
    saved = None if run_folder is None else Path(run_folder) / "config.yaml"
    if saved is not None and not saved.is_file():
        raise InputError(f"there is no run to resume in {run_folder}; leave --resume out to start one")
    if data is None and not (saved or file or preset):
        raise InputError("say what to train on: --data folder:DIR, or --data synthetic to try it out")
    start = saved or file or preset or ("tiny" if data and is_generated(data) else photographs)
    config = merged(load_config(start), _sections(data, shortcuts))
    return apply_overrides(config, overrides)


def _needs(kind: str | None) -> dict[str, dict[str, Any]]:
    """What a kind of network cannot do without, whatever the preset says about others."""
    if kind not in KINDS:
        return {}
    network = KINDS[kind].network
    at_nodes = {"loss": {"resolution": "nodes", "label_smoothing": 0.0}}
    from_images = {"run": {"cache_features": False}}
    return (at_nodes if network.own_objective else {}) | ({} if network.learns_from_features else from_images)


def _sections(data: str | None, shortcuts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Short settings in their sections."""
    places = {"kind": "model", "epochs": "run"}
    sections: dict[str, dict[str, Any]] = _needs(shortcuts.get("kind"))
    for name, value in {"spec": data, **shortcuts}.items():
        if value is not None:
            plain = str(value) if isinstance(value, Path) else value
            sections.setdefault(places.get(name, "data"), {})[name] = plain
    return sections
