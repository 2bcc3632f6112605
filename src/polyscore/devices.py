"""Devices by name, checked before any work; and the arithmetic that they are asked for."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from polyscore.errors import ArgumentError, shorten


def check_device(device: torch.device | str, subject: str = "device") -> torch.device:
    """Return the device if this machine has it, or say what to use."""
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


def _known() -> list[str]:
    return ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which products are computed in the precision of their operands, whatever the caller is in.

    Autocast would compute in half precision what calls itself float32.
    """
    return torch.autocast(device.type, enabled=False)
