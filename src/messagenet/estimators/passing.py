"""Learned message passing on an image grid (Lin, Shen, Reid, van den Hengel, NIPS 2015).

Every factor-to-variable message is the output of a small network, instead of being computed from potentials:

    β_{F→p}  = M_F( [ f_p ; mean_{q ∈ F\\p} f_q ; d_pF ] )                    K numbers
    d_pF     = Σ_{q ∈ F\\p} logsoftmax( Σ_{F' ∋ q, F' ≠ F} β_{F'→q} )         messages one iteration ago
    logits_p = Σ_{F ∋ p} β_{F→p},          P(y_p | x) = softmax(logits_p)

after exactly T synchronous iterations, T being part of the training. With T = 1 there is no d, and the sum
over a range box is one fused operator without any tensor over edges. With T > 1 and exact cavities the
messages themselves, N·n·K numbers, are all that is kept between iterations.

A message here includes the scale of the aggregation, so that messages always sum to the logits:

    sum    β = M_F                         mean   β = M_F / n_p     n_p: the factors that reach node p
    fixed  β = M_F / |O|                   sqrt   β = M_F / √|O|    |O|: the offsets of the relation
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.errors import InputError
from messagenet.estimators.beliefs import Beliefs
from messagenet.estimators.checks import check_finite, check_maps
from messagenet.estimators.estimator import MessageEstimator
from messagenet.estimators.field import Field, fields
from messagenet.estimators.iterating import Iterating
from messagenet.estimators.rules import Aggregation, CavityMode, Dependent, Initial, Rules
from messagenet.estimators.sending import send
from messagenet.estimators.settling import Passed, budget, follow, passed
from messagenet.graph import GridGraph, Relation


class MessagePassing(nn.Module, Iterating[Field]):
    """A drop-in head: feature map in, sums of messages (logits of the marginals) out.

    >>> from messagenet import surrounding, above, below
    >>> head = MessagePassing(in_channels=16, num_classes=5, hidden=32,
    ...                       relations=[surrounding(0.4), above(0.4), below(0.4)], iterations=1)
    >>> head(torch.randn(2, 16, 12, 15)).shape
    torch.Size([2, 5, 12, 15])

    Args:
        in_channels: r, channels of the feature map.
        num_classes: K.
        relations: Which neighbours send messages; none at all gives a unary classifier.
        hidden: Hidden units of every estimator.
        iterations: T, the inference-time budget that the head is trained for.
        tied: One set of estimators for all iterations (a recurrent network), or one per iteration.
        cavity: "factor" leaves a factor's own message out of what it is told (loopy belief propagation);
            "none" does not (mean-field style, cheaper when T > 1).
        initial: Messages before the first iteration: "zero", or "unary" for the unary factors' messages.
        aggregation: Scale of a message: "fixed" (÷ number of offsets), "sum" (the paper's), "mean", "sqrt".
        dependent: How a box factor joins its senders' dependent messages: "sum" (the paper's) or "mean".
        check_finite: Refuse features with NaN or infinity (costs one pass over them, and on a GPU a wait for
            it; not when compiled).
    """

    rules: Rules

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        relations: Sequence[Relation] = (),
        *,
        hidden: int = 512,
        iterations: int = 1,
        tied: bool = True,
        cavity: CavityMode = "factor",
        initial: Initial = "zero",
        aggregation: Aggregation = "fixed",
        dependent: Dependent = "sum",
        check_finite: bool = True,
    ) -> None:
        super().__init__()
        self.rules = Rules(num_classes, hidden, iterations, tied, cavity, initial, aggregation, dependent)
        if isinstance(relations, Relation) or not all(
            isinstance(relation, Relation) for relation in relations
        ):
            raise InputError("relations must be a list such as [surrounding(0.4), above(0.4), below(0.4)]")
        if type(in_channels) is not int or in_channels < 1:
            raise InputError(
                f"in_channels is {in_channels!r}; give the number of channels of the feature map"
            )
        self.relations = GridGraph(1, 1, tuple(relations)).relations
        for relation in self.relations:
            if hasattr(nn.ModuleDict(), relation.name):
                raise InputError(
                    f"relation name {relation.name!r} is a method of torch modules; choose another"
                )
        self.in_channels = in_channels
        self.check_finite = check_finite
        self.estimators = nn.ModuleList(self._stage() for _ in range(1 if tied else iterations))

    def _stage(self) -> nn.ModuleDict:
        """The estimators of one iteration: one for the unary factors and one per relation."""
        rules = self.rules
        return nn.ModuleDict(
            {
                name: MessageEstimator(
                    self.in_channels,
                    rules.hidden,
                    rules.num_classes,
                    has_sender=name != "unary",
                    has_dependent=rules.has_dependent,
                )
                for name in self.factor_types
            }
        )

    @property
    def factor_types(self) -> list[str]:
        """ "unary", then the names of the relations."""
        return ["unary", *(relation.name for relation in self.relations)]

    def extra_repr(self) -> str:
        """The rules, for print(head)."""
        relations = ", ".join(f"{relation.name} ({relation.form})" for relation in self.relations)
        rules = ", ".join(f"{name}={value!r}" for name, value in asdict(self.rules).items())
        return f"{rules}, relations=[{relations}]"

    def forward(self, features: Tensor | Mapping[str, Tensor], valid: Tensor | None = None) -> Tensor:
        """Logits of the marginals after T iterations, (B, K, H, W); 0 at nodes that are not valid.

        Args:
            features: The feature map (B, r, H, W), or one for each factor type by name.
            valid: Which nodes exist, (B, H, W), where images of several sizes were padded to one.
        """
        by_type = self.features_by_type(features, valid)
        parts = [
            (numbers, field.heard(self._last(field).logits))
            for numbers, field in fields(by_type, valid, self.relations)
        ]
        return _assembled(parts, by_type["unary"])

    def trace(
        self, features: Tensor | Mapping[str, Tensor], valid: Tensor | None = None
    ) -> list[dict[str, Tensor]]:
        """For each iteration, the total message of each factor type to each node, (B, K, H, W) by name.

        The totals of an iteration sum to its logits.
        """
        by_type = self.features_by_type(features, valid)
        parts = [
            (numbers, field, list(self.iterate(field)))
            for numbers, field in fields(by_type, valid, self.relations)
        ]
        return [
            {
                name: _assembled(
                    [(numbers, field.heard(steps[step].totals[name])) for numbers, field, steps in parts],
                    by_type["unary"],
                )
                for name in self.factor_types
            }
            for step in range(self.rules.iterations)
        ]

    @torch.no_grad()
    def run(
        self,
        features: Tensor | Mapping[str, Tensor],
        valid: Tensor | None = None,
        *,
        iterations: int | None = None,
        tolerance: float | None = None,
    ) -> Passed:
        """Prediction with another budget than the one trained for, or until the beliefs have settled.

        Args:
            features: As for `forward`.
            valid: As for `forward`.
            iterations: At most so many; by default as many as the head was trained for.
            tolerance: Stop when no probability changes by more than this from one iteration to the next; images of
                one size go on together.
        """
        most = budget(self.rules.iterations, self.rules.tied, iterations, tolerance)
        by_type = self.features_by_type(features, valid)
        parts, courses = [], []
        for numbers, field in fields(by_type, valid, self.relations):
            states = self.iterate(field, most, open_end=tolerance is not None)
            course = follow(states, _marginals, _marginals(self.initial_beliefs(field)), tolerance)
            parts.append((numbers, field.heard(course.state.logits)))
            courses.append(course)
        return passed(_assembled(parts, by_type["unary"]), courses, self.rules.iterations)

    def _last(self, field: Field) -> Beliefs:
        """The beliefs after the last iteration."""
        *_, beliefs = self.iterate(field)
        return beliefs

    def initial_beliefs(self, field: Field) -> Beliefs:
        """β⁰: nothing but, if asked for, the unary factors' messages."""
        if self.rules.initial == "unary":
            return Beliefs({"unary": self.stage(0)["unary"](field.features["unary"])}, {})
        shape = (*field.like.shape[:3], self.rules.num_classes)
        return Beliefs({"unary": field.like.new_zeros(shape)}, {})

    def stage(self, number: int) -> Mapping[str, MessageEstimator]:
        """The estimators of an iteration, by factor type."""
        stage: Mapping[str, MessageEstimator] = self.estimators[0 if self.rules.tied else number]  # type: ignore[assignment]
        return stage

    def step(self, field: Field, number: int, previous: Beliefs, *, keep: bool = True) -> Beliefs:
        """One synchronous iteration: see `Iterating.step`."""
        stage = self.stage(number)
        totals, messages = {"unary": stage["unary"](field.features["unary"])}, {}
        logits = previous.logits
        for index, relation in enumerate(self.relations):
            estimator = stage[relation.name]
            totals[relation.name], sent = send(
                field, index, estimator, self.rules, previous, logits, keep=keep
            )
            if sent is not None:
                messages[relation.name] = sent
        return Beliefs(totals, messages)

    def features_by_type(
        self, features: Tensor | Mapping[str, Tensor], valid: Tensor | None = None
    ) -> dict[str, Tensor]:
        """One feature map per factor type, checked; nodes that are not valid may hold anything."""
        if isinstance(features, Tensor):
            features = dict.fromkeys(self.factor_types, features)
        if missing := [name for name in self.factor_types if name not in features]:
            raise InputError(
                f"no features for {', '.join(missing)}; give one map for each of {self.factor_types}"
            )
        check_maps(features.values(), self.in_channels, self.stage(0)["unary"].receiver.weight)
        if self.check_finite and not torch.compiler.is_compiling():
            check_finite(features.values(), valid)
        return {name: features[name] for name in self.factor_types}


def _marginals(beliefs: Beliefs) -> Tensor:
    return torch.softmax(beliefs.logits, -1)


def _assembled(parts: list[tuple[Tensor | None, Tensor]], like: Tensor) -> Tensor:
    """Puts the fields of a batch, (b, h, w, K), back together: (B, K, H, W), 0 at padding."""
    maps = [(numbers, values.permute(0, 3, 1, 2)) for numbers, values in parts]
    if len(maps) == 1 and maps[0][0] is None:
        return maps[0][1]
    images, _, height, width = like.shape
    whole = maps[0][1].new_zeros(images, maps[0][1].shape[1], height, width)
    for numbers, values in maps:
        assert numbers is not None
        grown = functional.pad(values, (0, width - values.shape[3], 0, height - values.shape[2]))
        whole = whole.index_add(0, numbers, grown)
    return whole
