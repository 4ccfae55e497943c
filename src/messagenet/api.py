"""What the `messagenet` command does, as functions: one for each verb, with the command's defaults.

    train    a data set in, a trained model on disk out
    predict  image files in, segmentations on disk out
    evaluate a model and labelled images in, scores out; evaluate_models takes several
    infer    a graphical model in, its marginals or its most probable state out

`messagenet.data.check_data` and `messagenet.demo.run_demo` are the other two. Each is a short way through the
packages below, which have more to offer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from messagenet.bundled import model_folder
from messagenet.data import open_data
from messagenet.errors import InputError
from messagenet.evaluation import Scores
from messagenet.inference.engine import Engine, Result
from messagenet.inference.solve import Task, solve
from messagenet.models import SegmentationNet
from messagenet.prediction import Predicted, Predictor, Refinement, Views, predict_files, score
from messagenet.prediction.files import DEFAULT_KINDS, check_shown, write_predictions_page
from messagenet.prediction.scoring import report_examples
from messagenet.report import write_report
from messagenet.training import Progress, TrainResult
from messagenet.training import train as train_run
from messagenet.training.config import KindName, choose_config

Model = str | Path | SegmentationNet | Predictor
Rest = Literal["void", "background"]


def train(
    data: str | None = None,
    out: str | Path = "runs/latest",
    *,
    preset: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | Iterable[str] = (),
    model: KindName | None = None,
    classes: str | Path | None = None,
    void_values: Sequence[int] | None = None,
    keep: Sequence[str] | None = None,
    rest: Rest | None = None,
    epochs: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> TrainResult:
    """Trains a model on a data set; the best one is then in `out`/best.

    Args:
        data: The data set, such as "folder:street"; see `messagenet.data.open`.
        out: Folder of the run.
        preset: Settings to start from; "tiny" for generated scenes and "finetune" for photographs unless told.
        config: A YAML file of settings, instead of a preset.
        settings: Settings to change: {"run.batch_size": 4}, or lines such as "run.batch_size=4".
        model: What to train: "message", "unary", or another kind of `messagenet.models.KINDS`.
        classes: A class list, where the data set has none of its own.
        void_values: Mask values that mean "not labelled", besides 255.
        keep: The only classes to keep.
        rest: What the others become.
        epochs: How often to go through the training images.
        resume: Go on with an interrupted run in the same folder.
        progress: What to tell about the run's course, such as a `messagenet.training.Bar`.
    """
    if isinstance(settings, Mapping):
        settings = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    chosen = choose_config(
        data=data,
        preset=preset,
        file=config,
        overrides=settings,
        run_folder=out if resume else None,
        kind=model,
        classes=classes,
        void_values=void_values,
        keep=keep,
        rest=rest,
        epochs=epochs,
    )
    return train_run(chosen, out, resume=resume, progress=progress)


def predict(
    images: str | Path | Sequence[str | Path],
    model: Model | None = None,
    out: str | Path = "predictions",
    *,
    save: Sequence[str] = DEFAULT_KINDS,
    flip: bool = False,
    scales: Sequence[float] = (1.0,),
    tile: int = 1024,
    longest_side: int | None = None,
    refine: bool = False,
    ray: bool = False,
    workers: int | None = None,
    report: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Predicted:
    """Segments image files of any size and writes the results.

    Args:
        images: Files, folders or globs; with `ray` also a Ray data set with a column `path`.
        model: Folder of a saved model, name of one in the box, or a model; the one in the box unless told.
        out: Folder for the results.
        save: What to write: "mask", "overlay", "entropy", "probs", "voc".
        flip: Also predict the mirror image and average.
        scales: Sizes to predict at and average.
        tile: Images larger than this many pixels are predicted in tiles.
        longest_side: Larger images are reduced to this many pixels first, and the answer is enlarged; None for what
            the model is for, 0 for never.
        refine: Refine with a dense CRF, which draws labels to the edges in the image.
        ray: Share the work out over a Ray cluster, or the cores of this machine.
        workers: How many processes Ray uses; all it has unless told.
        report: Where to write a self-contained HTML page of the results.
        progress: Called with (images done, images in all).
    """
    if report is not None:
        check_shown(save, report)
    views = Views(flip, tuple(scales), tile, min(256, tile // 4), longest_side)
    predictor = as_predictor(model, views, refine=refine)
    if ray:
        from messagenet.prediction.ray import predict_dataset

        predicted = predict_dataset(predictor, images, out, save, workers=workers, progress=progress)
    elif workers is not None:
        raise InputError("workers are Ray's; predict with ray (--ray) as well, or leave them out")
    else:
        files = [images] if isinstance(images, str | Path) else images
        predicted = predict_files(predictor, files, out, save, progress=progress)
    if report is not None and predicted.written:
        write_predictions_page(predicted, report)
    return predicted


def evaluate(model: Model | None = None, data: str = "synthetic", **options: Any) -> Scores:
    """Scores a model on labelled images.

    Args:
        model: Folder of a saved model, name of one in the box, or a model; the one in the box unless told.
        data: The data set, such as "folder:street".
        **options: Those of `evaluate_models`: split, void_values, flip, report and others.
    """
    model = model_folder() if model is None else model
    models = [model] if isinstance(model, str | Path) else {"model": model}
    (scores,) = evaluate_models(models, data, **options).values()
    return scores


def evaluate_models(
    models: Sequence[str | Path] | Mapping[str, Model],
    data: str = "synthetic",
    *,
    split: str = "val",
    classes: str | Path | None = None,
    void_values: Sequence[int] | None = None,
    keep: Sequence[str] | None = None,
    rest: Rest = "void",
    flip: bool = False,
    scales: Sequence[float] = (1.0,),
    refine: bool = False,
    report: str | Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Scores]:
    """Scores models side by side on labelled images; the scores by the name of the model.

    Args:
        models: Folders of saved models, which are then called by their runs, and names of models in the box; or
            models by name.
        data: The data set, such as "folder:street".
        split: The part of it to score on.
        classes: A class list, where the data set has none of its own.
        void_values: Mask values that mean "not labelled", besides 255; those the models were trained with
            unless told.
        keep: The only classes to keep.
        rest: What the others become.
        flip: Also predict the mirror image and average.
        scales: Sizes to predict at and average.
        refine: Score every model with a dense CRF on top as well, as "NAME + dense CRF".
        report: Where to write a self-contained HTML report.
        progress: Called with (name of the model, images done, images in all).
    """
    named: Mapping[str, Model]
    if isinstance(models, Mapping):
        named = models
    else:
        folders = [model_folder(folder) for folder in models]
        named = dict(zip(model_names(folders), folders, strict=True))
    predictors = {name: as_predictor(model, Views(flip, tuple(scales))) for name, model in named.items()}
    if refine:
        predictors = {
            label: each
            for name, plain in predictors.items()
            for label, each in ((name, plain), (f"{name} + dense CRF", _refined(plain)))
        }
    void = _remembered_void(predictors) if void_values is None else void_values
    labelled = open_data(data, split, classes, void or None, keep, rest)
    scores = {}
    for name, predictor in predictors.items():
        scores[name] = score(predictor, labelled, progress=progress and partial(progress, name))
    if report:
        examples = report_examples(predictors, labelled, next(reversed(scores.values())))
        write_report(scores, examples, report, classes=labelled.classes, title=labelled.name)
    return scores


def infer(
    model: str | Path,
    evidence: str | Path | None = None,
    engine: str | Engine = "exact",
    task: Task = "mar",
) -> Result:
    """Answers a query on a discrete graphical model.

    Args:
        model: A `.uai` (MARKOV or BAYES) or libDAI `.fg` file.
        evidence: A UAI evidence file.
        engine: "exact", "bp", "trw", "trws" (MAP only), "mf", or an engine with settings of your own.
        task: "mar" or "pr" for marginals and log Z, "map" for the most probable state.
    """
    return solve(model, evidence, engine, task)[1]


def as_predictor(model: Model | None, views: Views, *, refine: bool = False) -> Predictor:
    """A model ready to predict: read from a folder, or from the box, onto the GPU if there is one; or as given."""
    if isinstance(model, Predictor):
        return _refined(model) if refine and model.refinement is None else model
    if not isinstance(model, SegmentationNet):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = SegmentationNet.from_pretrained(model).to(device)
    return Predictor(model, views, Refinement() if refine else None)


def _refined(predictor: Predictor) -> Predictor:
    """The same model and views with a dense CRF on top."""
    return Predictor(predictor.net, predictor.views, Refinement())


def model_names(folders: Sequence[Path]) -> list[str]:
    """What tables call models: the name of the run's folder, or the whole path where two would be alike.

    >>> model_names([Path("runs/a/best"), Path("runs/b/best")])
    ['a', 'b']
    """
    whole = [folder.absolute() for folder in folders]
    if len(set(whole)) < len(whole):
        raise InputError("a model is given twice; give each once")
    short = [(folder.parent if folder.name in ("best", "last") else folder).name for folder in whole]
    return short if len(set(short)) == len(short) else [str(folder) for folder in whole]


def _remembered_void(predictors: Mapping[str, Predictor]) -> Sequence[int]:
    """The void values that all models were trained with."""
    values = {name: predictor.net.void_values for name, predictor in predictors.items()}
    if len({frozenset(each) for each in values.values()}) > 1:
        listed = "; ".join(f"{name}: {', '.join(map(str, each)) or 'none'}" for name, each in values.items())
        raise InputError(f"the models were trained with different void values ({listed}); give --void")
    return next(iter(values.values()), ())
