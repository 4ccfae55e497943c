"""Scores as rows of a comparison (one column per method) and as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from messagenet.errors import InputError
from messagenet.evaluation.summary import Scores


@dataclass(frozen=True)
class Row:
    """One line of a comparison: a figure, its value for each method and how to show it.

    Attributes:
        label: What the figure is.
        values: One per method; None where a method lacks it.
        form: Format of a value, as `format` takes it.
        best: Which end is better: "highest", "lowest" or neither ("").
    """

    label: str
    values: tuple[float | None, ...]
    form: str = ".1%"
    best: str = "highest"

    @property
    def cells(self) -> tuple[str, ...]:
        """The values as text, an en dash for None."""
        return tuple("–" if value is None else format(value, self.form) for value in self.values)

    @property
    def winners(self) -> tuple[bool, ...]:
        """Which methods show the best value; none when there is nothing to compare."""
        cells = self.cells
        present = {cell: value for cell, value in zip(cells, self.values, strict=True) if value is not None}
        if not self.best or len(present) < 2:
            return (False,) * len(cells)
        winner = (max if self.best == "highest" else min)(present, key=lambda cell: present[cell])
        return tuple(cell == winner for cell in cells)


def class_rows(named: Mapping[str, Scores]) -> tuple[Row, ...]:
    """The IoU of each class, one column per method."""
    names = shared_classes(named)
    columns = [scores.class_iou for scores in named.values()]
    return tuple(Row(name, tuple(c[k] for c in columns)) for k, name in enumerate(names))


def summary_rows(named: Mapping[str, Scores]) -> tuple[Row, ...]:
    """The figures of the whole set, one column per method; those that no method has are left out."""
    methods = tuple(named.values())
    widths = sorted({band.width for scores in methods for band in scores.bands})
    bands = [{band.width: band.mean_iou for band in scores.bands} for scores in methods]
    limits = sorted({group.largest_share for scores in methods for group in scores.sizes})
    sizes = [{group.largest_share: group.accuracy for group in scores.sizes} for scores in methods]
    rows = [
        Row("Mean IoU", tuple(s.mean_iou for s in methods)),
        Row("Pixel accuracy", tuple(s.pixel_accuracy for s in methods)),
        Row("Frequency-weighted IoU", tuple(s.frequency_weighted_iou for s in methods)),
        *(Row(f"Trimap IoU, {w} px", tuple(b.get(w) for b in bands)) for w in widths),
        *(
            Row(f"Class accuracy, {_span(low, high)}", tuple(s.get(high) for s in sizes))
            for low, high in zip([0.0, *limits], limits, strict=False)
        ),
        Row("Calibration error (ECE)", tuple(s.expected_calibration_error for s in methods), best="lowest"),
        Row("Negative log-likelihood", tuple(s.negative_log_likelihood for s in methods), ".4f", "lowest"),
        Row("Brier score", tuple(s.brier_score for s in methods), ".4f", "lowest"),
        Row("Images", tuple(len(s.images) for s in methods), ",", ""),
    ]
    return tuple(row for row in rows if any(value is not None for value in row.values))


def _span(low: float, high: float) -> str:
    """Which sizes a group holds.

    >>> _span(0.0, 0.02), _span(0.02, 0.1), _span(0.1, 1.0)
    ('up to 2% of the image', '2–10%', 'above 10%')
    """
    if low == 0:
        return f"up to {high:.0%} of the image"
    return f"above {low:.0%}" if high == 1 else f"{100 * low:.0f}–{high:.0%}"


def scores_table(scores: Scores | Mapping[str, Scores], title: str = "") -> Table:
    """A table for the terminal: class IoU and the figures of the set, the best of several methods in bold."""
    named = as_named(scores)
    table = Table(title=title or None, title_justify="left")
    table.add_column("")
    for name in named:
        table.add_column(Text(name), justify="right")
    for rows in (class_rows(named), summary_rows(named)):
        for row in rows:
            cells = zip(row.cells, row.winners, strict=True)
            table.add_row(Text(row.label), *(Text(cell, style="bold" if won else "") for cell, won in cells))
        table.add_section()
    return table


def as_named(scores: Scores | Mapping[str, Scores]) -> Mapping[str, Scores]:
    """One `Scores` becomes a comparison of one; an empty comparison is an error."""
    named = {"score": scores} if isinstance(scores, Scores) else scores
    if not named:
        raise InputError("there are no scores to show; give at least one method")
    return named


def shared_classes(named: Mapping[str, Scores]) -> tuple[str, ...]:
    """The class names all methods have; comparing different ones is an error."""
    different = {scores.class_names for scores in named.values()}
    if len(different) != 1:
        raise InputError("the methods were scored on different classes; compare scores of one data set")
    return different.pop()
