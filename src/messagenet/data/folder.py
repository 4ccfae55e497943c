"""Your own data: a folder of images, a folder of masks, a class list.

    DATA/classes.txt              one class per line, see `messagenet.data.classes`
    DATA/images/a.jpg …           any picture format, sub-folders allowed
    DATA/masks/a.png …            same names: palette, grey (8 or 16 bit) or painted RGB

Splits, in the order they are looked for: sub-folders (`images/train`, `masks/train`), lists of names
(`train.txt`), or, when there is neither, a fifth of the images held out as `val` by a hash of their names.
Without masks the images can be predicted, not scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from messagenet.data.classes import VOID, Classes, read_classes
from messagenet.data.dataset import FilePair, PairedFiles, hold_out
from messagenet.data.images import file_stem, find_images, read_image, read_mask
from messagenet.data.issues import Problem
from messagenet.errors import InputError

CLASS_LISTS = ("classes.txt", "classes.json")
KNOWN_SPLITS = ("train", "val", "test")
PEEK = 20  # masks looked into when a class list is missing, to say what it should hold


class FolderData(PairedFiles):
    """Images and masks paired by name.

    Args:
        root: The folder that holds the others.
        classes: The class list, or a file to read it from; `root/classes.txt` or `.json` otherwise.
        void_values: Mask values that mean "not labelled", besides 255.
        images: Where the images are, under `root`.
        masks: Where the masks are, under `root`.
        split: `train`, `val`, …; all images when None.
        fraction: How much the automatic split holds out.
        strict: Whether images without a mask and names used twice are refused; otherwise they are left out
            and listed in `problems`, as are masks without an image.
    """

    def __init__(
        self,
        root: str | Path,
        classes: Classes | str | Path | None = None,
        void_values: Sequence[int] = (VOID,),
        images: str = "images",
        masks: str = "masks",
        split: str | None = None,
        fraction: float = 0.2,
        strict: bool = True,
    ) -> None:
        root = Path(root)
        if not root.is_dir():
            raise InputError(f"{root} is not a folder; give one that holds {images}/ and {masks}/")
        if not (root / images).is_dir():
            raise InputError(
                f"{root} has no folder {images}/; put the images there and their masks in {masks}/"
            )
        problems: list[str] = []
        image_files, mask_files = (_by_stem(root / kind, problems) for kind in (images, masks))
        if not image_files:
            raise InputError(f"no images in {root / images}; put picture files there")
        self._part = partial(_select, root, root / images, sorted(image_files), fraction=fraction)
        stems = self._part(split)
        pairs = _pair(stems, image_files, mask_files, root / masks, problems)
        if strict and problems:
            more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
            raise InputError(problems[0] + more)
        problems += [
            _unpaired("mask", mask_files[stem], "image", f"{root / images / stem}.jpg")
            for stem in sorted(mask_files.keys() - image_files.keys())
        ]
        known = _resolve_classes(root, classes, [pair.mask for pair in pairs if pair.mask])
        name = root.resolve().name
        super().__init__(f"{name} {split}" if split else name, known, pairs, void_values)
        self.problems = problems

    def part_sizes(self) -> dict[str, int]:
        """How many images a training learns from, and how many it scores itself on."""
        return {split: len(self._part(split)) for split in ("train", "val")}


def _by_stem(folder: Path, problems: list[str]) -> dict[str, Path]:
    """The pictures in a folder by the name that pairs them."""
    try:
        files = find_images([folder]) if folder.is_dir() else []
    except InputError:
        return {}
    found: dict[str, Path] = {}
    for file in files:
        first = found.setdefault(file_stem(file, folder), file)
        if first is not file:
            text = f"{first} and {file.name} have the same name; rename or remove one of them"
            problems.append(Problem(text, first, file.name))
    return found


def _pair(
    stems: Sequence[str],
    images: dict[str, Path],
    masks: dict[str, Path],
    folder: Path,
    problems: list[str],
) -> list[FilePair]:
    """Each image with its mask; all without one when there are no masks for them at all."""
    tops = {stem.split("/")[0] for stem in stems}
    prefix = f"{tops.pop()}/" if len(tops) == 1 and "/" in stems[0] else ""
    if not any(stem.startswith(prefix) for stem in masks):
        return [FilePair(stem, images[stem], None) for stem in stems]
    if not masks.keys() & set(stems):
        raise InputError(
            f"no mask in {folder} belongs to an image: {images[stems[0]].name} and"
            f" {masks[min(masks)].name}, for one, differ; give both the same name up to the suffix"
        )
    problems += [
        _unpaired("image", images[stem], "mask", f"{folder / stem}.png")
        for stem in stems
        if stem not in masks
    ]
    return [FilePair(stem, images[stem], masks[stem]) for stem in stems if stem in masks]


def _unpaired(kind: str, file: Path, other: str, missing: str) -> Problem:
    return Problem(f"{kind} {file} has no {other}; add {missing} or remove the {kind}", file, missing)


def _select(root: Path, images: Path, stems: list[str], split: str | None, *, fraction: float) -> list[str]:
    """The names that belong to a split."""
    if split is None:
        return stems
    if (images / split).is_dir():
        inside = [stem for stem in stems if stem.startswith(f"{split}/")]
        if not inside:
            raise InputError(f"no images in {images / split}; put picture files there")
        return inside
    if (root / f"{split}.txt").is_file():
        return _listed(root / f"{split}.txt", stems)
    if have := [
        name for name in KNOWN_SPLITS if (images / name).is_dir() or (root / f"{name}.txt").is_file()
    ]:
        raise InputError(
            f'{root} has the splits {", ".join(have)} but no "{split}";'
            f" add {images / split}/ or {root / split}.txt"
        )
    if split not in ("train", "val"):
        raise InputError(f'{root} has no split "{split}"; list its names in {root / split}.txt')
    train, held = hold_out(stems, fraction)
    return [stems[index] for index in (train if split == "train" else held)]


def _listed(file: Path, stems: list[str]) -> list[str]:
    known = set(stems)
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read ({error}); save it as UTF-8 text") from None
    names = [line if line in known else line.rpartition(".")[0] or line for line in lines if line]
    if missing := [name for name in names if name not in known]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise InputError(
            f"{file} lists {', '.join(missing[:3])}{more}, but no such image exists; correct the list"
        )
    if not names:
        raise InputError(f"{file} is empty; write one image name per line")
    return list(dict.fromkeys(names))


def _resolve_classes(root: Path, classes: Classes | str | Path | None, masks: Sequence[Path]) -> Classes:
    if isinstance(classes, Classes):
        return classes
    if classes is not None:
        return read_classes(classes)
    for name in CLASS_LISTS:
        if (root / name).is_file():
            return read_classes(root / name)
    raise InputError(f"no class list: write {root / CLASS_LISTS[0]} with one {_advice(masks[:PEEK])}")


def _advice(masks: Sequence[Path]) -> str:
    """What to write in a class list, judging by some masks."""
    ids: set[int] = set()
    colours: set[tuple[int, ...]] = set()
    for path in masks:
        try:
            ids |= set(np.unique(read_mask(path)).tolist())
        except InputError:
            colours |= set(map(tuple, np.unique(read_image(path).reshape(-1, 3), axis=0)[:PEEK].tolist()))
    if colours:
        seen = ", ".join(" ".join(map(str, colour)) for colour in sorted(colours)[:PEEK])
        return f"line `name r g b` per class (the masks hold the colours {seen})"
    if ids:
        lines = max((label for label in ids if label != VOID), default=1) + 1
        seen = ", ".join(map(str, sorted(ids)))
        return f"class name per line, the first for id 0 (the masks hold ids {seen}: {lines} lines)"
    return "class name per line, the first for id 0"
