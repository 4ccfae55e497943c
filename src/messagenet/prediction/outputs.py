"""What a prediction leaves on disk, one file per image and kind.

mask      palette PNG whose values are the class ids            NAME.png
overlay   the classes' colours over the image                   NAME.overlay.png
entropy   where the model is unsure: black certain, pale not    NAME.entropy.png
probs     marginals, float16 (K, H, W), with the class names    NAME.npz
voc       the layout of the PASCAL VOC server                   results/VOC2012/Segmentation/comp6_test_cls/NAME.png
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from messagenet.data import Classes
from messagenet.errors import InputError, nearest
from messagenet.prediction.enlarge import most_probable
from messagenet.prediction.predictor import Image, Predictor
from messagenet.report import entropy_picture, overlay, palette_image, png_bytes

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


def rendered(predictor: Predictor, image: Image, name: Path, kinds: Sequence[str]) -> dict[Path, bytes]:
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
