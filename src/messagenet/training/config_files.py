"""Configurations as YAML: presets that come with the package, files of one's own, and what a run writes.

A file holds what differs from the defaults, or from the preset that it names (`preset: fast`). What `save_config`
writes holds every setting, each under a comment taken from the documentation of its dataclass;
`presets/default.yaml` is that file for the defaults.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from messagenet.errors import InputError, nearest
from messagenet.files import write_atomically
from messagenet.training.config import TrainConfig
from messagenet.training.settings import merged, plain

PRESET = "preset"
COMMENT_WIDTH = 100
_ATTRIBUTE = re.compile(r" {4}(\w+): (.*)")


def preset_names() -> tuple[str, ...]:
    """The configurations that come with the package.

    >>> preset_names()
    ('default', 'fast', 'finetune', 'paper-vgg16', 'tiny')
    """
    files = resources.files("messagenet.training").joinpath("presets").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def load_config(source: str | Path) -> TrainConfig:
    """Reads a preset by name, or a YAML file; settings it leaves out are those of its preset, or the defaults.

    >>> load_config("tiny").model.backbone
    'tiny'
    """
    name = str(source)
    if name in preset_names():
        text = resources.files("messagenet.training").joinpath("presets", f"{name}.yaml").read_text("utf-8")
        return parse_config(text, name)
    if not name.endswith((".yaml", ".yml")):
        raise InputError(
            f'there is no preset "{name}": {nearest(name, preset_names())} (or give a .yaml file)'
        )
    try:
        return parse_config(Path(source).read_text(encoding="utf-8"), name)
    except OSError as error:
        raise InputError(f"cannot read the configuration {name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"the configuration {name} is not UTF-8 text; save it as such") from None


def parse_config(text: str, name: str = "the configuration") -> TrainConfig:
    """Reads YAML text over its preset, or the defaults; `name` is for error messages.

    >>> parse_config("preset: fast\\nrun: {epochs: 3}").model.backbone
    'efficientnet_lite0'
    """
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        where = f", line {place.line + 1}" if place else ""
        raise InputError(f"{name}{where}: not valid YAML; check indentation and quotes") from None
    try:
        if not isinstance(values, dict) or PRESET not in values:
            return merged(TrainConfig(), values or {})
        base = values.pop(PRESET)
        if base not in preset_names():
            raise InputError(f'there is no preset "{base}": {nearest(str(base), preset_names())}')
        return merged(load_config(base), values)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def save_config(config: TrainConfig, path: str | Path) -> Path:
    """Writes every setting with its comment; `load_config` reads the same configuration back."""
    return write_atomically(path, config_text(config).encode())


def config_text(config: TrainConfig) -> str:
    """Every setting as commented YAML."""
    parts = []
    for section in dataclasses.fields(config):
        settings = getattr(config, section.name)
        comments = attribute_texts(type(settings))
        title = inspect.getdoc(type(settings)) or ""
        lines = [f"# {title.splitlines()[0]}" if title else "", f"{section.name}:"]
        for name, value in plain(settings).items():
            lines += [
                f"  # {line}"
                for line in textwrap.wrap(comments.get(name, ""), COMMENT_WIDTH, break_on_hyphens=False)
            ]
            lines.append(f"  {name}: {_scalar(value)}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def attribute_texts(kind: type) -> dict[str, str]:
    """What a class's documentation says under "Attributes:", by name.

    >>> attribute_texts(TrainConfig)["loss"]
    'What to minimise.'
    """
    _, _, block = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in block.splitlines():
        if match := _ATTRIBUTE.fullmatch(line):
            name, found[match[1]] = match[1], match[2]
        elif line.startswith("        ") and name:
            found[name] += " " + line.strip()
        else:
            break
    return found


def _scalar(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
