"""Gaussian components N(mean_k, cov_k), kept in the eigenbasis of each covariance.

Noising acts on eigenvalues alone: cov -> alpha^2 cov + sigma^2 I, in the same basis. So the precision at any noise
level costs a division, not an inverse, and a batch of noise levels broadcasts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from polyscore.distributions.distribution import Density, Scale
from polyscore.distributions.inputs import brief, eigen
from polyscore.errors import require

_MOST_FULL = 512  # beyond so many dimensions a mixture's covariance counts by its diagonal


def components_of(member: object) -> Components | None:
    """Return the Gaussian components of a member of a family, or None: whether it is a mixture is asked here alone."""
    found = getattr(member, "components", None)
    return found if isinstance(found, Components) and isinstance(member, Density) else None


class Components:
    """M Gaussians: `means` (M, d), `variances` (M, d) in `bases` (M, d, d), or in the axes when `bases` is None.

    `weights` (M,), float64, sum to 1; that of a single one is 1.
    """

    def __init__(self, means: Tensor, variances: Tensor, bases: Tensor | None, weights: Tensor | None = None) -> None:
        self.means, self.variances, self.bases = means, variances, bases
        self.count, self.dim = means.shape
        self.weights = torch.full((self.count,), 1 / self.count, dtype=torch.float64) if weights is None else weights

    @classmethod
    def build(cls, means: Tensor, covs: Sequence[Any], weights: Tensor) -> Components:
        """Return components from means `(M, d)`, M covariances, each scalar, diagonal or full, and their weights."""
        dim = means.shape[1]
        pairs = [eigen(cov, dim, f"cov of component {k}" if len(covs) > 1 else "cov") for k, cov in enumerate(covs)]
        variances = torch.stack([values for values, _ in pairs])
        if all(basis is None for _, basis in pairs):
            return cls(means, variances, None, weights)
        identity = torch.eye(dim, dtype=torch.float64)
        bases = torch.stack([identity if basis is None else basis for _, basis in pairs])
        return cls(means, variances, bases, weights)

    def shape_text(self) -> str:
        """What the covariances are like, in few words."""
        kind = "diagonal" if self.bases is None else "full"
        return f"{kind} covariance, principal variances {brief(self.variances)}"

    @property
    def covariances(self) -> Tensor:
        """Full covariances, `(M, d, d)`."""
        return self._rebuild(self.variances)

    @property
    def precisions(self) -> Tensor:
        """Inverse covariances, `(M, d, d)`."""
        return self._rebuild(1 / self.variances)

    def moved(self, by: Tensor, size: float = 1.0) -> Components:
        """Return the components of (x + by) / size."""
        return Components((self.means + by) / size, self.variances / size**2, self.bases, self.weights)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean `(d,)` and covariance of the mixture, `(d,)` where it is diagonal."""
        mean = self.weights @ self.means
        if self.count == 1 and self.bases is None:
            return mean, self.variances[0]
        away = self.means - mean
        if self.dim > _MOST_FULL and self.bases is None:
            return mean, self.weights @ (self.variances + away**2)
        within = torch.einsum("m,mde->de", self.weights, self.covariances)
        return mean, within + (self.weights[:, None] * away).T @ away

    def precision_at(self, alpha: Tensor, sigma: Tensor) -> Tensor:
        """Return the noised precisions for `alpha`, `sigma` of shape (T,), as `(T, M, d, d)`."""
        return self._rebuild(1 / self.noised(alpha, sigma))

    def _rebuild(self, values: Tensor) -> Tensor:
        if self.bases is None:
            return torch.diag_embed(values)
        return (self.bases * values.unsqueeze(-2)) @ self.bases.mT

    def noised(self, alpha: Scale, sigma: Scale) -> Tensor:
        """alpha^2 variances + sigma^2, `(..., M, d)`."""
        alpha, sigma = (_column(scale) for scale in (alpha, sigma))
        return alpha**2 * self.variances + sigma**2

    def to(self, x: Tensor) -> Components:
        """Return the components in x's dtype and on its device, x being points `(..., d)`."""
        require(isinstance(x, Tensor) and x.is_floating_point(), "x", "be a tensor of floating-point numbers",
                x.dtype if isinstance(x, Tensor) else type(x).__name__, "Convert it: x.float().")  # fmt: skip
        require(x.ndim and x.shape[-1] == self.dim, "x", f"hold points of {self.dim} coordinates",
                f"shape {tuple(x.shape)}", "Pass points (..., d) of the distribution's own dimension.")  # fmt: skip
        bases = None if self.bases is None else self.bases.to(x)
        return Components(self.means.to(x), self.variances.to(x), bases, self.weights)

    def whiten(self, x: Tensor, alpha: Scale, sigma: Scale) -> tuple[Tensor, Tensor]:
        """Return (x - alpha mean_k) in each eigenbasis, and the noised variances: both `(..., M, d)`."""
        centred = x.unsqueeze(-2) - _column(alpha) * self.means
        if self.bases is not None:
            centred = torch.einsum("...md,mde->...me", centred, self.bases)
        return centred, self.noised(alpha, sigma)

    def log_prob(self, x: Tensor, alpha: Scale, sigma: Scale) -> Tensor:
        """Return log N_k(x), `(..., d) -> (..., M)`."""
        centred, variances = self.whiten(x, alpha, sigma)
        return -0.5 * (centred**2 / variances + variances.log()).sum(-1) - 0.5 * self.dim * math.log(2 * math.pi)

    def scores(self, x: Tensor, alpha: Scale, sigma: Scale) -> Tensor:
        """Return the score of every component, `(..., d) -> (..., M, d)`."""
        centred, variances = self.whiten(x, alpha, sigma)
        scores = -centred / variances
        return scores if self.bases is None else torch.einsum("...me,mde->...md", scores, self.bases)

    def draw(self, which: Tensor, normals: Tensor) -> Tensor:
        """Return mean_k + cov_k^(1/2) z for component indices `(n,)` and normals `(n, d)`."""
        scaled = normals * self.variances.sqrt()[which]
        if self.bases is not None:
            scaled = torch.einsum("ne,nde->nd", scaled, self.bases[which])
        return self.means[which] + scaled


def _column(scale: Scale) -> Scale:
    """Append the component and coordinate axes to a tensor of scales."""
    return scale[..., None, None] if isinstance(scale, Tensor) else scale
