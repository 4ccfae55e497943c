"""What a prediction leaves on disk, one file per image and kind.

mask      palette PNG whose values are the class ids            NAME.png
overlay   the classes' colours over the image                   NAME.overlay.png
entropy   where the model is unsure: black certain, pale not    NAME.entropy.png
probs     marginals, float16 (K, H, W), with the class names    NAME.npz
voc       the layout of the PASCAL VOC server                   results/VOC2012/Segmentation/comp6_test_cls/NAME.png
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from messagenet.data import Classes, find_images, read_image
from messagenet.errors import InputError, nearest
from messagenet.files import write_atomically
from messagenet.prediction.predictor import Image, Predictor
from messagenet.report import entropy_picture, overlay, save_palette_png, save_png

KINDS = ("mask", "overlay", "entropy", "probs", "voc")
VOC_FOLDER = Path("results/VOC2012/Segmentation/comp6_test_cls")


def predict_files(
    predictor: Predictor,
    inputs: Sequence[str | Path],
    out: str | Path,
    kinds: Sequence[str] = ("mask", "overlay"),
    *,
    progress: Callable[[int, int, Path], None] | None = None,
) -> list[Path]:
    """Segments image files and writes the results; what already lies in the output folder is not an input.

    Args:
        predictor: The model and how to predict with it.
        inputs: Files, folders (searched through) and globs.
        out: The folder to write to; folders below a common one are kept apart.
        kinds: What to write, of `KINDS`.
        progress: Called with (images done, images in all, the file just done).

    Returns:
        The files written.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"unknown output {kind!r}; {nearest(kind, KINDS)}")
    if not kinds:
        raise InputError(f"nothing to write; name at least one of {', '.join(KINDS)}")
    out = Path(out)
    files = [file for file in find_images(inputs) if out.resolve() not in file.resolve().parents]
    if not files:
        raise InputError(
            f"all images are inside the output folder {out}; choose another folder for the results"
        )
    ids = [file.stem for file in files]
    if "voc" in kinds and (twice := next((name for name in ids if ids.count(name) > 1), None)):
        raise InputError(f"two images are called {twice!r}, and the VOC layout has one folder; rename one")
    written: list[Path] = []
    for done, (file, name) in enumerate(zip(files, output_names(files), strict=True), start=1):
        written += write_outputs(predictor, read_image(file), out, name, kinds)
        if progress:
            progress(done, len(files), file)
    return written


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
    return [short if bare.count(short) == 1 else path for short, path in zip(bare, relative, strict=True)]


def write_outputs(
    predictor: Predictor, image: Image, out: Path, name: Path, kinds: Sequence[str]
) -> list[Path]:
    """Predicts one image and writes the kinds asked for; each file appears whole or not at all."""
    classes: Classes = predictor.net.classes
    target = out / name
    marginals = predictor.marginals(image) if {"entropy", "probs"} & set(kinds) else None
    labels = predictor.labels(image) if marginals is None else marginals.argmax(0).byte().cpu().numpy()
    written = []
    if "mask" in kinds:
        written.append(save_palette_png(labels, classes, f"{target}.png"))
    if "voc" in kinds:
        written.append(save_palette_png(labels, classes, out / VOC_FOLDER / f"{name.name}.png"))
    if "overlay" in kinds:
        written.append(save_png(overlay(image, labels, classes), f"{target}.overlay.png"))
    if marginals is not None and "entropy" in kinds:
        written.append(save_png(entropy_picture(marginals), f"{target}.entropy.png"))
    if marginals is not None and "probs" in kinds:
        content = io.BytesIO()
        values = marginals.half().cpu().numpy()
        np.savez_compressed(content, marginals=values, classes=np.array(classes.names))
        written.append(write_atomically(f"{target}.npz", content.getvalue()))
    return written
