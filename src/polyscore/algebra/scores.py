"""Scores of several conditions made one: the composed score, and what the residual needs of the single ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def combine(scores: Tensor, exponents: Sequence[float]) -> Tensor:
    """Return sum_a w_a s_a from scores `(A, ...)` and A exponents."""
    total = scores[0] * exponents[0]
    for score, w in zip(scores[1:], exponents[1:], strict=True):
        total = total.add(score, alpha=w)
    return total


def excess(scores: Tensor, exponents: Sequence[float], event_dims: int = 1) -> Tensor:
    """Return |S|^2 - sum_a w_a |s_a|^2 over the event axes, from differences to the last factor.

    With r that factor's score, d_a = s_a - r and D = sum_a w_a d_a it equals
    |D|^2 - sum w |d|^2 + (W - 1) (W |r|^2 + 2 <r, D>); the plain squared norms would cancel in low precision.
    """
    axes = tuple(range(-event_dims, 0))
    # Half-precision scores are summed in float32: thousands of coordinates would not survive their own total.
    wide = torch.promote_types(scores.dtype, torch.float32)
    reference, total = scores[-1].to(wide), sum(exponents)
    combined = torch.zeros_like(reference)
    value = torch.zeros(reference.shape[: reference.ndim - event_dims], dtype=wide, device=scores.device)
    for score, w in zip(scores[:-1], exponents[:-1], strict=True):
        difference = score - reference
        combined = combined.add(difference, alpha=w)
        value = value.sub(difference.square().sum(axes), alpha=w)
    value = value + combined.square().sum(axes)
    if total != 1:
        value = value + (total - 1) * (total * reference.square() + 2 * reference * combined).sum(axes)
    return value
