"""The `messagenet` command as functions, one per verb, with the command's defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from messagenet.bundled import model_folder
from messagenet.data import Classes, as_data, hold_out_val, open_data, takes
from messagenet.errors import InputError, nearest, refuse_folder
from messagenet.evaluation import Scores
from messagenet.graph.factor_graph import FactorGraph
from messagenet.graph.formats import format_map, format_mar, format_pr, read_evidence, read_fg, read_uai
from messagenet.inference import BeliefPropagation, Engine, MeanField, Result, SequentialTRW, TreeReweighted, observe
from messagenet.models import SegmentationModel
from messagenet.prediction import PredictedFiles, PredictOptions, Predictor, Refinement, predict_files, score
from messagenet.prediction.files import DEFAULT_OUTPUTS
from messagenet.prediction.scoring import report_examples
from messagenet.report import write_report
from messagenet.settings import find, flat, nested
from messagenet.settings import options as options_of
from messagenet.training import DataSets, TrainCallback, TrainResult, run_training
from messagenet.training.build import limited
from messagenet.training.config import DataConfig, Settings, TrainConfig, by_path, choose_config

Model = str | Path | SegmentationModel | Predictor
Rest = Literal["void", "background"]
Task = Literal["mar", "pr", "map"]
OF_TORCH_DATA = ("data.void_values", "data.balance", "data.val_limit", "data.seed")

# Settings for careful answers, where an engine's defaults prefer speed.
CAREFUL: dict[Any, dict[str, Any]] = {
    BeliefPropagation: {"damping": 0.5, "max_iterations": 2000, "tolerance": 1e-9},
    TreeReweighted: {"max_iterations": 5000, "tolerance": 1e-9},
    MeanField: {"tolerance": 1e-9},
}


def train(
    data: Any = None,
    out: str | Path = "runs/latest",
    *,
    system: str | None = None,
    preset: str | None = None,
    config: str | Path | TrainConfig | None = None,
    settings: Settings = (),
    val: Any = None,
    classes: str | Path | Classes | Sequence[str] | int | None = None,
    void_values: Sequence[int] | None = None,
    keep: Sequence[str] | None = None,
    rest: Rest | None = None,
    epochs: int | None = None,
    resume: bool = False,
    progress: TrainCallback | None = None,
) -> TrainResult:
    """Trains a model on a data set; the best one is then in `out`/best.

    Args:
        data: Text such as "folder:street" (see `open_data`), or a `torch.utils.data.Dataset` of (image, mask) pairs.
        out: Folder of the run.
        system: What to train: "message", "unary", or another of `training.systems.SYSTEMS`.
        preset: Settings to start from. Default: "tiny" for generated scenes and "finetune" for photographs.
        config: A YAML file of settings, or a `TrainConfig`, instead of a preset.
        settings: Settings to change: {"run.batch_size": 4}, or lines such as "run.batch_size=4".
        val: What to score on, where `data` is a torch data set. Default: one image in five of `data`.
        classes: A class list, where the data set has none of its own.
        void_values: Mask values that mean "not labelled", besides 255.
        keep: The only classes to keep.
        rest: What the others become.
        epochs: Passes over the training images.
        resume: Continue an interrupted run in the same folder.
        progress: What follows the run, such as a `Bar`.
    """
    named = data is None or isinstance(data, str | Path)
    if named and val is not None:
        raise InputError("val goes with a torch data set; with a data set by name, set data.val_split")
    if not named and (keep is not None or rest is not None):
        raise InputError("keep and rest go with a data set by name; give a torch data set with these classes alone")
    settings = by_path(settings)
    unused = [path for path in flat(nested(settings)) if path.startswith("data.") and path not in OF_TORCH_DATA]
    if unused and not named:
        raise InputError(f"{unused[0]} is for a data set by name; leave it out, and give the torch data set as it says")
    chosen = choose_config(
        data=str(data) if named and data is not None else None,
        preset=preset or (None if named or config or resume else "finetune"),
        file=config,
        system=system,
        settings=settings,
        run_folder=out if resume else None,
        classes=classes if named else None,
        void_values=void_values,
        keep=keep,
        rest=rest,
        epochs=epochs,
    )
    sets = None if named else _torch_sets(data, val, classes, chosen.data)
    return run_training(chosen, out, resume=resume, progress=progress, data=sets)


def _torch_sets(data: Any, val: Any, classes: Any, config: DataConfig) -> DataSets:
    train: Any = as_data(data, classes, config.void_values)
    if val is None:
        train, val = hold_out_val(train)
    else:
        val = as_data(val, train.classes, config.void_values)
    return DataSets(train, limited(val, config.val_limit))


def predict(
    images: str | Path | Iterable[str | Path],
    model: Model | None = None,
    out: str | Path = "predictions",
    *,
    save: Sequence[str] = DEFAULT_OUTPUTS,
    options: PredictOptions | None = None,
    refine: bool = False,
    ray: bool = False,
    workers: int | None = None,
    report: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PredictedFiles:
    """Segments image files of any size and writes the results.

    Args:
        images: Files, folders or globs; with `ray` also a Ray data set with a column `path`.
        model: A saved model's folder, a bundled model's name, or a model. Default: the bundled model.
        out: Folder for the results.
        save: What to write: "mask", "overlay", "entropy", "probs", "voc".
        options: How to predict: views, tiles, working size.
        refine: Post-process with a dense CRF: sharper boundaries, worse calibration.
        ray: Distribute the work over a Ray cluster, or the cores of this machine.
        workers: How many processes Ray uses. Default: all it has.
        report: Where to write a self-contained HTML page of the results.
        progress: Called with (images done, images in all).
    """
    refuse_folder(report, "report.html")
    predictor = as_predictor(model, options, refine=refine)
    show = report is not None
    if ray:
        from messagenet.prediction.ray import predict_dataset

        predicted = predict_dataset(predictor, images, out, save, show=show, workers=workers, progress=progress)
    elif workers is not None:
        raise InputError("workers are Ray's; predict with ray (--ray) as well, or leave them out")
    else:
        predicted = predict_files(predictor, images, out, save, show=show, progress=progress)
    if report is not None and predicted.written:
        predicted.write_page(report)
    return predicted


def evaluate(model: Model | None = None, data: Any = None, **arguments: Any) -> Scores:
    """Scores a model on labelled images.

    Args:
        model: A saved model's folder, a bundled model's name, or a model. Default: the bundled model.
        data: The data set: text such as "folder:street", or a torch data set of (image, mask) pairs.
        **arguments: Those of `evaluate_models`: split, void_values, options, report and others.
    """
    model = model_folder() if model is None else model
    models = [model] if isinstance(model, str | Path) else {"model": model}
    (scores,) = evaluate_models(models, data, **arguments).values()
    return scores


def evaluate_models(
    models: Sequence[str | Path] | Mapping[str, Model],
    data: Any = None,
    *,
    split: str = "val",
    classes: str | Path | None = None,
    void_values: Sequence[int] | None = None,
    keep: Sequence[str] | None = None,
    rest: Rest = "void",
    options: PredictOptions | None = None,
    refine: bool = False,
    report: str | Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Scores]:
    """Scores models side by side on labelled images; the scores by the name of the model.

    Args:
        models: Folders of saved models (named after their runs) and names of bundled models; or models by name.
        data: The data set: text such as "folder:street", or a torch data set of (image, mask) pairs.
        split: The part of it to score on.
        classes: A class list, where the data set has none of its own.
        void_values: Mask values that mean "not labelled", besides 255. Default: those the models were trained with.
        keep: The only classes to keep.
        rest: What the others become.
        options: How to predict: views, tiles, working size.
        refine: Score every model with a dense CRF on top as well, as "NAME + dense CRF".
        report: Where to write a self-contained HTML report.
        progress: Called with (name of the model, images done, images in all).
    """
    refuse_folder(report, "report.html")
    if not models:
        raise InputError("there is no model to score; give at least one")
    if not isinstance(models, Mapping):
        folders = [model_folder(folder) for folder in models]
        models = dict(zip(model_names(folders), folders, strict=True))
    predictors = {name: as_predictor(model, options) for name, model in models.items()}
    if refine:
        predictors = {
            label: each
            for name, plain in predictors.items()
            for label, each in ((name, plain), (f"{name} + dense CRF", _refined(plain)))
        }
    if void_values is None and takes(data, "void_values"):
        void_values = _trained_void_values(predictors)
    labelled = open_data(data, split, classes, void_values or None, keep, rest)
    scores = {}
    for name, predictor in predictors.items():
        scores[name] = score(predictor, labelled, progress=progress and partial(progress, name))
    if report:
        examples = report_examples(predictors, labelled, next(reversed(scores.values())))
        write_report(scores, examples, report, classes=labelled.classes, title=labelled.name)
    return scores


def infer(
    model: str | Path, evidence: str | Path | None = None, engine: str | Engine = "exact", task: Task = "mar"
) -> Result:
    """Answers a query on a discrete graphical model.

    Args:
        model: A `.uai` (MARKOV or BAYES) or libDAI `.fg` file.
        evidence: A UAI evidence file.
        engine: "exact", "bp", "trw", "trws" (MAP only), "mf", or an engine with settings of your own.
        task: "mar" or "pr" for marginals and log Z, "map" for the most probable state.
    """
    return solve(model, evidence, engine, task)[1]


def engine_for(name: str, task: Task) -> Engine:
    """The engine registered under a name, with careful settings; max-product when the task is MAP.

    >>> engine_for("bp", "map").temperature
    0.0
    """
    make = find("engine", name)
    if make is SequentialTRW and task != "map":
        raise InputError('engine "trws" only finds the most probable state; use task "map" or engine "trw"')
    values = dict(CAREFUL.get(make, {}))
    if "temperature" in options_of(make):
        values["temperature"] = 0.0 if task == "map" else 1.0
    engine: Engine = make(**values)
    return engine


def solve(
    model_path: str | Path, evidence_path: str | Path | None = None, engine: str | Engine = "exact", task: Task = "mar"
) -> tuple[FactorGraph, Result]:
    """Reads a `.uai` or libDAI `.fg` model and UAI evidence, and runs an engine, given by its name or with settings."""
    if task not in get_args(Task):
        raise InputError(f'task "{task}" is not known; {nearest(task, get_args(Task))}')
    chosen = engine_for(engine, task) if isinstance(engine, str) else engine
    graph, potentials = read_fg(model_path) if Path(model_path).suffix == ".fg" else read_uai(model_path)
    if evidence_path is None:
        return graph, chosen.run(graph, potentials)
    return graph, observe(graph, potentials, read_evidence(evidence_path, graph)).run(chosen)


def format_result(graph: FactorGraph, result: Result, task: Task) -> str:
    """A UAI result file: `MAR` marginals, `PR` log10 Z, or `MAP` the most probable state."""
    if task == "mar":
        return format_mar(graph, result.marginals)
    return format_pr(float(result.log_z)) if task == "pr" else format_map(result.map_state)


def as_predictor(model: Model | None, options: PredictOptions | None = None, *, refine: bool = False) -> Predictor:
    """A predictor of a saved or bundled model (on the GPU if there is one), or of the model given."""
    if isinstance(model, Predictor):
        if refine or options is not None:
            raise InputError("a Predictor has its own options; build it with them: Predictor(model, PredictOptions(…))")
        return model
    if not isinstance(model, SegmentationModel):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = SegmentationModel.from_pretrained(model).to(device)
    predictor = Predictor(model, options)
    return _refined(predictor) if refine else predictor


def _refined(predictor: Predictor) -> Predictor:
    return Predictor(predictor.model, replace(predictor.options, refine=Refinement()))


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


def _trained_void_values(predictors: Mapping[str, Predictor]) -> Sequence[int]:
    values = {name: predictor.model.input.void_values for name, predictor in predictors.items()}
    if len({frozenset(each) for each in values.values()}) > 1:
        listed = "; ".join(f"{name}: {', '.join(map(str, each)) or 'none'}" for name, each in values.items())
        raise InputError(f"the models were trained with different void values ({listed}); give --void")
    return next(iter(values.values()), ())
