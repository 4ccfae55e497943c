"""The rows of the comparison: a name, and what it changes in a configuration that all rows share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from messagenet.data import Classes
from messagenet.errors import InputError, nearest
from messagenet.models import KINDS
from messagenet.training import TrainConfig, apply_overrides
from messagenet.training.build import build_network


@dataclass(frozen=True)
class Row:
    """One system.

    Attributes:
        name: What tables and folders call it.
        settings: What it changes, such as "model.kind=unary".
        label: What it is, in words.
    """

    name: str
    settings: tuple[str, ...]
    label: str = ""

    def config(self, shared: TrainConfig, seed: int) -> TrainConfig:
        """Its configuration for one seed."""
        try:
            return apply_overrides(shared, [*self.settings, f"run.seed={seed}"])
        except InputError as error:
            raise InputError(f"row {self.label or self.name}: {error}") from error


def _kind(name: str, label: str) -> Row:
    return Row(name, (f"model.kind={name}",), label)


def _messages(iterations: int) -> Row:
    settings = ("model.kind=message", f"model.iterations={iterations}")
    return Row(f"message_t{iterations}", settings, f"learned messages, T = {iterations}")


ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        _kind("unary", "unary only"),
        _kind("fcn8s", "FCN-8s"),
        _kind("deeplab_crf", "DeepLab-CRF"),
        Row(
            "deeplab_mcl",
            (
                "model.kind=deeplab_crf",
                "model.backbone=vgg16",
                "model.backbone_options={scales: [1.0, 0.75, 0.5], fc6_channels: 1024, fc6_kernel: 7}",
            ),
            "DeepLab-MCL: VGG-16 at three scales, large field of view",
        ),
        _kind("crf_rnn", "CRF-RNN"),
        _kind("context_crf", "CRF, piecewise (ContextDCRF)"),
        _kind("crf_pseudo", "CRF, pseudo-likelihood"),
        _kind("crf_likelihood", "CRF, maximum likelihood"),
        _kind("inference_machine", "inference machine, back-propagation"),
        Row(
            "machine_forward",
            ("model.kind=inference_machine", "model.tied=false", "run.method=forward"),
            "inference machine, forward training",
        ),
        Row(
            "machine_dagger",
            ("model.kind=inference_machine", "model.tied=true", "run.method=dagger"),
            "inference machine, DAgger",
        ),
        _kind("ensemble", "control: ensemble of unaries"),
        _kind("convolution", "control: 3×3 convolution"),
        _kind("dilated", "control: dilated convolutions"),
        Row("message", ("model.kind=message",), "learned messages"),
        *(_messages(iterations) for iterations in (1, 2, 3)),
    )
}
"""Rows by name; "message" has the iterations of the shared configuration."""

assert set(KINDS) <= set(ROWS)

DEFAULT_ROWS = ("unary", "convolution", "context_crf", "message")


def fitting_rows(shared: TrainConfig, classes: Classes) -> tuple[list[Row], dict[str, str]]:
    """All rows that can be built on the shared backbone for some classes, and why each of the others is left out.

    >>> from messagenet.data import SCENE_CLASSES
    >>> from messagenet.training import load_config
    >>> rows, left_out = fitting_rows(load_config("tiny"), SCENE_CLASSES)
    >>> list(left_out)
    ['fcn8s', 'deeplab_mcl', 'message_t1']
    """
    reasons = {name: _obstacle(row, shared, classes) for name, row in ROWS.items()}
    same = f"message_t{shared.model.iterations}"
    if same in reasons:
        reasons[same] = "it is the same as message"
    return (
        [ROWS[name] for name, reason in reasons.items() if reason is None],
        {name: reason for name, reason in reasons.items() if reason is not None},
    )


def check_rows(rows: Iterable[Row], shared: TrainConfig, classes: Classes) -> None:
    """Refuses rows that cannot be built, before any of them is trained."""
    for row in rows:
        try:
            _build(row, shared, classes)
        except InputError as error:
            raise InputError(f"row {row.name}: {error}") from error


def _obstacle(row: Row, shared: TrainConfig, classes: Classes) -> str | None:
    """Why a row cannot be compared with others on the shared backbone; None if it can."""
    try:
        backbone = row.config(at_nodes(shared), 0).model.backbone
        if backbone != shared.model.backbone:
            return f"it needs the backbone {backbone}"
        _build(row, shared, classes)
    except InputError as error:
        return str(error)
    return None


def _build(row: Row, shared: TrainConfig, classes: Classes) -> None:
    """Builds the network of a row, without memory for its parameters."""
    model = row.config(at_nodes(shared), 0).model
    if model.pretrained_head:
        raise InputError("a comparison trains every head from the beginning; set model.pretrained_head=false")
    model = replace(model, pretrained=None)
    with torch.device("meta"):
        build_network(model, classes)


def at_nodes(config: TrainConfig) -> TrainConfig:
    """The configuration with a loss that every kind of network can have."""
    return apply_overrides(config, ["loss.resolution=nodes", "loss.label_smoothing=0"])


def find_rows(wanted: Iterable[str | Row] | Mapping[str, Sequence[str]]) -> list[Row]:
    """Rows by name, rows of one's own, or settings by name.

    >>> [row.name for row in find_rows(["unary", "message_t2"])]
    ['unary', 'message_t2']
    >>> find_rows(["unray"])
    Traceback (most recent call last):
    messagenet.errors.InputError: there is no row "unray"; did you mean "unary"?
    """
    if isinstance(wanted, Mapping):
        rows = [Row(name, tuple(settings)) for name, settings in wanted.items()]
    else:
        rows = [row if isinstance(row, Row) else _named(row) for row in wanted]
    names = [row.name for row in rows]
    if not rows:
        raise InputError(f"there is nothing to compare; give some of {', '.join(ROWS)}")
    if len(set(names)) < len(names):
        raise InputError(f"a row is given twice in {', '.join(names)}; give each once")
    return rows


def _named(name: str) -> Row:
    if name not in ROWS:
        raise InputError(f'there is no row "{name}"; {nearest(name, ROWS)}')
    return ROWS[name]
