"""The `messagenet` command. Every verb is one call into the library; this file only reads arguments and prints.

Exit codes: 0 done, 2 the input is at fault (one line says what to change), 130 interrupted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from messagenet._version import __version__
from messagenet.errors import InputError
from messagenet.files import write_atomically

if TYPE_CHECKING:
    from messagenet.prediction import Predictor

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Learned message passing for structured prediction: segment images with context that CNNs learn to pass.\n\n"
    "Start with `messagenet demo`; then `messagenet train --data folder:DIR --out runs/mine`.",
)
data_app = typer.Typer(no_args_is_help=True, help="Look at data sets before training on them.")
app.add_typer(data_app, name="data")
console = Console()

DATA_HELP = (
    "Data set: `synthetic`, `synthetic:COUNT`, `folder:DIR` (images/, masks/, classes.txt), `voc:DIR`, "
    "`voc:DIR,SBD_DIR`, `sbd:DIR`."
)
DataOption = Annotated[str, typer.Option("--data", "-d", help=DATA_HELP)]
ClassesOption = Annotated[Path | None, typer.Option(help="Class list, if the data set has none of its own.")]
VoidOption = Annotated[
    list[int] | None, typer.Option(help="Mask value that means “not labelled”; repeatable.")
]
KeepOption = Annotated[
    str | None, typer.Option(help="Comma-separated classes to keep, e.g. `background,cat,dog`.")
]
RestOption = Annotated[str, typer.Option(help="What the other classes become: `void` or `background`.")]
FlipOption = Annotated[bool, typer.Option(help="Also predict the mirror image and average.")]
ScalesOption = Annotated[
    str, typer.Option(help="Comma-separated sizes to predict at and average, e.g. `0.75,1,1.25`.")
]


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Shows the version."""
    if show:
        console.print(f"messagenet {__version__}")
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the models and pictures.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the scenes and of the training.")] = 0,
) -> None:
    """Train a unary and a message model on synthetic scenes, compare them, and draw what each one sees.

    In the scenes, sky and water look the same, and so do cloud, foam and snow: only the arrangement tells.
    """
    from messagenet.demo import run_demo

    run_demo(out, seed=seed, console=console)


@app.command()
def train(
    data: Annotated[str | None, typer.Option("--data", "-d", help=DATA_HELP)] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run.")] = Path("runs/latest"),
    preset: Annotated[
        str | None, typer.Option(help="Settings to start from: `fast`, `tiny` or `paper-vgg16`.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings, as saved with every run.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: `a.b=value`; repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="`message` or `unary`.")] = None,
    classes: ClassesOption = None,
    void: VoidOption = None,
    keep: KeepOption = None,
    rest: Annotated[
        str | None, typer.Option(help="What the classes not kept become: `void` or `background`.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="How often to go through the training images.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted run in the same folder.")] = False,
) -> None:
    """Train a model on a data set.

    `messagenet train --data folder:street --preset fast --out runs/street` trains a small, strong network on
    `street/images` and `street/masks`; the best model is then in `runs/street/best`. Without a preset, `tiny` is
    used for synthetic scenes and `fast` for photographs. Ctrl-C stops after the current step; `--resume` goes on.
    """
    from messagenet.training import Bar, train
    from messagenet.training.choose import choose_config

    chosen = choose_config(
        data=data,
        preset=preset,
        file=config,
        overrides=set_ or [],
        run_folder=out if resume else None,
        kind=model,
        classes=classes,
        void_values=void,
        keep=_words(keep),
        rest=rest,
        epochs=epochs,
    )
    result = train(chosen, out, resume=resume, progress=Bar(console))
    if result.interrupted:
        raise typer.Exit(130)
    console.print(
        f"the best model is in [bold]{out / 'best'}[/bold]: messagenet predict IMAGES --model {out / 'best'}"
    )


@app.command()
def settings(
    preset: Annotated[
        str, typer.Argument(help="`default`, `fast`, `tiny`, `paper-vgg16`, or a YAML file.")
    ] = "default",
) -> None:
    """Print every setting of a training, with its meaning and its value in a preset.

    `messagenet settings fast > mine.yaml`, edit, then `messagenet train --config mine.yaml --data folder:DIR`.
    """
    from messagenet.training.config_files import config_text, load_config

    sys.stdout.write(config_text(load_config(preset)))


@app.command()
def predict(
    images: Annotated[list[str], typer.Argument(help="Image files, folders or globs.")],
    model: Annotated[
        Path, typer.Option("--model", "-m", help="Folder of a saved model, such as `runs/mine/best`.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")] = Path("predictions"),
    save: Annotated[
        str,
        typer.Option(help="What to write: `mask`, `overlay`, `entropy`, `probs`, `voc`; comma-separated."),
    ] = "mask,overlay",
    flip: FlipOption = False,
    scales: ScalesOption = "1",
    tile: Annotated[
        int, typer.Option(help="Images larger than this many pixels are predicted in tiles.")
    ] = 1024,
) -> None:
    """Segment images of any size.

    `messagenet predict photos/ --model runs/mine/best` writes a palette PNG and an overlay for each photo.
    """
    from messagenet.prediction import predict_files

    predictor = _predictor(model, flip, scales, tile)
    with _progress("predicting") as bar:
        task = bar.add_task("images", total=None)
        written = predict_files(
            predictor,
            images,
            out,
            _words(save) or [],
            progress=lambda done, total, file: bar.update(task, completed=done, total=total),
        )
    _say(f"{len(written)} files written to {out}")


@app.command()
def evaluate(
    model: Annotated[
        list[Path], typer.Option("--model", "-m", help="Folder of a saved model; repeat to compare.")
    ],
    data: DataOption = "synthetic",
    split: Annotated[str, typer.Option(help="Part of the data set to score on.")] = "val",
    classes: ClassesOption = None,
    void: VoidOption = None,
    keep: KeepOption = None,
    rest: RestOption = "void",
    flip: FlipOption = False,
    scales: ScalesOption = "1",
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report here.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the scores here.")] = None,
) -> None:
    """Score models on labelled images: IoU, accuracy, boundaries, calibration.

    `messagenet evaluate --model runs/a/best --model runs/b/best --data folder:street --report report.html`
    """
    from messagenet.data import open_data
    from messagenet.evaluation import scores_table
    from messagenet.prediction import score
    from messagenet.prediction.examples import report_examples
    from messagenet.report import write_report

    labelled = open_data(data, split, classes, void, _words(keep), rest)  # type: ignore[arg-type]
    predictors = {
        name: _predictor(folder, flip, scales)
        for name, folder in zip(_model_names(model), model, strict=True)
    }
    named = {}
    with _progress("scoring") as bar:
        for name, predictor in predictors.items():
            named[name] = score(predictor, labelled, progress=_advance(bar, name, len(labelled)))
    console.print(scores_table(named, labelled.name))
    if json_file:
        content = {name: scores.to_dict() for name, scores in named.items()}
        write_atomically(json_file, (json.dumps(content, indent=2) + "\n").encode())
    if report:
        examples = report_examples(predictors, labelled, next(reversed(named.values())))
        write_report(named, examples, report, classes=labelled.classes, title=labelled.name)
        _say(f"report: {report}")


@app.command()
def infer(
    model: Annotated[Path, typer.Argument(help="A `.uai` (MARKOV or BAYES) or libDAI `.fg` file.")],
    evidence: Annotated[Path | None, typer.Option("--evidence", "-e", help="UAI evidence file.")] = None,
    engine: Annotated[str, typer.Option(help="`exact`, `bp`, `trw`, `trws` (MAP only) or `mf`.")] = "exact",
    task: Annotated[
        str, typer.Option(help="`mar` marginals, `pr` log10 Z, `map` the most probable state.")
    ] = "mar",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; the terminal by default.")
    ] = None,
) -> None:
    """Answer a query on a discrete graphical model, and write it as the UAI competitions do.

    `messagenet infer grid.uai --evidence grid.evid --engine bp --task mar --out grid.MAR`
    """
    from messagenet.inference.files import format_result, solve

    graph, result = solve(model, evidence, engine, task)  # type: ignore[arg-type]
    if not result.converged:
        print(
            f"{engine} did not converge in {result.iterations} iterations: its answer is a guess",
            file=sys.stderr,
        )
    text = format_result(graph, result, task)  # type: ignore[arg-type]
    if out:
        write_atomically(out, text.encode())
    else:
        sys.stdout.write(text)


@data_app.command("check")
def check(
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    split: Annotated[str | None, typer.Option(help="Part of the data set; all of it by default.")] = None,
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet (PNG) here.")] = None,
    classes: ClassesOption = None,
    void: VoidOption = None,
) -> None:
    """Count images, sizes and labels, and list everything that would trip a training.

    Exits with 2 if there is a problem.
    """
    from messagenet.data import check_data, open_data
    from messagenet.report import contact_sheet, save_png

    labelled = open_data(data, split, classes, void, strict=False)
    with _progress("checking") as bar:
        report = check_data(labelled, progress=_advance(bar, "images", len(labelled)))
    _say(report.summary())
    if sheet:
        _say(f"contact sheet: {save_png(contact_sheet(labelled), sheet)}")
    if report.problems:
        raise typer.Exit(2)


def _predictor(folder: Path, flip: bool, scales: str, tile: int = 1024) -> Predictor:
    import torch

    from messagenet.models import MessageNet
    from messagenet.prediction import Predictor, Views

    try:
        factors = tuple(float(word) for word in scales.split(","))
    except ValueError:
        raise InputError(f"--scales {scales} is not a list of numbers; write it like 0.75,1,1.25") from None
    views = Views(flip=flip, scales=factors, tile=tile, overlap=min(256, tile // 4))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Predictor(MessageNet.from_pretrained(folder).to(device), views)


def _model_names(folders: list[Path]) -> list[str]:
    """What tables call the models: the name of the run's folder, or the whole path where two would be alike."""
    whole = [folder.absolute() for folder in folders]
    if len(set(whole)) < len(whole):
        raise InputError("a model is given twice; give each once")
    short = [(folder.parent if folder.name in ("best", "last") else folder).name for folder in whole]
    return short if len(set(short)) == len(short) else [str(folder) for folder in whole]


def _say(text: str) -> None:
    """Prints text as it is, whatever brackets it holds, and leaves the breaking of lines to the terminal."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def _advance(bar: Progress, description: str, total: int) -> Callable[[int, int], None]:
    """A new line of a progress bar, as a function that moves it."""
    task = bar.add_task(description, total=total)
    return lambda done, _: bar.update(task, completed=done)


def _progress(title: str) -> Progress:
    return Progress(
        TextColumn(f"{title} {{task.description}}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def main() -> None:
    """The entry point: turns bad input into one line and exit code 2."""
    try:
        app()
    except InputError as error:
        line = Text.assemble(("error:", "bold red"), " ", str(error))
        Console(stderr=True).print(line, soft_wrap=True, highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
