"""The systems by name: what each of them changes in a shared configuration.

A system drops shared options that its head and loss lack and keeps the others, so that systems compare at equal sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from messagenet.errors import InputError, nearest
from messagenet.models.controls import DILATIONS
from messagenet.settings import KIND, build, merge, nested
from messagenet.training.config import TrainConfig, parse_setting

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class System:
    """What can be trained and compared."""

    name: str  # in tables and folders
    settings: Changes | Callable[[TrainConfig], Changes]  # values by path, or a function of the shared configuration
    label: str = ""  # what it is, in words
    bases: tuple[str, ...] = ()  # systems that it starts from

    def apply(self, config: TrainConfig) -> TrainConfig:
        """The configuration with this system."""
        for base in self.bases:
            config = SYSTEMS[base].apply(config)
        settings = self.settings(config) if callable(self.settings) else self.settings
        try:
            return merge(config, nested(settings))
        except InputError as error:
            raise InputError(f"system {self.label or self.name}: {error}") from error


def _head(name: str, label: str, loss: str = "cross_entropy", kind: str | None = None, **options: Any) -> System:
    settings = {"model.head": {KIND: kind or name, **options}, "loss": loss, "run.method": "gradient"}
    return System(name, settings, label)


_crf = partial(_head, kind="crf", inference="mean_field")


def _machine(name: str, label: str, method: str = "gradient", **options: Any) -> System:
    """An inference machine on hand-crafted features, at the stride of the configured backbone."""

    def settings(config: TrainConfig) -> Changes:
        with torch.device("meta"):
            configured = build("backbone", config.model.backbone)
        return {
            "model.backbone": {KIND: "hand_crafted", "stride": round(configured.stride)},
            "model.head": {KIND: "inference_machine", "iterations": 3, **options},
            "model.pretrained": None,
            "model.pretrained_head": False,
            "loss": "cross_entropy",
            "run.method": method,
        }

    return System(name, settings, label)


SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        _head("unary", "unary only"),
        _head("fcn8s", "FCN-8s"),
        _head("deconvnet", "DeconvNet"),
        _head("deeplab_crf", "DeepLab-CRF"),
        System(
            "deeplab_mcl",
            {"model.backbone": {KIND: "vgg16", "scales": [1.0, 0.75, 0.5], "fc6_channels": 1024}},
            "DeepLab-MCL: VGG-16 at three scales, large field of view",
            ("deeplab_crf",),
        ),
        _head("crf_rnn", "CRF-RNN"),
        _crf("context_crf", "CRF, piecewise (ContextDCRF)", "piecewise"),
        _crf("crf_pseudo", "CRF, pseudo-likelihood", "pseudo_likelihood"),
        _crf("crf_likelihood", "CRF, maximum likelihood", "likelihood", inference="belief_propagation"),
        _machine("inference_machine", "inference machine, back-propagation"),
        _machine("machine_forward", "inference machine, forward training", "forward", tied=False),
        _machine("machine_dagger", "inference machine, DAgger", "dagger", tied=True),
        _head("ensemble", "control: ensemble of unaries", "member_cross_entropy"),
        _head("convolution", "control: 3×3 convolution", dilations=[1]),
        _head("dilated", "control: dilated convolutions", kind="convolution", dilations=list(DILATIONS)),
        _head("pyramid_pooling", "control: pyramid pooling (PSPNet)"),
        _head("aspp", "control: ASPP (DeepLabv3)"),
        _head("attention", "control: attention", layers=1, feed_forward=False),
        _head("transformer", "control: transformer of two layers", kind="attention", layers=2, feed_forward=True),
        _head("message", "learned messages"),
        *(_head(f"message_t{t}", f"learned messages, T = {t}", kind="message", iterations=t) for t in (1, 2, 3)),
    )
}


def find_system(name: str) -> System:
    """The system of this name."""
    if not isinstance(name, str):
        raise InputError(f'a system is a name such as "message", not a {type(name).__name__}: train builds the model')
    if name not in SYSTEMS:
        raise InputError(f'there is no system "{name}"; {nearest(name, SYSTEMS)}')
    return SYSTEMS[name]


def apply_system(config: TrainConfig, name: str) -> TrainConfig:
    """The configuration with the system of this name."""
    return find_system(name).apply(config)


def custom_system(name: str, settings: Sequence[str], label: str = "") -> System:
    """A system from lines of settings; a line without "=" names the system that it starts from.

    >>> custom_system("messages", ["message", "model.head.iterations=2"]).bases
    ('message',)
    """
    bases = tuple(find_system(line).name for line in settings if "=" not in line)
    values = dict(parse_setting(line) for line in settings if "=" in line)
    return System(name, values, label or name, bases)
