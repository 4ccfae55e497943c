"""The models on offer: which folders, under which names, and what each can show.

The images on offer: those directly in a folder, or free photographs and synthetic scenes.

Only names that were listed at the start are served. A file that by then leads out of the folder is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from messagenet.bundled import model_folder, photographs
from messagenet.data import SyntheticScenes
from messagenet.errors import InputError, nearest
from messagenet.models import KINDS, MessageNet, SegmentationNet
from messagenet.report import png_bytes

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


MEDIA_TYPES = {
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
}
SCENES, SCENE_SIZE = 4, 256


class Sample(NamedTuple):
    """An image on offer: how to get its content, which may be gone, and what kind of file it is."""

    content: Callable[[], bytes | None]
    media_type: str


Samples = Mapping[str, Sample]


def open_samples(folder: Path | None) -> Samples:
    """The images of a folder by name; photographs, where they are installed, and scenes if there is no folder."""
    return {**free_photographs(), **scenes()} if folder is None else folder_samples(folder)


def free_photographs() -> Samples:
    """Those of `messagenet.bundled`."""
    return {
        path.name: Sample(partial(_content, path, path.parent.resolve()), MEDIA_TYPES[path.suffix])
        for path in photographs()
    }


def scenes() -> Samples:
    """A few synthetic scenes, in memory."""
    images = [sample.image for sample in SyntheticScenes(SCENES, SCENE_SIZE, split="test")]
    contents = [png_bytes(Image.fromarray(image)) for image in images]
    return {
        f"scene-{number}.png": Sample(partial(bytes, content), MEDIA_TYPES[".png"])
        for number, content in enumerate(contents, start=1)
    }


def folder_samples(folder: Path) -> Samples:
    """The images directly in a folder, hidden files, names that are no text and links out of it left aside."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; give a folder of images with --samples")
    home = folder.resolve()
    names = sorted(
        path.name
        for path in home.iterdir()
        if path.suffix.lower() in MEDIA_TYPES
        and not path.name.startswith(".")
        and not _undecodable(path.name)
        and inside(path, home)
    )
    if not names:
        raise InputError(
            f"there are no images in {folder}; it needs files that end in {' '.join(MEDIA_TYPES)}"
        )
    return {
        name: Sample(partial(_content, home / name, home), MEDIA_TYPES[Path(name).suffix.lower()])
        for name in names
    }


def _undecodable(name: str) -> bool:
    """Whether a file name holds bytes that are no UTF-8, which JSON cannot say."""
    return any("\ud800" <= character <= "\udfff" for character in name)


def inside(path: Path, home: Path) -> bool:
    """Whether a path leads to a file directly in a folder, links followed."""
    return path.is_file() and path.resolve().parent == home


def _content(path: Path, home: Path) -> bytes | None:
    try:
        return path.read_bytes() if inside(path, home) else None
    except OSError:
        return None
