"""In what arithmetic a model is called, and compiled for which shapes. A model need know of neither."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from polyscore.devices import matmul_precision
from polyscore.errors import require

PRECISIONS = ("auto", "table", "fp16", "bf16", "tf32", "float32")

# Numbers of rows for which one model is compiled; each takes seconds to minutes.
_MOST_SIZES = 4

# Who compiles. Tests take "eager", which compiles nothing.
BACKEND = "inductor"

Model = Callable[..., Tensor]


def check_precision(precision: str) -> str:
    """Return a precision if it is one."""
    require(precision in PRECISIONS, "precision", f"be one of {', '.join(PRECISIONS)}", repr(precision),
            "Leave it at auto.")  # fmt: skip
    return precision


def half_type(precision: str, device: torch.device) -> torch.dtype | None:
    """Return what autocast computes products in, where it does: bf16 anywhere, fp16 on a GPU alone."""
    if precision == "bf16":
        return torch.bfloat16
    return torch.float16 if precision == "fp16" and device.type == "cuda" else None


@contextlib.contextmanager
def computing(precision: str, device: torch.device) -> Iterator[None]:
    """Call models in a precision: "auto" and "table" leave them alone, others hold whatever the caller is in."""
    if precision in ("auto", "table") or device.type == "meta":
        yield
        return
    half = half_type(precision, device)
    products = matmul_precision("high" if precision == "tf32" else "highest", device)
    # What autocast would keep between calls, a CUDA graph could not know of.
    autocast = torch.autocast(device.type, dtype=half, enabled=half is not None, cache_enabled=False)
    with products, _convolving(precision, device), autocast:
        yield


@contextlib.contextmanager
def _convolving(precision: str, device: torch.device) -> Iterator[None]:
    """Convolutions in TF32, which cuDNN takes by itself unless told otherwise, or in float32."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def described(precision: str, compiled: bool, device: torch.device) -> str:
    """Return what a run says of a model: "model", "model in bf16", "compiled model in tf32"; a CPU has but float32."""
    if device.type == "cpu" and precision in ("fp16", "tf32"):
        precision = "float32"
    inside = "" if precision in ("auto", "table") else f" in {precision}"
    return f"{'compiled ' if compiled else ''}model{inside}"


def channels_last(module: nn.Module) -> None:
    """Lay out a convolutional model's weights as convolutions on tensor cores want them; others stay as they are."""
    if any(parameter.ndim == 4 for parameter in module.parameters()):
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def compile_in_place(module: nn.Module, compile: bool) -> None:
    """Compile what a call of the module does, or go back to it as it is; its parameters are its own in any case."""
    if compile:
        channels_last(module)
        module.compile(dynamic=False, backend=BACKEND)
    else:
        module._compiled_call_impl = None


class Compiled:
    """A model compiled for a few numbers of rows.

    Every shape is compiled by itself, which takes long. So a batch of at least half as many rows as a shape that is
    there is padded to it, and one for which no shape is left goes through the model as it is.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.sizes = model, list[int]()
        self.quick = torch.compile(model, dynamic=False, backend=BACKEND)

    def __call__(self, *parts: Tensor) -> Tensor:
        """Return the model's answer to rows `(B, ...)` of every part."""
        rows = len(parts[0])
        size = self._size(rows)
        if size is None:
            return self.model(*parts)
        # The limit counts all shapes of all models of one class.
        with torch._dynamo.config.patch(recompile_limit=64, accumulated_recompile_limit=1024):
            value = self.quick(*(padded(part, size) for part in parts))
        return value[:rows] if isinstance(value, Tensor) else value

    def _size(self, rows: int) -> int | None:
        """The rows to compute with; None where nothing is compiled."""
        fitting = [size for size in self.sizes if rows <= size <= 2 * rows]
        if not fitting and (len(self.sizes) < _MOST_SIZES or rows > max(self.sizes)):
            self.sizes.append(rows)
            return rows
        return min(fitting, default=None)


def padded(part: Tensor, rows: int) -> Tensor:
    """Return a batch with its last row repeated up to a number of rows."""
    missing = rows - len(part)
    return torch.cat([part, part[-1:].expand(missing, *part.shape[1:])]) if missing else part
