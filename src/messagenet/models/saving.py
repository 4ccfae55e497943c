"""Saved models: a folder with `config.json` (what to build) and `model.safetensors` (its parameters).

Nothing in it is executed on loading. Reading is strict: an unknown or missing setting or parameter is refused
by name, and so is a file that does not belong to the configuration beside it.

Models saved by earlier versions: what was called otherwise then, brought to the names of this version.

Filters used to be an option of the backbone and are now a neck.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor, nn

from messagenet.bundled import model_folder, shipped_models
from messagenet.data.classes import Classes
from messagenet.data.dataset import checked_void_values
from messagenet.errors import InputError, nearest, write_atomically
from messagenet.graph import Relation

if TYPE_CHECKING:
    from messagenet.models.base import SegmentationNet


OLD_FILTERS, NEW_FILTERS = "backbones.shared.filters.", "neck.filters."


def upgraded_settings(settings: Mapping[str, Any], options: Collection[str]) -> dict[str, Any]:
    """The settings of a saved model, for a network with these options.

    >>> upgraded_settings({"backbone_options": {"filters": 2}}, ["neck"])
    {'backbone_options': {}, 'neck': {'filters': 2}}
    """
    found = {key: value for key, value in settings.items() if key != "neck" or value}
    given = found.get("backbone_options")
    if isinstance(given, Mapping) and "filters" in given and "neck" in options:
        found["backbone_options"] = {key: value for key, value in given.items() if key != "filters"}
        if given["filters"]:
            found.setdefault("neck", {"filters": given["filters"]})
    return found


def upgraded_state(state: Mapping[str, Tensor], own: Collection[str]) -> dict[str, Tensor]:
    """The parameters of a saved model, for a network whose own have these names."""

    def renamed(name: str) -> str:
        old = name not in own and name.startswith(OLD_FILTERS)
        return NEW_FILTERS + name.removeprefix(OLD_FILTERS) if old else name

    return {renamed(name): values for name, values in state.items()}


FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
KEYS = ("format", "model", "classes", "relations", "settings")
STORED = "stored"
HALF = "fp16"
VOID_VALUES = "void_values"
LONGEST = "longest_side"


def save_model(net: SegmentationNet, folder: str | Path, half: bool = False) -> Path:
    """Writes a model's configuration and parameters; each file appears whole or not at all.

    Args:
        net: The model.
        folder: Where to.
        half: Whether to round the parameters to 16 bits in the file; they are read back as float32.
    """
    folder = Path(folder)
    config = {
        "format": FORMAT,
        "model": type(net).__name__,
        "classes": _classes_entry(net),
        "relations": [relation.to_dict() for relation in net.relations],
        "settings": net.settings,
    }
    if net.longest_side is not None:
        config[LONGEST] = net.longest_side
    state = {name: values.detach().contiguous().cpu() for name, values in net.state_dict().items()}
    if half:
        config[STORED] = HALF
        state = {name: _halved(name, values) for name, values in state.items()}
    write_atomically(folder / WEIGHTS, dump_tensors(state))
    write_atomically(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
    return folder


def _halved(name: str, values: Tensor) -> Tensor:
    if not values.is_floating_point():
        return values
    rounded = values.half()
    if not rounded.isfinite().all():
        raise InputError(f"{name} has values that 16 bits cannot hold; save the model without half")
    return rounded


def _classes_entry(net: SegmentationNet) -> dict[str, Any]:
    """What labels mean; void values only if there are any, as earlier versions had none."""
    entry: dict[str, Any] = {"names": net.classes.names, "colours": net.classes.colours}
    return entry | ({VOID_VALUES: net.void_values} if net.void_values else {})


def load_model(
    folder: str | Path | None, kinds: Mapping[str, type[SegmentationNet]], backbone: nn.Module | None = None
) -> SegmentationNet:
    """Builds the model that `save_model` wrote, or one in the box, ready for prediction (`eval` mode)."""
    folder = model_folder(folder)
    config = read_config(folder)
    if config["model"] not in kinds:
        raise InputError(
            f"{folder / CONFIG}: unknown model {config['model']!r}; {nearest(config['model'], kinds)}"
        )
    path = folder / CONFIG
    if not isinstance(config["settings"], dict):
        raise InputError(f"{path} does not describe a model; save the model again")
    kind = kinds[config["model"]]
    settings = kind.upgraded(upgraded_settings(config["settings"], kind.options))
    name = settings.pop("backbone", None)
    if name is None and backbone is None:
        raise InputError(
            f"{folder} was saved with a backbone of its owner's; pass it: from_pretrained(folder, backbone=...)"
        )
    try:
        given = {VOID_VALUES: (), **config["classes"]}
        _check_keys(f"{path}: classes", given, ("names", "colours", VOID_VALUES))
        classes = Classes(tuple(given["names"]), tuple(map(tuple, given["colours"])))
        settings |= {VOID_VALUES: checked_void_values(given[VOID_VALUES])}
        relations = [Relation.from_dict(values) for values in config["relations"]]
        build: Callable[..., SegmentationNet] = kinds[config["model"]]
        net = build(backbone or name, classes, relations, **settings)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise InputError(f"{path} does not describe a model ({error}); save the model again") from error
    _check_keys(f"{path}: settings", {"backbone": name, **settings}, (*net.settings, VOID_VALUES))
    _load_weights(net, folder / WEIGHTS)
    net.longest_side = config.get(LONGEST)
    return (net.float() if config.get(STORED) == HALF else net).eval()


def _check_keys(where: str, found: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuses unknown and missing entries by name."""
    known = list(known)
    for key in found:
        if key not in known:
            raise InputError(f"{where}: unknown entry {key!r}; {nearest(key, known)}")
    if missing := [key for key in known if key not in found]:
        raise InputError(f"{where}: {', '.join(missing)} missing; save the model again")


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a saved model, checked for unknown and missing entries."""
    path = folder / CONFIG
    if not path.is_file():
        inside = f"did you mean {folder / 'best'}?" if (folder / "best" / CONFIG).is_file() else ""
        boxed = ", ".join(shipped_models())
        fix = inside or f"give the folder that was saved to, or the name of a model in the box ({boxed})"
        raise InputError(f"{folder} holds no model: there is no {CONFIG} in it; {fix}")
    try:
        config = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid json ({error}); save the model again") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} does not describe a model; save the model again")
    _check_keys(str(path), {STORED: None, LONGEST: None, **config}, (*KEYS, STORED, LONGEST))
    side = config.get(LONGEST)
    if side is not None and (type(side) is not int or side < 1):
        raise InputError(f"{path}: {LONGEST} is {side!r}; give a number of pixels")
    if config.get(STORED) not in (None, HALF):
        raise InputError(f"{path}: parameters are stored as {config[STORED]!r}; this version reads {HALF!r}")
    if config["format"] != FORMAT:
        raise InputError(
            f"{path} has format {config['format']}, this version reads {FORMAT}; update messagenet"
        )
    return dict(config)


def _load_weights(net: SegmentationNet, path: Path) -> None:
    if not path.is_file():
        raise InputError(
            f"there is no {path.name} beside the configuration in {path.parent}; copy both files"
        )
    try:
        state = upgraded_state(load_tensors(path.read_bytes()), net.state_dict())
    except SafetensorError as error:
        raise InputError(f"{path} is damaged ({error}); copy it again") from error
    own = net.state_dict()
    if unknown := sorted(set(state) - set(own)):
        raise InputError(f"{path} holds parameters that the model has not: {_some(unknown)}; wrong {CONFIG}?")
    if missing := sorted(set(own) - set(state)):
        raise InputError(f"{path} lacks parameters of the model: {_some(missing)}; wrong {CONFIG}?")
    for name, values in state.items():
        if values.shape != own[name].shape:
            raise InputError(
                f"{path}: {name} has shape {tuple(values.shape)}, the model needs {tuple(own[name].shape)}; "
                f"wrong {CONFIG}?"
            )
    net.load_state_dict(state, assign=True)  # each parameter keeps the precision it was saved in


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
