"""The Gaussian mixture: noising keeps the weights and noises every component."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyscore.devices import on_cpu
from polyscore.distributions.components import Components
from polyscore.distributions.distribution import Density, Scale
from polyscore.distributions.inputs import as_float64, brief, check_draw
from polyscore.errors import require
from polyscore.rng import generator


class Mixture(Density):
    """Sum over k of weights_k N(means_k, cov_k).

    Args:
        means: `(M, d)`.
        cov: shared by all components (scalar, diagonal `(d,)` or full `(d, d)`), or M of these, one a component. Where
            M = d makes a shape ambiguous, it is the shared one.
        weights: `(M,)`, at least 0, normalised here; uniform by default.
    """

    @on_cpu
    def __init__(self, means: Any, cov: Any = 0.36, weights: Any = None) -> None:
        means = as_float64(means, "means")
        require(means.ndim == 2 and means.numel(), "means", "be a matrix (M, d)", f"shape {tuple(means.shape)}",
                "Write means=[[0, 0], [3, 0]], one row a component.")  # fmt: skip
        count, self.dim = means.shape
        weights = torch.full((count,), 1 / count) if weights is None else as_float64(weights, "weights")
        require(weights.shape == (count,), "weights", f"hold one entry per component, ({count},)", tuple(weights.shape),
                "Leave weights out for equal ones.")  # fmt: skip
        require((weights >= 0).all() and weights.sum() > 0, "weights", "be at least 0, not all 0",
                weights.tolist() if count < 100 else weights, "Leave weights out for equal ones.")  # fmt: skip
        weights = weights.double() / weights.double().sum()
        self.components = Components.build(means, _covariances(cov, count, self.dim), weights)

    @property
    def means(self) -> Tensor:
        """Component means, `(M, d)`, float64."""
        return self.components.means

    @property
    def weights(self) -> Tensor:
        """Their weights, `(M,)`, float64, summing to 1."""
        return self.components.weights

    @on_cpu
    def sample(self, n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
        check_draw(n, self.dim, dtype)
        which = torch.multinomial(self.weights, n, replacement=True, generator=generator(seed, "component"))
        normals = torch.randn(n, self.dim, generator=generator(seed, "gaussian"), dtype=torch.float64)
        return self.components.draw(which, normals).to(dtype)

    def log_prob(self, x: Tensor, alpha: Scale = 1.0, sigma: Scale = 0.0) -> Tensor:
        return torch.logsumexp(self._joint(x, alpha, sigma), -1)

    def score(self, x: Tensor, alpha: Scale = 1.0, sigma: Scale = 0.0) -> Tensor:
        shares = torch.softmax(self._joint(x, alpha, sigma), -1)
        return (shares.unsqueeze(-1) * self.components.to(x).scores(x, alpha, sigma)).sum(-2)

    def _joint(self, x: Tensor, alpha: Scale, sigma: Scale) -> Tensor:
        """log weights_k + log N_k(x), `(..., M)`."""
        return self.components.to(x).log_prob(x, alpha, sigma) + self.weights.log().to(x)

    def moments(self) -> tuple[Tensor, Tensor]:
        return self.components.moments()

    def __repr__(self) -> str:
        if self.means.numel() <= 12:
            return f"Mixture(means={self.means.tolist()}, weights={[round(w, 6) for w in self.weights.tolist()]})"
        parts = f"Mixture of {self.components.count} components in {self.dim} dimensions"
        return f"{parts}, weights {brief(self.weights)}, {self.components.shape_text()}"


def mixture_of(components: Components) -> Mixture:
    """Return the mixture of components that are known to be sound."""
    found = Mixture.__new__(Mixture)
    found.dim, found.components = components.dim, components
    return found


def _covariances(cov: Any, count: int, dim: int) -> list[Any]:
    """Return one covariance per component: a shared one repeated, or the M of them as given."""
    try:
        shape = tuple(np.shape(cov))
    except (TypeError, ValueError, RuntimeError):  # a ragged list: scalars, diagonals and matrices mixed
        shape = (len(cov), -1)
    if shape in {(), (dim,), (dim, dim)}:
        return [cov] * count
    require(shape[0] == count, "cov", f"be one shared covariance or {count}, one a component", f"shape {shape}",
            "Pass a number, a matrix, or a list of them, one a row of means.")  # fmt: skip
    return list(cov)
