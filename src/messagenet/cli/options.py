"""What several commands ask for in the same words, and how comma-separated values are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from messagenet.errors import InputError

DATA_HELP = (
    "Data set: generated scenes `synthetic`, `synthetic:COUNT`, `noisy`, `noisy:COUNT`; `folder:DIR` (images/, "
    "masks/, classes.txt), `voc:DIR`, `voc:DIR,SBD_DIR`, `sbd:DIR`."
)
DataOption = Annotated[str, typer.Option("--data", "-d", help=DATA_HELP)]
ClassesOption = Annotated[Path | None, typer.Option(help="Class list, if the data set has none of its own.")]
VoidOption = Annotated[
    list[int] | None, typer.Option(help="Mask value that means “not labelled”; repeatable.")
]
ScoredVoidOption = Annotated[
    list[int] | None,
    typer.Option(help="Mask value that means “not labelled”; repeatable. By default those of the training."),
]
KeepOption = Annotated[
    str | None, typer.Option(help="Comma-separated classes to keep, e.g. `background,cat,dog`.")
]
RestOption = Annotated[str, typer.Option(help="What the other classes become: `void` or `background`.")]
TrainedRestOption = Annotated[
    str | None, typer.Option(help="What the classes not kept become: `void` or `background`.")
]
FlipOption = Annotated[bool, typer.Option(help="Also predict the mirror image and average.")]
ScalesOption = Annotated[
    str, typer.Option(help="Comma-separated sizes to predict at and average, e.g. `0.75,1,1.25`.")
]


def words(text: str | None) -> list[str] | None:
    """Reads a comma-separated list; None stays None."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str, option: str = "--scales", like: str = "0.75,1,1.25") -> list[float]:
    """Reads a comma-separated list of numbers."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text} is not a list of numbers; write it like {like}") from None
