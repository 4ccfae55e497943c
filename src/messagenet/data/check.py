"""A check of a whole data set in one pass, before training.

It also counts pixels and images per class, because the most common mistakes raise no error: a class that never occurs,
or a foreground saved as 255, which means void. Issues that differ only in names and numbers are listed once, as a kind.
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
from messagenet.data.dataset import DataIssue, PairedFiles, SegmentationData, UnknownIds, require_same_size
from messagenet.data.folder import FolderData
from messagenet.data.images import read_image
from messagenet.data.open import open_data
from messagenet.errors import InputError, some

Progress = Callable[[int, int], None]
_Result = TypeVar("_Result")
MAX_KINDS = 20  # kinds of issue in a summary
MAX_FILES = 3  # further files named for each kind
MAX_IDS = 10


@dataclass
class CheckReport:
    """What a data set contains and what is wrong with it."""

    name: str
    classes: Classes
    count: int  # of samples
    labelled: int = 0  # samples with a mask that can be used
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)  # images by (width, height)
    parts: dict[str, int] = field(default_factory=dict)  # of a folder: samples in `train` and in `val`
    pixels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # of each class, (K,)
    images: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # masks with each class, (K,)
    void_pixels: int = 0
    unknown_ids: Counter[int] = field(default_factory=Counter)  # masks by id without a class
    issues: list[str] = field(default_factory=list)  # what to fix
    notes: list[str] = field(default_factory=list)  # what is allowed but rarely intended

    @property
    def ok(self) -> bool:
        """Whether there is nothing to fix."""
        return not self.issues

    def summary(self, every: bool = False) -> str:
        """The report as text; issues of one kind are listed once, or each one if `every` is set."""
        sizes = ", ".join(f"{w}x{h} ({n})" for (w, h), n in self.sizes.most_common(5))
        more = f" and {len(self.sizes) - 5} other sizes" if len(self.sizes) > 5 else ""
        lines = [
            f"{self.name}: {self.count} samples, {self.labelled} with a mask that can be used",
            f"sizes: {sizes or 'none'}{more}",
        ]
        if self.parts:
            lines.append(f"split: {self.parts['train']} for training, {self.parts['val']} for validation")
        if self.labelled:
            total = max(1, int(self.pixels.sum()) + self.void_pixels)
            width = max(map(len, (*self.classes.names, "class")))
            lines += ["", f"{'id':>3}  {'class':<{width}}  {'pixels':>7}  {'images':>7}"]
            for label, name in enumerate(self.classes.names):
                share = self.pixels[label] / total
                lines.append(f"{label:>3}  {name:<{width}}  {share:>7.2%}  {self.images[label]:>7}")
            lines.append(f"{VOID:>3}  {'void':<{width}}  {self.void_pixels / total:>7.2%}")
        if self.issues and every:
            lines += ["", _count(len(self.issues), "issue") + ":", *(f"  {issue}" for issue in self.issues)]
        elif self.issues:
            lines += ["", *_list_kinds(self.issues)]
        if self.notes:
            lines += ["", _count(len(self.notes), "note") + ":", *(f"  {note}" for note in self.notes)]
        return "\n".join(lines if self.issues else [*lines, "", "no issues found"])


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count > 1)}"


def _list_kinds(issues: Sequence[str]) -> list[str]:
    """The first issue of each kind, with a line that names some of the other files."""
    kinds: dict[str, list[DataIssue]] = {}
    for text in issues:
        issue = text if isinstance(text, DataIssue) else DataIssue(text)
        kinds.setdefault(issue.kind, []).append(issue)
    of = "" if len(kinds) == len(issues) else f" of {_count(len(kinds), 'kind')} (--all lists each one)"
    lines = [f"{_count(len(issues), 'issue')}{of}:"]
    for first, *others in list(kinds.values())[:MAX_KINDS]:
        lines.append(f"  {first}")
        named = [issue.files[0] for issue in others if issue.files][:MAX_FILES]
        rest = [f"{len(others) - len(named)} more"] if len(others) > len(named) else []
        if others:
            lines.append(f"    the same in {' and '.join([', '.join(named), *rest] if named else rest)}")
    left = sum(len(group) for group in list(kinds.values())[MAX_KINDS:])
    return [*lines, f"  … and {left} more (--all lists each one)"] if left else lines


def check_data(data: SegmentationData | str | Path, progress: Progress | None = None) -> CheckReport:
    """Reads a whole data set and reports what it contains and what is wrong with it.

    Args:
        data: A data set, or a specification for `open_data`: all of a folder, or the split `train` of anything else.
        progress: Called with (samples done, samples in all) after each sample.
    """
    if not isinstance(data, SegmentationData):
        data = open_data(data, split=None, strict=False)
    report = CheckReport(data.name, data.classes, len(data), issues=list(data.issues))
    report.pixels, report.images = np.zeros((2, data.classes.num_classes), np.int64)
    for index in range(len(data)):
        _check_sample(data, index, report)
        if progress is not None:
            progress(index + 1, len(data))
    if not report.labelled and report.ok:
        report.issues.append(DataIssue(f"{data.name} has no masks to learn from; add them, or choose another split"))
    report.notes += _notes(report)
    if isinstance(data, FolderData) and report.labelled and report.ok:
        try:
            report.parts = data.part_sizes()
        except InputError as error:
            report.issues.append(DataIssue(str(error)))
    return report


def _check_sample(data: SegmentationData, index: int, report: CheckReport) -> None:
    """Adds one sample to the report; image and mask are read separately, so that each shows its issue."""

    def attempt(read: Callable[[], _Result], *files: str | Path | None) -> _Result | None:
        try:
            return read()
        except InputError as error:
            report.issues.append(DataIssue(str(error), *files))
            report.unknown_ids.update(error.ids if isinstance(error, UnknownIds) else ())
            return None

    if isinstance(data, PairedFiles):
        paired, pair = data, data.pairs[index]
        image = attempt(lambda: read_image(pair.image), pair.image)
        mask = attempt(lambda: paired.read_labels(index), pair.mask)
        if image is not None and mask is not None:
            both = image, mask
            mask = attempt(lambda: require_same_size(*both, pair), pair.mask, pair.image)
    else:
        sample = attempt(lambda: data[index], data.sample_name(index))
        image, mask = (sample.image, sample.mask) if sample is not None else (None, None)
    if image is not None:
        report.sizes[image.shape[1], image.shape[0]] += 1
    if image is not None and mask is not None:
        counts = np.bincount(mask.ravel(), minlength=256)
        report.labelled += 1
        report.pixels += counts[: report.classes.num_classes]
        report.images += counts[: report.classes.num_classes] > 0
        report.void_pixels += int(counts[VOID])


def _notes(report: CheckReport) -> list[str]:
    notes = []
    if listed := [f"{label} in {_count(count, 'mask')}" for label, count in sorted(report.unknown_ids.items())]:
        notes.append(f"ids of no class: {some(listed, MAX_IDS)}")
    if not report.labelled:
        return [*notes, "no mask can be used: the images can be predicted, not scored or trained on"]
    absent = [name for name, images in zip(report.classes.names, report.images, strict=True) if images == 0]
    if absent:
        notes.append(f"never occurs: {', '.join(absent)}; nothing can be learned about it")
    if report.classes.num_classes - len(absent) == 1 and report.void_pixels:
        notes.append(
            "every labelled pixel has one class and the rest is 255, which means void; if 255 is a class,"
            " give grey colours in the class list (`background 0 0 0`, `object 255 255 255`)"
        )
    return notes
