"""Commands that make models: train, tune, and the settings of a training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from messagenet.cli.options import (
    DATA_HELP,
    ClassesOption,
    DataOption,
    KeepOption,
    RestOption,
    ScoredVoidOption,
    TrainedRestOption,
    VoidOption,
    words,
)
from messagenet.cli.screen import console, progress, say
from messagenet.errors import InputError


def train(
    data: Annotated[str | None, typer.Option("--data", "-d", help=DATA_HELP)] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run.")] = Path("runs/latest"),
    preset: Annotated[
        str | None, typer.Option(help="Settings to start from: `fast`, `finetune`, `tiny` or `paper-vgg16`.")
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
    rest: TrainedRestOption = None,
    epochs: Annotated[int | None, typer.Option(help="How often to go through the training images.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted run in the same folder.")] = False,
) -> None:
    """Train a model on a data set.

    `messagenet train --data folder:street --out runs/street` trains a small, strong network on
    `street/images` and `street/masks`; the best model is then in `runs/street/best`. Without a preset, `tiny` is
    used for generated scenes and `finetune` for photographs. Ctrl-C stops after the current step; `--resume` goes on.
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
        keep=words(keep),
        rest=rest,  # type: ignore[arg-type]
        epochs=epochs,
        resume=resume,
        progress=Bar(console),
    )
    if result.interrupted:
        raise typer.Exit(130)
    if is_first_process():
        say(f"the best model is in {out / 'best'}: messagenet predict IMAGES --model {out / 'best'}")


def settings(
    preset: Annotated[
        str, typer.Argument(help="`default`, `fast`, `finetune`, `tiny`, `paper-vgg16`, or a YAML file.")
    ] = "default",
) -> None:
    """Print every setting of a training, with its meaning and its value in a preset.

    `messagenet settings fast > mine.yaml`, edit, then `messagenet train --config mine.yaml --data folder:DIR`.
    """
    from messagenet.training.config_files import config_text, load_config

    sys.stdout.write(config_text(load_config(preset)))


def tune(
    model: Annotated[Path, typer.Option("--model", "-m", help="Folder of a saved model.")],
    data: DataOption,
    split: Annotated[
        str, typer.Option(help="Part of the data set to search on, which is neither trained nor scored on.")
    ],
    classes: ClassesOption = None,
    void: ScoredVoidOption = None,
    keep: KeepOption = None,
    rest: RestOption = "void",
    limit: Annotated[int, typer.Option(help="Use only so many images.")] = 100,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder for the tuned model; by default its own with “-tuned” added."
        ),
    ] = None,
) -> None:
    """Search what training does not learn on held-out images.

    That is the pairwise scale of `context_crf`, `crf_pseudo` and `crf_likelihood`, and the kernels of `deeplab_crf`.
    `messagenet tune --model runs/crf/best --data voc:DIR --split train`, if it was trained on another part.
    """
    from messagenet.data import Subset, open_data
    from messagenet.models import SegmentationNet
    from messagenet.training.tune import tune as search

    net = SegmentationNet.from_pretrained(model)
    voids = void or net.void_values or None
    held_out = open_data(data, split, classes, voids, words(keep), rest)  # type: ignore[arg-type]
    with progress("trying") as bar:
        task = bar.add_task("images", total=None)
        trials = search(
            net,
            Subset(held_out, range(min(limit, len(held_out)))),
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if not trials:
        raise InputError(
            f"{model} has nothing to tune: it learns everything in training; "
            "context_crf, crf_pseudo, crf_likelihood and deeplab_crf have settings to search"
        )
    best = ", ".join(f"{name} {value:g}" for name, value in trials[0].values.items())
    tried = f"{len(trials)} combinations from {trials[-1].mean_iou:.1%} to {trials[0].mean_iou:.1%} mean IoU"
    say(f"{tried}; the best: {best}")
    say(f"tuned model: {net.save(out or model.with_name(f'{model.name}-tuned'))}")
