"""Parameter groups: which parameters decay, and which learn more slowly.

Weight decay is for the weights of linear maps and convolutions, the parameters with two axes or more. Biases and
the scales and shifts of norms are spared: decaying them changes what the network computes without regularising
it. Parameters that came from pretrained weights learn at `backbone_lr` times the rate of the new ones.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from messagenet.training.config import OptimiserConfig


def parameter_groups(net: nn.Module, pretrained: Set[str], config: OptimiserConfig) -> list[dict[str, Any]]:
    """The trainable parameters in up to four groups, each with its `name`, `initial_lr` and `weight_decay`.

    Args:
        net: The network.
        pretrained: Names of the parameters that did not begin at random.
        config: Rates and decay.
    """
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in net.named_parameters():
        if not parameter.requires_grad:
            continue
        decays, known = parameter.ndim > 1, name in pretrained
        title = f"{'pretrained' if known else 'new'}, {'decayed' if decays else 'not decayed'}"
        rate = config.lr * (config.backbone_lr if known else 1.0)
        group = groups.setdefault(
            title,
            {
                "name": title,
                "params": [],
                "lr": rate,
                "initial_lr": rate,
                "weight_decay": config.weight_decay if decays else 0.0,
            },
        )
        group["params"].append(parameter)
    return list(groups.values())


def build_optimiser(net: nn.Module, pretrained: Set[str], config: OptimiserConfig) -> Optimizer:
    """SGD with momentum or AdamW over `parameter_groups`."""
    groups = parameter_groups(net, pretrained, config)
    if config.name == "sgd":
        return SGD(groups, lr=config.lr, momentum=config.momentum)
    return AdamW(groups, lr=config.lr)


def set_rate(optimiser: Optimizer, factor: float) -> None:
    """Sets the learning rate of every group to `factor` times its largest."""
    for group in optimiser.param_groups:
        group["lr"] = factor * group["initial_lr"]
