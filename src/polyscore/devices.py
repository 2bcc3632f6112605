"""Devices by name, checked before any work; and the arithmetic that they are asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch

from polyscore.errors import ArgumentError, shorten
from polyscore.limits import physical_memory

P = ParamSpec("P")
R = TypeVar("R")


def check_device(device: torch.device | str | None, subject: str = "device") -> torch.device:
    """Return the device if this machine has it, or say what to use; by default the GPU where there is one."""
    device = best_device() if device is None else device
    try:
        found = torch.empty(0, device=device).device
        if found.type == "meta":
            raise NotImplementedError("a device without numbers")
        return found
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"{subject} must name a device of this machine; got {shorten(str(device))}. "
            f"Use one of {', '.join(_known())}."
        ) from error


def best_device() -> str:
    """Return the name of the GPU where there is one, else of the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _known() -> list[str]:
    return ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which products are computed in the precision of their operands, whatever the caller is in.

    Autocast would compute in half precision what calls itself float32.
    """
    return torch.autocast(device.type, enabled=False)


def on_cpu_by_default() -> AbstractContextManager[object]:
    """Return a context in which new tensors are the CPU's, whatever default device the caller has set.

    Where he has set none, it is an empty one: the other slows every operation a little.
    """
    cpu = torch.device("cpu")
    return nullcontext() if torch.get_default_device() == cpu else cpu


def on_cpu(function: Callable[P, R]) -> Callable[P, R]:
    """Let new tensors of a function be the CPU's, whatever default device the caller has set."""

    @wraps(function)
    def called(*args: P.args, **options: P.kwargs) -> R:
        with on_cpu_by_default():
            return function(*args, **options)

    return called


@contextmanager
def plain_defaults() -> Iterator[None]:
    """Make new tensors and modules float32 and the CPU's, whatever defaults the caller has set."""
    before = torch.get_default_dtype()
    if before != torch.float32:
        torch.set_default_dtype(torch.float32)
    try:
        with on_cpu_by_default():
            yield
    finally:
        if before != torch.float32:
            torch.set_default_dtype(before)


def total_memory(device: torch.device) -> int:
    """Return the bytes of memory of a device in all."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else physical_memory()


@contextmanager
def matmul_precision(mode: str, device: torch.device) -> Iterator[None]:
    """Set float32 products on a GPU to "highest" (float32) or "high" (TF32) for a while.

    The setting belongs to the whole process, so a CPU, where it changes nothing, leaves it alone.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(mode)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether Triton is there; it comes with PyTorch's GPU builds."""
    return importlib.util.find_spec("triton") is not None
