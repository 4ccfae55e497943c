"""From a configuration to what it names: the data sets, the network, its first weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from messagenet.bundled import model_folder, shipped_models
from messagenet.data import Augment, Classes, Sample, SegmentationData, Subset, generator, open_data
from messagenet.errors import InputError, nearest
from messagenet.graph.relations import parse_relation, relation_text
from messagenet.models import KINDS, InferenceMachineNet, SegmentationNet
from messagenet.models.backbones import build_backbone, load_pretrained
from messagenet.models.saving import read_config
from messagenet.training.config import DataConfig, ModelConfig

WORDS = ("package", "torch.hub")
"""Published weights that `model.pretrained` may name."""


class DataSets(NamedTuple):
    """What to train on, and what to score; None for no scoring."""

    train: SegmentationData
    val: SegmentationData | None


def open_sets(config: DataConfig) -> DataSets:
    """Opens the data sets of a run."""

    def opened(split: str) -> SegmentationData:
        return open_data(
            config.spec,
            split,
            config.classes,
            config.void_values or None,
            config.keep,
            config.rest,
            config.seed,
        )

    train = opened(config.train_split)
    val = None if config.val_split is None else opened(config.val_split)
    if val is not None and config.val_limit is not None and config.val_limit < len(val):
        spread = np.linspace(0, len(val) - 1, config.val_limit).round().astype(int)
        val = Subset(val, spread.tolist())
    return DataSets(train, val)


def check_data(data: DataSets, augment: Augment, seed: int) -> Sample:
    """Refuses data that cannot be trained on; returns the first sample as training will see it."""
    if data.val is not None and data.val.classes.names != data.train.classes.names:
        raise InputError(
            f"{data.train.name} and {data.val.name} have different classes; give both the same class list"
        )
    sample = augment(data.train[0], generator(seed, 0, 0))
    if sample.mask is None:
        raise InputError(f"{data.train.name} has no masks to learn from; add them, or choose another split")
    return sample


def check_reach(net: SegmentationNet, sample: Sample) -> None:
    """Refuses a relation that connects no two nodes of an image of this size."""
    height, width = sample.image.shape[:2]
    rows, columns = math.ceil(height / net.stride), math.ceil(width / net.stride)
    for relation in net.relations:
        offsets = relation.offsets_on(rows, columns)
        if not any(abs(dy) < rows and abs(dx) < columns for dy, dx in offsets):
            raise InputError(
                f"relation {relation_text(relation)} reaches no node: an image of {width}x{height} pixels has a map of "
                f"{columns}x{rows} nodes; give its size in cells, as {relation.shape}:3cells, or train on larger images"
            )


class Network(NamedTuple):
    """A network and the names of those of its parameters that did not begin at random."""

    net: SegmentationNet
    pretrained: frozenset[str]


def build_network(
    config: ModelConfig, classes: Classes, seed: int = 0, void_values: Sequence[int] = ()
) -> Network:
    """Builds the network with its first weights; the same seed gives the same random ones.

    Args:
        config: The network.
        classes: What its labels mean.
        seed: Of the random weights.
        void_values: Mask values without a meaning, for the network to remember.
    """
    network, fixed = KINDS[config.kind]
    relations = (
        tuple(parse_relation(relation) for relation in config.relations) if network.uses_relations else ()
    )
    build: Callable[..., SegmentationNet] = network
    backbone, backbone_options = _backbone(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = build(
            *(backbone, classes, relations),
            backbone_options=backbone_options,
            void_values=void_values,
            **{name: getattr(config, name) for name in network.options},
            **fixed,
        )
        return Network(net, _first_weights(net, config))


def _backbone(config: ModelConfig) -> tuple[str, Mapping[str, Any]]:
    """The name and options of the backbone; hand-crafted features lie on the nodes of the one that is configured."""
    crafted = config.machine_features == "hand_crafted"
    if not (crafted and KINDS[config.kind].network is InferenceMachineNet):
        return config.backbone, config.backbone_options
    with torch.device("meta"):
        configured: Any = build_backbone(config.backbone, **config.backbone_options)
    return "hand_crafted", {"stride": round(configured.stride)}


def _first_weights(net: SegmentationNet, config: ModelConfig) -> frozenset[str]:
    """Gives the network the first weights that are configured; the names of the parameters that have them."""
    if config.pretrained is None or net.settings["backbone"] != config.backbone:
        if config.pretrained_head:
            raise InputError(
                "model.pretrained_head needs a model with this backbone to take the head from; set model.pretrained to "
                "its folder"
            )
        return frozenset()
    folder = model_folder(config.pretrained)
    if folder.is_dir():
        return _taken_over(net, folder, config)
    if config.pretrained not in WORDS and not folder.is_file():
        known = [*WORDS, *shipped_models()]
        raise InputError(
            f"model.pretrained is {config.pretrained}, which is no file, no folder and no known name; "
            f"{nearest(str(config.pretrained), known)}"
        )
    if config.pretrained_head:
        raise InputError(
            f"model.pretrained is {config.pretrained}, which has no head; name the folder of a model, or set "
            "model.pretrained_head=false"
        )
    filled: set[str] = set()
    for key, backbone in net.backbones.items():
        random = set(load_pretrained(backbone, config.backbone, str(config.pretrained)))
        filled |= {f"backbones.{key}.{name}" for name, _ in backbone.named_parameters() if name not in random}
    return frozenset(filled)


def _taken_over(net: SegmentationNet, folder: Path, config: ModelConfig) -> frozenset[str]:
    """Fills the backbones from a trained model, the neck if it has the same, and the head if that is wanted."""
    theirs = read_config(folder)["settings"].get("backbone")
    if theirs != config.backbone:
        raise InputError(
            f"the model in {folder} has the backbone {theirs}, not {config.backbone}; change one of them"
        )
    trained = SegmentationNet.from_pretrained(folder)
    if config.pretrained_head:
        return _all_taken_over(net, trained, folder)
    sources = dict(trained.backbones.items())
    parts: list[tuple[str, nn.Module, nn.Module]] = [
        (f"backbones.{key}", backbone, sources.get(key, next(iter(sources.values()))))
        for key, backbone in net.backbones.items()
    ]
    if trained.settings.get("neck") and trained.settings["neck"] == net.settings.get("neck"):
        parts.append(("neck", net.get_submodule("neck"), trained.get_submodule("neck")))
    for _, own, source in parts:
        _fill(own, source.state_dict(), folder)
    return frozenset(f"{part}.{name}" for part, own, _ in parts for name, _ in own.named_parameters())


def _all_taken_over(net: SegmentationNet, trained: SegmentationNet, folder: Path) -> frozenset[str]:
    """Fills the whole network from a trained one of the same kind, classes and sizes."""
    if trained.classes.names != net.classes.names:
        raise InputError(
            f"the model in {folder} tells {', '.join(trained.classes.names)} apart, the data have "
            f"{', '.join(net.classes.names)}; its head can be taken over only for the same classes in the same order"
        )
    if other := _first_difference(net, trained):
        raise InputError(
            f"the head of {folder} has other settings: {other}; give the same, or set model.pretrained_head=false"
        )
    net.load_state_dict(trained.state_dict())
    return frozenset(name for name, _ in net.named_parameters())


def _first_difference(net: SegmentationNet, trained: SegmentationNet) -> str | None:
    """What would make the head of one network mean something else in the other; None if nothing does."""
    if type(net) is not type(trained):
        return f"it is a {type(trained).__name__}, not a {type(net).__name__}"
    ours, theirs = ({"relations": each.relations} | each.settings for each in (net, trained))
    free = {"backbone_options", *net.adjustable}
    for name in sorted((ours.keys() | theirs.keys()) - free):
        if ours.get(name) != theirs.get(name):
            return f"{name} is {theirs.get(name)} there and {ours.get(name)} here"
    shapes, known = ({k: v.shape for k, v in each.state_dict().items()} for each in (net, trained))
    if shapes != known:
        return "its backbone_options give parameters of other sizes"
    return None


def _fill(module: nn.Module, state: Mapping[str, Tensor], source: Path) -> None:
    """Copies what a module has; the source may have more, as a backbone has whose levels are fused."""
    own = {name: values.shape for name, values in module.state_dict().items()}
    if any(name not in state or state[name].shape != shape for name, shape in own.items()):
        raise InputError(
            f"the backbone of {source} has other options; give it the same model.backbone_options"
        )
    module.load_state_dict({name: state[name] for name in own})
