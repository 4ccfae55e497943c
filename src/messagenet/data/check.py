"""Everything that is wrong with a data set, in one pass, before a training run finds it.

`check_data` reads every sample and never stops at the first fault: unreadable files, ids outside the class
list, masks of another size, images without masks. It also counts what is there, because the commonest faults
are not errors: a class that never occurs, a foreground that was saved as 255 and is void.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from messagenet.data.classes import VOID, Classes
from messagenet.data.dataset import PairedFiles, SegmentationData, require_same_size
from messagenet.data.folder import FolderData
from messagenet.data.images import LabelArray
from messagenet.data.issues import Kind, Problem, StrayIds, kinds_of, stray_remark
from messagenet.data.open import open_data
from messagenet.errors import InputError

Progress = Callable[[int, int], None]
Result = TypeVar("Result")
SHOWN, NAMED = 20, 3  # kinds of problem listed in a summary, and other files named for each


@dataclass
class CheckReport:
    """What a data set holds and what is wrong with it.

    Attributes:
        name: The data set.
        classes: Its class list.
        count: How many samples it has.
        labelled: How many of them have a mask that could be read.
        sizes: How many images there are of each (width, height).
        parts: How many samples of a folder are for learning (`train`) and for scoring (`val`).
        pixels: How many pixels each class has, (K,).
        images: In how many masks each class occurs, (K,).
        void_pixels: How many pixels are not labelled.
        stray_ids: In how many masks each id occurs that is of no class.
        problems: Faults to mend, one line each.
        notes: Things that are allowed but rarely meant, one line each.
    """

    name: str
    classes: Classes
    count: int
    labelled: int = 0
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    parts: dict[str, int] = field(default_factory=dict)
    pixels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    images: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    void_pixels: int = 0
    stray_ids: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is nothing to mend."""
        return not self.problems

    def summary(self, every: bool = False) -> str:
        """The report as text; problems of one kind are told once, unless `every` one is to be listed."""
        sizes = ", ".join(f"{w}x{h} ({n})" for (w, h), n in self.sizes.most_common(5))
        more = f" and {len(self.sizes) - 5} other sizes" if len(self.sizes) > 5 else ""
        lines = [
            f"{self.name}: {self.count} samples, {self.labelled} with a mask that can be used",
            f"sizes: {sizes or 'none'}{more}",
        ]
        if self.parts:
            lines.append(f"training: learns from {self.parts['train']}, scores itself on {self.parts['val']}")
        if self.labelled:
            total = max(1, int(self.pixels.sum()) + self.void_pixels)
            width = max(map(len, (*self.classes.names, "class")))
            lines += ["", f"{'id':>3}  {'class':<{width}}  {'pixels':>7}  {'images':>7}"]
            for label, name in enumerate(self.classes.names):
                share = self.pixels[label] / total
                lines.append(f"{label:>3}  {name:<{width}}  {share:>7.2%}  {self.images[label]:>7}")
            lines.append(f"{VOID:>3}  {'void':<{width}}  {self.void_pixels / total:>7.2%}")
        if self.problems:
            lines += ["", *(_all_problems(self.problems) if every else _by_kind(self.problems))]
        if self.notes:
            lines += ["", _counted(len(self.notes), "note") + ":", *(f"  {note}" for note in self.notes)]
        return "\n".join(lines if self.problems else [*lines, "", "no problems found"])


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count > 1)}"


def _all_problems(problems: Sequence[str]) -> list[str]:
    return [f"{_counted(len(problems), 'problem')}:", *(f"  {problem}" for problem in problems)]


def _by_kind(problems: Sequence[str]) -> list[str]:
    """One line for each kind, and one more that names some of the other files."""
    kinds = kinds_of(problems)
    of = "" if len(kinds) == len(problems) else f" of {_counted(len(kinds), 'kind')} (--all lists each one)"
    lines = [f"{_counted(len(problems), 'problem')}{of}:"]
    for kind in kinds[:SHOWN]:
        lines += [f"  {kind.first}", *_others(kind)]
    left = sum(kind.times for kind in kinds[SHOWN:])
    return [*lines, f"  … and {left} more (--all lists each one)"] if left else lines


def _others(kind: Kind) -> list[str]:
    if kind.times == 1:
        return []
    named = ", ".join(kind.others[:NAMED])
    rest = kind.times - 1 - len(kind.others[:NAMED])
    more = f"{rest} more" if rest else ""
    return [f"    the same in {' and '.join(filter(None, (named, more)))}"]


def check_data(data: SegmentationData | str | Path, progress: Progress | None = None) -> CheckReport:
    """Reads a whole data set and reports what it holds and what is wrong with it.

    Args:
        data: A data set, or a specification as `open_data` takes it: all of a folder, faults included, or the
            split `train` of anything else.
        progress: Called with (samples done, samples in all) after each sample.
    """
    if not isinstance(data, SegmentationData):
        data = open_data(data, split=None, strict=False)
    classes = data.classes
    report = CheckReport(
        data.name,
        classes,
        len(data),
        pixels=np.zeros(classes.num_classes, np.int64),
        images=np.zeros(classes.num_classes, np.int64),
        problems=list(data.problems),
    )
    for index in range(len(data)):
        _check_sample(data, index, report)
        if progress is not None:
            progress(index + 1, len(data))
    report.notes += _remarks(report)
    if isinstance(data, FolderData) and report.labelled and report.ok:
        _divide(data, report)
    return report


def _check_sample(data: SegmentationData, index: int, report: CheckReport) -> None:
    """Counts one sample; its files are read one by one, so that a fault in one hides none in the other."""

    def attempt(read: Callable[[], Result], *files: str | Path | None) -> Result | None:
        try:
            return read()
        except InputError as error:
            report.problems.append(Problem(str(error), *files))
            report.stray_ids.update(error.ids if isinstance(error, StrayIds) else ())
            return None

    if isinstance(data, PairedFiles):
        paired, pair = data, data.pairs[index]
        image = attempt(lambda: paired.read_image(index), pair.image)
        mask = attempt(lambda: paired.read_labels(index), pair.mask)
        if image is not None and mask is not None:
            both = image, mask
            attempt(lambda: require_same_size(*both, pair), pair.mask, pair.image)
    else:
        sample = attempt(lambda: data[index], data.sample_name(index))
        image, mask = (sample.image, sample.mask) if sample is not None else (None, None)
    if image is not None:
        report.sizes[image.shape[1], image.shape[0]] += 1
    if mask is not None:
        _count_labels(mask, report)


def _count_labels(mask: LabelArray, report: CheckReport) -> None:
    counts = np.bincount(mask.ravel(), minlength=256)
    report.labelled += 1
    report.pixels += counts[: report.classes.num_classes]
    report.images += counts[: report.classes.num_classes] > 0
    report.void_pixels += int(counts[VOID])


def _divide(data: FolderData, report: CheckReport) -> None:
    """Says what a training would make of a folder."""
    try:
        report.parts = data.part_sizes()
    except InputError as error:
        report.problems.append(Problem(str(error)))


def _remarks(report: CheckReport) -> list[str]:
    notes = [stray_remark(report.stray_ids)] if report.stray_ids else []
    if not report.labelled:
        why = "no mask can be used" if report.problems else "no sample has a mask"
        return [*notes, f"{why}: the images can be predicted, not scored or trained on"]
    absent = [name for name, images in zip(report.classes.names, report.images, strict=True) if images == 0]
    if absent:
        notes.append(f"never occurs: {', '.join(absent)}; nothing can be learned about it")
    if report.classes.num_classes - len(absent) == 1 and report.void_pixels:
        notes.append(
            "every labelled pixel has one class and the rest is 255, which means void; if 255 is a class,"
            " give grey colours in the class list (`background 0 0 0`, `object 255 255 255`)"
        )
    return notes
