"""The `messagenet` command: reads arguments, makes one call into the library, prints.

Exit codes: 0 done, 2 the input is at fault (one line says what to change), 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated, NoReturn

import typer

from messagenet._version import __version__
from messagenet.cli.models import evaluate, predict, serve, settings, train, tune
from messagenet.cli.options import console, print_error, print_notes
from messagenet.cli.research import check, compare, demo, infer
from messagenet.errors import InputError

PATIENCE = 5.0  # seconds that a process waits for the first one to name an error that all of them have
app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Learned message passing for structured prediction: segment images with learned context.\n\n"
    "Start with `messagenet predict photo.jpg` or `messagenet demo`; then "
    "`messagenet train --data folder:DIR --out runs/mine`.",
)
data_app = typer.Typer(no_args_is_help=True, help="Check data sets before training.")
app.add_typer(data_app, name="data")
for command in (demo, train, settings, predict, evaluate, compare, tune, infer, serve):
    app.command()(command)
data_app.command("check")(check)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Shows the version."""
    if show:
        console.print(f"messagenet {__version__}")
        raise typer.Exit


def main() -> None:
    """The entry point: turns bad input into one line and exit code 2, warnings into notes."""
    try:
        with print_notes():
            app()
    except InputError as error:
        _end(2, str(error))
    except KeyboardInterrupt:
        _end(130, "interrupted")


def _end(code: int, text: str) -> NoReturn:
    """Ends the program with one line. Process 0 goes first: torchrun ends all processes when one of them fails."""
    rank = int(os.environ.get("RANK", "0"))
    if rank:
        time.sleep(PATIENCE)
    print_error(f"process {rank}: {text}" if rank else text)
    sys.exit(code)
