"""Image files in, result files out: which images, under which names, and what became of each.

An image that cannot be read or predicted is noted and the next one is taken. Its results are made before the first
of them is written, so a failed image leaves nothing behind. An output that cannot be written ends the whole.

What a prediction leaves on disk, one file per image and kind.

mask      palette PNG whose values are the class ids            NAME.png
overlay   the classes' colours over the image                   NAME.overlay.png
entropy   where the model is unsure: black certain, pale not    NAME.entropy.png
probs     marginals, float16 (K, H, W), with the class names    NAME.npz
voc       the layout of the PASCAL VOC server                   results/VOC2012/Segmentation/comp6_test_cls/NAME.png

Segmentations read back from disk, to be looked at: the same whether one machine or a cluster has written them.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from messagenet.data import Classes, find_images, read_image, read_mask
from messagenet.data.images import ImageArray
from messagenet.errors import InputError, nearest, write_atomically
from messagenet.prediction.predictor import Predictor
from messagenet.prediction.upsample import most_probable
from messagenet.report import (
    Segmented,
    entropy_picture,
    found_text,
    overlay,
    palette_image,
    png_bytes,
    write_gallery,
)

KINDS = ("mask", "overlay", "entropy", "probs", "voc")
DEFAULT_KINDS = ("mask", "overlay")
VOC_FOLDER = Path("results/VOC2012/Segmentation/comp6_test_cls")


def check_kinds(kinds: Sequence[str]) -> None:
    """Refuses kinds that do not exist, and an empty list of them."""
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"unknown output {kind!r}; {nearest(kind, KINDS)}")
    if not kinds:
        raise InputError(f"nothing to write; name at least one of {', '.join(KINDS)}")


def rendered(predictor: Predictor, image: ImageArray, name: Path, kinds: Sequence[str]) -> dict[Path, bytes]:
    """The files of one image, in the order of `KINDS`, by their place below the output folder.

    Args:
        predictor: The model and how to predict with it.
        image: RGB bytes, (H, W, 3).
        name: Where its results go, without extension.
        kinds: Which of `KINDS`.
    """
    classes: Classes = predictor.net.classes
    marginals = predictor.marginals(image) if {"entropy", "probs"} & set(kinds) else None
    labels = predictor.labels(image) if marginals is None else most_probable(marginals)
    files: dict[Path, bytes] = {}
    mask = png_bytes(palette_image(labels, classes)) if {"mask", "voc"} & set(kinds) else b""
    if "mask" in kinds:
        files[_with(name, ".png")] = mask
    if "overlay" in kinds:
        files[_with(name, ".overlay.png")] = png_bytes(overlay(image, labels, classes))
    if marginals is not None and "entropy" in kinds:
        files[_with(name, ".entropy.png")] = png_bytes(entropy_picture(marginals))
    if marginals is not None and "probs" in kinds:
        files[_with(name, ".npz")] = _archive(marginals, classes)
    if "voc" in kinds:
        files[VOC_FOLDER / f"{name.name}.png"] = mask
    return files


def _with(name: Path, ending: str) -> Path:
    return name.with_name(name.name + ending)


def _archive(marginals: Tensor, classes: Classes) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, marginals=marginals.half().cpu().numpy(), classes=np.array(classes.names))
    return content.getvalue()


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
        kinds: What to write, of `messagenet.prediction.files.KINDS`.
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


MOST_SHOWN = 200


def check_shown(kinds: Sequence[str], path: str | Path) -> None:
    """Refuses outputs that a page cannot be made from, and a place where it cannot be."""
    check_kinds(kinds)
    if Path(path).is_dir():
        raise InputError(
            f"the report cannot be {path}, which is a folder; give a file such as {path}/report.html"
        )
    if "mask" not in kinds:
        raise InputError(f"a report shows the masks; save them too: {','.join(['mask', *kinds])}")


def found_in(predicted: Predicted, image: Path) -> str:
    """What was found in an image whose mask was written: "cat 61%, background 39%"."""
    return found_text(read_mask(predicted.by_kind(image)["mask"]), predicted.classes)


def write_predictions_page(predicted: Predicted, path: str | Path) -> Path:
    """A page of what was predicted, of the first images if there are very many."""
    title = "Segmentations"
    if len(predicted.written) > MOST_SHOWN:
        title += f", the first {MOST_SHOWN} of {len(predicted.written):,}"
    shown = islice(_segmented(predicted), MOST_SHOWN)
    return write_gallery(shown, path, classes=predicted.classes, title=title)


def _segmented(predicted: Predicted) -> Iterator[Segmented]:
    for image in predicted.written:
        files = predicted.by_kind(image)
        entropy = Image.open(files["entropy"]).convert("RGB") if "entropy" in files else None
        yield Segmented(image.name, read_image(image), read_mask(files["mask"]), entropy)
