"""Saved models: a folder with `config.json` (what to build) and `model.safetensors` (its parameters).

    config.json    format, model: {backbone, neck, head, separate_features}, input: an `InputSpec`, [stored: "fp16"]

A component is its kind and all its settings; null for a part that was given as a module. Loading executes nothing from
the folder. Unknown, missing or misshapen settings and parameters are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor, nn

from messagenet.bundled import bundled_models, model_folder
from messagenet.data.classes import Classes
from messagenet.errors import InputError, nearest, some, write_atomically
from messagenet.models.base import InputSpec, Precision, SegmentationModel
from messagenet.settings import component, convert

MODEL_FORMAT = 2
CONFIG, WEIGHTS = "config.json", "model.safetensors"
STORED, HALF = "stored", "fp16"
PARTS = ("backbone", "neck", "head")
INPUT = {
    "void_values": tuple[int, ...],
    "longest_side": int | None,
    "precision": Precision,
    "mean": tuple[float, ...],
    "std": tuple[float, ...],
}


def save_model(model: SegmentationModel, folder: str | Path, half: bool = False) -> Path:
    """Writes a model, its parameters rounded to 16 bits if `half`; each file appears whole or not at all."""
    folder = Path(folder)
    spec = model.input
    config = {
        "format": MODEL_FORMAT,
        "model": model.config,
        "input": {
            "classes": {"names": spec.classes.names, "colours": spec.classes.colours},
            **{name: getattr(spec, name) for name in INPUT},
        },
    }
    state = {name: values.detach().contiguous().cpu() for name, values in model.state_dict().items()}
    if half:
        config[STORED] = HALF
        state = {name: _halve(name, values) for name, values in state.items()}
    write_atomically(folder / WEIGHTS, dump_tensors(state))
    write_atomically(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
    return folder


def _halve(name: str, values: Tensor) -> Tensor:
    if not values.is_floating_point():
        return values
    rounded = values.half()
    if not rounded.isfinite().all():
        raise InputError(f"{name} has values that 16 bits cannot hold; save the model without half")
    return rounded


def load_model(folder: str | Path | None, **modules: nn.Module | None) -> SegmentationModel:
    """Builds a saved or bundled (default) model in `eval` mode; `modules` are the parts that were given as modules."""
    if not isinstance(folder, str | Path | None):
        raise InputError(f"the model is a {type(folder).__name__}; give a SegmentationModel, its folder or its name")
    folder = model_folder(folder)
    config = read_config(folder)
    parts = dict(config["model"])
    for name in PARTS:
        if modules.get(name) is not None:
            parts[name] = modules[name]
        elif parts[name] is None and name != "neck":
            raise InputError(
                f"{folder} was saved with a {name} of its owner's; pass it: from_pretrained(folder, {name}=...)"
            )
    try:
        model = SegmentationModel(classes=_input_spec(config["input"], folder / CONFIG), **parts)
    except InputError as error:
        raise InputError(f"{folder / CONFIG}: {error}") from None
    _load_weights(model, folder / WEIGHTS)
    return (model.float() if config.get(STORED) == HALF else model).eval()


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a saved model, with every setting checked."""
    path = folder / CONFIG
    if not path.is_file():
        inside = f"did you mean {folder / 'best'}?" if (folder / "best" / CONFIG).is_file() else ""
        known = ", ".join(bundled_models())
        fix = inside or f"give the folder that was saved to, or the name of a bundled model ({known})"
        raise InputError(f"{folder} holds no model: there is no {CONFIG} in it; {fix}")
    try:
        config = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid json ({error}); save the model again") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} does not describe a model; save the model again")
    if config.get("format", MODEL_FORMAT) != MODEL_FORMAT:
        raise InputError(
            f"{path} has format {config['format']}, this version reads {MODEL_FORMAT}; train it again, or update "
            "messagenet"
        )
    _check_keys(str(path), {STORED: None, **config}, ("format", "model", "input", STORED))
    if config.get(STORED) not in (None, HALF):
        raise InputError(f"{path}: parameters are stored as {config[STORED]!r}; this version reads {HALF!r}")
    if isinstance(config["input"], dict):
        config["input"].setdefault("precision", InputSpec.precision)  # older models do not say it
    for section, keys in (("model", (*PARTS, "separate_features")), ("input", ("classes", *INPUT))):
        if not isinstance(config[section], dict):
            raise InputError(f"{path}: {section} is {config[section]!r}; save the model again")
        _check_keys(f"{path}: {section}", config[section], keys)
    model = config["model"]
    for group in PARTS:
        if model[group] is not None:
            model[group] = component(group, model[group], path=f"{path}: model.{group}")
    convert(model["separate_features"], bool, f"{path}: model.separate_features")
    return config


def _input_spec(config: Mapping[str, Any], path: Path) -> InputSpec:
    classes = config["classes"]
    if not isinstance(classes, dict):
        raise InputError(f"{path}: classes are {classes!r}; save the model again")
    _check_keys(f"{path}: classes", classes, ("names", "colours"))
    names = convert(classes["names"], tuple[str, ...], f"{path}: classes.names")
    colours = convert(classes["colours"], tuple[tuple[int, int, int], ...], f"{path}: classes.colours")
    values = {name: convert(config[name], hint, f"{path}: input.{name}") for name, hint in INPUT.items()}
    return InputSpec(Classes(names, colours), **values)


def _check_keys(where: str, found: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuses unknown and missing entries by name."""
    known = list(known)
    for key in found:
        if key not in known:
            raise InputError(f"{where}: unknown entry {key!r}; {nearest(key, known)}")
    if missing := [key for key in known if key not in found]:
        raise InputError(f"{where}: {', '.join(missing)} missing; save the model again")


def _load_weights(model: SegmentationModel, path: Path) -> None:
    if not path.is_file():
        raise InputError(f"there is no {path.name} beside the configuration in {path.parent}; copy both files")
    try:
        state = load_tensors(path.read_bytes())
    except SafetensorError as error:
        raise InputError(f"{path} is damaged ({error}); copy it again") from error
    own = model.state_dict()
    if model.neck is None and any(name.startswith("neck.") for name in state):
        raise InputError(
            f"{path.parent} was saved with a neck of its owner's; pass it: from_pretrained(folder, neck=...)"
        )
    if unknown := sorted(set(state) - set(own)):
        raise InputError(f"{path} holds parameters that the model does not have: {some(unknown)}; wrong {CONFIG}?")
    if missing := sorted(set(own) - set(state)):
        raise InputError(f"{path} lacks parameters of the model: {some(missing)}; wrong {CONFIG}?")
    for name, values in state.items():
        if values.shape != own[name].shape:
            raise InputError(
                f"{path}: {name} has shape {tuple(values.shape)}, the model needs {tuple(own[name].shape)}; "
                f"wrong {CONFIG}?"
            )
    model.load_state_dict(state, assign=True)  # each parameter keeps the precision it was saved in
