"""Commands that use models: predict, evaluate, serve."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import TaskID

from messagenet.cli.options import (
    ClassesOption,
    DataOption,
    FlipOption,
    KeepOption,
    RestOption,
    ScalesOption,
    ScoredVoidOption,
    numbers,
    words,
)
from messagenet.cli.screen import complain, console, progress, say
from messagenet.files import write_atomically
from messagenet.shipped import model_folder

LISTED = 20
"""Of so many images `predict` says what it has found in each."""


def predict(
    images: Annotated[list[str], typer.Argument(help="Image files, folders or globs.")],
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            "-m",
            help="Folder of a saved model, such as `runs/mine/best`. Left out: the model in the box, which knows "
            "cats, cows, dogs, horses, people and sheep.",
        ),
    ] = None,
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
    longest_side: Annotated[
        int | None,
        typer.Option(
            help="Larger images are reduced to this many pixels first, and the answer is enlarged; 0 for never. By "
            "default what the model is for: the one in the box knows photographs of 384."
        ),
    ] = None,
    refine: Annotated[
        bool,
        typer.Option("--refine", help="Refine with a dense CRF, which draws labels to edges in the image."),
    ] = False,
    ray: Annotated[
        bool, typer.Option(help='Share the work out over a Ray cluster (`pip install "messagenet[ray]"`).')
    ] = False,
    workers: Annotated[int | None, typer.Option(help="How many processes Ray uses; all by default.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a self-contained HTML page of the results here.")
    ] = None,
) -> None:
    """Segment images of any size.

    `messagenet predict photo.jpg` finds animals and people, `messagenet predict photos/ --model runs/mine/best` what
    your own model has learned: a palette PNG and an overlay for each photo. Images that cannot be read are left out
    and named at the end; the exit code is then 2.
    """
    from messagenet import verbs
    from messagenet.prediction.written import found_in

    with progress("predicting") as bar:
        task = bar.add_task("images", total=None)
        predicted = verbs.predict(
            images,
            model,
            out,
            save=words(save) or [],
            flip=flip,
            scales=numbers(scales),
            tile=tile,
            longest_side=longest_side,
            refine=refine,
            ray=ray,
            workers=workers,
            report=report,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if "mask" in predicted.kinds and len(predicted.written) <= LISTED:
        for image in predicted.written:
            say(f"{image.name}: {found_in(predicted, image)}")
    if predicted.written:
        images_text = "1 image" if len(predicted.written) == 1 else f"{len(predicted.written)} images"
        say(f"{len(predicted.files)} files of {images_text} written to {out}")
    if report and predicted.written:
        say(f"report: {report}")
    if predicted.failed:
        total = len(predicted.written) + len(predicted.failed)
        complain(f"{len(predicted.failed)} of {total} images could not be predicted:")
        for reason in predicted.failed.values():
            Console(stderr=True).print(f"  {reason}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2)


def evaluate(
    model: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            "-m",
            help="Folder of a saved model; repeat to compare. Left out: the model in the box, `voc-animals`.",
        ),
    ] = None,
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

    with progress("scoring") as bar:
        tasks: dict[str, TaskID] = {}

        def advance(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)

        named = verbs.evaluate_models(
            model or [model_folder()],
            data,
            split=split,
            classes=classes,
            void_values=void,
            keep=words(keep),
            rest=rest,  # type: ignore[arg-type]
            flip=flip,
            scales=numbers(scales),
            refine=refine,
            report=report,
            progress=advance,
        )
    console.print(scores_table(named, f"{data} ({split})"))
    if json_file:
        content = {name: scores.to_dict() for name, scores in named.items()}
        write_atomically(json_file, (json.dumps(content, indent=2) + "\n").encode())
    if report:
        say(f"report: {report}")


def serve(
    model: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            "-m",
            help="Folder of a saved model; repeat to compare. Left out: the model in the box, and those of "
            "`messagenet demo` if it was run here.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any that is free.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to listen on; only this machine can reach the default.")
    ] = "127.0.0.1",
    samples: Annotated[
        Path | None,
        typer.Option(help="Folder of images to offer; photographs and synthetic scenes by default."),
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
