"""The models on offer: which folders, under which names, and what each can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from messagenet.errors import InputError, nearest
from messagenet.models import KINDS, MessageNet, SegmentationNet
from messagenet.shipped import model_folder

RUN_PARTS = ("best", "last")
"""Folders inside that of a run, which is then what the model is called by."""

DEMO = (Path("demo/messages/best"), Path("demo/unary/best"))
"""What `messagenet demo` leaves in the folder where it was run."""


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model and the name that requests call it by."""

    id: str
    net: SegmentationNet

    @property
    def kind(self) -> str:
        """Its name in `messagenet.models.KINDS`."""
        for name, kind in KINDS.items():
            same = kind.settings.items() <= {key: self.net.settings.get(key) for key in kind.settings}.items()
            if type(self.net) is kind.network and same:
                return name
        return type(self.net).__name__

    @property
    def explains(self) -> bool:
        """Whether nodes receive learned messages from others."""
        return isinstance(self.net, MessageNet) and bool(self.net.relations)

    @property
    def iterations(self) -> int:
        """T: what can be shown besides the beliefs before any message, t = 0."""
        return self.net.head.rules.iterations if isinstance(self.net, MessageNet) and self.explains else 0

    def checked_iteration(self, iteration: int | None) -> int:
        """An iteration that exists; the last one unless told."""
        if iteration is None:
            return self.iterations
        if not 0 <= iteration <= self.iterations:
            raise InputError(
                f"iteration is {iteration}; model {self.id!r} has 0 (before messages) to {self.iterations}"
            )
        return iteration

    def description(self) -> dict[str, Any]:
        """What `GET /models` says about it."""
        classes = self.net.classes
        return {
            "id": self.id,
            "kind": self.kind,
            "classes": [
                {"name": name, "colour": "#{:02x}{:02x}{:02x}".format(*colour)}
                for name, colour in zip(classes.names, classes.colours, strict=True)
            ],
            "relations": [{"name": each.name, "form": each.form} for each in self.net.relations],
            "iterations": self.iterations,
            "explains": self.explains,
            "stride": float(self.net.stride),
        }


def default_models() -> list[Path]:
    """The folders to serve when none is named: the model in the box, and what `messagenet demo` has trained here."""
    return [model_folder(), *(folder for folder in DEMO if (folder / "config.json").is_file())]


def load_models(folders: Sequence[Path]) -> list[ServedModel]:
    """Reads saved models, onto the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folders = [model_folder(folder) for folder in folders] or default_models()
    return [
        ServedModel(name, SegmentationNet.from_pretrained(folder).to(device).eval())
        for name, folder in zip(model_ids(folders), folders, strict=True)
    ]


def model_ids(folders: Sequence[Path]) -> list[str]:
    """What each model is called: the name of its run's folder, with a number where two would be alike.

    >>> model_ids([Path("runs/a/best"), Path("runs/b"), Path("old/b/last"), Path("more/b")])
    ['a', 'b', 'b-2', 'b-3']
    """
    ids: list[str] = []
    for folder in (folder.absolute() for folder in folders):
        name = (folder.parent if folder.name in RUN_PARTS else folder).name or "model"
        count = 1
        while (unique := name if count == 1 else f"{name}-{count}") in ids:
            count += 1
        ids.append(unique)
    return ids


def chosen(models: Sequence[ServedModel], name: str | None) -> ServedModel:
    """The model of a name; the first one unless told."""
    if name is None:
        return models[0]
    for model in models:
        if model.id == name:
            return model
    raise InputError(f"there is no model {name!r}; {nearest(name, [model.id for model in models])}")
