"""Learned message passing written down from its definition: loops over nodes, factors and edges.

Nothing is shared with the library but the parameters. It builds a list of factors, each with the nodes it
touches and the nodes it sends to, concatenates the inputs of the estimator, and follows the equations

    β_{F→p} = C2([f_p ; mean_{q∈F\\p} f_q ; d_pF]),  d_pF = Σ_{q∈F\\p} logsoftmax(Σ_{F'∈F_q\\F} β_{F'→q})

A gate multiplies the hidden units of [f_p ; mean f_q] by 1 + D d, d = mean_q √K (softmax(Σ β_{F'→q}) − 1/K).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from messagenet import MessagePassing

Node = tuple[int, int]


@dataclass
class Factor:
    scope: set[Node]
    sends: dict[Node, str] = field(default_factory=dict)  # receiver -> estimator


def factors_of(height: int, width: int, relations, family: dict[str, str | None]) -> list[Factor]:
    """`family` names the factors that two relations share; None for relations whose factors send one way."""
    nodes = [(y, x) for y in range(height) for x in range(width)]
    found: dict[object, Factor] = {("unary", p): Factor({p}, {p: "unary"}) for p in nodes}
    for relation in relations:
        offsets = relation.offsets_on(height, width)
        for p in nodes:
            senders = [(p[0] + dy, p[1] + dx) for dy, dx in offsets]
            senders = [q for q in senders if q in nodes]
            if relation.form == "box":
                if senders:
                    found[relation.name, p] = Factor({p, *senders}, {p: relation.name})
                continue
            for q in senders:
                shared = family[relation.name]
                key = (shared, frozenset((p, q))) if shared else (relation.name, p, q)
                found.setdefault(key, Factor({p, q})).sends[p] = relation.name
    return list(found.values())


def concatenated(estimator, parts: list[Tensor], gate: Tensor | None = None) -> Tensor:
    layers = [estimator.receiver, estimator.sender, estimator.dependent if gate is None else None]
    weight = torch.cat([layer.weight for layer in layers if layer is not None], 1)
    hidden = torch.clamp(weight @ torch.cat(parts) + estimator.receiver.bias, min=0)
    if gate is not None:
        hidden = hidden * (1 + estimator.dependent.weight @ gate)
    return estimator.output.weight @ hidden + estimator.output.bias


def naive_logits(head: MessagePassing, features: Tensor, family: dict[str, str | None]) -> Tensor:
    """The head's logits for one image: features (r, H, W) → (K, H, W)."""
    _, height, width = features.shape
    nodes = [(y, x) for y in range(height) for x in range(width)]
    factors = factors_of(height, width, head.relations, family)
    zero = features.new_zeros(head.num_classes)
    box = {r.name: r.form == "box" for r in head.relations} | {"unary": True}
    size = {r.name: len(r.offsets_on(height, width)) for r in head.relations}

    def scale(name: str, p: Node) -> float:
        if box[name]:
            return 1.0
        reaching = sum(1 for f in factors if f.sends.get(p) == name)
        return {"sum": 1.0, "mean": 1 / reaching, "fixed": 1 / size[name]}[head.aggregation]

    messages = {(i, p): zero for i, f in enumerate(factors) for p in f.sends}
    if head.initial == "unary":
        for i, f in enumerate(factors):
            for p, name in f.sends.items():
                if name == "unary":
                    messages[i, p] = concatenated(head.estimators[0]["unary"], [features[:, p[0], p[1]]])

    for step in range(head.iterations):
        stage = head.estimators[0 if head.tied else step]
        received = {p: [(i, m) for (i, q), m in messages.items() if q == p] for p in nodes}
        fresh = {}
        for i, f in enumerate(factors):
            for p, name in f.sends.items():
                others = sorted(f.scope - {p})
                parts, gate = [features[:, p[0], p[1]]], None
                if others:
                    parts.append(torch.stack([features[:, y, x] for y, x in others]).mean(0))
                if others and (head.iterations > 1 or head.initial == "unary"):
                    dependent = zero
                    for q in others:
                        skip = i if head.cavity == "factor" else None
                        cavity = sum((m for j, m in received[q] if j != skip), start=zero)
                        if head.dependent == "gate":
                            classes = len(cavity)
                            dependent = dependent + classes**0.5 * (torch.softmax(cavity, 0) - 1 / classes)
                        else:
                            dependent = dependent + torch.log_softmax(cavity, 0)
                    if head.dependent != "sum":
                        dependent = dependent / len(others)
                    if head.dependent == "gate":
                        gate = dependent
                    else:
                        parts.append(dependent)
                fresh[i, p] = scale(name, p) * concatenated(stage[name], parts, gate)
        messages = fresh

    logits = torch.stack([sum((m for (_, q), m in messages.items() if q == p), start=zero) for p in nodes], 1)
    return logits.reshape(head.num_classes, height, width)
