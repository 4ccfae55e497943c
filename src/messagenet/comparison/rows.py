"""The rows of the comparison: a name, and what it changes in a configuration that all rows share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from messagenet.errors import InputError, nearest
from messagenet.models import KINDS
from messagenet.models.fcn8s import BACKBONES as FCN8S_BACKBONES
from messagenet.training import TrainConfig, apply_overrides


@dataclass(frozen=True)
class Row:
    """One system.

    Attributes:
        name: What tables and folders call it.
        settings: What it changes, such as "model.kind=unary".
        label: What it is, in words.
        backbones: Those it can be built on; all if none is named.
    """

    name: str
    settings: tuple[str, ...]
    label: str = ""
    backbones: tuple[str, ...] = ()

    def config(self, shared: TrainConfig, seed: int) -> TrainConfig:
        """Its configuration for one seed."""
        return apply_overrides(shared, [*self.settings, f"run.seed={seed}"])


def _kind(name: str, label: str, backbones: tuple[str, ...] = ()) -> Row:
    return Row(name, (f"model.kind={name}",), label, backbones)


def _messages(iterations: int) -> Row:
    settings = ("model.kind=message", f"model.iterations={iterations}")
    return Row(f"message_t{iterations}", settings, f"learned messages, T = {iterations}")


ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        _kind("unary", "unary only"),
        _kind("fcn8s", "FCN-8s", tuple(FCN8S_BACKBONES)),
        _kind("deeplab_crf", "DeepLab-CRF"),
        Row(
            "deeplab_mcl",
            (
                "model.kind=deeplab_crf",
                "model.backbone=vgg16",
                "model.backbone_options={scales: [1.0, 0.75, 0.5], fc6_channels: 1024, fc6_kernel: 7}",
            ),
            "DeepLab-MCL: VGG-16 at three scales, large field of view",
            ("vgg16",),
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


def fitting_rows(backbone: str) -> list[Row]:
    """All rows that can be built on a backbone.

    >>> {"fcn8s", "deeplab_mcl"} & {row.name for row in fitting_rows("tiny")}
    set()
    """
    return [row for row in ROWS.values() if not row.backbones or backbone in row.backbones]


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
