"""Learned messages over a factor graph from their definition: loops over factors, positions and senders.

Nothing is shared with the library but the parameters and the settings of factor types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def concatenated(estimator, parts: list[Tensor], gate: Tensor | None = None) -> Tensor:
    dependent = estimator.dependent if gate is None else None
    layers = [estimator.receiver, estimator.sender, dependent, estimator.factor]
    weight = torch.cat([layer.weight for layer in layers if layer is not None], 1)
    hidden = torch.clamp(weight @ torch.cat(parts) + estimator.receiver.bias, min=0)
    if gate is not None:
        hidden = hidden * (1 + estimator.dependent.weight @ gate)
    return estimator.output.weight @ hidden + estimator.output.bias


def joined(incoming: list[Tensor], kinds: list[str], dependent: str) -> Tensor:
    if dependent == "concat":
        return torch.cat(incoming)
    by_kind = {kind: [m for m, k in zip(incoming, kinds, strict=True) if k == kind] for kind in dict.fromkeys(kinds)}
    return torch.cat(
        [sum(group[1:], start=group[0]) / (1 if dependent == "sum" else len(group)) for group in by_kind.values()]
    )


def naive_graph_logits(
    head,
    features: Tensor,
    scopes: Mapping[str, Sequence[Sequence[int]]],
    kind_of: Sequence[str],
    factor_features: Mapping[str, Tensor],
) -> list[list[Tensor]]:
    """For each iteration, the logits of every variable: K numbers each, K of its type."""
    factors = [(name, index, tuple(scope)) for name, each in scopes.items() for index, scope in enumerate(each)]
    zeros = [features.new_zeros(head.num_classes[kind]) for kind in kind_of]

    def receiving(name: str, scope: tuple[int, ...]) -> Sequence[int]:
        sends_to = head.factors[name].sends_to
        return range(len(scope)) if sends_to is None else sends_to

    def estimator_index(name: str, scope: tuple[int, ...], position: int) -> int:
        return list(receiving(name, scope)).index(position) if head.factors[name].ordered else 0

    def scale(name: str, scope: tuple[int, ...], position: int) -> float:
        own = estimator_index(name, scope, position)
        reaching = sum(
            1
            for other, _, nodes in factors
            for i in receiving(other, nodes)
            if other == name and nodes[i] == scope[position] and estimator_index(other, nodes, i) == own
        )
        degree = head.factors[name].degree
        return {"sum": 1.0, "mean": 1 / reaching, "fixed": 1 / degree}[head.aggregation]

    def unary(step: int) -> list[Tensor]:
        names = list(head.num_classes)
        stage = head.estimators[0 if head.tied else step]
        return [concatenated(stage["unary"][names.index(k)], [f]) for k, f in zip(kind_of, features, strict=True)]

    alone = unary(0) if head.initial == "unary" else zeros
    messages: dict[tuple[int, int], Tensor] = {}
    history = []
    for step in range(head.iterations):
        stage = head.estimators[0 if head.tied else step]
        fresh = {}
        for i, (name, index, scope) in enumerate(factors):
            for position in receiving(name, scope):
                others = [j for j in range(len(scope)) if j != position]
                parts = [features[scope[position]], torch.stack([features[scope[j]] for j in others]).mean(0)]
                gate = None
                if head.iterations > 1 or head.initial == "unary":
                    incoming = []
                    for j in others:
                        q = scope[j]
                        skip = i if head.cavity == "factor" else None
                        kept = [m for (f, k), m in messages.items() if factors[f][2][k] == q and f != skip]
                        belief = torch.log_softmax(sum(kept, start=alone[q]), 0)
                        if head.dependent == "gate":
                            belief = len(belief) ** 0.5 * (belief.exp() - 1 / len(belief))
                        incoming.append(belief)
                    d = joined(incoming, [kind_of[scope[j]] for j in others], head.dependent)
                    if head.dependent == "gate":
                        gate = d
                    else:
                        parts.append(d)
                if name in factor_features:
                    parts.append(factor_features[name][index])
                estimator = stage[name][estimator_index(name, scope, position)]
                fresh[i, position] = scale(name, scope, position) * concatenated(estimator, parts, gate)
        messages, alone = fresh, unary(step)
        logits = list(alone)
        for (i, position), message in messages.items():
            p = factors[i][2][position]
            logits[p] = logits[p] + message
        history.append(logits)
    return history
