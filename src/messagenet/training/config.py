"""Every setting of a training run, as frozen dataclasses.

The attribute texts below are the comments of the YAML files (see `config_files`), and the values are the
defaults that `presets/default.yaml` lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from messagenet.data import Augment
from messagenet.errors import InputError
from messagenet.learning import CellLabel, Resolution
from messagenet.models import KINDS
from messagenet.training.bounds import at_least, at_most, between
from messagenet.training.model_config import ModelConfig


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
