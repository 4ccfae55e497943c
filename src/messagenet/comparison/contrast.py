"""Where one row is better than another: differences of everything that was counted, seed by seed.

Rows that share a seed see the same images in the same order, so their difference usually varies less than either of
them; a spread here is the standard deviation of the differences.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from messagenet.comparison.outcome import Outcome
from messagenet.errors import InputError
from messagenet.evaluation import Scores
from messagenet.files import write_atomically

CONFUSIONS = 5
"""How many of the largest changes of confusion are listed."""


@dataclass(frozen=True)
class Contrast:
    """What changes from one row to another.

    Attributes:
        base: Label of the first row.
        other: Label of the second.
        seeds: Which both have been trained with.
        differences: Second minus first, one for each seed, by what is measured.
        confusions: Share of a true class that is labelled as another, mean over the seeds, first and second, by
            (truth, label).
    """

    base: str
    other: str
    seeds: tuple[int, ...]
    differences: dict[str, list[float]]
    confusions: dict[tuple[str, str], tuple[float, float]]

    @property
    def largest(self) -> list[tuple[tuple[str, str], tuple[float, float]]]:
        """The confusions that change most."""
        ranked = sorted(self.confusions.items(), key=lambda item: -abs(item[1][1] - item[1][0]))
        return ranked[:CONFUSIONS]


def contrast(base: str, other: str, first: Mapping[int, Scores], second: Mapping[int, Scores]) -> Contrast:
    """Compares two rows, whose scores are given by seed; needs a seed that both have."""
    seeds = tuple(sorted(first.keys() & second.keys()))
    before, after = [[scores[seed] for seed in seeds] for scores in (first, second)]
    told = [(_measures(a), _measures(b)) for a, b in zip(before, after, strict=True)]
    common = [name for name in told[0][0] if all(name in a and name in b for a, b in told)]
    differences = {name: [b[name] - a[name] for a, b in told] for name in common}
    shares = [[_confusions(scores) for scores in side] for side in (before, after)]
    confusions = {
        pair: (statistics.fmean(s[pair] for s in shares[0]), statistics.fmean(s[pair] for s in shares[1]))
        for pair in shares[0][0]
    }
    return Contrast(base, other, seeds, differences, confusions)


def _measures(scores: Scores) -> dict[str, float]:
    """The figures of a row that exist, by name, in the order of the table."""
    found: dict[str, float | None] = {"mean IoU": scores.mean_iou}
    found |= {f"IoU of {name}": iou for name, iou in zip(scores.class_names, scores.class_iou, strict=True)}
    found |= {f"IoU within {band.width} px of a boundary": band.mean_iou for band in scores.bands}
    least = 0.0
    for group in scores.sizes:
        found[f"accuracy, {least:.0%} to {group.largest_share:.0%} of the image"] = group.accuracy
        least = group.largest_share
    found["expected calibration error"] = scores.expected_calibration_error
    return {name: value for name, value in found.items() if value is not None}


def _confusions(scores: Scores) -> dict[tuple[str, str], float]:
    """Which share of a class's pixels is labelled as each other class."""
    names = scores.class_names
    return {
        (names[truth], names[label]): count / max(sum(row), 1)
        for truth, row in enumerate(scores.confusion)
        for label, count in enumerate(row)
        if truth != label
    }


def markdown(contrasts: Sequence[Contrast]) -> str:
    """A table of the differences in percentage points, and the confusions that changed most."""
    lines = ["| difference in points | " + " | ".join(f"{c.base} → {c.other}" for c in contrasts) + " |"]
    lines.append("|---|" + "---:|" * len(contrasts))
    for name in dict.fromkeys(name for each in contrasts for name in each.differences):
        cells = [_points(each.differences.get(name, [])) for each in contrasts]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append("| seeds | " + " | ".join(str(len(each.seeds)) for each in contrasts) + " |")
    for each in contrasts:
        lines += [
            "",
            f"{each.base} → {each.other}, confusions that change most, in per cent of the true class:",
            "",
        ]
        for (truth, label), (before, after) in each.largest:
            lines.append(f"- {truth} called {label}: {100 * before:.1f} → {100 * after:.1f}")
    return "\n".join(lines) + "\n"


def _points(differences: Sequence[float]) -> str:
    """A mean with its spread and sign.

    >>> _points([0.01, 0.02]), _points([-0.031]), _points([])
    ('+1.5 ± 0.7', '-3.1', '–')
    """
    if not differences:
        return "–"
    spread = f" ± {100 * statistics.stdev(differences):.1f}" if len(differences) > 1 else ""
    return f"{100 * statistics.fmean(differences):+.1f}{spread}"


def _read(path: Path) -> Scores:
    try:
        return Scores.from_dict(json.loads(path.read_text("utf-8")))
    except (ValueError, InputError) as error:
        raise InputError(f"{path} cannot be read ({error}); delete {path.parent} to train it again") from None


def write_contrasts(pairs: Iterable[tuple[str, str]], outcomes: Sequence[Outcome], folder: Path) -> None:
    """Writes contrasts.md for the pairs of names of which both rows have been scored with a common seed."""
    pairs = list(pairs)
    scores: dict[str, dict[int, Scores]] = {name: {} for pair in pairs for name in pair}
    labels = {outcome.row: outcome.label for outcome in outcomes}
    for outcome in outcomes:
        path = folder / outcome.row / f"seed-{outcome.seed}" / "scores.json"
        if outcome.row in scores and path.is_file():
            scores[outcome.row][outcome.seed] = _read(path)
    found = [
        contrast(labels[base], labels[other], scores[base], scores[other])
        for base, other in pairs
        if scores[base].keys() & scores[other].keys()
    ]
    if found:
        write_atomically(folder / "contrasts.md", markdown(found).encode())
