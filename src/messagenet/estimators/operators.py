"""What operators need from PyTorch: registration, caches that `torch.compile` accepts, a precision to sum in.

`torch.library.define` is used rather than `torch.library.custom_op`, which loads the whole compiler stack
(two seconds) the first time an operator is called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def remembered(function: Callable[P, R]) -> Callable[P, R]:
    """`functools.lru_cache`, stepping aside under `torch.compile`, which cannot see through it."""
    kept: Callable[P, R] = lru_cache(maxsize=512)(function)  # type: ignore[assignment]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return (function if torch.compiler.is_compiling() else kept)(*args, **kwargs)

    return call


def register_operator(schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Defines `messagenet::<schema>` for every device, with a shape-only twin for tracing."""
    name = f"messagenet::{schema.partition('(')[0]}"
    torch.library.define(name, schema[schema.index("(") :])
    torch.library.impl(name, "CompositeExplicitAutograd", implementation)
    torch.library.register_fake(name, fake)


def refuse_second_derivatives(name: str) -> None:
    """Makes differentiating a gradient an error, where it would otherwise be silently wrong."""

    def refuse(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(f"messagenet::{name} has no derivative: second derivatives are not supported")

    torch.library.register_autograd(f"messagenet::{name}", refuse)


def like(values: Tensor) -> Tensor:
    """An empty, contiguous tensor of the same shape: what operators return."""
    return torch.empty_like(values, memory_format=torch.contiguous_format)


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """The precision to add many numbers in: the tensors' common one, but float32 for half precision.

    >>> working_dtype(torch.zeros(1, dtype=torch.bfloat16))
    torch.float32
    """
    dtype = tensors[0].dtype
    for values in tensors[1:]:
        dtype = torch.promote_types(dtype, values.dtype)
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
