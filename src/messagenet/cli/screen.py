"""What commands print on: the console, lines, complaints, notes, progress bars."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from messagenet.errors import Note

console = Console()


def say(text: str) -> None:
    """Prints text as it is, whatever brackets it holds, and leaves the breaking of lines to the terminal."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def complain(text: str) -> None:
    """One line about what the user can mend."""
    line = Text.assemble(("error:", "bold red"), " ", text)
    Console(stderr=True).print(line, soft_wrap=True, highlight=False)


@contextmanager
def noted_warnings() -> Iterator[None]:
    """Meanwhile, a `Note` is one line; all other warnings stay as they are."""
    usual = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, Note):
            # A second Console would write into the middle of a progress bar.
            print(f"note: {message}", file=sys.stderr)
        else:
            usual(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


def progress(title: str) -> Progress:
    """Progress bars that disappear when the work is done."""
    return Progress(
        TextColumn(f"{title} {{task.description}}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def advance(bar: Progress, description: str, total: int) -> Callable[[int, int], None]:
    """A new line of a progress bar, as a function that moves it."""
    task = bar.add_task(description, total=total)
    return lambda done, _: bar.update(task, completed=done)
