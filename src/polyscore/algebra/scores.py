"""Scores of several conditions made one: the composed score, and what the residual needs of the single ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def combine(scores: Tensor, exponents: Sequence[float]) -> Tensor:
    """Return sum_a w_a s_a from scores `(A, ...)` and A exponents."""
    return _weighted(scores.unbind(), exponents)


def excess(scores: Tensor, exponents: Sequence[float], event_dims: int = 1) -> Tensor:
    """Return |S|^2 - sum_a w_a |s_a|^2 over the event axes, from differences to the last factor.

    With r that factor's score, d_a = s_a - r and D = sum_a w_a d_a it equals
    |D|^2 - sum w |d|^2 + (W - 1) (W |r|^2 + 2 <r, D>); the plain squared norms would cancel in low precision.
    """
    axes = tuple(range(-event_dims, 0))
    # Half-precision scores are summed in float32: thousands of coordinates would not survive their own total.
    reference, total = scores[-1].to(torch.promote_types(scores.dtype, torch.float32)), sum(exponents)
    if len(scores) == 1:
        combined = torch.zeros_like(reference)
        value = _sum(combined, axes)
    else:
        differences = scores[:-1] - reference
        combined = _weighted(differences.unbind(), exponents[:-1])
        squares = _weighted(_sum(differences.square(), axes).unbind(), exponents[:-1])
        value = _sum(combined.square(), axes) - squares
    if total != 1:
        value = value + (total - 1) * _sum(total * reference.square() + 2 * reference * combined, axes)
    return value


def _weighted(parts: Sequence[Tensor], factors: Sequence[float]) -> Tensor:
    """The sum of parts, each times its factor."""
    first, *others = parts
    total = first if others and factors[0] == 1 else first * factors[0]
    for part, factor in zip(others, factors[1:], strict=True):
        total = total.add(part, alpha=factor)
    return total


def _sum(values: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The sum over the event axes; of two coordinates in a third of the time at thousands of points, the same bytes."""
    if axes == (-1,) and values.shape[-1] == 2:
        return torch.add(*values.unbind(-1))
    return values.sum(axes)
