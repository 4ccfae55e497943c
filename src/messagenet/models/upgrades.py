"""Models saved by earlier versions: what was called otherwise then, brought to the names of this version.

Filters used to be an option of the backbone and are now a neck.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

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
