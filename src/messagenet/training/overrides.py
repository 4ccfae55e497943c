"""Single settings from the command line: `run.epochs=3`, `model.relations=[surrounding:0.4]`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from messagenet.errors import InputError
from messagenet.training.config import TrainConfig
from messagenet.training.settings import merged


def apply_overrides(config: TrainConfig, overrides: Iterable[str]) -> TrainConfig:
    """The configuration with settings replaced; values are read as YAML, the last of a name wins.

    >>> apply_overrides(TrainConfig(), ["run.epochs=3", "optimiser.lr=1e-4"]).optimiser.lr
    0.0001
    """
    values: dict[str, Any] = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise InputError(f'"{override}" sets nothing; write section.name=value, such as run.epochs=3')
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise InputError(f'"{override}": the value is not YAML; quote text that holds : or [') from None
        _put(values, path.strip().split("."), value, override)
    return merged(config, values)


def _put(values: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    *sections, name = keys
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise InputError(f'"{override}" goes into {section}, which another override has replaced')
    values[name] = value
