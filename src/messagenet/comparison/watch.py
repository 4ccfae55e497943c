"""A comparison in the terminal: a headline and a bar for each training, a line for each outcome, the table."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console as RichConsole
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from messagenet.comparison.outcome import Outcome
from messagenet.comparison.rows import Row
from messagenet.comparison.table import COLUMNS, TRIMAP_COLUMN, lines
from messagenet.training import Bar, Progress

SHOWN = [COLUMNS.index(name) for name in ("system", "IoU", TRIMAP_COLUMN, "parameters", "s of training")]


class Console:
    """Prints what a comparison is doing.

    Args:
        console: Where to print.
    """

    def __init__(self, console: RichConsole | None = None) -> None:
        self.console = console or RichConsole(stderr=True)
        self._bar: RichProgress | None = None

    def row(self, number: int, total: int, row: Row, seed: int) -> Progress | None:
        """A headline, and the bar of a training below it."""
        self.console.rule(f"{number}/{total}  {row.label or row.name}, seed {seed}", align="left")
        return Bar(self.console, to_resume="give the same command again")

    def features(self, done: int, total: int) -> None:
        """A bar, which goes when it is full."""
        if self._bar is None:
            self._bar = RichProgress(console=self.console, transient=True)
            self._bar.add_task("features of the images to score", total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done)
        if done == total:
            self._bar.stop()
            self._bar = None

    def done(self, number: int, total: int, outcome: Outcome) -> None:
        """The scores of a row."""
        values = ", ".join(f"{name} {value:g}" for name, value in outcome.tuned.items())
        tuned = f", tuned on held-out images to {values}" if values else ""
        self.console.print(
            f"{number}/{total} {outcome.row}, seed {outcome.seed}: mean IoU {outcome.mean_iou:.1%}{tuned}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def drawn_table(outcomes: Sequence[Outcome]) -> Table:
    """What fits into a terminal of the table of a comparison; comparison.md has all of it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    found = lines(outcomes)
    for number in SHOWN:
        widest = max((len(line.cells[number]) for line in found), default=0)
        least = widest if number else None  # numbers stay whole, a long name may go on in the next line
        table.add_column(COLUMNS[number], justify="right" if number else "left", min_width=least)
    for line in found:
        table.add_row(*(Text(line.cells[number]) for number in SHOWN))
    return table
