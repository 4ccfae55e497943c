"""Optimisers: components whose settings are the rates and what the optimiser itself takes.

Biases and norms have no weight decay; pretrained parameters learn at `backbone_lr` times the rate. An optimiser of your
own is a dataclass derived from `Optimiser`, with `@register("optimiser", "mine")`.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import nn

from messagenet.settings import at_least, between, register


@dataclass(frozen=True)
class Optimiser:
    """Settings of all optimisers.

    Attributes:
        lr: The peak learning rate.
        backbone_lr: Factor of it for parameters that were pretrained, those of a neck or head that was taken over too;
            new ones learn at full rate.
        weight_decay: Weight decay; biases and norm parameters are spared.
        clip: Maximum norm of the gradient; 0 for no limit.
    """

    rule: ClassVar[Callable[..., torch.optim.Optimizer]]  # called with groups of parameters and further settings
    lr: float = 1e-3
    backbone_lr: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0

    def __post_init__(self) -> None:
        at_least(0, lr=self.lr, backbone_lr=self.backbone_lr, weight_decay=self.weight_decay, clip=self.clip)

    def build(self, model: nn.Module, pretrained: Set[str]) -> torch.optim.Optimizer:
        """The optimiser of a model, of which `pretrained` parameters are known."""
        own = [each.name for each in fields(self) if each not in fields(Optimiser)]
        return self.rule(self.groups(model, pretrained), **{name: getattr(self, name) for name in own})

    def groups(self, model: nn.Module, pretrained: Set[str]) -> list[dict[str, Any]]:
        """The trainable parameters in up to four groups: `pretrained` names or new, with weight decay or without."""
        groups: dict[str, dict[str, Any]] = {}
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            decays, known = parameter.ndim > 1, name in pretrained
            title = f"{'pretrained' if known else 'new'}, {'decayed' if decays else 'not decayed'}"
            rate = self.lr * (self.backbone_lr if known else 1.0)
            decay = self.weight_decay if decays else 0.0
            empty = {"name": title, "params": [], "lr": rate, "initial_lr": rate, "weight_decay": decay}
            groups.setdefault(title, empty)["params"].append(parameter)
        return list(groups.values())


@register("optimiser", "adamw")
class AdamW(Optimiser):
    """AdamW (Loshchilov & Hutter, ICLR 2019)."""

    rule = torch.optim.AdamW


@register("optimiser", "sgd")
@dataclass(frozen=True)
class SGD(Optimiser):
    """Stochastic gradient descent with momentum.

    Attributes:
        momentum: From 0, for none, to below 1.
    """

    rule = torch.optim.SGD
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        between(0, 1, momentum=self.momentum)


def set_rate(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Sets the learning rate of every group to `factor` times its peak."""
    for group in optimiser.param_groups:
        group["lr"] = factor * group["initial_lr"]
