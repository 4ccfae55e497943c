r"""Messages of factors whose potentials are known, for heads that learn to correct them.

    μ_{F→p}(y_p) = log Σ_{y_F \ y_p} exp[ θ_F(y_F) + Σ_{q≠p} β_{q→F}(y_q) ],      normalised

With an untrained `GraphMessagePassing(computed=…)`, message passing is belief propagation; training starts from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.inference.factors import FactorTable
from messagenet.inference.log_math import log_normalise
from messagenet.message_passing import ComputedMessages


def table_messages(
    tables: Tensor | Mapping[int, Tensor], *, maximise: bool = False, floor: float = -100.0
) -> ComputedMessages:
    """A function that computes the messages of factors with these tables.

    >>> same = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])               # one table for all factors
    >>> compute = table_messages(same)
    >>> incoming = torch.tensor([[-0.1, -2.4]])                           # one factor, two positions
    >>> [message.argmax().item() for message in compute([incoming, incoming], torch.arange(1))]
    [0, 0]

    Args:
        tables: Log-potentials, (factors or 1, K, …, K), −∞ if impossible; by order for factors of several orders.
        maximise: Max-product instead of sum-product.
        floor: Smallest value of a message, so that an impossible state can be subtracted from a belief again.
    """
    by_order = {tables.ndim - 1: tables} if isinstance(tables, Tensor) else tables
    prepared = {order: FactorTable.prepare(each.unsqueeze(1), maximise=maximise) for order, each in by_order.items()}

    def compute(incoming: Sequence[Tensor], factor_ids: Tensor) -> list[Tensor]:
        table = prepared.get(len(incoming))
        if table is None:
            raise InputError(f"no table for factors of order {len(incoming)}; there are {sorted(prepared)}")
        shape = tuple(message.shape[1] for message in incoming)
        if tuple(table.logs.shape[2:]) != shape or table.logs.shape[0] not in (1, len(factor_ids)):
            raise InputError(
                f"tables have shape {(table.logs.shape[0], *table.logs.shape[2:])}; for these factors give "
                f"({len(factor_ids)} or 1, {', '.join(map(str, shape))})"
            )
        if len(factor_ids) == 0:
            return [torch.zeros_like(message) for message in incoming]
        messages = table.messages([message.unsqueeze(1) for message in incoming])
        return [log_normalise(message.squeeze(1)).clamp_min(floor) for message in messages]

    return compute
