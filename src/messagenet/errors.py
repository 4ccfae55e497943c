"""The one exception that means "the input is at fault, not the program", and the one warning.

Raised at every border (arguments, files, HTTP) with a single line that says what is wrong and how to fix it.
The command line prints that line and exits with code 2; a server answers 4xx.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave cannot be used; the message names the fix."""


class Note(RuntimeWarning):
    """Something works otherwise than the user may expect; the command line prints the message alone."""


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
