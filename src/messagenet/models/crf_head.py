"""A conditional random field as a head: potentials from networks, marginals from inference.

    prediction    mean field from the unary marginals, 3 iterations (ContextDCRF, Lin et al., arXiv 1504.01013), or
                  loopy belief propagation; pairwise potentials are multiplied by a scale s that is tuned, not learned
    training      "piecewise", "pseudo_likelihood", or "likelihood" with marginals from belief propagation

All objectives train the same networks (`crf_potentials`), so that a comparison of them compares nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from messagenet.errors import InputError, nearest
from messagenet.graph import Relation
from messagenet.inference import BeliefPropagation, MeanField
from messagenet.learning.likelihood import likelihood
from messagenet.learning.message_memory import MessageMemory
from messagenet.learning.pair_graph import pair_graph
from messagenet.learning.totals import Loss, widened
from messagenet.models.crf_potentials import CRFPotentials, GridPotentials, part_of, sum_of
from messagenet.models.heads import heard, known
from messagenet.models.pair_offsets import Neighbours

Objective = Literal["piecewise", "pseudo_likelihood", "likelihood"]
Inference = Literal["mean_field", "belief_propagation"]

LIKELIHOOD_TOLERANCE = 1e-4


class CRFHead(CRFPotentials):
    """Potential networks with an objective and a way to predict.

    >>> from messagenet.graph import above, surrounding
    >>> crf = CRFHead(16, 5, [surrounding(0.4), above(0.4)], hidden=32)
    >>> crf(torch.randn(2, 16, 6, 7)).shape
    torch.Size([2, 5, 6, 7])

    Args:
        in_channels: r, channels of the feature map.
        num_classes: K.
        relations: Which pairs have a potential.
        hidden: Hidden units of every network.
        neighbours: "lattice" for 24 neighbours of a node spread over each range box, "all" for the whole box.
        objective: What it is trained with.
        inference: How it predicts.
        inference_iterations: Of that.
        likelihood_iterations: Of belief propagation in every training step, at most.
        persistent_messages: Begin it with the messages that the same image had when it was last seen.
        pairwise_scale: s, for prediction; training has s = 1.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        relations: Sequence[Relation],
        *,
        hidden: int = 512,
        neighbours: Neighbours = "lattice",
        objective: Objective = "piecewise",
        inference: Inference = "mean_field",
        inference_iterations: int = 3,
        likelihood_iterations: int = 20,
        persistent_messages: bool = False,
        pairwise_scale: float = 1.0,
    ) -> None:
        super().__init__(in_channels, num_classes, relations, hidden=hidden, neighbours=neighbours)
        for name, value, choices in (
            ("objective", objective, get_args(Objective)),
            ("inference", inference, get_args(Inference)),
        ):
            if value not in choices:
                raise InputError(f"unknown {name} {value!r}; {nearest(value, choices)}")
        self.objective = objective
        self.inference = inference
        self.inference_iterations = inference_iterations
        self.pairwise_scale = pairwise_scale
        self.memory = MessageMemory() if persistent_messages else None
        self.engine = BeliefPropagation(max_iterations=likelihood_iterations, tolerance=LIKELIHOOD_TOLERANCE)

    def forward(self, features: Tensor | Mapping[str, Tensor], valid: Tensor | None = None) -> Tensor:
        """Log-marginals, (B, K, h, w); 0 at nodes that are not valid."""
        some = features if isinstance(features, Tensor) else features["unary"]
        logits = some.new_zeros(len(some), self.pairwise.num_classes, *some.shape[2:])
        for numbers, potentials in self.maps(features, valid):
            found = heard(self.log_marginals(potentials), potentials.present).to(logits.dtype)
            if numbers is None:
                return found
            whole = torch.zeros_like(logits[numbers])
            whole[..., : found.shape[2], : found.shape[3]] = found
            logits = logits.index_copy(0, numbers, whole)
        return logits

    def log_marginals(self, potentials: GridPotentials) -> Tensor:
        """What inference makes of a batch of maps of one size, (B, K, h, w)."""
        scaled = potentials.scaled(self.pairwise_scale)
        graph, tables, _ = pair_graph(scaled.unary, scaled.relations, scaled.present)
        steps = self.inference_iterations
        if self.inference == "mean_field":
            alone = torch.softmax(widened(scaled.unary), -1).flatten(1, 2)  # (B, h·w, K)
            result = MeanField("parallel", max_iterations=steps, tolerance=None).run(graph, tables, alone)
        else:
            result = BeliefPropagation(max_iterations=steps, tolerance=None).run(graph, tables)
        return graph.as_map(result.log_marginals)

    def loss(
        self,
        features: Tensor | Mapping[str, Tensor],
        labels: Tensor,
        valid: Tensor | None = None,
        names: Sequence[str] = (),
    ) -> Loss:
        """The objective over the labelled nodes, summed, and their number; names are for persistent messages."""
        if self.objective == "likelihood":
            return self.likelihood_loss(features, labels, valid, names)
        if self.objective == "pseudo_likelihood":
            return self.pseudo_likelihood_loss(features, labels, valid)
        return self.piecewise_loss(features, labels, valid)

    def likelihood_loss(
        self,
        features: Tensor | Mapping[str, Tensor],
        labels: Tensor,
        valid: Tensor | None = None,
        names: Sequence[str] = (),
    ) -> Loss:
        """− log P(ŷ | x), with marginals from belief propagation: see `learning.likelihood`."""
        memory = self.memory if names else None
        labels = known(labels, valid)
        losses = []
        for numbers, potentials in self.maps(features, valid):
            truth = part_of(labels, numbers, potentials.unary)
            scaled = potentials.scaled()
            theirs = names if numbers is None or not names else [names[n] for n in numbers.tolist()]
            losses.append(
                likelihood(scaled.unary, scaled.relations, truth, self.engine, memory=memory, names=theirs)
            )
        return sum_of(losses)
