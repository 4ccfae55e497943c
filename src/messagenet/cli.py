"""The `messagenet` command. Every verb is one call into the library; this file only reads arguments and prints.

Exit codes: 0 done, 2 the input is at fault (one line says what to change), 130 interrupted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from messagenet._version import __version__
from messagenet.errors import InputError
from messagenet.files import write_atomically

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
ScoredVoidOption = Annotated[
    list[int] | None,
    typer.Option(help="Mask value that means “not labelled”; repeatable. By default those of the training."),
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
    model: Annotated[
        str | None,
        typer.Option(
            help="What to train: `message`, `unary`, or a system to compare with: `context_crf`, `crf_pseudo`, "
            "`crf_likelihood`, `deeplab_crf`, `crf_rnn`, `inference_machine`, `ensemble`, `convolution`, `dilated`, "
            "`fcn8s`."
        ),
    ] = None,
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
    from messagenet import verbs
    from messagenet.training import Bar
    from messagenet.training.processes import is_first_process

    result = verbs.train(
        data,
        out,
        preset=preset,
        config=config,
        settings=set_ or [],
        model=model,  # type: ignore[arg-type]
        classes=classes,
        void_values=void,
        keep=_words(keep),
        rest=rest,  # type: ignore[arg-type]
        epochs=epochs,
        resume=resume,
        progress=Bar(console),
    )
    if result.interrupted:
        raise typer.Exit(130)
    if is_first_process():
        _say(f"the best model is in {out / 'best'}: messagenet predict IMAGES --model {out / 'best'}")


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
    refine: Annotated[
        bool,
        typer.Option("--refine", help="Refine with a dense CRF, which draws labels to edges in the image."),
    ] = False,
    ray: Annotated[
        bool, typer.Option(help='Share the work out over a Ray cluster (`pip install "messagenet[ray]"`).')
    ] = False,
    workers: Annotated[int | None, typer.Option(help="How many processes Ray uses; all by default.")] = None,
) -> None:
    """Segment images of any size.

    `messagenet predict photos/ --model runs/mine/best` writes a palette PNG and an overlay for each photo. Images
    that cannot be read are left out and named at the end; the exit code is then 2.
    """
    from messagenet import verbs

    with _progress("predicting") as bar:
        task = bar.add_task("images", total=None)
        predicted = verbs.predict(
            images,
            model,
            out,
            save=_words(save) or [],
            flip=flip,
            scales=_numbers(scales),
            tile=tile,
            refine=refine,
            ray=ray,
            workers=workers,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if predicted.written:
        _say(f"{len(predicted.files)} files of {len(predicted.written)} images written to {out}")
    if predicted.failed:
        total = len(predicted.written) + len(predicted.failed)
        _complain(f"{len(predicted.failed)} of {total} images could not be predicted:")
        for reason in predicted.failed.values():
            Console(stderr=True).print(f"  {reason}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2)


@app.command()
def evaluate(
    model: Annotated[
        list[Path], typer.Option("--model", "-m", help="Folder of a saved model; repeat to compare.")
    ],
    data: DataOption = "synthetic",
    split: Annotated[str, typer.Option(help="Part of the data set to score on.")] = "val",
    classes: ClassesOption = None,
    void: ScoredVoidOption = None,
    keep: KeepOption = None,
    rest: RestOption = "void",
    flip: FlipOption = False,
    scales: ScalesOption = "1",
    refine: Annotated[
        bool, typer.Option("--refine", help="Score every model with a dense CRF on top as well.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report here.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the scores here.")] = None,
) -> None:
    """Score models on labelled images: IoU, accuracy, boundaries, calibration.

    `messagenet evaluate --model runs/a/best --model runs/b/best --data folder:street --report report.html`
    """
    from messagenet import verbs
    from messagenet.evaluation import scores_table

    with _progress("scoring") as bar:
        tasks: dict[str, TaskID] = {}

        def advance(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)

        named = verbs.evaluate_models(
            model,
            data,
            split=split,
            classes=classes,
            void_values=void,
            keep=_words(keep),
            rest=rest,  # type: ignore[arg-type]
            flip=flip,
            scales=_numbers(scales),
            refine=refine,
            report=report,
            progress=advance,
        )
    console.print(scores_table(named, f"{data} ({split})"))
    if json_file:
        content = {name: scores.to_dict() for name, scores in named.items()}
        write_atomically(json_file, (json.dumps(content, indent=2) + "\n").encode())
    if report:
        _say(f"report: {report}")


@app.command()
def compare(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs, table and plots.")],
    rows: Annotated[
        str,
        typer.Option(help="Comma-separated systems, e.g. `unary,message,context_crf`; `all` for every one."),
    ] = "unary,convolution,context_crf,message",
    study: Annotated[
        Path | None,
        typer.Option(help="YAML file of rows, shared settings and seeds, such as `recipes/study.yaml`."),
    ] = None,
    data: Annotated[str | None, typer.Option("--data", "-d", help=DATA_HELP)] = None,
    preset: Annotated[str | None, typer.Option(help="Settings that all rows share.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings that all rows share.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of all rows: `a.b=value`; repeatable.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Comma-separated seeds of the trainings; `0,1,2` by default.")
    ] = None,
    held_out: Annotated[
        int | None,
        typer.Option(help="Training images kept from all rows, to tune what training does not learn; 20."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="How often to go through the training images.")] = None,
) -> None:
    """Train and score systems side by side, with equal budgets and seeds, and write one table.

    `messagenet compare --rows unary,message,crf_rnn --data synthetic --out comparisons/scenes` writes comparison.md,
    .csv, .json and plots. Rows that are finished are not trained again, so an interrupted comparison goes on.
    """
    from messagenet.comparison import ROWS, markdown
    from messagenet.comparison import compare as compare_systems
    from messagenet.comparison.rows import find_rows
    from messagenet.comparison.study import Study, read_study
    from messagenet.comparison.watch import Console as Watch
    from messagenet.training.choose import choose_config

    if study is None:
        plan = Study(rows=tuple(find_rows(list(ROWS) if rows == "all" else _words(rows) or [])))
    else:
        plan = read_study(study)
    shared = choose_config(
        data=data,
        preset=preset or (None if config else plan.preset),
        file=config,
        overrides=[*plan.settings, *(set_ or [])],
        epochs=epochs,
    )
    outcomes = compare_systems(
        plan.rows,
        shared,
        plan.seeds if seeds is None else [int(seed) for seed in _numbers(seeds, "--seeds", "0,1,2")],
        out,
        held_out=plan.held_out if held_out is None else held_out,
        watcher=Watch(console),
    )
    _say(markdown(outcomes))
    _say(f"table and plots: {out}")


@app.command()
def tune(
    model: Annotated[Path, typer.Option("--model", "-m", help="Folder of a saved model with a CRF.")],
    data: DataOption,
    split: Annotated[
        str, typer.Option(help="Held-out part of the data set: neither trained nor scored on.")
    ] = "val",
    limit: Annotated[int, typer.Option(help="Use only so many images.")] = 100,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the tuned model; its own by default.")
    ] = None,
) -> None:
    """Search what training does not learn (pairwise scale, kernels of a dense CRF) on held-out images."""
    from messagenet.data import Subset, open_data
    from messagenet.models import SegmentationNet
    from messagenet.training.tune import tune as search

    net = SegmentationNet.from_pretrained(model)
    held_out = open_data(data, split, void_values=net.void_values or None)
    with _progress("trying") as bar:
        task = bar.add_task("values", total=None)
        trials = search(
            net,
            Subset(held_out, range(min(limit, len(held_out)))),
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if not trials:
        raise InputError(f"{model} has nothing to tune; only models with a CRF have")
    best = ", ".join(f"{name} {value:g}" for name, value in trials[0].values.items())
    _say(f"{best}: mean IoU {trials[0].mean_iou:.1%} (worst {trials[-1].mean_iou:.1%})")
    _say(f"tuned model: {net.save(out or model)}")


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


@app.command()
def serve(
    model: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            "-m",
            help="Folder of a saved model; repeat to compare. Left out: those of `messagenet demo`.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any that is free.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to listen on; only this machine can reach the default.")
    ] = "127.0.0.1",
    samples: Annotated[
        Path | None, typer.Option(help="Folder of images to offer; synthetic scenes by default.")
    ] = None,
    browser: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Show the page in the browser. By default on a terminal."),
    ] = None,
) -> None:
    """Open the message explorer: a local page that shows which messages made the model decide so.

    `messagenet serve --model runs/mine/best` needs `pip install "messagenet[serve]"`. Ctrl-C ends it.
    """
    from messagenet.serving import serve as serve_explorer

    show = sys.stdout.isatty() if browser is None else browser
    serve_explorer(model or [], host=host, port=port, samples=samples, open_browser=show)


@data_app.command("check")
def check(
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    split: Annotated[str | None, typer.Option(help="Part of the data set; all of it by default.")] = None,
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet (PNG) here.")] = None,
    classes: ClassesOption = None,
    void: VoidOption = None,
    every: Annotated[bool, typer.Option("--all", help="List every problem, not one of each kind.")] = False,
) -> None:
    """Count images, sizes and labels, and list everything that would trip a training.

    Problems of one kind are told once, with the first files that have them. Exits with 2 if there is a problem.
    """
    from messagenet.data import check_data, open_data
    from messagenet.report import contact_sheet, save_png

    labelled = open_data(data, split, classes, void, strict=False)
    with _progress("checking") as bar:
        report = check_data(labelled, progress=_advance(bar, "images", len(labelled)))
    _say(report.summary(every))
    if sheet:
        _say(f"contact sheet: {save_png(contact_sheet(labelled), sheet)}")
    if report.problems:
        raise typer.Exit(2)


def _numbers(text: str, option: str = "--scales", like: str = "0.75,1,1.25") -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text} is not a list of numbers; write it like {like}") from None


def _complain(text: str) -> None:
    """One line about what the user can mend."""
    line = Text.assemble(("error:", "bold red"), " ", text)
    Console(stderr=True).print(line, soft_wrap=True, highlight=False)


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
        _complain(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
