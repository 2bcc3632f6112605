"""The Gaussian: N(alpha mean, alpha^2 cov + sigma^2 I) after noising."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyscore.devices import on_cpu
from polyscore.distributions.components import Components
from polyscore.distributions.distribution import Density, Scale
from polyscore.distributions.inputs import as_float64, brief, check_draw, eigen
from polyscore.errors import is_count, require, shorten
from polyscore.limits import require_memory
from polyscore.rng import generator


class Gaussian(Density):
    """N(mean, cov).

    Args:
        mean: `(d,)`; zero by default.
        cov: scalar, diagonal `(d,)` or full `(d, d)`, positive definite.
        dim: d, where neither mean nor cov says it; 2 by default.
    """

    @on_cpu
    def __init__(self, mean: Any = None, cov: Any = 1.0, dim: int | None = None) -> None:
        cov = as_float64(cov, "cov")
        centre = None if mean is None else as_float64(mean, "mean")
        require(centre is None or centre.ndim == 1, "mean", "be a vector (d,)", mean, "Write mean=[m1, m2, ...].")
        require(dim is None or is_count(dim), "dim", "be a whole number of at least 1", shorten(dim),
                "Leave dim out where mean or cov tells it.")  # fmt: skip
        require(cov.ndim <= 2, "cov", "be a scalar, (d,) or (d, d)", f"shape {tuple(cov.shape)}",
                "Write cov=[10, 1] for a diagonal.")  # fmt: skip
        sizes = (None if centre is None else len(centre), len(cov) if cov.ndim else None, dim)
        stated = {int(size) for size in sizes if size is not None}
        require(len(stated) <= 1, "mean, cov and dim", "agree on the dimension", sorted(stated),
                "Leave dim out, or give mean and cov one length.")  # fmt: skip
        self.dim = stated.pop() if stated else 2
        require(self.dim >= 1, "dim", "be at least 1", self.dim, "Pass a mean or a cov with an entry.")
        require_memory(32 * self.dim, f"a Gaussian in {shorten(self.dim)} dimensions", "Lower dim.")
        self.mean = torch.zeros(self.dim, dtype=torch.float64) if centre is None else centre
        values, basis = eigen(cov, self.dim)
        self.components = Components(self.mean[None], values[None], None if basis is None else basis[None])

    @property
    def cov(self) -> Tensor:
        """Full covariance, `(d, d)`, float64."""
        return self.components.covariances[0]

    @property
    def precision(self) -> Tensor:
        """Inverse covariance, `(d, d)`, float64."""
        return self.components.precisions[0]

    @on_cpu
    def sample(self, n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
        check_draw(n, self.dim, dtype)
        normals = torch.randn(n, self.dim, generator=generator(seed, "gaussian"), dtype=torch.float64)
        return self.components.draw(torch.zeros(n, dtype=torch.long), normals).to(dtype)

    def log_prob(self, x: Tensor, alpha: Scale = 1.0, sigma: Scale = 0.0) -> Tensor:
        return self.components.to(x).log_prob(x, alpha, sigma)[..., 0]

    def score(self, x: Tensor, alpha: Scale = 1.0, sigma: Scale = 0.0) -> Tensor:
        return self.components.to(x).scores(x, alpha, sigma)[..., 0, :]

    def moments(self) -> tuple[Tensor, Tensor]:
        return self.components.moments()

    def __repr__(self) -> str:
        if self.dim <= 4:
            return f"Gaussian(mean={self.mean.tolist()}, cov={self.cov.tolist()})"
        return f"Gaussian in {self.dim} dimensions, mean {brief(self.mean)}, {self.components.shape_text()}"
