"""Problems of files, and the kinds they are of: a fault that a thousand files share is told once.

Two problems are of one kind when their texts differ only in the names of files and in numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from messagenet.errors import InputError

_NUMBER = re.compile(r"#[\da-f]{6}|\d+")


class Problem(str):
    """One line that says what is wrong and how to mend it.

    Attributes:
        files: The names of files that the line holds, the one at fault first.
        kind: The line without names and numbers.

    >>> Problem("b.png is empty (0 bytes)", "b.png").kind
    '… is empty (… bytes)'
    """

    files: tuple[str, ...]

    def __new__(cls, text: str, *files: str | Path | None) -> Problem:
        """A problem that names these files; None, where a sample lacks one, is passed over."""
        problem = super().__new__(cls, text)
        problem.files = tuple(str(file) for file in files if file is not None and str(file) in text)
        return problem

    @property
    def kind(self) -> str:
        """The line without names and numbers."""
        text = str(self)
        for file in sorted(self.files, key=len, reverse=True):
            text = text.replace(file, "…")
        return _NUMBER.sub("…", text)


class Kind(NamedTuple):
    """Problems of one kind.

    Attributes:
        first: The first of them, in full.
        times: How many there are.
        others: The files at fault in all others, where they are known.
    """

    first: str
    times: int
    others: tuple[str, ...]


def kinds_of(problems: Iterable[str]) -> list[Kind]:
    """Problems by kind, in the order in which each was first met.

    >>> kinds_of([Problem(f"{name} is empty", name) for name in ("a.png", "b.png", "c.png")])
    [Kind(first='a.png is empty', times=3, others=('b.png', 'c.png'))]
    """
    found: dict[str, list[Problem]] = {}
    for text in problems:
        problem = text if isinstance(text, Problem) else Problem(text)
        found.setdefault(problem.kind, []).append(problem)
    return [
        Kind(str(first), 1 + len(rest), tuple(problem.files[0] for problem in rest if problem.files))
        for first, *rest in found.values()
    ]


class StrayIds(InputError):
    """A mask holds ids of no class.

    Attributes:
        ids: Which.
    """

    def __init__(self, text: str, ids: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.ids = tuple(ids)


def stray_remark(masks: Counter[int], shown: int = 10) -> str:
    """In how many masks each id of no class occurs.

    >>> stray_remark(Counter({9: 20, 77: 1}))
    'ids of no class: 9 in 20 masks, 77 in 1 mask'
    """
    listed = [f"{label} in {count} mask{'s' * (count > 1)}" for label, count in sorted(masks.items())]
    more = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return f"ids of no class: {', '.join(listed[:shown])}{more}"
