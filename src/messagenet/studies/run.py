"""Trains and scores systems side by side: the same data, backbone, budget and seeds for all of them.

    out/comparison.md, .json, .csv      the table
    out/contrasts.md                    differences between chosen rows, if any were chosen
    out/iou.png, cost.png               the plots
    out/ROW/seed-S/run/                 a training run (see `messagenet.training`)
    out/ROW/seed-S/model/               the model that was scored, after tuning
    out/ROW/seed-S/scores.json          everything that was counted on the scored images
    out/ROW/seed-S/outcome.json         what came of it; a row that has this file is not trained again

Some of the training images are held out from every row. Rows with settings that training does not learn are tuned on
them; the others have nothing to do with them, and no row has seen the images it is scored on. The model after the
last step is scored, not the one that did best on those images.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch

from messagenet.data import SegmentationData, Subset, distinct
from messagenet.errors import InputError, nearest, write_atomically
from messagenet.evaluation import Evaluator, Scores
from messagenet.models import KINDS, SegmentationNet
from messagenet.models.controls import parameter_count
from messagenet.prediction import Predictor, score
from messagenet.prediction.upsample import pixel_strips
from messagenet.studies.cost import Backbone, Cost, measured
from messagenet.studies.systems import Row, at_nodes, check_rows, find_rows
from messagenet.studies.tables import Outcome, near_boundaries, write_contrasts, write_plots, write_tables
from messagenet.training import DataSets, Progress, TrainConfig, apply_overrides, train
from messagenet.training import config as config_files
from messagenet.training.batches import default_workers
from messagenet.training.build import open_sets
from messagenet.training.distributed import start_processes
from messagenet.training.feature_cache import FeatureCache, collate_entries, scoring_cache
from messagenet.training.validate import tune

HELD_OUT = 20
NEVER = 10**9


class Watcher(Protocol):
    """What a comparison tells whoever watches."""

    def row(self, number: int, total: int, row: Row, seed: int) -> Progress | None:
        """Before a row is trained; returns what to show its training with."""
        ...

    def features(self, done: int, total: int) -> None:
        """While features of the scored images are computed, after every image."""
        ...

    def done(self, number: int, total: int, outcome: Outcome) -> None:
        """After a row is scored, or found to be so."""
        ...


class _Quiet:
    """Shows nothing."""

    def row(self, number: int, total: int, row: Row, seed: int) -> Progress | None:
        """Nothing."""
        return None

    def features(self, done: int, total: int) -> None:
        """Nothing."""

    def done(self, number: int, total: int, outcome: Outcome) -> None:
        """Nothing."""


def compare(
    rows: Iterable[str | Row] | Mapping[str, Sequence[str]],
    config: TrainConfig,
    seeds: Sequence[int],
    out: str | Path,
    *,
    held_out: int = HELD_OUT,
    contrasts: Sequence[tuple[str, str]] = (),
    data: DataSets | None = None,
    watcher: Watcher | None = None,
) -> list[Outcome]:
    """Trains and scores every row with every seed, and writes the table and the plots.

    Ctrl-C ends the comparison; called again, it goes on from there. The table is written anew after every row.

    Args:
        rows: Names of `messagenet.studies.ROWS`, rows of one's own, or their settings by name.
        config: What all rows share; its `model.kind` does not matter.
        seeds: Of the weights and the order of images; the data stay the same.
        out: Folder for everything.
        held_out: Training images to tune on.
        contrasts: Pairs of rows, by name or label, whose differences to list.
        data: Data sets of one's own, instead of those that `config.data` names.
        watcher: What to tell.
    """
    found, out, watcher = find_rows(rows), Path(out), watcher or _Quiet()
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds are {list(seeds)}; give one or more, each once")
    pairs = [(_one_of(found, base), _one_of(found, other)) for base, other in contrasts]
    shared = _fair(found, config)
    kept = out / "features" if config.run.cache_features else None
    configs = {(row.name, seed): _row_config(row, shared, seed, kept) for row in found for seed in seeds}
    sets = data or open_sets(config.data)
    check_rows(found, shared, sets.train.classes)
    parts = _parts(sets, held_out)
    _check_same(out / "config.yaml", shared)
    write_atomically(out / "config.yaml", config_files.config_text(shared).encode())
    jobs = [(row, seed) for seed in seeds for row in found]
    outcomes: list[Outcome] = []
    for number, (row, seed) in enumerate(jobs, start=1):
        folder = out / row.name / f"seed-{seed}"
        if (folder / "outcome.json").is_file():
            _check_same(folder / "run" / "config.yaml", configs[row.name, seed])
            outcome = Outcome.load(folder / "outcome.json")
        else:
            progress = watcher.row(number, len(jobs), row, seed)
            known = [*outcomes, *_others(out, jobs)]
            earlier = next((each.cost for each in known if each.row == row.name), None)
            outcome = _outcome(row, seed, configs[row.name, seed], folder, parts, progress, watcher, earlier)
            outcome.save(folder / "outcome.json")
        outcomes.append(outcome)
        watcher.done(number, len(jobs), outcome)
        write_tables([*outcomes, *_others(out, jobs)], out)
    everything = [*outcomes, *_others(out, jobs)]
    write_plots(everything, out)
    write_contrasts(pairs, everything, out)
    return outcomes


def _others(out: Path, jobs: Sequence[tuple[Row, int]]) -> list[Outcome]:
    """What earlier calls have finished in this folder and this one was not asked for."""
    asked = {(row.name, seed) for row, seed in jobs}
    found = [Outcome.load(path) for path in sorted(out.glob("*/seed-*/outcome.json"))]
    return [outcome for outcome in found if (outcome.row, outcome.seed) not in asked]


def _parts(sets: DataSets, held_out: int) -> tuple[DataSets, SegmentationData]:
    """The data without some of its training images, evenly spread, and those."""
    if sets.val is None:
        raise InputError("there is nothing to score the rows on; set data.val_split")
    images = distinct(sets.train)
    count = len(images)
    if not 1 <= held_out < count:
        raise InputError(
            f"held-out is {held_out} of {count} training images; hold out at least 1 and not all of them"
        )
    chosen = [images[number * count // held_out] for number in range(held_out)]
    kept_out = {sets.train.sample_name(index) for index in chosen}
    rest = [index for index in range(len(sets.train)) if sets.train.sample_name(index) not in kept_out]
    return DataSets(Subset(sets.train, rest), sets.val), Subset(sets.train, chosen)


def _fair(rows: Sequence[Row], config: TrainConfig) -> TrainConfig:
    """The shared configuration in a form that every row can have: no scoring on the way, a loss that all know."""
    shared = apply_overrides(config, [f"run.evaluate_every={NEVER}", "run.cache_features=false"])
    kinds = [row.config(at_nodes(shared), 0).model.kind for row in rows]
    own = any(KINDS[kind].network.own_objective for kind in kinds)
    return at_nodes(shared) if own else shared


def _row_config(row: Row, shared: TrainConfig, seed: int, features: Path | None) -> TrainConfig:
    """The configuration of a row; a frozen backbone's features are cached for all rows that can use them."""
    config = row.config(shared, seed)
    if features is None or not KINDS[config.model.kind].network.learns_from_features:
        return config
    return apply_overrides(config, ["run.cache_features=true", f"run.cache_folder={features}"])


def _one_of(rows: Sequence[Row], wanted: str) -> str:
    """The name of the row that is called so, or has this label."""
    names = {row.label: row.name for row in rows} | {row.name: row.name for row in rows}
    if wanted not in names:
        raise InputError(f'there is no row "{wanted}" to contrast; {nearest(wanted, names)}')
    return names[wanted]


def _check_same(path: Path, config: TrainConfig) -> None:
    """Refuses to mix what was made with other settings; where the features are kept is no matter."""
    if not path.is_file():
        return
    kept = [f"run.cache_folder={config.run.cache_folder or 'null'}"]
    if apply_overrides(config_files.load_config(path), kept) != config:
        raise InputError(f"{path.parent} was made with other settings; give the same, or another folder")


def _outcome(
    row: Row,
    seed: int,
    config: TrainConfig,
    folder: Path,
    parts: tuple[DataSets, SegmentationData],
    progress: Progress | None,
    watcher: Watcher,
    cost: Cost | None,
) -> Outcome:
    """Trains, tunes, scores and measures one row with one seed."""
    sets, held_out = parts
    unscored = DataSets(sets.train, None)  # scored once, below
    result = train(config, folder / "run", resume=True, progress=progress, data=unscored)
    if result.interrupted:
        raise KeyboardInterrupt
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = SegmentationNet.from_pretrained(result.folder / "last").to(device)
    trials = tune(net, held_out)
    net.save(folder / "model")
    assert sets.val is not None
    scores = _scores(net, sets.val, config, watcher)
    write_atomically(folder / "scores.json", (json.dumps(scores.to_dict(), indent=2) + "\n").encode())
    height, width = sets.train[0].image.shape[:2]
    if config.augment.crop is not None:
        crop = config.augment.crop
        height, width = (crop, crop) if isinstance(crop, int) else crop
    return Outcome(
        row.name,
        row.label or row.name,
        seed,
        scores.mean_iou or 0.0,
        near_boundaries(scores),
        parameter_count(net) - (parameter_count(net.backbones) if config.run.freeze_backbone else 0),
        net.outputs_per_factor,
        result.steps,
        result.seconds,
        cost or measured(folder / "model", height, width, config.run.batch_size, _backbone_in(config)),
        trials[0].values if trials else {},
        scores.expected_calibration_error,
        scores.sizes[0].accuracy if scores.sizes else None,
        config.model.kind,
    )


def _backbone_in(config: TrainConfig) -> Backbone:
    """What a training with this configuration does with the backbone."""
    if config.run.cache_features:
        return "kept"
    return "frozen" if config.run.freeze_backbone else "trained"


def _scores(net: SegmentationNet, data: SegmentationData, config: TrainConfig, watcher: Watcher) -> Scores:
    """The scores of a model, from cached features if it was trained on such and needs nothing else."""
    if not (config.run.cache_features and net.decides_from_features):
        return score(Predictor(net), data)
    assert config.run.cache_folder is not None, "all rows share one"
    cache = scoring_cache(net, data, Path(config.run.cache_folder), config)
    workers = default_workers(1) if config.run.workers is None else config.run.workers
    cache.build(start_processes(config.run.precision), workers, watcher.features)
    return cached_scores(net, cache)


@torch.inference_mode()
def cached_scores(net: SegmentationNet, cache: FeatureCache) -> Scores:
    """What `messagenet.prediction.score` finds, up to the precision of the cache; large images are not tiled.

    Args:
        net: Whose head is scored.
        cache: Features and masks of the images at their own size.
    """
    net.eval()
    evaluator = Evaluator(net.classes)
    for index in range(len(cache)):
        entry = cache.read(0, index)
        assert entry.mask is not None, "a cache for scoring keeps the masks"
        logits = net.decided(collate_entries([entry]).to(net.device).features)[0].float()
        size = (entry.mask.shape[0], entry.mask.shape[1])
        strips = pixel_strips(logits, size, net.stride)
        evaluator.add(entry.name, torch.cat([torch.softmax(strip, 0) for strip in strips], 1), entry.mask)
    return evaluator.scores()
