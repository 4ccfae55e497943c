"""What stays the same while messages are passed over one map: features, graph, silent nodes, projections.

A `Field` serves images of one size. Batches that were padded to a common size are cut back into fields of
equal size by `fields`, so that a padded image gets exactly the messages that it would get alone: range boxes
are sized by the image, not by the padding.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from messagenet.errors import InputError, Note
from messagenet.estimators.box_sum import box_sum
from messagenet.estimators.estimator import MessageEstimator
from messagenet.estimators.operators import remembered
from messagenet.estimators.projected import ProjectedFeatures
from messagenet.graph import GridGraph, Offset, Relation


class Field(ProjectedFeatures):
    """Node features, channels last, with everything that is computed from them once.

    Args:
        graph: The grid and its relations.
        features: For each factor type, (B, H, W, r).
        talking: 1 for nodes that send, 0 for padding, (B, H, W, 1); None if all send.
    """

    def __init__(self, graph: GridGraph, features: Mapping[str, Tensor], talking: Tensor | None) -> None:
        self.graph = graph
        super().__init__(features)
        self.talking = talking
        self._counts: dict[tuple[Offset, ...], Tensor] = {}
        for relation, offsets in zip(graph.relations, graph.offsets, strict=True):
            if not offsets and not torch.compiler.is_compiling():
                _warn_empty(relation, graph.height, graph.width)

    def box_projections(self, name: str, offsets: tuple[Offset, ...], estimator: MessageEstimator) -> Tensor:
        """P + Q of a box relation, Q from the average of the senders' features, (B, H, W, hidden)."""
        key = (id(estimator), name)
        if key not in self._projections:
            assert estimator.sender is not None
            features = self.features[name]
            mean = box_sum(self.heard(features), offsets) / self.count(offsets).clamp(min=1)
            self._projections[key] = estimator.receiver(features), estimator.sender(mean)
        receiver, sender = self._projections[key]
        return receiver + sender

    def heard(self, values: Tensor) -> Tensor:
        """The values with those of padding set to 0."""
        return values if self.talking is None else torch.where(self.talking > 0, values, 0)

    def silenced(self, sender: Tensor) -> Tensor:
        """Q with that of padding set to −∞, so that relu(P + Q) = 0."""
        return sender if self.talking is None else sender.masked_fill(self.talking == 0, -torch.inf)

    def count(self, offsets: tuple[Offset, ...]) -> Tensor:
        """n, how many nodes send to each node, (B or 1, H, W, 1)."""
        if offsets not in self._counts:
            ones = self.like.new_ones(1, self.graph.height, self.graph.width, 1)
            self._counts[offsets] = box_sum(ones if self.talking is None else self.talking, offsets)
        return self._counts[offsets]


@remembered
def layout(height: int, width: int, relations: tuple[Relation, ...]) -> GridGraph:
    """The graph of a map, kept for the next map of this size."""
    return GridGraph(height, width, relations)


@cache
def _warn_empty(relation: Relation, height: int, width: int) -> None:
    warnings.warn(
        f"on an image this small ({height}×{width} nodes) no message comes from {relation.name!r}: "
        f"{relation.fraction} of the short edge is less than one node; use larger images, or give the relation's size "
        "in cells",
        Note,
        stacklevel=2,
    )


def fields(
    features: Mapping[str, Tensor], valid: Tensor | None, relations: Sequence[Relation]
) -> Iterator[tuple[Tensor | None, Field]]:
    """Splits a batch (B, r, H, W) into fields of equal image size, with the numbers of their images.

    The numbers are None where one field holds the whole batch at its full size.
    """
    maps = {
        id(values): values.permute(0, 2, 3, 1).contiguous() for values in features.values()
    }  # (B, H, W, r)
    last = {name: maps[id(values)] for name, values in features.items()}
    images, height, width, _ = next(iter(last.values())).shape
    if valid is None:
        yield None, Field(layout(height, width, tuple(relations)), last, None)
        return
    valid = valid.bool()
    if valid.shape != (images, height, width):
        raise InputError(
            f"the validity mask has shape {tuple(valid.shape)}; for these features it must be "
            f"{(images, height, width)}: one flag per node"
        )
    if not bool(valid.flatten(1).any(1).all()):
        raise InputError("the validity mask marks no node of an image as valid; leave that image out")
    rows = [1 + int(flags.nonzero().max()) for flags in valid.any(2)]
    columns = [1 + int(flags.nonzero().max()) for flags in valid.any(1)]
    sizes = list(zip(rows, columns, strict=True))
    for h, w in dict.fromkeys(sizes):
        numbers = torch.tensor([i for i, size in enumerate(sizes) if size == (h, w)], device=valid.device)
        flags = valid[numbers, :h, :w]
        part = {name: values[numbers, :h, :w] for name, values in last.items()}
        talking = None
        if not bool(flags.all()):
            exists = flags.unsqueeze(-1)
            # Whatever padding holds, NaN included, must reach neither messages nor gradients.
            part = {name: torch.where(exists, values, 0) for name, values in part.items()}
            talking = exists.to(next(iter(part.values())).dtype)
        yield numbers, Field(layout(h, w, tuple(relations)), part, talking)
