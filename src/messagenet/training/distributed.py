"""The device to compute on, and the other processes of the run, through Accelerate."""

from __future__ import annotations

import atexit
import os
import platform
import warnings
from functools import partial

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.state import AcceleratorState, PartialState  # type: ignore[import-untyped]
from torch import Tensor, nn

from messagenet.errors import InputError, Note


def start_processes(precision: str = "float32", norm: str = "local") -> Accelerator:
    """Joins the processes that `torchrun` or `accelerate launch` started, if any, and chooses a device."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    mixed = "no" if precision == "float32" else precision
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != mixed:
        AcceleratorState._reset_state()
    try:
        # Accelerate joins processes on a CPU only with `cpu=True`.
        accelerator = Accelerator(mixed_precision=mixed, cpu=started > 1 and not _has_accelerator())
    except ValueError as error:
        if precision == "float32":
            raise InputError(
                f"{started} processes were started but cannot find each other ({error}); start them with torchrun or "
                "accelerate launch"
            ) from None
        raise InputError(f"run.precision {precision} does not work on this device ({error}); use float32") from None
    if precision == "fp16" and accelerator.device.type != "cuda":
        raise InputError("run.precision is fp16, which needs a CUDA device; use bf16 or float32")
    if precision == "bf16" and accelerator.device.type == "cpu" and not _cpu_has_bf16():
        warnings.warn(
            "this processor has no bf16 instructions: bf16 is slower than float32 here; set run.precision=float32",
            Note,
            stacklevel=2,
        )
    if norm == "sync" and (accelerator.device.type != "cuda" or started == 1):
        raise InputError("run.norm is sync, which needs several processes with a CUDA device each; use local or frozen")
    if accelerator.num_processes != started:
        raise InputError(
            f"{started} processes were started but {accelerator.num_processes} joined; start them with torchrun or "
            "accelerate launch, and leave ACCELERATE_ variables unset"
        )
    if started > 1:
        atexit.register(leave_processes)
    accelerator.gradient_accumulation_steps = 1  # the learner accumulates sums, which need no further division
    return accelerator


def is_first_process() -> bool:
    """Whether this is the process that prints for all of its run."""
    return bool(PartialState().is_main_process)


def leave_processes() -> None:
    """Leaves the process group; a program that ends without it may be aborted by its open threads."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _cpu_has_bf16() -> bool:
    """Whether the processor multiplies bf16 in hardware; yes where this is unknown."""
    checks = [getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile")]
    known = [check() for check in checks if check is not None]
    return any(known) or not known or platform.machine() not in ("x86_64", "AMD64")


def _has_accelerator() -> bool:
    if hasattr(torch, "accelerator"):
        device = torch.accelerator.current_accelerator()
        return device is not None and device.type != "mps"
    return torch.cuda.is_available()


def keep_strides(net: nn.Module) -> None:
    """Gives gradients their parameters' strides on axes of length 1, which distributed training compares."""
    for parameter in net.parameters():
        if parameter.requires_grad and 1 in parameter.shape:
            parameter.register_hook(partial(_strided_as, parameter.stride()))


def _strided_as(strides: tuple[int, ...], gradient: Tensor) -> Tensor:
    if gradient.stride() == strides:
        return gradient
    pairs = zip(gradient.shape, gradient.stride(), strides, strict=True)
    alike = all(length == 1 or mine == given for length, mine, given in pairs)
    return gradient.as_strided(gradient.shape, strides) if alike else gradient
