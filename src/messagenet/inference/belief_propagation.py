"""Loopy belief propagation: sum-product, max-product and everything between.

    temperature 1: marginals;  0: max-marginals and the most probable state;  T: those of P(y)^{1/T}

Exact on trees; on loopy graphs a fixed point is a stationary point of the Bethe free energy (Yedidia, Freeman
& Weiss 2005; Kschischang, Frey & Loeliger, "Factor graphs and the sum-product algorithm", 2001). The
equations are in `network`, the orders of updating in `schedule`. On a `GridFactorGraph` neighbours are windows of a
map, and where potentials allow messages are passed without logarithms (`linear_grid`): same answers, less time.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from messagenet.graph.factor_graph import FactorGraph, Potentials
from messagenet.inference.network import Network, argmax_states
from messagenet.inference.passing import PassingSettings
from messagenet.inference.problem import align
from messagenet.inference.result import Result
from messagenet.inference.schedule import propagate


@dataclass(frozen=True)
class BeliefPropagation(PassingSettings):
    """Settings of belief propagation; `log_z` of its result is the Bethe approximation.

    >>> import torch
    >>> from messagenet.graph.builders import chain_graph
    >>> graph = chain_graph([2, 2])
    >>> potentials = [torch.tensor([[0.0, 1.0], [0.0, 0.0]]), 2.0 * torch.eye(2)[None]]
    >>> BeliefPropagation().run(graph, potentials).marginals
    tensor([[0.2689, 0.7311], [0.3240, 0.6760]])
    """

    def run(self, graph: FactorGraph, potentials: Potentials, messages: Tensor | None = None) -> Result:
        """Passes messages and reads off beliefs.

        Args:
            graph: The structure.
            potentials: One tensor of log-potentials per group.
            messages: What to begin with, such as `Result.messages` of a run on similar potentials; None for messages
                that say nothing. No gradient flows into them.
        """
        return pass_messages(graph, potentials, self, messages=messages)


def pass_messages(
    graph: FactorGraph,
    potentials: Potentials,
    settings: PassingSettings,
    factor_weights: Tensor | None = None,
    messages: Tensor | None = None,
) -> Result:
    """Runs the schedule and reads the answers off the final messages.

    Args:
        graph: the structure.
        potentials: one tensor of log-potentials per group.
        settings: of the run.
        factor_weights: (factors,) ρ_F in the user's order; None for ones.
        messages: (*batch, rows, max_cardinality) to begin with; None for zeros.
    """
    problem = align(graph, potentials, settings.temperature)
    network = Network.build(problem, maximise=settings.temperature == 0, factor_weights=factor_weights)
    start = None if messages is None else network.as_messages(messages)
    outcome = propagate(network, settings, start)
    log_marginals = network.log_marginals(outcome.beliefs)
    scale = settings.temperature if settings.temperature > 0 else 1.0
    return Result(
        log_marginals=problem.publish(log_marginals),
        iterations=outcome.progress.iterations,
        converged=outcome.progress.converged,
        history=outcome.progress.history,
        compute_log_z=lambda: problem.publish_batch(scale * network.log_z(outcome.messages)),
        compute_log_factor_marginals=lambda: tuple(
            problem.publish(table) for table in network.log_factor_marginals(outcome.messages)
        ),
        compute_map_state=lambda: problem.publish(argmax_states(log_marginals)),
        compute_messages=lambda: problem.publish(outcome.messages),
    )
