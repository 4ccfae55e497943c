"""The one exception that means "the input is at fault, not the program", and the one warning.

Raised at every border (arguments, files, HTTP) with a single line that says what is wrong and how to fix it.
The command line prints that line and exits with code 2; a server answers 4xx.

Files that are either complete or absent: a reader never meets half of one, a crash never leaves one.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path


class InputError(ValueError):
    """Something the user gave cannot be used; the message names the fix."""


class Note(RuntimeWarning):
    """Something works otherwise than the user may expect; the command line prints the message alone."""


def some(names: Sequence[str], count: int = 3) -> str:
    """The first of several names, to show in an error message.

    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")


def nearest(word: str, choices: Iterable[str]) -> str:
    """Says which of `choices` was probably meant, to finish an error message with.

    >>> nearest("iteration", ["iterations", "hidden"])
    'did you mean "iterations"?'
    >>> nearest("zzz", ["iterations", "hidden"])
    'choose one of: hidden, iterations'
    """
    known = sorted(choices)
    match = difflib.get_close_matches(word, known, n=1)
    return f'did you mean "{match[0]}"?' if match else f"choose one of: {', '.join(known)}"


def refuse_folder(path: str | Path | None, example: str) -> None:
    """Refuses a folder where a file is to be written, before the work that would fill it."""
    if path is not None and Path(path).is_dir():
        raise InputError(f"{path} is a folder; give a file such as {Path(path) / example}")


def write_atomically(path: str | Path, content: bytes) -> Path:
    """Writes beside the target under another name, then renames; missing folders are made."""
    target = Path(path)
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.part"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise InputError(f"cannot write {target} ({error.strerror}); choose a file in a writable folder") from None
    return target
