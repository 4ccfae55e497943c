"""Models by id, and sample images by name: those listed at the start, if they do not lead out of their folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from messagenet.bundled import model_folder, photographs
from messagenet.data import SyntheticScenes
from messagenet.errors import InputError, nearest
from messagenet.message_passing import MessagePassing
from messagenet.models import SegmentationModel
from messagenet.prediction import PredictOptions, Predictor
from messagenet.report import png_bytes
from messagenet.settings import KIND

CHECKPOINT_FOLDERS = ("best", "last")  # inside a run's folder, whose name is then the model's id
DEMO_MODELS = (Path("demo/messages/best"), Path("demo/unary/best"))  # of `messagenet demo` in this folder
IMAGE_TYPES = {
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
}
SCENES, SCENE_SIZE = 4, 256


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model, in evaluation mode, and the id that requests use for it."""

    id: str
    model: SegmentationModel
    options: PredictOptions | None = None  # of which only the longest side applies

    @cached_property
    def predictor(self) -> Predictor:
        """The way from an image to the model's input, and from its logits to pixels."""
        return Predictor(self.model, self.options)

    @property
    def head(self) -> MessagePassing | None:
        """The head, if it passes learned messages between nodes; only such models are explained."""
        head = self.model.head
        return head if isinstance(head, MessagePassing) and head.relations else None

    @property
    def iterations(self) -> int:
        """T; 0 for a model that is not explained."""
        return 0 if self.head is None else self.head.iterations

    def resolve_iteration(self, iteration: int | None) -> int:
        """An iteration 0 … T; T for None."""
        if iteration is None:
            return self.iterations
        if not 0 <= iteration <= self.iterations:
            raise InputError(
                f"iteration is {iteration}; model {self.id!r} has 0 (before messages) to {self.iterations}"
            )
        return iteration

    def description(self) -> dict[str, Any]:
        """The model's entry in `GET /models`."""
        classes, head = self.model.classes, self.model.config["head"]
        return {
            "id": self.id,
            "kind": str(head[KIND]) if head else type(self.model.head).__name__,
            "classes": [
                {"name": name, "colour": "#{:02x}{:02x}{:02x}".format(*colour)}
                for name, colour in zip(classes.names, classes.colours, strict=True)
            ],
            "relations": [{"name": relation.name, "form": relation.form} for relation in self.model.relations],
            "iterations": self.iterations,
            "explainable": self.head is not None,
            "stride": self.model.output_stride,
        }


def load_models(folders: Sequence[Path], longest_side: int | None = None) -> list[ServedModel]:
    """Loads saved models, onto the GPU if there is one. Default: the bundled model and those of `messagenet demo`."""
    device, options = "cuda" if torch.cuda.is_available() else "cpu", PredictOptions(longest_side=longest_side)
    folders = [model_folder(folder) for folder in folders] or [
        model_folder(),
        *(folder for folder in DEMO_MODELS if (folder / "config.json").is_file()),
    ]
    return [
        ServedModel(name, SegmentationModel.from_pretrained(folder).to(device).eval(), options)
        for name, folder in zip(model_ids(folders), folders, strict=True)
    ]


def model_ids(folders: Sequence[Path]) -> list[str]:
    """An id for each model: the name of its run's folder, with a suffix where two would be equal.

    >>> model_ids([Path("runs/a/best"), Path("runs/b"), Path("old/b/last"), Path("more/b")])
    ['a', 'b', 'b-2', 'b-3']
    """
    ids: list[str] = []
    for folder in (folder.absolute() for folder in folders):
        name = (folder.parent if folder.name in CHECKPOINT_FOLDERS else folder).name or "model"
        unique, count = name, 1
        while unique in ids:
            count += 1
            unique = f"{name}-{count}"
        ids.append(unique)
    return ids


def find_model(models: Sequence[ServedModel], id: str | None) -> ServedModel:
    """The model with an id; the first one for None."""
    for model in models:
        if id is None or model.id == id:
            return model
    raise InputError(f"there is no model {id!r}; {nearest(str(id), [model.id for model in models])}")


class SampleImage(NamedTuple):
    """A sample: how to read the file, None if it is gone, and its media type."""

    content: Callable[[], bytes | None]
    media_type: str


SampleImages = Mapping[str, SampleImage]


def open_samples(folder: Path | None) -> SampleImages:
    """The images of a folder by name; without a folder, photos (where they are installed) and synthetic scenes."""
    return {**_file_samples(photographs()), **scene_samples()} if folder is None else folder_samples(folder)


def scene_samples() -> SampleImages:
    """A few synthetic scenes, in memory."""
    images = [sample.image for sample in SyntheticScenes(SCENES, SCENE_SIZE, split="test")]
    contents = [png_bytes(Image.fromarray(image)) for image in images]
    return {
        f"scene-{i}.png": SampleImage(partial(bytes, content), IMAGE_TYPES[".png"])
        for i, content in enumerate(contents, start=1)
    }


def folder_samples(folder: Path) -> SampleImages:
    """The images directly in a folder, without hidden files, names that are not UTF-8, and links out of it."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give a folder of images with --samples")
    samples = _file_samples(
        path
        for path in sorted(folder.resolve().iterdir())
        if path.suffix.lower() in IMAGE_TYPES
        and not path.name.startswith(".")
        and not any("\ud800" <= character <= "\udfff" for character in path.name)  # bytes that JSON cannot carry
        and _is_inside(path, path.parent)
    )
    if not samples:
        raise InputError(f"there are no images in {folder}; it needs files that end in {' '.join(IMAGE_TYPES)}")
    return samples


def _file_samples(paths: Iterable[Path]) -> SampleImages:
    return {
        path.name: SampleImage(partial(_content, path, path.parent.resolve()), IMAGE_TYPES[path.suffix.lower()])
        for path in paths
    }


def _is_inside(path: Path, home: Path) -> bool:
    """Whether a path leads to a file directly in a folder, links followed."""
    return path.is_file() and path.resolve().parent == home


def _content(path: Path, home: Path) -> bytes | None:
    try:
        return path.read_bytes() if _is_inside(path, home) else None
    except OSError:
        return None
