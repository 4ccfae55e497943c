"""Trains and scores systems side by side: the same data, backbone, budget and seeds for all of them.

    out/comparison.md, .json, .csv      the table
    out/contrasts.md                    differences between chosen systems, if any were chosen
    out/iou.png, cost.png               the plots
    out/options.json                    which images are held out and scored, and how every system predicts
    out/SYSTEM/seed-S/run/              a training run (see `messagenet.training`)
    out/SYSTEM/seed-S/model/            the model that was scored, after tuning
    out/SYSTEM/seed-S/scores.json       everything that was counted on the scored images
    out/SYSTEM/seed-S/result.json       the result; a system that has this file is not trained again

Some training images are held out from every system, to tune settings that training does not learn. No system has seen
the images it is scored on. The model after the last step is scored, not the best one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from messagenet.data import Classes, SegmentationData, Subset, unique_indices
from messagenet.errors import InputError, nearest, write_atomically
from messagenet.evaluation import Evaluator, Scores
from messagenet.models import SegmentationModel
from messagenet.models.base import head_trait
from messagenet.models.controls import parameter_count
from messagenet.prediction import PredictOptions, Predictor, score
from messagenet.settings import KIND, convert
from messagenet.studies.cost import BackboneUse, Cost, component_modules, measure_in_subprocess
from messagenet.studies.study import ScoredOn, Study
from messagenet.studies.tables import (
    RunResult,
    StudyCallback,
    near_boundaries,
    write_contrasts,
    write_plots,
    write_tables,
)
from messagenet.training import DataSets, TrainCallback, TrainConfig, load_config, override, run_training, tune
from messagenet.training.batches import default_workers
from messagenet.training.build import build_model, check_training_data, open_sets
from messagenet.training.config import choose_config, config_text
from messagenet.training.distributed import start_processes
from messagenet.training.feature_cache import FeatureCache, collate_features, scoring_cache
from messagenet.training.systems import SYSTEMS, System, custom_system, find_system

DEFAULT_SYSTEMS = ("unary", "convolution", "context_crf", "message")
RESULT = "result.json"
NEVER = 10**9


def compare(
    systems: Iterable[str | System] | Mapping[str, Sequence[str]] = DEFAULT_SYSTEMS,
    config: str | Path | TrainConfig | None = None,
    seeds: Sequence[int] = Study.seeds,
    out: str | Path = "comparison",
    *,
    held_out: int | None = Study.held_out,
    score_on: ScoredOn = Study.score,
    contrasts: Sequence[tuple[str, str]] = (),
    data: str | Path | DataSets | None = None,
    options: PredictOptions | None = None,
    callback: StudyCallback | None = None,
) -> list[RunResult]:
    """Trains and scores every system with every seed, and writes the table and the plots.

    Ctrl-C ends the comparison; called again, it goes on from there. The table is written anew after every system.

    Args:
        systems: Names of `training.systems.SYSTEMS`, systems of one's own, or their settings by name.
        config: What all systems share; its head and loss do not matter. A preset, a YAML file or a configuration;
            default: "tiny" for generated scenes and "fast" for photographs.
        seeds: Of the weights and the order of images; the data stay the same.
        out: Folder for everything.
        held_out: Training images to tune on. Default: one in ten, at most 20.
        score_on: "val", or "held_out" to choose among systems without seeing val: systems are then tuned on every
            other held-out image and scored on the rest.
        contrasts: Pairs of systems, by name or label, whose differences to list.
        data: Text such as "folder:street", or data sets of one's own, instead of those that `config.data` names.
        options: How to predict, in tuning and scoring.
        callback: What follows the comparison.
    """
    found, out, callback = find_systems(systems), Path(out), callback or StudyCallback()
    options, named = options or PredictOptions(), str(data) if isinstance(data, str | Path) else None
    chosen = asdict(options)
    if chosen.pop("iterations") is not None:
        raise InputError("systems are compared with the iterations that they are trained for; leave iterations out")
    if data is not None and not isinstance(data, str | Path | DataSets):
        raise InputError(f"the data are a {type(data).__name__}; give text such as folder:street")
    convert(score_on, ScoredOn, "score_on")
    own = "fast" if isinstance(data, DataSets) else None
    config = choose_config(data=named, file=config or own, photographs="fast")
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds are {list(seeds)}; give one or more, each once")
    pairs = [(_name_of(found, base), _name_of(found, other)) for base, other in contrasts]
    shared = _shared_config(found, config)
    configs = {
        (each.name, seed): _system_config(each, shared, seed, out / "features") for each in found for seed in seeds
    }
    sets = data if isinstance(data, DataSets) else open_sets(config.data)
    check_systems(found, shared, sets.train.classes)
    if held_out is None:
        held_out = max(1 if score_on == "val" else 2, min(20, len(unique_indices(sets.train)) // 10))
    parts = _hold_out(sets, held_out, score_on)
    _check_same(out / "config.yaml", shared)
    scoring = json.dumps({"held_out": held_out, "score": score_on, **chosen}, indent=2) + "\n"
    if (file := out / "options.json").is_file() and file.read_text() != scoring:
        raise InputError(f"{out} was scored with other options; give those of {file.name}, or another folder")
    if not (out / "config.yaml").is_file():  # a folder that refuses other settings holds a comparison that could begin
        first = configs[found[0].name, seeds[0]]
        check_training_data(parts[0], first.augment, seeds[0])
        build_model(first, sets.train.classes)
    write_atomically(out / "config.yaml", config_text(shared).encode())
    write_atomically(file, scoring.encode())
    jobs = [(system, seed) for seed in seeds for system in found]
    results: list[RunResult] = []
    for index, (system, seed) in enumerate(jobs, start=1):
        folder = out / system.name / f"seed-{seed}"
        if (folder / RESULT).is_file():
            _check_same(folder / "run" / "config.yaml", configs[system.name, seed])
            result = RunResult.load(folder / RESULT)
        else:
            follow = callback.system(index, len(jobs), system, seed)
            known = [*results, *_others(out, jobs)]
            cost = next((each.cost for each in known if each.system == system.name), None)
            config = configs[system.name, seed]
            result = _train_and_score(system, seed, config, folder, parts, options, follow, callback, cost)
            result.save(folder / RESULT)
        results.append(result)
        callback.done(index, len(jobs), result)
        write_tables([*results, *_others(out, jobs)], out)
    everything = [*results, *_others(out, jobs)]
    write_plots(everything, out)
    write_contrasts(pairs, everything, out)
    return results


def _others(out: Path, jobs: Sequence[tuple[System, int]]) -> list[RunResult]:
    """Results of earlier calls in this folder that are not among the jobs of this one."""
    asked = {(system.name, seed) for system, seed in jobs}
    found = [RunResult.load(path) for path in sorted(out.glob(f"*/seed-*/{RESULT}"))]
    return [result for result in found if (result.system, result.seed) not in asked]


def find_systems(wanted: Iterable[str | System] | Mapping[str, Sequence[str]]) -> list[System]:
    """Systems by name, systems of one's own, or settings by name.

    >>> [system.name for system in find_systems(["unary", "message_t2"])]
    ['unary', 'message_t2']
    >>> find_systems(["unray"])
    Traceback (most recent call last):
    messagenet.errors.InputError: there is no system "unray"; did you mean "unary"?
    """
    if isinstance(wanted, Mapping):
        systems = [custom_system(name, settings) for name, settings in wanted.items()]
    else:
        systems = [each if isinstance(each, System) else find_system(each) for each in wanted]
    names = [system.name for system in systems]
    if not systems:
        raise InputError(f"there is nothing to compare; give some of {', '.join(SYSTEMS)}")
    if len(set(names)) < len(names):
        raise InputError(f"a system is given twice in {', '.join(names)}; give each once")
    return systems


def fitting_systems(shared: TrainConfig, classes: Classes) -> tuple[list[System], dict[str, str]]:
    """All systems that fit the shared backbone and the classes, and why each of the others is left out.

    >>> from messagenet.data import SCENE_CLASSES
    >>> systems, left_out = fitting_systems(load_config("tiny"), SCENE_CLASSES)
    >>> list(left_out)
    ['fcn8s', 'deconvnet', 'deeplab_mcl', 'message_t1']
    """
    reasons = {name: _obstacle(system, shared, classes) for name, system in SYSTEMS.items()}
    same = f"message_t{shared.model.head.get('iterations')}"
    if same in reasons:
        reasons[same] = "it is the same as message"
    return (
        [SYSTEMS[name] for name, reason in reasons.items() if reason is None],
        {name: reason for name, reason in reasons.items() if reason is not None},
    )


def _obstacle(system: System, shared: TrainConfig, classes: Classes) -> str | None:
    """Why a system does not fit the shared backbone; None if it does."""
    try:
        backbone = system.apply(shared).model.backbone[KIND]
        if backbone not in (shared.model.backbone[KIND], "hand_crafted"):
            return f"it needs the backbone {backbone}"
        _build_without_memory(system, shared, classes)
    except InputError as error:
        return str(error)
    return None


def check_systems(systems: Iterable[System], shared: TrainConfig, classes: Classes) -> None:
    """Raises if a system cannot be built, before any of them is trained."""
    for system in systems:
        try:
            _build_without_memory(system, shared, classes)
        except InputError as error:
            raise InputError(f"system {system.name}: {error}") from error


def _build_without_memory(system: System, shared: TrainConfig, classes: Classes) -> None:
    config = system.apply(shared)
    if config.model.pretrained_head:
        raise InputError("a comparison trains every head from the beginning; set model.pretrained_head=false")
    with torch.device("meta"):
        model = build_model(replace(config, model=replace(config.model, pretrained=None)), classes).model
    component_modules({**model.config, "loss": config.loss})


def _hold_out(sets: DataSets, held_out: int, score_on: ScoredOn) -> tuple[DataSets, SegmentationData]:
    """The images to train on and to score, and those to tune on: evenly spread training images, held out."""
    if sets.val is None and score_on == "val":
        raise InputError("there is nothing to score the systems on; set data.val_split")
    images = unique_indices(sets.train)
    count, least = len(images), 1 if score_on == "val" else 2
    if not least <= held_out < count:
        raise InputError(
            f"held-out is {held_out} of {count} training images; hold out at least {least} and not all of them"
        )
    chosen = [images[position * count // held_out] for position in range(held_out)]
    names = {sets.train.sample_name(index) for index in chosen}
    train = Subset(sets.train, [i for i in range(len(sets.train)) if sets.train.sample_name(i) not in names])
    if score_on == "val":
        return DataSets(train, sets.val), Subset(sets.train, chosen)
    return DataSets(train, Subset(sets.train, chosen[1::2])), Subset(sets.train, chosen[::2])


def _shared_config(systems: Sequence[System], config: TrainConfig) -> TrainConfig:
    """No scoring during training; if one loss is at the nodes only, all are, without label smoothing."""
    shared = config if config.data.val_split is None else override(config, {"run.evaluate_every": NEVER})
    common = {"loss.resolution": "nodes", "loss.label_smoothing": 0.0}
    at_nodes = any("resolution" not in system.apply(shared).loss for system in systems)
    return override(shared, common) if at_nodes and "resolution" in shared.loss else shared


def _system_config(system: System, shared: TrainConfig, seed: int, cache: Path) -> TrainConfig:
    """The configuration of a system; all systems share the cached features, if they use any."""
    config = override(system.apply(shared), {"run.seed": seed})
    if not config.run.cache_features or config.run.cache_folder is not None:
        return config
    return override(config, {"run.cache_folder": str(cache)})


def _name_of(systems: Sequence[System], wanted: str) -> str:
    names = {system.label: system.name for system in systems} | {system.name: system.name for system in systems}
    if wanted not in names:
        raise InputError(f'there is no system "{wanted}" to contrast; {nearest(wanted, names)}')
    return names[wanted]


def _check_same(path: Path, config: TrainConfig) -> None:
    """Raises if the folder was made with other settings, the cache folder aside."""
    before = load_config(path) if path.is_file() else config
    if replace(before, run=replace(before.run, cache_folder=config.run.cache_folder)) != config:
        raise InputError(f"{path.parent} was made with other settings; give the same, or another folder")


def _train_and_score(
    system: System,
    seed: int,
    config: TrainConfig,
    folder: Path,
    parts: tuple[DataSets, SegmentationData],
    options: PredictOptions,
    follow: TrainCallback | None,
    callback: StudyCallback,
    cost: Cost | None,
) -> RunResult:
    sets, held_out = parts
    unscored = DataSets(sets.train, None)  # scored once, below
    run = run_training(config, folder / "run", resume=True, progress=follow, data=unscored)
    if run.interrupted:
        raise KeyboardInterrupt
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = SegmentationModel.from_pretrained(run.folder / "last").to(device)
    tunable = head_trait(model.head, "tunable")
    tuned = tune(model, held_out, options=options, limit=len(held_out)) if tunable else []
    model.save(folder / "model")
    assert sets.val is not None
    scores = _scores(model, sets.val, config, options, callback)
    write_atomically(folder / "scores.json", (json.dumps(scores.to_dict(), indent=2) + "\n").encode())
    height, width = sets.train[0].image.shape[:2]
    if config.augment.crop is not None:
        crop = config.augment.crop
        height, width = (crop, crop) if isinstance(crop, int) else crop
    frozen: BackboneUse = "frozen" if config.run.freeze_backbone else "trained"
    use: BackboneUse = "cached" if config.run.cache_features else frozen
    return RunResult(
        system.name,
        system.label or system.name,
        seed,
        scores.mean_iou or 0.0,
        near_boundaries(scores),
        parameter_count(model) - (parameter_count(model.backbones) if config.run.freeze_backbone else 0),
        getattr(model.head, "outputs_per_factor", model.classes.num_classes),
        run.steps,
        run.seconds,
        cost or measure_in_subprocess(folder / "model", height, width, config.run.batch_size, use, config.loss),
        tuned[0].values if tuned else {},
        scores.expected_calibration_error,
        scores.sizes[0].accuracy if scores.sizes else None,
        config.model.head[KIND],
        scores.negative_log_likelihood,
    )


def _scores(
    model: SegmentationModel,
    data: SegmentationData,
    config: TrainConfig,
    options: PredictOptions,
    callback: StudyCallback,
) -> Scores:
    """Scores of a model, from cached features if it was trained on them and needs no images."""
    if not config.run.cache_features or "prediction" in model.needs_images or options != PredictOptions():
        return score(Predictor(model, options), data)
    assert config.run.cache_folder is not None, "all systems share one"
    cache = scoring_cache(model, data, Path(config.run.cache_folder), config)
    workers = default_workers(1) if config.run.workers is None else config.run.workers
    cache.build(start_processes(config.run.precision), workers, callback.features)
    return score_cached(model, cache)


def score_cached(model: SegmentationModel, cache: FeatureCache) -> Scores:
    """Scores as `prediction.score` computes them, up to the precision of the cache; large images are not tiled."""
    predictor = Predictor(model)
    evaluator = Evaluator(model.classes)
    for index in range(len(cache)):
        entry = cache.read(0, index)
        size = (entry.target.shape[0], entry.target.shape[1])
        features = collate_features([entry]).to(model.device).features
        assert features is not None
        (nodes,) = predictor.from_features(features, size)
        strips = predictor.pixel_logits(nodes, size)
        marginals = torch.cat([torch.softmax(strip, 0) for strip in strips], 1)
        evaluator.add(entry.id, marginals, entry.target)
    return evaluator.scores()
