"""Image files in, result files out.

    mask      palette PNG whose values are the class ids            NAME.png
    overlay   the classes' colours over the image                   NAME.overlay.png
    entropy   where the model is unsure: black certain, pale not    NAME.entropy.png
    probs     marginals, float16 (K, H, W), with the class names    NAME.npz
    voc       the layout of the PASCAL VOC server                   results/VOC2012/Segmentation/comp6_test_cls/NAME.png

An image that cannot be read or predicted is recorded, writes nothing, and the next one is taken. An output that cannot
be written ends the run.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from messagenet.data import Classes, find_images, read_image
from messagenet.data.images import ImageArray
from messagenet.errors import InputError, nearest, write_atomically
from messagenet.prediction.predictor import Predictor, most_probable
from messagenet.report import (
    GalleryImage,
    class_shares_text,
    entropy_image,
    gallery_figure,
    overlay,
    palette_image,
    png_bytes,
    write_gallery,
)

OUTPUTS = ("mask", "overlay", "entropy", "probs", "voc")
DEFAULT_OUTPUTS = ("mask", "overlay")
VOC_FOLDER = Path("results/VOC2012/Segmentation/comp6_test_cls")
MAX_SHOWN = 200  # images on a page of results


class ImageJob(NamedTuple):
    """An image to predict."""

    image: Path
    name: Path  # of its results below the output folder, without extension
    show: bool = False  # whether a page of results shows it


class ImageResult(NamedTuple):
    """Result of one image."""

    image: Path
    files: tuple[Path, ...] = ()  # the files written
    shares: str = ""  # the share of the image that each class covers, as text
    figure: str = ""  # its HTML on a page of results; "" if it is not shown
    error: str | None = None  # why there are no results


@dataclass(frozen=True)
class PredictedFiles:
    """Results of image files.

    Attributes:
        classes: What the labels mean.
        outputs: What was written of every image.
        written: The files written for each image.
        shares: The share of each image that each class covers, as text such as "cat 61%, background 39%".
        figures: The images of a page of results, as HTML.
        failed: Why each of the others could not be predicted, one line each.
    """

    classes: Classes
    outputs: tuple[str, ...]
    written: dict[Path, tuple[Path, ...]] = field(default_factory=dict)
    shares: dict[Path, str] = field(default_factory=dict)
    figures: dict[Path, str] = field(default_factory=dict)
    failed: dict[Path, str] = field(default_factory=dict)

    @property
    def files(self) -> list[Path]:
        """All files written."""
        return [file for files in self.written.values() for file in files]

    def add(self, result: ImageResult) -> None:
        """Records the result of one image."""
        if result.error is not None:
            self.failed[result.image] = result.error
            return
        self.written[result.image] = result.files
        self.shares[result.image] = result.shares
        if result.figure:
            self.figures[result.image] = result.figure

    def write_page(self, path: str | Path) -> Path:
        """Writes a page of the results, of the first images if there are very many."""
        title = "Segmentations"
        if len(self.written) > MAX_SHOWN:
            title += f", the first {MAX_SHOWN} of {len(self.written):,}"
        figures = list(self.figures.values())
        return write_gallery(figures, path, classes=self.classes, title=title, entropy="entropy" in self.outputs)


def predict_files(
    predictor: Predictor,
    inputs: str | Path | Iterable[str | Path],  # files, folders (searched recursively) and globs
    out: str | Path,  # keeps subfolders of the inputs apart
    outputs: Sequence[str] = DEFAULT_OUTPUTS,  # of `OUTPUTS`
    *,
    show: bool = False,  # prepare `PredictedFiles.write_page`
    progress: Callable[[int, int], None] | None = None,  # called with (images done, images in all)
) -> PredictedFiles:
    """Segments image files and writes the results; files that lie in the output folder are not inputs."""
    jobs = plan_jobs(find_images(inputs), Path(out), outputs, show)
    predicted = PredictedFiles(predictor.model.classes, tuple(outputs))
    for done, job in enumerate(jobs, start=1):
        predicted.add(predict_file(predictor, job, Path(out), outputs))
        if progress:
            progress(done, len(jobs))
    return predicted


def predict_file(predictor: Predictor, job: ImageJob, out: Path, outputs: Sequence[str]) -> ImageResult:
    """Segments one image file and writes its results, all or none of them."""
    classes = predictor.model.classes
    try:
        image = read_image(job.image)
        marginals = predictor.marginals(image) if {"entropy", "probs"} & set(outputs) else None
        labels = predictor.labels(image) if marginals is None else most_probable(marginals)
        contents = render(image, labels, marginals, classes, job.name, outputs)
    except InputError as error:
        return ImageResult(job.image, error=str(error))
    figure = ""
    if job.show:
        entropy = entropy_image(marginals) if marginals is not None and "entropy" in outputs else None
        figure = gallery_figure(GalleryImage(job.image.name, image, labels, entropy), classes)
    files = tuple(write_atomically(out / name, content) for name, content in contents.items())
    return ImageResult(job.image, files, class_shares_text(labels, classes), figure)


def render(
    image: ImageArray,  # RGB bytes, (H, W, 3)
    labels: ImageArray,  # class ids, (H, W)
    marginals: Tensor | None,  # (K, H, W), for "entropy" and "probs"
    classes: Classes,
    name: Path,  # where its results go, without extension
    outputs: Sequence[str],
) -> dict[Path, bytes]:
    """The files of one image, in the order of `OUTPUTS`, by their path below the output folder."""
    files: dict[Path, bytes] = {}
    mask = png_bytes(palette_image(labels, classes)) if {"mask", "voc"} & set(outputs) else b""
    if "mask" in outputs:
        files[_with_ending(name, ".png")] = mask
    if "overlay" in outputs:
        files[_with_ending(name, ".overlay.png")] = png_bytes(overlay(image, labels, classes))
    if marginals is not None and "entropy" in outputs:
        files[_with_ending(name, ".entropy.png")] = png_bytes(entropy_image(marginals))
    if marginals is not None and "probs" in outputs:
        files[_with_ending(name, ".npz")] = _archive(marginals, classes)
    if "voc" in outputs:
        files[VOC_FOLDER / f"{name.name}.png"] = mask
    return files


def _with_ending(name: Path, ending: str) -> Path:
    return name.with_name(name.name + ending)


def _archive(marginals: Tensor, classes: Classes) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, marginals=marginals.half().cpu().numpy(), classes=np.array(classes.names))
    return content.getvalue()


def check_outputs(outputs: Sequence[str]) -> None:
    """Refuses unknown outputs, and an empty list of them."""
    if isinstance(outputs, str):
        raise InputError(f"what to save is {outputs!r}; give a list, such as [{outputs!r}]")
    for output in outputs:
        if output not in OUTPUTS:
            raise InputError(f"unknown output {output!r}; {nearest(output, OUTPUTS)}")
    if not outputs:
        raise InputError(f"nothing to write; name at least one of {', '.join(OUTPUTS)}")


def plan_jobs(images: Sequence[Path], out: Path, outputs: Sequence[str], show: bool = False) -> list[ImageJob]:
    """The images to predict, without results of an earlier prediction; refuses names that would collide."""
    check_outputs(outputs)
    home = out.resolve()
    images = [image for image in images if home not in image.resolve().parents]
    if not images:
        raise InputError(f"all images are inside the output folder {out}; choose another folder for the results")
    stem, count = Counter(image.stem for image in images).most_common(1)[0]
    if "voc" in outputs and count > 1:
        raise InputError(f"two images are called {stem!r}, and the VOC layout has one folder; rename one")
    return [
        ImageJob(image, name, show and index < MAX_SHOWN)
        for index, (image, name) in enumerate(zip(images, output_names(images), strict=True))
    ]


def output_names(files: Sequence[Path]) -> list[Path]:
    """Where each file's results go below the output folder, extension left off.

    Files of several folders keep the path below the common one; two that would share a name keep their extension.

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
