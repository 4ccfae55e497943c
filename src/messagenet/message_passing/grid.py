r"""Learned message passing on an image grid (Lin, Shen, Reid, van den Hengel, NIPS 2015).

Nodes are the cells of a feature map. Every relation (a named set of offsets O) has an estimator M of its messages:

    β_{F→p}  = M( [ f_p ; mean_{q ∈ F\p} f_q ; d_pF ] )                      K numbers
    d_pF     = Σ_{q ∈ F\p} logsoftmax( L_q − β_{F→q} )                       messages of the previous iteration
    logits_p = L_p = Σ_{F ∋ p} β_{F→p},      P(y_p | x) = softmax(L_p)

A pairwise relation has one factor for every pair (p, p + o). The sum of a node's messages is computed in the cheapest
of three ways:

- without cavities (T = 1, cavity "none", one-way relations): d depends on q alone and joins Q_q = B f_q + D d_q. With
  P_p = A f_p + b, the sum is W₂ S_p + n_p b₂, S_p = Σ_q relu(P_p + Q_q): one fused operator, no tensor over edges;
  a gate is S_p = Σ_q relu(P_p + Q_q) ⊙ R_q with R_q = 1 + D d_q;
- with cavities, in the last iteration: D d_pF is computed edge by edge inside the sum S, and W₂ follows it;
- with cavities, before that: every message, N·n·K numbers, is stored for the cavities of the next iteration.

A box relation has one factor per node, over the node and all p + o, which sends to that node alone: one message from
the mean of the senders' features, at a cost that does not depend on the box. Range boxes are sized by the image, not by
its padding, so a padded image gets exactly the messages that it gets alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.errors import InputError, Note
from messagenet.graph import GridGraph, Relation
from messagenet.graph.relations import PAPER_RELATIONS
from messagenet.message_passing.cavity_ops import Cavity, OutputLayer, pass_edges
from messagenet.message_passing.estimator import (
    Beliefs,
    Context,
    Dependent,
    IterativeHead,
    MessageEstimator,
    MessagePassingResult,
    NodeFeatures,
    check_dtype_and_device,
    dependent_input,
    message_scale,
)
from messagenet.message_passing.fused_sum import Offsets, box_sum, cached, relu_sum
from messagenet.settings import convert, register


class GridContext(Context):
    """Constant across iterations: graph, features (B, H, W, r) by factor type, mask (B, H, W, 1; 0 at padding)."""

    def __init__(self, graph: GridGraph, features: Mapping[str, Tensor], mask: Tensor | None) -> None:
        super().__init__(features)
        self.graph = graph
        self.mask = mask
        self._counts: dict[Offsets, Tensor] = {}
        for relation, offsets in zip(graph.relations, graph.offsets, strict=True):
            if not offsets and not torch.compiler.is_compiling():
                _warn_empty(relation, graph.height, graph.width)

    def box_projections(self, name: str, offsets: Offsets, estimator: MessageEstimator) -> Tensor:
        """P + Q of a box relation, Q from the mean of the senders' features, (B, H, W, hidden)."""
        if (key := (id(estimator), name)) not in self._projections:
            assert estimator.sender is not None
            features = self.features[name]
            total = box_sum(self.zero_padding(estimator.sender(features)), offsets)  # linear: B mean f = mean B f
            self._projections[key] = estimator.receiver(features), total / self.count(offsets).clamp(min=1)
        receiver, sender = self._projections[key]
        return receiver + sender

    def zero_padding(self, values: Tensor) -> Tensor:
        """The values with 0 at padding."""
        return values if self.mask is None else torch.where(self.mask > 0, values, 0)

    def mask_senders(self, sender: Tensor) -> Tensor:
        """Q with −∞ at padding, so that relu(P + Q) = 0."""
        return sender if self.mask is None else sender.masked_fill(self.mask == 0, -torch.inf)

    def count(self, offsets: Offsets) -> Tensor:
        """n, how many nodes send to each node, (B or 1, H, W, 1)."""
        if offsets not in self._counts:
            ones = self.ref.new_ones(1, self.graph.height, self.graph.width, 1)
            self._counts[offsets] = box_sum(ones if self.mask is None else self.mask, offsets)
        return self._counts[offsets]


@cache
def _warn_empty(relation: Relation, height: int, width: int) -> None:
    warnings.warn(
        f"on an image this small ({height}×{width} nodes) no message comes from {relation.name!r}: {relation.fraction} "
        "of the short edge is less than one node; use larger images, or give the relation's size in cells",
        Note,
        stacklevel=2,
    )


@register("head", "message")
class MessagePassing(IterativeHead[GridContext]):
    """A drop-in head: feature map in, sums of messages (logits of the marginals) out.

    >>> head = MessagePassing(in_channels=16, num_classes=5, hidden=32)
    >>> head(torch.randn(2, 16, 12, 15)).shape
    torch.Size([2, 5, 12, 15])

    Args:
        in_channels: r, channels of the feature map.
        num_classes: K.
        relations: Which neighbours send messages, the paper's three by default, each as shape:size, such as
            surrounding:0.4 (of the short edge), name=above:3cells, or below:0.4:box for one factor per box. An
            empty list makes a unary classifier.
        dependent: How the senders' beliefs of the previous iteration enter a message. Added to the hidden units, as a
            "sum" (the paper's) or "mean" over the senders of a box; or, with "gate", multiplied with them.
        **options: hidden, iterations, tied, cavity, initial and aggregation, as of `IterativeHead`.

    Attributes:
        check_finite: Refuse features with NaN or infinity; one pass over them, on a GPU a synchronisation.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        relations: Sequence[Relation | str] = PAPER_RELATIONS,
        *,
        dependent: Dependent = "sum",
        **options: Any,
    ) -> None:
        super().__init__(in_channels, **options)
        self.num_classes, self.dependent = num_classes, dependent
        self.check_finite = True
        self.check_options()
        if type(num_classes) is not int or num_classes < 2:
            raise InputError(f"num_classes is {num_classes!r}; give a whole number, at least 2 classes")
        if isinstance(relations, str | Relation):
            raise InputError("relations must be a list such as [surrounding(0.4), above(0.4), below(0.4)]")
        self.relations = GridGraph(1, 1, convert(tuple(relations), Sequence[Relation], "relations")).relations
        for relation in self.relations:
            if hasattr(nn.ModuleDict(), relation.name):
                raise InputError(f"relation name {relation.name!r} is a method of torch modules; choose another")
        self.estimators = nn.ModuleList(self._build_stage() for _ in range(1 if self.tied else self.iterations))

    def _build_stage(self) -> nn.ModuleDict:
        sizes = self.in_channels, self.hidden, self.num_classes
        stage = {"unary": MessageEstimator(*sizes, has_sender=False)}
        for relation in self.relations:
            width = self.num_classes if self.has_dependent else 0
            stage[relation.name] = MessageEstimator(*sizes, dependent_channels=width, gated=self.gated)
        return nn.ModuleDict(stage)

    @staticmethod
    def feature_names(relations: Sequence[Relation]) -> tuple[str, ...]:
        """Names of the feature maps where every factor type has one of its own."""
        return ("unary", *(relation.name for relation in relations))

    @property
    def factor_types(self) -> list[str]:
        """ "unary", then the names of the relations."""
        return list(self.feature_names(self.relations))

    @property
    def max_classes(self) -> int:
        """K."""
        return self.num_classes

    def extra_repr(self) -> str:
        """The relations and options."""
        relations = ", ".join(f"{relation.name} ({relation.form})" for relation in self.relations)
        return f"relations=[{relations}], {super().extra_repr()}"

    def forward(self, features: NodeFeatures, mask: Tensor | None = None) -> Tensor:
        """Logits of the marginals after T iterations, (B, K, H, W); 0 at nodes that do not exist.

        Args:
            features: The feature map (B, r, H, W), or one for each factor type by name.
            mask: Which nodes exist, (B, H, W), where images of several sizes were padded to one.
        """
        by_type, parts = self.features_by_type(features, mask), []
        for images, context in split_by_size(by_type, mask, self.relations):
            *_, beliefs = self.iterate(context)
            parts.append((images, context.zero_padding(beliefs.logits)))
        return assemble(parts, by_type["unary"])

    def forward_iterations(self, features: NodeFeatures, mask: Tensor | None = None) -> list[Tensor]:
        """Logits after each iteration, as of `forward`; those of the unary messages come first if they are initial."""
        by_type, parts = self.features_by_type(features, mask), []
        for images, context in split_by_size(by_type, mask, self.relations):
            logits = [context.zero_padding(beliefs.logits) for beliefs in self.all_beliefs(context)]
            parts.append([(images, values) for values in logits])
        return [assemble(list(step), by_type["unary"]) for step in zip(*parts, strict=True)]

    def trace(self, features: NodeFeatures, mask: Tensor | None = None) -> list[dict[str, Tensor]]:
        """For each iteration, the total message of each factor type, (B, K, H, W) by name; they sum to the logits."""
        by_type = self.features_by_type(features, mask)
        splits = split_by_size(by_type, mask, self.relations)
        parts = [(images, context, list(self.iterate(context))) for images, context in splits]
        return [
            self._assemble_totals([(images, context, steps[t]) for images, context, steps in parts], by_type["unary"])
            for t in range(self.iterations)
        ]

    @torch.no_grad()
    def run(
        self,
        features: NodeFeatures,
        mask: Tensor | None = None,
        *,
        iterations: int | None = None,
        tolerance: float | None = None,
    ) -> MessagePassingResult:
        """Runs more or fewer iterations than at training time, or iterates to convergence.

        Args:
            features, mask: As for `forward`.
            iterations: At most so many; T by default.
            tolerance: Stop when no probability changes by more than this; images of one size stop together.
        """
        max_iterations = self.max_iterations(iterations, tolerance)
        by_type = self.features_by_type(features, mask)
        parts, traces = [], []
        for images, context in split_by_size(by_type, mask, self.relations):
            traces.append(self.run_until(context, max_iterations, tolerance))
            parts.append((images, context, traces[-1].beliefs))
        logits = [(images, context.zero_padding(beliefs.logits)) for images, context, beliefs in parts]
        messages = self._assemble_totals(parts, by_type["unary"])
        return self.result(assemble(logits, by_type["unary"]), messages, traces)

    def _assemble_totals(
        self, parts: list[tuple[Tensor | None, GridContext, Beliefs]], ref: Tensor
    ) -> dict[str, Tensor]:
        return {
            name: assemble([(i, context.zero_padding(b.totals[name])) for i, context, b in parts], ref)
            for name in self.factor_types
        }

    def features_by_type(self, features: NodeFeatures, mask: Tensor | None = None) -> dict[str, Tensor]:
        """One feature map per factor type, checked; nodes outside the mask may hold anything."""
        if not isinstance(features, Mapping):
            features = dict.fromkeys(self.factor_types, features)
        if missing := [name for name in self.factor_types if name not in features]:
            raise InputError(f"no features for {', '.join(missing)}; give one map for each of {self.factor_types}")
        maps = {id(values): values for values in features.values()}.values()
        for values in maps:
            if values.ndim != 4 or values.shape[1] != self.in_channels:
                shape, expected = tuple(values.shape), f"(batch, {self.in_channels}, height, width)"
                raise InputError(f"features have shape {shape}; this head takes {expected}")
        sizes = {(values.shape[0], *values.shape[2:]) for values in maps}
        if len(sizes) > 1:
            raise InputError(f"the feature maps differ in batch or size: {sorted(sizes)}; give all of one size")
        for values in maps:
            check_dtype_and_device("features", values, self.stage(0)["unary"].receiver.weight)
        if self.check_finite and not torch.compiler.is_compiling():
            for values in maps:
                finite = torch.isfinite(values).all(1)  # (B, H, W)
                if mask is not None and mask.shape == finite.shape:
                    finite = finite | ~mask.bool()
                if not bool(finite.all()):
                    raise InputError(
                        "features contain NaN or infinity; look for a diverged backbone (lower the learning rate) "
                        "or a bad input image"
                    )
        return {name: features[name] for name in self.factor_types}

    def unary_messages(self, context: GridContext, iteration: int) -> Tensor:
        """The messages of the unary factors, (B, H, W, K)."""
        messages: Tensor = self.stage(iteration)["unary"](context.features["unary"])
        return messages

    def step(self, context: GridContext, iteration: int, previous: Beliefs, *, keep_messages: bool = True) -> Beliefs:
        """One synchronous iteration: see `IterativeHead.step`."""
        totals, messages = {"unary": self.unary_messages(context, iteration)}, {}
        stage, logits = self.stage(iteration), previous.logits
        for index, relation in enumerate(self.relations):
            estimator: MessageEstimator = stage[relation.name]
            if relation.form == "box":
                totals[relation.name] = self._box_total(context, index, estimator, logits)
                continue
            offsets, output = context.graph.offsets[index], self.output_layer(context, index, estimator)
            keep = keep_messages and self.cavity == "factor" and context.graph.mirrors[index] is not None
            cavity = _cavity(context, index, estimator, previous, keep and self.gated)
            receiver, sender = context.projections(relation.name, estimator)
            gate = None
            if estimator.dependent is not None and cavity is None:
                product = estimator.dependent(dependent_input(logits, self.gated))
                sender, gate = (sender, 1 + product) if self.gated else (sender + product, None)
            sender = context.mask_senders(sender)
            if keep:
                sent = pass_edges(receiver, sender, offsets, cavity, output, context.mask)
                totals[relation.name], messages[relation.name] = sent.sum(1), sent
                continue
            edges = receiver, sender, offsets
            active = relu_sum(*edges, gate) if cavity is None else pass_edges(*edges, cavity)
            bias = context.count(offsets) * output.bias
            totals[relation.name] = output.scale * (functional.linear(active, output.weight) + bias)
        return Beliefs(totals, messages)

    def output_layer(self, context: GridContext, index: int, estimator: MessageEstimator) -> OutputLayer:
        """W₂, b₂ and the scale of messages to each node, (B or 1, H, W, 1)."""
        offsets = context.graph.offsets[index]
        scale = message_scale(self.aggregation, context.count(offsets), max(len(offsets), 1))
        return OutputLayer(estimator.output.weight, estimator.output.bias, scale)

    def _box_total(self, context: GridContext, index: int, estimator: MessageEstimator, logits: Tensor) -> Tensor:
        """The message of each node's one box factor, (B, H, W, K); 0 where the box holds no node."""
        offsets = context.graph.offsets[index]
        hidden = context.box_projections(context.graph.relations[index].name, offsets, estimator)
        gate = None
        if estimator.dependent is not None:  # the factor sends to its own node alone: no cavity
            dependent = box_sum(context.zero_padding(dependent_input(logits, self.gated)), offsets)
            if self.dependent != "sum":
                dependent = dependent / context.count(offsets).clamp(min=1)
            product = estimator.dependent(dependent)
            hidden, gate = (hidden, 1 + product) if self.gated else (hidden + product, None)
        active = torch.relu(hidden)
        message = estimator.output(active if gate is None else active * gate)
        return torch.where(context.count(offsets) > 0, message, 0)


def _cavity(
    context: GridContext, index: int, estimator: MessageEstimator, previous: Beliefs, always: bool
) -> Cavity | None:
    """What leaves the reverse message out of d; None, or with `always` whole beliefs, if no such messages were kept."""
    mirror, reverse_index = context.graph.mirrors[index], context.graph.reverse_offsets[index]
    if mirror is None or reverse_index is None or estimator.dependent is None:
        return None
    reverse = previous.messages.get(context.graph.relations[mirror].name)
    if reverse is None and not always:
        return None
    reverse = context.ref.new_empty(0) if reverse is None else reverse
    return Cavity(estimator.dependent.weight, previous.logits, reverse, reverse_index, estimator.gated)


def split_by_size(
    features: Mapping[str, Tensor], mask: Tensor | None, relations: Sequence[Relation]
) -> Iterator[tuple[Tensor | None, GridContext]]:
    """Contexts of equal image size from a batch (B, r, H, W), with their images' indices; None for the whole batch."""
    maps = {id(values): values.permute(0, 2, 3, 1).contiguous() for values in features.values()}
    channels_last = {name: maps[id(values)] for name, values in features.items()}  # (B, H, W, r)
    batch, height, width, _ = next(iter(channels_last.values())).shape
    if mask is None:
        yield None, GridContext(_grid_graph(height, width, tuple(relations)), channels_last, None)
        return
    mask = mask.bool()
    if mask.shape != (batch, height, width):
        shape = (batch, height, width)
        raise InputError(
            f"the mask has shape {tuple(mask.shape)}; for these features it must be {shape}: one flag per node"
        )
    if not bool(mask.flatten(1).any(1).all()):
        raise InputError("the mask leaves no node of an image; leave that image out")
    rows = [1 + int(flags.nonzero().max()) for flags in mask.any(2)]
    columns = [1 + int(flags.nonzero().max()) for flags in mask.any(1)]
    sizes = list(zip(rows, columns, strict=True))
    for h, w in dict.fromkeys(sizes):
        images = torch.tensor([i for i, size in enumerate(sizes) if size == (h, w)], device=mask.device)
        flags = mask[images, :h, :w].unsqueeze(-1)
        part = {name: values[images, :h, :w] for name, values in channels_last.items()}
        present = None
        if not bool(flags.all()):
            # Whatever padding holds, NaN included, must reach neither messages nor gradients.
            part = {name: torch.where(flags, values, 0) for name, values in part.items()}
            present = flags.to(next(iter(part.values())).dtype)
        yield images, GridContext(_grid_graph(h, w, tuple(relations)), part, present)


@cached
def _grid_graph(height: int, width: int, relations: tuple[Relation, ...]) -> GridGraph:
    return GridGraph(height, width, relations)


def assemble(parts: list[tuple[Tensor | None, Tensor]], ref: Tensor) -> Tensor:
    """Undoes `split_by_size`: parts (b, h, w, K) as one (B, K, H, W), 0 at padding."""
    maps = [(images, values.permute(0, 3, 1, 2)) for images, values in parts]
    if len(maps) == 1 and maps[0][0] is None:
        return maps[0][1]
    batch, _, height, width = ref.shape
    whole = maps[0][1].new_zeros(batch, maps[0][1].shape[1], height, width)
    for images, values in maps:
        assert images is not None
        padded = functional.pad(values, (0, width - values.shape[3], 0, height - values.shape[2]))
        whole = whole.index_add(0, images, padded)
    return whole
