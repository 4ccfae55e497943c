"""One line that names a data set, as the command line and configuration files write it.

    synthetic, synthetic:COUNT    generated scenes whose labels only context can tell
    noisy, noisy:COUNT            the same with blotches, labelled by what can be seen
    folder:DIR                    images/, masks/ and classes.txt
    voc:DIR                       a PASCAL VOC devkit
    voc:DIR,SBD_DIR               the same, with SBD for the split `trainaug`
    sbd:DIR                       the Semantic Boundaries Dataset alone
    DIR                           any of these folders, recognised by its layout

Splits are `train`, `val`, `test` and whatever else a data set lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from messagenet.data.classes import VOC_CLASSES, VOID, Classes, read_classes
from messagenet.data.dataset import Joined, Restricted, SegmentationData
from messagenet.data.folder import FolderData
from messagenet.data.scenes import NoisyScenes, SyntheticScenes
from messagenet.data.voc import LISTS, SbdData, VocData, find_devkit, find_sbd, train_aug
from messagenet.errors import InputError, nearest

FORMS = (
    "synthetic",
    "synthetic:COUNT",
    "noisy",
    "noisy:COUNT",
    "folder:DIR",
    "voc:DIR",
    "voc:DIR,SBD_DIR",
    "sbd:DIR",
    "DIR",
)
GENERATED = {"synthetic": SyntheticScenes, "noisy": NoisyScenes}
KINDS = (*GENERATED, "folder", "voc", "sbd")
SCENES = {"train": 2000, "val": 200, "test": 200}
TRAIN_AUG = ("trainaug", "train_aug")


def open_data(
    spec: str | Path,
    split: str | None = "train",
    classes: Classes | str | Path | None = None,
    void_values: Sequence[int] | None = None,
    keep: Sequence[str | int] | None = None,
    rest: Literal["void", "background"] = "void",
    seed: int = 0,
    strict: bool = True,
) -> SegmentationData:
    """Opens the data set a specification names.

    Args:
        spec: One of the forms above.
        split: Which part of it; None is all of a folder, and `train` of anything else. `a+b` is both, one after the
            other; what is in both comes twice.
        classes: A class list or its file, where the data set does not bring its own.
        void_values: Mask values that mean "not labelled", besides 255.
        keep: Names or ids of the only classes to keep.
        rest: What becomes of the classes not kept.
        seed: Which generated scenes.
        strict: Whether a folder with unpaired files is refused; otherwise its `problems` list them.

    >>> open_data("synthetic:50", split="val")[0].name
    'val-00000'
    """
    if split is not None and "+" in split:
        names = [name.strip() for name in split.split("+")]
        if not all(names):
            raise InputError(f'the split is "{split}"; write names joined by +, such as train+val')
        options = (classes, void_values, keep, rest, seed, strict)
        parts = [open_data(spec, name, *options) for name in names]
        return Joined(parts, " + ".join(part.name for part in parts))
    kind, place = _parse(str(spec))
    known = read_classes(classes) if isinstance(classes, str | Path) else classes
    voids = tuple(void_values) if void_values is not None else (VOID,)
    data: SegmentationData
    if kind in GENERATED:
        if known is not None:
            raise InputError(f"the {kind} scenes have classes of their own; choose among them with keep")
        part = split or "train"
        data = GENERATED[kind](_count(kind, place, part), seed=seed, split=part)
    elif kind == "folder":
        data = FolderData(place, known, voids, split=split, strict=strict)
    elif kind == "sbd":
        data = SbdData(place, split or "train", voids, known or VOC_CLASSES)
    else:
        data = _open_voc(place, split or "train", voids, known or VOC_CLASSES)
    return Restricted(data, keep, rest) if keep else data


def is_generated(spec: str | Path) -> bool:
    """Whether a specification names scenes that are made on demand.

    >>> is_generated("noisy:500"), is_generated("folder:photos")
    (True, False)
    """
    return str(spec).partition(":")[0] in GENERATED


def recognise(folder: Path) -> str | None:
    """The kind of data set a folder holds, by its layout; None when it is none of them."""
    if (folder / "images").is_dir():
        return "folder"
    for kind, find in (("voc", find_devkit), ("sbd", find_sbd)):
        try:
            find(folder)
        except InputError:
            continue
        return kind
    return None


def _parse(spec: str) -> tuple[str, str]:
    kind, colon, place = spec.partition(":")
    if kind in KINDS and (kind in GENERATED or place):
        return kind, place
    if spec and Path(spec).is_dir():
        found = recognise(Path(spec))
        if found is None:
            raise InputError(
                f"{spec} is not laid out as a data set; put pictures in images/ and labels in masks/"
            )
        return found, spec
    hint = f" ({nearest(kind, KINDS)})" if colon else ""
    raise InputError(
        f'"{spec}" names no data set{hint}; write one of {", ".join(FORMS)} with an existing folder'
    )


def _count(kind: str, place: str, split: str) -> int:
    if not place:
        return SCENES.get(split, 1)
    if not place.isdecimal():
        raise InputError(f'"{kind}:{place}" needs a number of scenes, such as {kind}:500')
    return int(place)


def _open_voc(place: str, split: str, voids: Sequence[int], classes: Classes) -> SegmentationData:
    voc, _, sbd = (place, "", "") if Path(place).is_dir() else place.partition(",")
    if split not in TRAIN_AUG:
        return VocData(voc, split, voids, classes)
    if sbd:
        return train_aug(voc, sbd, voids)
    lists = find_devkit(Path(voc)) / LISTS
    if split_file := next((name for name in TRAIN_AUG if (lists / f"{name}.txt").is_file()), None):
        return VocData(voc, split_file, voids, classes)
    raise InputError(f"{lists} has no trainaug.txt; give SBD as well: voc:{voc},SBD_DIR")
