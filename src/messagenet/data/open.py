"""Specifications of data sets: `KIND:LOCATION`, such as `synthetic:500`, or a folder whose kind its layout shows.

The kinds are the registered readers, each a class or function of the location. `open_data` passes on `split`,
`classes`, `void_values`, `seed` and `strict`. Classes, void values or a seed that the reader has no keyword for are an
error; without a keyword `split`, one sample in five is held out for `val`, by its name. A custom reader:

    @register("data", "camvid")
    def open_camvid(location: str, *, split: str = "train", void_values: Sequence[int] = (11,)) -> SegmentationData:
        return PairedFiles(...)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from messagenet.data.classes import ClassesLike, as_classes
from messagenet.data.dataset import ClassSubset, ConcatData, SegmentationData, hold_out_val
from messagenet.data.pairs import as_data
from messagenet.data.voc import find_devkit, find_sbd
from messagenet.errors import InputError, nearest
from messagenet.settings import find, kinds, options

GROUP = "data"


def open_data(
    spec: str | Path | Any,
    split: str | None = "train",
    classes: ClassesLike | None = None,
    void_values: Sequence[int] | None = None,
    keep: Sequence[str | int] | None = None,
    rest: Literal["void", "background"] = "void",
    seed: int = 0,
    strict: bool = True,
) -> SegmentationData:
    """Opens a data set.

    Args:
        spec: `KIND:LOCATION`, a folder, or an object for `as_data`, to which split, seed and strict do not apply.
        split: None means all of a folder, and `train` of anything else; `a+b` concatenates, duplicates included.
        classes: Names, their number, a class list or its file, if the data set has no class list.
        void_values: Mask values that mean "not labelled", besides 255.
        keep: Names or ids of the classes to keep. Default: all.
        rest: What the other classes become.
        seed: Seed of generated scenes.
        strict: Whether unpaired files in a folder raise an error; otherwise its `issues` list them.

    >>> open_data("synthetic:50", split="val")[0].name
    'val-00000'
    """
    if spec is None:
        raise InputError('say which data set to open: --data folder:DIR (data="folder:DIR" in Python)')
    known = None if classes is None else as_classes(classes)
    if rest != "void" and not keep:
        raise InputError(f'rest is "{rest}", for classes that are not kept; give keep as well')
    given: dict[str, Any] = {"classes": known, "void_values": void_values, "seed": seed, "strict": strict}
    if not isinstance(spec, str | Path):
        data = as_data(spec, known, void_values or ())
    elif split is None or "+" not in split:
        data = _read(*_parse(str(spec)), split, given)
    else:
        names = [name.strip() for name in split.split("+")]
        if not all(names):
            raise InputError(f'the split is "{split}"; write names joined by +, such as train+val')
        data = ConcatData([_read(*_parse(str(spec)), name, given) for name in names])
    return ClassSubset(data, keep, rest) if keep else data


def _read(kind: str, location: str, split: str | None, given: dict[str, Any]) -> SegmentationData:
    """Calls a reader with the keywords that it has; None means the reader's default."""
    reader = find(GROUP, kind)
    takes = options(reader)
    if given["classes"] is not None and "classes" not in takes:
        raise InputError(f"{kind} data have classes of their own; choose among them with keep")
    for name in ("void_values", "seed"):
        if given[name] and name not in takes:
            raise InputError(f"{kind} data take no {name}, but {', '.join(takes) or 'a location alone'}; leave it out")
    values = {name: value for name, value in {"split": split, **given}.items() if name in takes and value is not None}
    data = reader(location, **values)
    assert isinstance(data, SegmentationData), f"the reader of {kind} data returns no SegmentationData"
    if split is None or "split" in takes:
        return data
    if split not in ("train", "val"):
        raise InputError(f'{kind} data have no split "{split}"; choose train or val')
    return hold_out_val(data)[split == "val"]


def takes(spec: Any, option: str) -> bool:
    """Whether `open_data` can pass an option on to the reader of a data set; only generated data take a seed.

    >>> takes("noisy:500", "seed"), takes("folder:photos", "seed")
    (True, False)
    """
    if isinstance(spec, str | Path):
        return option in options(find(GROUP, _parse(str(spec))[0]))
    return option == "void_values" and not isinstance(getattr(spec, "dataset", spec), SegmentationData)


def forms() -> list[str]:
    """The forms of a specification, from the docstrings of the readers.

    >>> forms()[:1], forms()[-1]
    (['folder:DIR'], 'DIR')
    """
    found: list[str] = []
    for kind in kinds(GROUP):
        documented = re.findall(rf"`({re.escape(kind)}(?::[^`]*)?)`", inspect.getdoc(find(GROUP, kind)) or "")
        found += documented or [f"{kind}:LOCATION"]
    return [*found, "DIR"]


def detect_kind(folder: Path) -> str | None:
    """The kind of data set in a folder, by its layout; None if it is unknown."""
    if (folder / "images").is_dir():
        return "folder"
    for kind, find_root in (("voc", find_devkit), ("sbd", find_sbd)):
        try:
            find_root(folder)
        except InputError:
            continue
        return kind
    return None


def _parse(spec: str) -> tuple[str, str]:
    """The kind and the location of a specification; the location is optional where a form has none."""
    kind, colon, location = spec.partition(":")
    if kind in kinds(GROUP) and (location or kind in forms()):
        return kind, location
    if spec and Path(spec).is_dir():
        found = detect_kind(Path(spec))
        if found is None:
            raise InputError(f"{spec} is not laid out as a data set; put images in images/ and labels in masks/")
        return found, spec
    hint = f" ({nearest(kind, kinds(GROUP))})" if colon else ""
    raise InputError(f'"{spec}" names no data set{hint}; write one of {", ".join(forms())} with an existing folder')
