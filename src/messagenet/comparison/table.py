"""The table of a comparison: one line per row, mean and standard deviation over its seeds, as Markdown, CSV, JSON."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from messagenet.comparison.outcome import Outcome
from messagenet.evaluation.sizes import LIMITS
from messagenet.files import write_atomically

TRIMAP = "4"
"""Width in pixels of the band around boundaries that the table shows; json has them all."""

TRIMAP_COLUMN = f"trimap IoU, {TRIMAP} px"
SMALL_COLUMN = f"accuracy, ≤ {LIMITS[0]:.0%} of image"
COLUMNS = (
    *("system", "seeds", "IoU", TRIMAP_COLUMN, SMALL_COLUMN, "ECE", "parameters", "outputs per factor"),
    *("s of training", "s / training step", "s / prediction", "MB / prediction"),
)


@dataclass(frozen=True)
class Line:
    """A row over all its seeds; a spread is the sample standard deviation, None with one seed.

    Attributes:
        row: Its name.
        label: What it is.
        kind: Of its network.
        seeds: Which were trained.
        mean_iou: Mean over the seeds.
        spread: Of the IoU.
        trimap_iou: Mean over the seeds, near boundaries.
        trimap_spread: Of that.
        small_accuracy: Mean over the seeds, of classes that cover little of their image.
        small_spread: Of that.
        calibration_error: Mean ECE over the seeds.
        calibration_spread: Of that.
        parameters: Numbers that training changes.
        outputs_per_factor: Numbers that a network computes for a factor.
        train_seconds: Of the whole training, mean over the seeds.
        step_seconds: Of a training step; None for a system that is fitted without steps.
        prediction_seconds: Of a prediction.
        prediction_megabytes: Of a prediction.
    """

    row: str
    label: str
    kind: str
    seeds: tuple[int, ...]
    mean_iou: float
    spread: float | None
    trimap_iou: float | None
    trimap_spread: float | None
    small_accuracy: float | None
    small_spread: float | None
    calibration_error: float | None
    calibration_spread: float | None
    parameters: int
    outputs_per_factor: int
    train_seconds: float
    step_seconds: float | None
    prediction_seconds: float
    prediction_megabytes: float

    @property
    def cells(self) -> tuple[str, ...]:
        """What the table shows, one text for each of `COLUMNS`."""
        return (
            self.label,
            str(len(self.seeds)),
            percent(self.mean_iou, self.spread),
            percent(self.trimap_iou, self.trimap_spread),
            percent(self.small_accuracy, self.small_spread),
            percent(self.calibration_error, self.calibration_spread),
            f"{self.parameters:,}",
            f"{self.outputs_per_factor:,}",
            f"{self.train_seconds:.0f}",
            "–" if self.step_seconds is None else f"{self.step_seconds:.3g}",
            f"{self.prediction_seconds:.3g}",
            f"{self.prediction_megabytes:.0f}",
        )


def percent(mean: float | None, spread: float | None) -> str:
    """A mean with its spread in per cent.

    >>> percent(0.5, 0.012), percent(0.5, None), percent(None, None)
    ('50.0 ± 1.2', '50.0', '–')
    """
    if mean is None:
        return "–"
    return f"{100 * mean:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}")


def lines(outcomes: Sequence[Outcome]) -> list[Line]:
    """One line for each row, in the order of the outcomes."""
    names = dict.fromkeys(outcome.row for outcome in outcomes)
    return [_line([outcome for outcome in outcomes if outcome.row == name]) for name in names]


def _line(outcomes: Sequence[Outcome]) -> Line:
    first = outcomes[0]
    near = [outcome.trimap_iou[TRIMAP] for outcome in outcomes if TRIMAP in outcome.trimap_iou]
    small = [outcome.small_accuracy for outcome in outcomes if outcome.small_accuracy is not None]
    unsure = [outcome.calibration_error for outcome in outcomes if outcome.calibration_error is not None]
    return Line(
        first.row,
        first.label,
        first.kind,
        tuple(outcome.seed for outcome in outcomes),
        statistics.fmean(outcome.mean_iou for outcome in outcomes),
        _mean_and_spread([outcome.mean_iou for outcome in outcomes])[1],
        *_mean_and_spread(near),
        *_mean_and_spread(small),
        *_mean_and_spread(unsure),
        first.parameters,
        first.outputs_per_factor,
        statistics.fmean(outcome.train_seconds for outcome in outcomes),
        first.cost.step_seconds if first.steps > 1 else None,
        first.cost.prediction_seconds,
        first.cost.prediction_megabytes,
    )


def _mean_and_spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Those that exist: a mean of no values does not, nor a spread of one."""
    return (
        statistics.fmean(values) if values else None,
        statistics.stdev(values) if len(values) > 1 else None,
    )


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The table as Markdown, the best IoU in bold."""
    found = lines(outcomes)
    best = max(line.mean_iou for line in found)
    rows = [COLUMNS, ("---", *("---:" for _ in COLUMNS[1:]))]
    for line in found:
        cells = list(line.cells)
        if line.mean_iou == best and len(found) > 1:
            cells[2] = f"**{cells[2]}**"
        rows.append(tuple(cells))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def write_tables(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Writes comparison.md, comparison.csv and comparison.json."""
    found = lines(outcomes)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(asdict(found[0])))
    writer.writeheader()
    for line in found:
        writer.writerow(asdict(line) | {"seeds": " ".join(map(str, line.seeds))})
    content = {
        "rows": [asdict(line) for line in found],
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    write_atomically(folder / "comparison.md", markdown(outcomes).encode())
    write_atomically(folder / "comparison.csv", text.getvalue().encode())
    write_atomically(folder / "comparison.json", (json.dumps(content, indent=2) + "\n").encode())
