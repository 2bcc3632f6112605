"""What is handed to a distribution, checked: real numbers, covariances, counts of draws."""

from __future__ import annotations

import math
from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyscore.errors import ArgumentError, is_count, is_finite, require, shorten
from polyscore.limits import require_memory

_ROUNDED = 1e-5  # of a covariance, by which products of float32 matrices may miss symmetry


def as_float64(value: Any, subject: str) -> Tensor:
    """Return `value` as a finite float64 CPU tensor: real numbers only, whatever holds them."""
    try:
        tensor = _real(value)
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
        raise ArgumentError(
            f"{subject} must be a number or a regular array; got {shorten(value)}. Convert it with numpy."
        ) from error
    require(tensor.isfinite().all(), subject, "be finite", tensor.tolist() if tensor.numel() < 100 else tensor,
            "Drop or replace what is not.")  # fmt: skip
    return tensor


def _real(value: Any) -> Tensor:
    """A new float64 tensor; `TypeError` for what would lose its meaning in one: truth, dates, text, complex numbers."""
    if isinstance(value, Tensor):
        if value.is_complex() or value.dtype == torch.bool:
            raise TypeError(str(value.dtype))
        return value.detach().to("cpu", torch.float64, copy=True)
    if any(_loses_meaning(entry) for entry in _entries(value)):
        raise TypeError("truth, or a masked entry, among numbers")
    array = np.asarray(value)
    if array.dtype == object and all(is_finite(entry) for entry in array.flat):  # such as whole numbers above 2^64
        array = array.astype(np.float64)
    if array.dtype.kind not in "iuf":
        raise TypeError(str(array.dtype))
    return torch.from_numpy(np.array(array, dtype=np.float64))


def _entries(value: Any) -> Iterator[Any]:
    """The innermost entries of nested lists, or the value itself."""
    if isinstance(value, (list, tuple)):
        for entry in value:
            yield from _entries(entry)
    else:
        yield value


def _loses_meaning(entry: Any) -> bool:
    """Whether NumPy would silently make a number of what is none, beside others that are."""
    if isinstance(entry, np.ma.MaskedArray):
        return bool(np.ma.getmaskarray(entry).any())
    return isinstance(entry, bool) or getattr(entry, "dtype", None) in (torch.bool, np.bool_)


def check_draw(n: Any, dim: int, dtype: Any) -> None:
    """Check a request for `n` draws before anything is drawn."""
    require(is_count(n), "n", "be at least 1" if isinstance(n, Integral) else "be a whole number of at least 1", n,
            "Pass n=1 or more.")  # fmt: skip
    require(isinstance(dtype, torch.dtype) and dtype.is_floating_point, "dtype", "be a floating-point type of torch",
            shorten(dtype), "Use torch.float32 or torch.float64.")  # fmt: skip
    require_memory(16 * n * dim, f"{shorten(n)} draws in {dim} dimensions", "Draw fewer, or a part at a time.")


def eigen(cov: Any, dim: int, subject: str = "cov") -> tuple[Tensor, Tensor | None]:
    """Return (eigenvalues `(d,)`, basis `(d, d)` or None when diagonal) of a scalar, diagonal or full covariance."""
    cov = as_float64(cov, subject)
    if cov.ndim == 2 and cov.shape == (dim, dim) and torch.equal(cov, cov.diagonal().diag()):
        cov = cov.diagonal()
    if cov.ndim <= 1:
        require(cov.ndim == 0 or len(cov) == dim, subject, f"have {dim} entries", len(cov) if cov.ndim else 1,
                "Pass one variance a coordinate, or one number for all.")  # fmt: skip
        return _positive(cov.expand(dim).clone(), subject, cov), None
    require(cov.shape == (dim, dim), subject, f"be a scalar, ({dim},) or ({dim}, {dim})", tuple(cov.shape),
            "Write [10, 1] for a diagonal.")  # fmt: skip
    gap = (cov - cov.T).abs().max().item()
    require(gap <= _ROUNDED * cov.abs().max(), subject, "be symmetric", f"|cov - cov^T| up to {gap:.3g}",
            "Symmetrise it: (cov + cov.T) / 2.")  # fmt: skip
    values, basis = torch.linalg.eigh(0.5 * (cov + cov.T))
    return _positive(values, subject, cov), basis


def _positive(values: Tensor, subject: str, cov: Tensor) -> Tensor:
    smallest = values.min().item()
    shown = shorten(cov.tolist()) if cov.numel() < 100 else f"a matrix {tuple(cov.shape)}"
    require(smallest > 0 and 1 / smallest < math.inf, subject, "be positive definite",
            f"smallest eigenvalue {smallest:.4g} of {shown}",
            "Add jitter to its diagonal or correct its sign.")  # fmt: skip
    return values


def brief(values: Tensor) -> str:
    """A vector in few words: all of a short one, the range of a long one."""
    flat = values.flatten()
    if len(flat) <= 4:
        return "[" + ", ".join(f"{v:.4g}" for v in flat.tolist()) + "]"
    low, high = flat.min().item(), flat.max().item()
    return f"{low:.4g} in all" if low == high else f"{low:.4g} to {high:.4g}"
