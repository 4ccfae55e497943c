"""From a configuration to what it names: the data sets, the model, its first weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from messagenet.bundled import bundled_models, model_folder
from messagenet.data import Augment, Classes, Sample, SegmentationData, Subset, generator, open_data, takes
from messagenet.errors import InputError, nearest
from messagenet.models import InputSpec, SegmentationModel
from messagenet.models.backbones import load_pretrained
from messagenet.models.base import head_trait
from messagenet.models.saving import read_config
from messagenet.settings import KIND, flat
from messagenet.training.config import DataConfig, ModelConfig, TrainConfig

PUBLISHED = ("package", "torch.hub")  # published weights that `model.pretrained` may name


class DataSets(NamedTuple):
    """What to train on, and what to score on; None for no scoring."""

    train: SegmentationData
    val: SegmentationData | None


def open_sets(config: DataConfig) -> DataSets:
    """Opens the data sets of a run."""
    seed = config.seed if not config.balance or takes(config.spec, "seed") else 0  # else that of the balance alone

    def open_split(split: str) -> SegmentationData:
        return open_data(config.spec, split, config.classes, config.void_values or None, config.keep, config.rest, seed)

    train = open_split(config.train_split)
    val = None if config.val_split is None else open_split(config.val_split)
    return DataSets(train, limited(val, config.val_limit))


def limited(data: SegmentationData | None, limit: int | None) -> SegmentationData | None:
    """At most so many samples, evenly spread."""
    if data is None or limit is None or limit >= len(data):
        return data
    return Subset(data, np.linspace(0, len(data) - 1, limit).round().astype(int).tolist())


def check_training_data(data: DataSets, augment: Augment, seed: int) -> Sample:
    """Refuses data that cannot be trained on; returns the first sample as training will see it."""
    if data.val is not None and data.val.classes.names != data.train.classes.names:
        raise InputError(f"{data.train.name} and {data.val.name} have different classes; give both the same class list")
    sample = augment(data.train[0], generator(seed, 0, 0))
    if sample.mask is None:
        raise InputError(f"{data.train.name} has no masks to learn from; add them, or choose another split")
    return sample


def check_reach(model: SegmentationModel, sample: Sample) -> None:
    """Refuses a relation that connects no two nodes of an image of this size."""
    height, width = sample.image.shape[:2]
    rows, columns = (math.ceil(side / model.feature_stride) for side in (height, width))
    for relation in model.relations:
        offsets = relation.offsets_on(rows, columns)
        if not any(abs(dy) < rows and abs(dx) < columns for dy, dx in offsets):
            raise InputError(
                f"relation {relation.to_setting()} reaches no node: an image of {width}x{height} pixels has a map of "
                f"{columns}x{rows} nodes; give its size in cells, as {relation.shape}:3cells, or train on larger images"
            )


class InitialisedModel(NamedTuple):
    """A model, and the names of its pretrained parameters."""

    model: SegmentationModel
    pretrained: frozenset[str]


def build_model(config: TrainConfig, classes: Classes) -> InitialisedModel:
    """Builds the model of a run with its first weights; the same seed gives the same random ones."""
    spec = InputSpec(classes, config.data.void_values, config.augment.longest_side)
    parts = config.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.run.seed)
        try:
            model = SegmentationModel(
                parts.backbone, spec, parts.head, neck=parts.neck, separate_features=parts.separate_features
            )
        except InputError as error:
            of_part = str(error).startswith(("backbone", "neck", "head"))
            raise InputError(f"model.{error}" if of_part else str(error)) from None
        return InitialisedModel(model, _load_first_weights(model, parts))


def _load_first_weights(model: SegmentationModel, config: ModelConfig) -> frozenset[str]:
    if config.pretrained is None:
        if config.pretrained_head:
            raise InputError(
                "model.pretrained_head needs a model with this backbone to take the head from; set model.pretrained to "
                "its folder"
            )
        return frozenset()
    folder = model_folder(config.pretrained)
    if folder.is_dir():
        return _load_from_model(model, folder, config)
    if config.pretrained not in PUBLISHED and not folder.is_file():
        known = [*PUBLISHED, *bundled_models()]
        raise InputError(
            f"model.pretrained is {config.pretrained}, which is not a file, a folder or a known name; "
            f"{nearest(str(config.pretrained), known)}"
        )
    if config.pretrained_head:
        raise InputError(
            f"model.pretrained is {config.pretrained}, which has no head; name the folder of a model, or set "
            "model.pretrained_head=false"
        )
    filled: set[str] = set()
    for key, backbone in model.backbones.items():
        random = set(load_pretrained(backbone, str(config.pretrained)))
        filled |= {f"backbones.{key}.{name}" for name, _ in backbone.named_parameters() if name not in random}
    return frozenset(filled)


def _load_from_model(model: SegmentationModel, folder: Path, config: ModelConfig) -> frozenset[str]:
    theirs = read_config(folder)["model"]["backbone"]
    kind = theirs and theirs[KIND]
    if kind != config.backbone[KIND]:
        raise InputError(
            f"the model in {folder} has the backbone {kind}, not {config.backbone[KIND]}; change one of them"
        )
    trained = SegmentationModel.from_pretrained(folder)
    if config.pretrained_head:
        return _load_all(model, trained, folder)
    sources = dict(trained.backbones.items())
    parts: list[tuple[str, nn.Module, nn.Module]] = [
        (f"backbones.{key}", backbone, sources.get(key, next(iter(sources.values()))))
        for key, backbone in model.backbones.items()
    ]
    ours, theirs = ((each.config["neck"] or {}) | {"dropout": None} for each in (model, trained))  # it has no weights
    if trained.neck is not None and model.neck is not None and ours == theirs:
        parts.append(("neck", model.neck, trained.neck))
    for _, own, source in parts:
        _fill(own, source.state_dict(), folder)
    return frozenset(f"{part}.{name}" for part, own, _ in parts for name, _ in own.named_parameters())


def _load_all(model: SegmentationModel, trained: SegmentationModel, folder: Path) -> frozenset[str]:
    if trained.classes.names != model.classes.names:
        raise InputError(
            f"the model in {folder} tells {', '.join(trained.classes.names)} apart, the data have "
            f"{', '.join(model.classes.names)}; its head can be taken over only for the same classes in the same order"
        )
    if other := _first_difference(model, trained):
        raise InputError(
            f"the head of {folder} has other settings: {other}; give the same, or set model.pretrained_head=false"
        )
    model.load_state_dict(trained.state_dict())
    return frozenset(name for name, _ in model.named_parameters())


def _first_difference(model: SegmentationModel, trained: SegmentationModel) -> str | None:
    """The first setting or shape that keeps the head of one model from working in the other, if any."""
    ours, theirs = (
        flat({name: value for name, value in each.config.items() if name != "backbone"}) for each in (model, trained)
    )
    free = {"neck.dropout", *(f"head.{name}" for name in head_trait(model.head, "tunable"))}
    for name in {**theirs, **ours}:  # a kind comes before its options
        if name not in free and ours.get(name) != theirs.get(name):
            return f"{name} is {theirs.get(name)} there and {ours.get(name)} here"
    shapes, known = ({k: v.shape for k, v in each.state_dict().items()} for each in (model, trained))
    return None if shapes == known else "its backbone has options that give parameters of other sizes"


def _fill(module: nn.Module, state: Mapping[str, Tensor], source: Path) -> None:
    """Copies what a module has; the source may have more, such as the further levels of a fused backbone."""
    own = {name: values.shape for name, values in module.state_dict().items()}
    if any(name not in state or state[name].shape != shape for name, shape in own.items()):
        raise InputError(f"the backbone of {source} has other options; give model.backbone the same")
    module.load_state_dict({name: state[name] for name in own})
