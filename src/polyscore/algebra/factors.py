"""Factors as users write them: asked for their log-densities and moments, the answers checked, and multiplied.

A density may be 0 outside of its support: then so is every product in which it is a numerator, whatever stands below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from polyscore.distributions import Density, Distribution
from polyscore.distributions.components import components_of
from polyscore.distributions.distribution import Scale
from polyscore.distributions.inputs import as_float64, eigen
from polyscore.errors import require
from polyscore.models.learned import ModelError, asking


def log_prob(name: str, density: Density, x: Tensor, alpha: Scale, sigma: Scale) -> Tensor:
    """Return a condition's log-density at x, `(..., *event) -> (...)`; what is none is an error that names it."""
    if components_of(density) is not None:
        return density.log_prob(x, alpha, sigma)
    method = f"{type(density).__name__}.log_prob"
    with asking(lambda got: f"condition {name!r} must have a log-density at x {tuple(x.shape)} {x.dtype}; got {got}. "
                            f"Mend {method}; outside of its support it returns -inf."):  # fmt: skip
        value = density.log_prob(x, alpha, sigma)
    batch = x.shape[: x.ndim - len(density.event)]
    if not isinstance(value, Tensor) or value.shape != batch:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ModelError(f"the log-density of condition {name!r} must have shape {tuple(batch)}; got {got}. "
                         f"Mend {method}: one number a point.")  # fmt: skip
    _check_values(name, value, x, method)
    return value.to(x)


def _check_values(name: str, value: Tensor, x: Tensor, method: str) -> None:
    """Check that every value is a number or -inf."""
    bad = value.isnan() | (value == math.inf)
    if bool(bad.any()):
        point = [float(f"{number:.4g}") for number in x[bad][0].flatten()[:4].tolist()]
        raise ModelError(
            f"the log-density of condition {name!r} must be a number, or -inf outside of its support; got "
            f"{value[bad][0].item()} at x = {point} and {int(bad.sum()) - 1} more points. Mend {method}."
        )


def moments(name: str, member: object) -> tuple[Tensor, Tensor] | None:
    """Return a condition's mean `(d,)` and covariance `(d, d)` or `(d,)`, float64, or None where they are not known."""
    found = member.moments() if isinstance(member, Distribution) else None
    if found is None or not isinstance(member, Distribution) or components_of(member) is not None:
        return found
    subject, dim = f"{type(member).__name__}.moments() of condition {name!r}", math.prod(member.event)
    require(
        isinstance(found, tuple) and len(found) == 2,
        subject,
        "be (mean, covariance), or None",
        type(found).__name__,
        "Return two tensors, or leave moments() out.",
    )
    mean, cov = (as_float64(part, f"{what} in {subject}") for what, part in zip(("mean", "covariance"), found))
    require(mean.shape == (dim,), f"mean in {subject}", f"be a vector ({dim},)", tuple(mean.shape),
            "Return one entry a coordinate.")  # fmt: skip
    values, basis = eigen(cov, dim, f"covariance in {subject}")
    return mean, values if basis is None else cov


def product(terms: Sequence[Tensor], exponents: Sequence[float]) -> Tensor:
    """Return sum_a w_a log p_a, -inf wherever a numerator is 0."""
    total = torch.stack([w * term for w, term in zip(exponents, terms, strict=True)]).sum(0)
    if not bool(total.isnan().any()):
        return total
    void = torch.stack([term == -math.inf for w, term in zip(exponents, terms, strict=True) if w > 0]).any(0)
    return torch.where(void, -math.inf, total)
