"""Your own data: a folder of images, a folder of masks, a class list.

    DATA/classes.txt              one class per line, see `messagenet.data.classes`
    DATA/images/a.jpg …           any image format, sub-folders allowed
    DATA/masks/a.png …            same names: palette, grey (8 or 16 bit) or painted RGB

Splits are sub-folders (`images/train`, `masks/train`), else lists of names (`train.txt`), else a fifth of the images is
held out as `val` by a hash of their names. Images without masks can be predicted, not scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from messagenet.data.classes import VOID, ClassesLike, as_classes
from messagenet.data.dataset import DataIssue, FilePair, PairedFiles, hold_out
from messagenet.data.images import file_stem, find_images, read_image, read_mask
from messagenet.errors import InputError, some
from messagenet.settings import register

CLASS_LISTS = ("classes.txt", "classes.json")
KNOWN_SPLITS = ("train", "val", "test")
PEEK = 20  # masks read for the advice on a missing class list


@register("data", "folder")
class FolderData(PairedFiles):
    """Images and masks paired by name: `folder:DIR`.

    Args:
        root: The data set's folder.
        classes: Names, their number, a class list or its file. Default: `root/classes.txt` or `.json`.
        void_values: Mask values that mean "not labelled", besides 255.
        images: Folder of the images, in `root`.
        masks: Folder of the masks, in `root`.
        split: `train`, `val`, …; all images when None.
        fraction: Share of the images that the automatic split holds out.
        strict: Whether images without a mask and duplicate names raise an error; otherwise they are skipped and
            listed in `issues`, as are masks without an image.
    """

    def __init__(
        self,
        root: str | Path,
        classes: ClassesLike | None = None,
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
            raise InputError(f"{root} has no folder {images}/; put the images there and their masks in {masks}/")
        issues: list[str] = []
        image_files, mask_files = (_by_stem(root / kind, issues) for kind in (images, masks))
        if not image_files:
            raise InputError(f"no images in {root / images}; put image files there")
        self._part = partial(_select, root, root / images, sorted(image_files), fraction=fraction)
        stems = self._part(split)
        pairs = _pair(stems, image_files, mask_files, root / masks, issues)
        if strict and issues:
            more = f" (and {len(issues) - 1} more issues)" if len(issues) > 1 else ""
            raise InputError(issues[0] + more)
        issues += [
            _unpaired("mask", mask_files[stem], "image", f"{root / images / stem}.jpg")
            for stem in sorted(mask_files.keys() - image_files.keys())
        ]
        if classes is None:
            classes = next((root / name for name in CLASS_LISTS if (root / name).is_file()), None)
        if classes is None:
            advice = _advice([pair.mask for pair in pairs if pair.mask][:PEEK])
            raise InputError(f"no class list: write {root / CLASS_LISTS[0]} with one {advice}")
        name = root.resolve().name
        super().__init__(f"{name} {split}" if split else name, as_classes(classes), pairs, void_values)
        self.issues = issues

    def part_sizes(self) -> dict[str, int]:
        """The number of images for training and for validation."""
        return {split: len(self._part(split)) for split in ("train", "val")}


def _by_stem(folder: Path, issues: list[str]) -> dict[str, Path]:
    """The images in a folder by their path without suffix; adds duplicates to `issues`."""
    try:
        files = find_images([folder]) if folder.is_dir() else []
    except InputError:
        return {}
    found: dict[str, Path] = {}
    for file in files:
        first = found.setdefault(file_stem(file, folder), file)
        if first is not file:
            text = f"{first} and {file.name} have the same name; rename or remove one of them"
            issues.append(DataIssue(text, first, file.name))
    return found


def _pair(
    stems: Sequence[str], images: dict[str, Path], masks: dict[str, Path], folder: Path, issues: list[str]
) -> list[FilePair]:
    """Each image with its mask; all images without one if there are no masks for them at all."""
    tops = {stem.split("/")[0] for stem in stems}
    prefix = f"{tops.pop()}/" if len(tops) == 1 and "/" in stems[0] else ""
    if not any(stem.startswith(prefix) for stem in masks):
        return [FilePair(stem, images[stem], None) for stem in stems]
    if not masks.keys() & set(stems):
        raise InputError(
            f"no mask in {folder} belongs to an image: {images[stems[0]].name} and"
            f" {masks[min(masks)].name}, for one, differ; give both the same name up to the suffix"
        )
    issues += [_unpaired("image", images[stem], "mask", f"{folder / stem}.png") for stem in stems if stem not in masks]
    return [FilePair(stem, images[stem], masks[stem]) for stem in stems if stem in masks]


def _unpaired(kind: str, file: Path, other: str, missing: str) -> DataIssue:
    return DataIssue(f"{kind} {file} has no {other}; add {missing} or remove the {kind}", file, missing)


def _select(root: Path, images: Path, stems: list[str], split: str | None, *, fraction: float) -> list[str]:
    """The names of the images of a split."""
    if split is None:
        return stems
    if (images / split).is_dir():
        inside = [stem for stem in stems if stem.startswith(f"{split}/")]
        if not inside:
            raise InputError(f"no images in {images / split}; put image files there")
        return inside
    if (root / f"{split}.txt").is_file():
        return _read_names(root / f"{split}.txt", set(stems))
    if have := [name for name in KNOWN_SPLITS if (images / name).is_dir() or (root / f"{name}.txt").is_file()]:
        raise InputError(
            f'{root} has the splits {", ".join(have)} but no "{split}"; add {images / split}/ or {root / split}.txt'
        )
    if split not in ("train", "val"):
        raise InputError(f'{root} has no split "{split}"; list its names in {root / split}.txt')
    train, held = hold_out(stems, fraction)
    return [stems[index] for index in (train if split == "train" else held)]


def _read_names(file: Path, known: set[str]) -> list[str]:
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read ({error}); save it as UTF-8 text") from None
    names = [line if line in known else line.rpartition(".")[0] or line for line in lines if line]
    if missing := [name for name in names if name not in known]:
        raise InputError(f"{file} lists {some(missing)}, but no such image exists; correct the list")
    if not names:
        raise InputError(f"{file} is empty; write one image name per line")
    return list(dict.fromkeys(names))


def _advice(masks: Sequence[Path]) -> str:
    """What to write in a class list, judging by the values in some masks."""
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
