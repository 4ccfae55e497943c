"""Image files in, result files out: which images, under which names, and what became of each.

An image that cannot be read or predicted is noted and the next one is taken. Its results are made before the first
of them is written, so a failed image leaves nothing behind. An output that cannot be written ends the whole.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from messagenet.data import Classes, find_images, read_image
from messagenet.errors import InputError
from messagenet.files import write_atomically
from messagenet.prediction.outputs import DEFAULT_KINDS, KINDS, check_kinds, rendered
from messagenet.prediction.predictor import Predictor


class Job(NamedTuple):
    """An image, and where its results go below the output folder, extension left off."""

    image: Path
    name: Path


class Outcome(NamedTuple):
    """What became of an image: the files written, or why there are none."""

    image: Path
    files: tuple[Path, ...]
    error: str | None


@dataclass(frozen=True)
class Predicted:
    """What became of image files.

    Attributes:
        classes: What the labels mean.
        kinds: What was written of every image.
        written: The files written for each image.
        failed: Why each of the others could not be predicted, one line each.
    """

    classes: Classes
    kinds: tuple[str, ...]
    written: dict[Path, tuple[Path, ...]] = field(default_factory=dict)
    failed: dict[Path, str] = field(default_factory=dict)

    @property
    def files(self) -> list[Path]:
        """All files written."""
        return [file for files in self.written.values() for file in files]

    def by_kind(self, image: str | Path) -> dict[str, Path]:
        """The files of an image by what they are."""
        path = Path(image)
        if path not in self.written:
            raise InputError(self.failed.get(path, f"{image} was not predicted; give one of `written`"))
        return dict(zip((kind for kind in KINDS if kind in self.kinds), self.written[path], strict=True))

    def add(self, outcome: Outcome) -> None:
        """Takes note of one image."""
        if outcome.error is None:
            self.written[outcome.image] = outcome.files
        else:
            self.failed[outcome.image] = outcome.error


def predict_files(
    predictor: Predictor,
    inputs: Sequence[str | Path],
    out: str | Path,
    kinds: Sequence[str] = DEFAULT_KINDS,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Predicted:
    """Segments image files and writes the results; what already lies in the output folder is not an input.

    Args:
        predictor: The model and how to predict with it.
        inputs: Files, folders (searched through) and globs.
        out: The folder to write to; folders below a common one are kept apart.
        kinds: What to write, of `messagenet.prediction.outputs.KINDS`.
        progress: Called with (images done, images in all).
    """
    jobs = plan_jobs(find_images(inputs), Path(out), kinds)
    predicted = Predicted(predictor.net.classes, tuple(kinds))
    for done, job in enumerate(jobs, start=1):
        predicted.add(predict_one(predictor, job, Path(out), kinds))
        if progress:
            progress(done, len(jobs))
    return predicted


def predict_one(predictor: Predictor, job: Job, out: Path, kinds: Sequence[str]) -> Outcome:
    """Segments one image file and writes its results, all or none of them."""
    try:
        files = rendered(predictor, read_image(job.image), job.name, kinds)
    except InputError as error:
        return Outcome(job.image, (), str(error))
    return Outcome(job.image, tuple(write_atomically(out / name, data) for name, data in files.items()), None)


def plan_jobs(images: Sequence[Path], out: Path, kinds: Sequence[str]) -> list[Job]:
    """The images to predict, without results of an earlier prediction; refuses names that would collide."""
    check_kinds(kinds)
    home = out.resolve()
    images = [image for image in images if home not in image.resolve().parents]
    if not images:
        raise InputError(
            f"all images are inside the output folder {out}; choose another folder for the results"
        )
    stem, count = Counter(image.stem for image in images).most_common(1)[0]
    if "voc" in kinds and count > 1:
        raise InputError(f"two images are called {stem!r}, and the VOC layout has one folder; rename one")
    return [Job(image, name) for image, name in zip(images, output_names(images), strict=True)]


def output_names(files: Sequence[Path]) -> list[Path]:
    """Where each file's results go below the output folder, extension left off.

    Files of one folder keep their names, those of several the path below the common folder; two that would
    share a name (cat.jpg and cat.png) keep their extension.

    >>> [str(name) for name in output_names([Path("a/x/cat.jpg"), Path("a/y/cat.jpg")])]
    ['x/cat', 'y/cat']
    >>> [str(name) for name in output_names([Path("a/cat.jpg"), Path("a/cat.png")])]
    ['cat.jpg', 'cat.png']
    """
    common = Path(os.path.commonpath([file.absolute().parent for file in files]))
    relative = [file.absolute().relative_to(common) for file in files]
    bare = [path.with_suffix("") for path in relative]
    times = Counter(bare)
    return [short if times[short] == 1 else path for short, path in zip(bare, relative, strict=True)]
