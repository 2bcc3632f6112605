"""Fitted mixtures whose numbers are written down: what a fit would hold, without data."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import polyscore as ps
from polyscore.mixtures import SHAPES, Fit
from polyscore.models.fitted import Fitted
from polyscore.nn.mixture import Mixed, MixtureOptions
from polyscore.nn.network import Architecture
from polyscore.nn.stack import StackNetwork


def fit(weights: Sequence[float], covariances: Sequence, points: int = 1000) -> Fit:
    """Components ten apart along the diagonal."""
    forms = torch.tensor(covariances, dtype=torch.float64)
    means = 10.0 * torch.arange(len(weights), dtype=torch.float64)[:, None].expand(-1, forms.shape[-1])
    return Fit(torch.tensor(weights, dtype=torch.float64), means, forms, SHAPES[0], points)


def network(*fits: Fit) -> StackNetwork:
    """One network with a condition for each fit."""
    dim = fits[0].means.shape[1]
    plain = Architecture("mixture", dim, len(fits), True, ps.VP(), options=MixtureOptions(dense=0))
    stack = Mixed(plain, [0])
    for c, one in enumerate(fits):
        stack.put(0, c, one)
    return StackNetwork(stack)


def composed(fits: Sequence[Fit], exponents: Sequence[float]) -> ps.Composition:
    """Their composition."""
    whole = network(*fits)
    p = ps.Family({f"c{k}": Fitted(whole, k) for k in range(len(fits))})
    return ps.Composition(p, {f"c{k}": w for k, w in enumerate(exponents)})
