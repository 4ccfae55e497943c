"""The `messagenet` command, run inside the test's own process."""

from __future__ import annotations

import sys

from messagenet import cli


def run(*arguments: object) -> int:
    """Runs the command; its exit code."""
    old = sys.argv
    sys.argv = ["messagenet", *map(str, arguments)]
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = old
    return 0
