"""C2 on a factor of any order: two fully connected layers on [receiver; senders; dependent; local], K outputs.

    β_{F→p} = W₂ relu( A f_p + B mean_{q∈F\\p} f_q + D d_pF + C x_pF + b ) + b₂

As on the grid, the first layer is stored in parts, so that A f and B f are made once per variable and never per
factor. x_pF is what belongs to the factor itself: its features, and its computed message where that is known.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from messagenet.estimators.any_graph.settings import FactorType, GraphRules, columns


class FactorEstimator(nn.Module):
    """One estimator M_F, shared by all factors of a type (by all messages to one position, if these differ).

    Args:
        in_channels: r, the length of a variable's feature vector.
        hidden: Units of the hidden layer.
        num_classes: K of the receiver.
        has_sender: False for the unary factor.
        dependent: Length of d; 0 if messages of the previous iteration are no input.
        local: Length of x; 0 for none.
        correction: Start with messages of zero, to be added to computed ones.
    """

    def __init__(
        self,
        in_channels: int,
        hidden: int,
        num_classes: int,
        *,
        has_sender: bool = True,
        dependent: int = 0,
        local: int = 0,
        correction: bool = False,
    ) -> None:
        super().__init__()
        self.receiver = nn.Linear(in_channels, hidden)
        self.sender = nn.Linear(in_channels, hidden, bias=False) if has_sender else None
        self.dependent = nn.Linear(dependent, hidden, bias=False) if dependent else None
        self.local = nn.Linear(local, hidden, bias=False) if local else None
        self.output = nn.Linear(hidden, num_classes)
        self.correction = correction
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """He initialisation of the first layer, as if its parts were one matrix on the concatenation."""
        parts = [
            part for part in (self.receiver, self.sender, self.dependent, self.local) if part is not None
        ]
        std = math.sqrt(2 / sum(part.in_features for part in parts))
        for part in parts:
            nn.init.normal_(part.weight, std=std)
        nn.init.zeros_(self.receiver.bias)
        nn.init.normal_(self.output.weight, std=0 if self.correction else self.output.in_features**-0.5)
        nn.init.zeros_(self.output.bias)

    def forward(
        self,
        receiver: Tensor,
        sender: Tensor | None = None,
        dependent: Tensor | None = None,
        local: Tensor | None = None,
    ) -> Tensor:
        """Messages, one by one, from inputs with equal leading axes; `sender` is the senders' average."""
        hidden = self.receiver(receiver)
        for part, values in ((self.sender, sender), (self.dependent, dependent), (self.local, local)):
            if part is not None and values is not None:
                hidden = hidden + part(values)
        message: Tensor = self.output(torch.relu(hidden))
        return message


def build_stage(rules: GraphRules, in_channels: int) -> nn.ModuleDict:
    """The estimators of one iteration: the unary ones, one per type of variable, then those of each factor type."""
    corrected = "unary" in rules.known
    unary = [
        FactorEstimator(in_channels, rules.hidden, size, has_sender=False, correction=corrected)
        for size in rules.num_classes.values()
    ]
    stage = {"unary": nn.ModuleList(unary)}
    for name, kind in rules.factors.items():
        stage[name] = nn.ModuleList(
            _estimator(rules, in_channels, name, kind, position) for position in kind.receivers
        )
    return nn.ModuleDict(stage)


def _estimator(
    rules: GraphRules, in_channels: int, name: str, kind: FactorType, position: int
) -> FactorEstimator:
    classes = rules.num_classes[kind.kind_at(position)]
    width = columns(kind, position, kind.order or 2, rules.num_classes, rules.dependent).width
    known = name in rules.known
    return FactorEstimator(
        in_channels,
        rules.hidden,
        classes,
        dependent=width if rules.has_dependent else 0,
        local=kind.features + (classes if known else 0),
        correction=known,
    )
