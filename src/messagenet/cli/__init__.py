"""The `messagenet` command. Every verb is one call into the library; this package only reads arguments and prints.

    learning    train, tune, settings
    applying    predict, evaluate, serve
    studying    demo, compare, infer, data check

Exit codes: 0 done, 2 the input is at fault (one line says what to change), 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from messagenet._version import __version__
from messagenet.cli.models import evaluate, predict, serve, settings, train, tune
from messagenet.cli.options import complain, console, noted_warnings
from messagenet.cli.research import check, compare, demo, infer
from messagenet.errors import InputError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Learned message passing for structured prediction: segment images with context that CNNs learn to pass.\n\n"
    "Start with `messagenet predict photo.jpg` or `messagenet demo`; then "
    "`messagenet train --data folder:DIR --out runs/mine`.",
)
data_app = typer.Typer(no_args_is_help=True, help="Look at data sets before training on them.")
app.add_typer(data_app, name="data")
for command in (demo, train, settings, predict, evaluate, compare, tune, infer, serve):
    app.command()(command)
data_app.command("check")(check)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Shows the version."""
    if show:
        console.print(f"messagenet {__version__}")
        raise typer.Exit


def main() -> None:
    """The entry point: turns bad input into one line and exit code 2, warnings into notes."""
    try:
        with noted_warnings():
            app()
    except InputError as error:
        complain(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        complain("interrupted")
        sys.exit(130)
