"""Options that several commands share, and output: the console, lines, errors, progress bars."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from messagenet.errors import InputError, Note
from messagenet.settings import import_components

DATA_HELP = (
    "Data set: synthetic scenes `synthetic`, `synthetic:COUNT`, `noisy`, `noisy:COUNT`; `folder:DIR` (images/, "
    "masks/, classes.txt), `voc:DIR`, `voc:DIR,SBD_DIR`, `sbd:DIR`."
)
ImportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        callback=lambda sources: [import_components(source) for source in sources or ()],
        expose_value=False,
        help="Python file or module that registers components of your own; repeatable.",
    ),
]
DataOption = Annotated[str | None, typer.Option("--data", "-d", help=DATA_HELP)]
ClassesOption = Annotated[
    Path | None, typer.Option(help="Class list (one class per line, or JSON), if the data set has none.")
]
VoidOption = Annotated[list[int] | None, typer.Option(help="Mask value that means “not labelled”; repeatable.")]
ScoredVoidOption = Annotated[
    list[int] | None, typer.Option(help="Mask value that means “not labelled”; repeatable. Default: as in training.")
]
KeepOption = Annotated[str | None, typer.Option(help="Comma-separated classes to keep, e.g. `background,cat,dog`.")]
RestOption = Annotated[str | None, typer.Option(help="What all other classes become: `void` or `background`.")]
LongestSideOption = Annotated[
    int | None,
    typer.Option(
        help="Reduce larger images to this many pixels first, and upsample the result; 0 for never. Default: the "
        "model's working size, which is 384 for the bundled model."
    ),
]
IterationsOption = Annotated[
    int | None, typer.Option(help="Iterations of learned messages. Default: as many as the model was trained for.")
]
SYSTEMS_HELP = (
    "`message`, `unary`, `context_crf`, `crf_pseudo`, `crf_likelihood`, `deeplab_crf`, `deeplab_mcl`, `crf_rnn`, "
    "`inference_machine`, `machine_forward`, `machine_dagger`, `fcn8s`, `deconvnet`; controls: `ensemble`, "
    "`convolution`, `dilated`, `pyramid_pooling`, `aspp`, `attention`, `transformer`"
)


def predict_options(
    flip: Annotated[bool, typer.Option(help="Also predict the mirror image, and average.")] = False,
    scales: Annotated[
        str, typer.Option(help="Comma-separated scales to predict at and average, e.g. `0.75,1,1.25`.")
    ] = "1",
    tile: Annotated[int, typer.Option(help="Predict images with a longer side than this in tiles.")] = 1024,
    longest_side: LongestSideOption = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Precision of the backbone on a CPU: `float32`, or `bf16`, faster on processors with instructions "
            "for it. Default: the one saved with the model."
        ),
    ] = None,
) -> Any:
    """How to predict, from the options of every command that predicts or scores."""
    from messagenet.prediction import PredictOptions

    return PredictOptions(flip, numbers(scales), tile, longest_side=longest_side, precision=precision)  # type: ignore[arg-type]


def takes_predict_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `predict_options` in place of its parameter `options`."""
    own, shared = (inspect.signature(function, eval_str=True).parameters for function in (command, predict_options))

    @wraps(command)
    def call(**given: Any) -> None:
        options = predict_options(**{name: given.pop(name) for name in shared})
        command(**given, options=options)

    parameters = [part for name in own for part in (shared.values() if name == "options" else [own[name]])]
    by_keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    call.__signature__ = inspect.Signature(by_keyword)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in by_keyword}
    return call


def words(text: str | None) -> list[str] | None:
    """Reads a comma-separated list; None stays None."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str, option: str = "--scales", example: str = "0.75,1,1.25", kind: type = float) -> list[Any]:
    """Reads a comma-separated list of numbers."""
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text} is not a list of numbers; write it like {example}") from None


console = Console()


def print_line(text: str) -> None:
    """Prints text as it is: no markup, and lines are broken by the terminal."""
    console.out(text, highlight=False)


def print_error(text: str) -> None:
    """Prints one line about what the user can fix, on standard error."""
    line = Text.assemble(("error:", "bold red"), " ", text)
    Console(stderr=True).print(line, soft_wrap=True, highlight=False)


@contextmanager
def print_notes() -> Iterator[None]:
    """Prints a `Note` as one line; other warnings are unchanged."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, Note):
            print(f"note: {message}", file=sys.stderr)  # a second Console would write into a progress bar
        else:
            usual(message, category, *where, **more)

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


def advance(bar: Progress, description: str = "images") -> Callable[[int, int], None]:
    """Adds a line to a progress bar; returns the function that moves it, called with (done, in all)."""
    task = bar.add_task(description, total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)
