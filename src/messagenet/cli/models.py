"""Commands around models: train, tune, settings, predict, evaluate, serve."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from messagenet.bundled import model_folder
from messagenet.cli import options
from messagenet.cli.options import advance, console, print_error, print_line, progress, takes_predict_options, words
from messagenet.errors import refuse_folder, write_atomically

MAX_LISTED = 20  # up to this many images, `predict` prints what it found in each


@takes_predict_options
def predict(
    images: Annotated[list[str], typer.Argument(help="Image files, folders or globs.")],
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            "-m",
            help="Folder of a saved model, such as `runs/mine/best`. Default: the bundled model, for "
            "cats, cows, dogs, horses, people and sheep.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")] = Path("predictions"),
    save: Annotated[
        str, typer.Option(help="What to write: `mask`, `overlay`, `entropy`, `probs`, `voc`; comma-separated.")
    ] = "mask,overlay",
    options: Any = None,
    iterations: options.IterationsOption = None,
    refine: Annotated[
        bool, typer.Option("--refine", help="Post-process with a dense CRF: sharper boundaries, worse calibration.")
    ] = False,
    ray: Annotated[
        bool, typer.Option(help='Distribute the work over a Ray cluster (`pip install "messagenet[ray]"`).')
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Number of processes that Ray uses. Default: all.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page of the results here.")] = None,
    imports: options.ImportOption = None,
) -> None:
    """Segment images of any size.

    `messagenet predict photo.jpg` labels what PASCAL VOC names, `messagenet predict photos/ --model runs/mine/best` the
    classes of your own model. Writes a palette PNG and an overlay per image. Images that cannot be read are skipped
    and listed at the end; the exit code is then 2.
    """
    from messagenet import api

    with progress("predicting") as bar:
        predicted = api.predict(
            images,
            model,
            out,
            save=words(save) or [],
            options=replace(options, iterations=iterations),
            refine=refine,
            ray=ray,
            workers=workers,
            report=report,
            progress=advance(bar),
        )
    if len(predicted.written) <= MAX_LISTED:
        for image, shares in predicted.shares.items():
            print_line(f"{image.name}: {shares}")
    if predicted.written:
        images_text = "1 image" if len(predicted.written) == 1 else f"{len(predicted.written)} images"
        print_line(f"{len(predicted.files)} files of {images_text} written to {out}")
    if report and predicted.written:
        print_line(f"report: {report}")
    if predicted.failed:
        total = len(predicted.written) + len(predicted.failed)
        print_error(f"{len(predicted.failed)} of {total} images could not be predicted:")
        for reason in predicted.failed.values():
            Console(stderr=True).out(f"  {reason}", highlight=False)
        raise typer.Exit(2)


@takes_predict_options
def evaluate(
    model: Annotated[
        list[Path] | None,
        typer.Option(
            "--model", "-m", help="Folder of a saved model; repeat to compare. Default: the bundled model, `voc`."
        ),
    ] = None,
    data: options.DataOption = None,
    split: Annotated[str, typer.Option(help="Split to score on.")] = "val",
    classes: options.ClassesOption = None,
    void: options.ScoredVoidOption = None,
    keep: options.KeepOption = None,
    rest: options.RestOption = "void",
    options: Any = None,
    iterations: options.IterationsOption = None,
    refine: Annotated[bool, typer.Option("--refine", help="Also score every model with a dense CRF on top.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report here.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the scores here, as JSON.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write a row of class IoUs per model here.")] = None,
    latex_file: Annotated[Path | None, typer.Option("--latex", help="Write the same rows here, for LaTeX.")] = None,
    imports: options.ImportOption = None,
) -> None:
    """Score models on labelled images: IoU, accuracy, boundaries, calibration.

    `messagenet evaluate --model runs/a/best --model runs/b/best --data folder:street --report report.html`
    """
    from messagenet import api
    from messagenet.evaluation import scores_csv, scores_json, scores_latex, scores_table

    written = {
        "scores.json": (json_file, scores_json),
        "scores.csv": (csv_file, scores_csv),
        "scores.tex": (latex_file, scores_latex),
    }
    for example, (file, _) in written.items():
        refuse_folder(file, example)
    with progress("scoring") as bar:
        lines = functools.cache(functools.partial(advance, bar))  # one for each model
        named = api.evaluate_models(
            model or [model_folder()],
            data,
            split=split,
            classes=classes,
            void_values=void,
            keep=words(keep),
            rest=rest,  # type: ignore[arg-type]
            options=replace(options, iterations=iterations),
            refine=refine,
            report=report,
            progress=lambda name, done, total: lines(name)(done, total),
        )
    console.print(scores_table(named, f"{data} ({split})"))
    for file, text in written.values():
        if file:
            write_atomically(file, text(named).encode())
    if report:
        print_line(f"report: {report}")


def serve(
    model: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            "-m",
            help="Folder of a saved model; repeat to compare. Default: the bundled model, and those of "
            "`messagenet demo` if it was run here.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to listen on. The default accepts this machine only.")
    ] = "127.0.0.1",
    samples: Annotated[
        Path | None, typer.Option(help="Folder of sample images. Default: photos and synthetic scenes.")
    ] = None,
    longest_side: options.LongestSideOption = None,
    browser: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the page in a browser. Default: if run in a terminal.")
    ] = None,
    imports: options.ImportOption = None,
) -> None:
    """Open the message explorer: a local page that shows which messages led to a label.

    `messagenet serve --model runs/mine/best` needs `pip install "messagenet[serve]"`. Ctrl-C stops it.
    """
    from messagenet.explorer import serve as serve_explorer

    serve_explorer(model or [], host=host, port=port, samples=samples, longest_side=longest_side, open_browser=browser)


def train(
    data: options.DataOption = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run.")] = Path("runs/latest"),
    preset: Annotated[
        str | None, typer.Option(help="Settings to start from: `fast`, `finetune`, `tiny` or `paper-vgg16`.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings, as saved with every run.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change a setting: `a.b=value`; repeatable.")] = None,
    system: Annotated[
        str | None, typer.Option("--system", "-s", help=f"What to train: {options.SYSTEMS_HELP}.")
    ] = None,
    classes: options.ClassesOption = None,
    void: options.VoidOption = None,
    keep: options.KeepOption = None,
    rest: options.RestOption = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    resume: Annotated[bool, typer.Option(help="Continue an interrupted run in the same folder.")] = False,
    imports: options.ImportOption = None,
) -> None:
    """Train a model on a data set.

    `messagenet train --data folder:street --out runs/street` trains a small, strong network on `street/images` and
    `street/masks`, and saves the best model in `runs/street/best`. The default preset is `tiny` for synthetic scenes
    and `finetune` for photos. Ctrl-C stops after the current step; `--resume` continues.
    """
    from messagenet import api
    from messagenet.training import Bar
    from messagenet.training.distributed import is_first_process

    result = api.train(
        data,
        out,
        preset=preset,
        config=config,
        settings=set_ or [],
        system=system,
        classes=classes,
        void_values=void,
        keep=words(keep),
        rest=rest,  # type: ignore[arg-type]
        epochs=epochs,
        resume=resume,
        progress=Bar(console),
    )
    if result.interrupted:
        raise typer.Exit(130)
    if is_first_process():
        print_line(f"the best model is in {out / 'best'}: messagenet predict IMAGES --model {out / 'best'}")


def settings(
    preset: Annotated[
        str, typer.Argument(help="`default`, `fast`, `finetune`, `tiny`, `paper-vgg16`, or a YAML file.")
    ] = "default",
    imports: options.ImportOption = None,
) -> None:
    """Print every training setting, with its meaning and its value in a preset.

    `messagenet settings fast > mine.yaml`, edit, then `messagenet train --config mine.yaml --data folder:DIR`.
    """
    from messagenet.training.config import config_text, load_config

    sys.stdout.write(config_text(load_config(preset)))


@takes_predict_options
def tune(
    model: Annotated[Path | None, typer.Option("--model", "-m", help="Folder of a saved model, such as a CRF.")] = None,
    data: options.DataOption = None,
    split: Annotated[str, typer.Option(help="Split to search on; use one for neither training nor scoring.")] = "val",
    classes: options.ClassesOption = None,
    void: options.ScoredVoidOption = None,
    keep: options.KeepOption = None,
    rest: options.RestOption = "void",
    options: Any = None,
    limit: Annotated[int, typer.Option(help="Use at most this many images.")] = 100,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the tuned model. Default: the model's, with “-tuned” added."),
    ] = None,
    imports: options.ImportOption = None,
) -> None:
    """Tune the settings that training does not learn, on held-out images.

    These are the pairwise scale of `context_crf`, `crf_pseudo` and `crf_likelihood`, and the kernels of `deeplab_crf`.
    `messagenet tune --model runs/crf/best --data voc:DIR --split train`, if it was trained on another split.
    """
    from messagenet.training import tune as search

    with progress("trying") as bar:
        results = search(
            model,
            data,
            split=split,
            classes=classes,
            void_values=void,
            keep=words(keep),
            rest=rest,  # type: ignore[arg-type]
            options=options,
            limit=limit,
            out=out,
            progress=advance(bar),
        )
    best = ", ".join(f"{name} {value:g}" for name, value in results[0].values.items())
    tried = f"{len(results)} combinations from {results[-1].mean_iou:.1%} to {results[0].mean_iou:.1%} mean IoU"
    print_line(f"{tried}; the best: {best}")
    print_line(f"tuned model: {out or f'{model}-tuned'}")
