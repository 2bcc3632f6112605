"""Gaussian components N(mean_k, cov_k), kept in the eigenbasis of each covariance.

Noising acts on eigenvalues alone: cov -> alpha^2 cov + sigma^2 I, in the same basis. So the precision at any noise
level costs a division, not an inverse, and a batch of noise levels broadcasts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from polyscore.distributions.distribution import Distribution, Scale
from polyscore.errors import ArgumentError, is_count, is_finite, require, shorten
from polyscore.limits import require_memory


def components_of(distribution: Distribution) -> Components:
    """Return the Gaussian components behind a distribution; a Gaussian has one."""
    components = getattr(distribution, "components", None)
    require(isinstance(components, Components), "the distribution", "be a Gaussian or a mixture of them",
            type(distribution).__name__)  # fmt: skip
    return cast(Components, components)


def weights_of(distribution: Distribution) -> Tensor:
    """Return the weights of those components, `(M,)`; 1 for a Gaussian."""
    return getattr(distribution, "weights", torch.ones(1, dtype=torch.float64))


def as_float64(value: Any, subject: str) -> Tensor:
    """Return `value` as a finite float64 CPU tensor: real numbers only, whatever holds them."""
    try:
        tensor = _real(value)
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
        raise ArgumentError(f"{subject} must be a number or a regular array; got {shorten(value)}.") from error
    require(tensor.isfinite().all(), subject, "be finite", tensor.tolist() if tensor.numel() < 100 else tensor)
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
    require(is_count(n), "n", "be at least 1" if isinstance(n, Integral) else "be a whole number of at least 1", n)
    require(isinstance(dtype, torch.dtype) and dtype.is_floating_point, "dtype", "be a floating-point type of torch",
            shorten(dtype), "Use torch.float32 or torch.float64.")  # fmt: skip
    require_memory(16 * n * dim, f"{shorten(n)} draws in {dim} dimensions", "Draw fewer, or a part at a time.")


def eigen(cov: Any, dim: int, subject: str = "cov") -> tuple[Tensor, Tensor | None]:
    """Return (eigenvalues `(d,)`, basis `(d, d)` or None when diagonal) of a scalar, diagonal or full covariance."""
    cov = as_float64(cov, subject)
    if cov.ndim == 2 and cov.shape == (dim, dim) and torch.equal(cov, cov.diagonal().diag()):
        cov = cov.diagonal()
    if cov.ndim <= 1:
        require(cov.ndim == 0 or len(cov) == dim, subject, f"have {dim} entries", len(cov) if cov.ndim else 1)
        return _positive(cov.expand(dim).clone(), subject, cov), None
    require(cov.shape == (dim, dim), subject, f"be a scalar, ({dim},) or ({dim}, {dim})", tuple(cov.shape))
    gap = (cov - cov.T).abs().max().item()
    require(gap <= 1e-8 * cov.abs().max(), subject, "be symmetric", f"|cov - cov^T| up to {gap:.3g}",
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


class Components:
    """M Gaussians: `means` (M, d), `variances` (M, d) in `bases` (M, d, d), or in the axes when `bases` is None."""

    def __init__(self, means: Tensor, variances: Tensor, bases: Tensor | None) -> None:
        self.means, self.variances, self.bases = means, variances, bases
        self.count, self.dim = means.shape

    @classmethod
    def build(cls, means: Tensor, covs: Sequence[Any]) -> Components:
        """Return components from means `(M, d)` and M covariances, each scalar, diagonal or full."""
        dim = means.shape[1]
        pairs = [eigen(cov, dim, f"cov of component {k}" if len(covs) > 1 else "cov") for k, cov in enumerate(covs)]
        variances = torch.stack([values for values, _ in pairs])
        if all(basis is None for _, basis in pairs):
            return cls(means, variances, None)
        identity = torch.eye(dim, dtype=torch.float64)
        return cls(means, variances, torch.stack([identity if basis is None else basis for _, basis in pairs]))

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

    def precision_at(self, alpha: Tensor, sigma: Tensor) -> Tensor:
        """Return the noised precisions for `alpha`, `sigma` of shape (T,), as `(T, M, d, d)`."""
        return self._rebuild(1 / self._noised(alpha, sigma))

    def _rebuild(self, values: Tensor) -> Tensor:
        if self.bases is None:
            return torch.diag_embed(values)
        return (self.bases * values.unsqueeze(-2)) @ self.bases.mT

    def _noised(self, alpha: Scale, sigma: Scale) -> Tensor:
        """alpha^2 variances + sigma^2, `(..., M, d)`."""
        alpha, sigma = (_column(scale) for scale in (alpha, sigma))
        return alpha**2 * self.variances + sigma**2

    def to(self, x: Tensor) -> Components:
        """Return the components in x's dtype and on its device, x being points `(..., d)`."""
        require(isinstance(x, Tensor) and x.is_floating_point(), "x", "be a tensor of floating-point numbers",
                x.dtype if isinstance(x, Tensor) else type(x).__name__, "Convert it: x.float().")  # fmt: skip
        require(x.ndim and x.shape[-1] == self.dim, "x", f"hold points of {self.dim} coordinates",
                f"shape {tuple(x.shape)}")  # fmt: skip
        bases = None if self.bases is None else self.bases.to(x)
        return Components(self.means.to(x), self.variances.to(x), bases)

    def whiten(self, x: Tensor, alpha: Scale, sigma: Scale) -> tuple[Tensor, Tensor]:
        """Return (x - alpha mean_k) in each eigenbasis, and the noised variances: both `(..., M, d)`."""
        centred = x.unsqueeze(-2) - _column(alpha) * self.means
        if self.bases is not None:
            centred = torch.einsum("...md,mde->...me", centred, self.bases)
        return centred, self._noised(alpha, sigma)

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
