"""The distribution of a causal model that is not linear and Gaussian: exact at t = 0, and there alone.

Noise added to x convolves the density; for a nonlinear mechanism or mixing that integral has no closed form, so there
is no noised score, and this is no `Distribution` that a family could hold. It is data for `ps.fit`, and the truth to
compare with.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyscore.causal.mechanisms import Mechanism
from polyscore.causal.mixing import InvertibleMap, Matrix, check_mixing, checked
from polyscore.devices import on_cpu
from polyscore.distributions.inputs import check_draw
from polyscore.errors import require, shorten
from polyscore.rng import derive

_PROBES = 8  # draws with which functions are tried before anything depends on them


class Structural:
    """log P(x) = sum_i log Q(z_i | parents) - log |det J_g(z)| at z = g^-1(x), and draws of x = g(z).

    Args:
        mechanisms: by variable, in the order of the coordinates of z.
        order: the variables, parents before children.
        mixing: g; x = z without one.
    """

    def __init__(
        self, mechanisms: Mapping[str, Mechanism], order: tuple[str, ...], mixing: InvertibleMap | None
    ) -> None:
        self.mechanisms, self.order, self.mixing = dict(mechanisms), order, mixing
        self.variables = tuple(mechanisms) if mixing is None else ()
        self._index = {name: i for i, name in enumerate(mechanisms)}
        self.dim = len(self._index)
        self.event = (self.dim,)
        probes = self._latent(_PROBES, 0)
        for name, term in zip(self.mechanisms, self._terms(probes), strict=True):
            checked(term, (_PROBES,), f"log_prob of {name!r}", "Mend its mechanism.")
        if mixing is not None and not isinstance(mixing, Matrix):
            check_mixing(mixing, probes)

    @on_cpu
    def log_prob(self, x: Tensor) -> Tensor:
        """Return the normalised log-density, `(..., d) -> (...)`, in the precision of x."""
        require(isinstance(x, Tensor) and x.is_floating_point() and x.ndim and x.shape[-1] == self.dim, "x",
                f"be a tensor of floating-point numbers (..., {self.dim})",
                tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__,
                "Convert it: torch.as_tensor(x, dtype=torch.float64).")  # fmt: skip
        if self.mixing is None:
            return torch.stack(self._terms(x)).sum(0)
        z = self.mixing.inverse(x)
        return torch.stack(self._terms(z)).sum(0) - self.mixing.log_det(z)

    @on_cpu
    def sample(self, n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return `n` draws, `(n, d)`; the same for the same seed."""
        check_draw(n, self.dim, dtype)
        z = self._latent(n, seed)
        return (z if self.mixing is None else self.mixing.forward(z)).to(dtype)

    def _terms(self, z: Tensor) -> list[Tensor]:
        """log Q(z_i | parents) of every variable, `(...)` each."""
        return [m.log_prob(z[..., i], self._given(z, m)) for i, m in enumerate(self.mechanisms.values())]

    def _latent(self, n: int, seed: int) -> Tensor:
        """Draws of z, `(n, d)`, float64: every variable from noise of its own, so that others' stays under change."""
        z = torch.zeros(n, self.dim, dtype=torch.float64)
        for name in self.order:
            mechanism = self.mechanisms[name]
            value = mechanism.sample(self._given(z, mechanism), derive(seed, "causal", name))
            z[:, self._index[name]] = checked(value, (n,), f"sample of {name!r}", f"Mend {shorten(mechanism)}.")
        return z

    def _given(self, z: Tensor, mechanism: Mechanism) -> Tensor:
        """The parents' values, `(..., p)`."""
        return z[..., [self._index[name] for name in mechanism.parents]]

    def __repr__(self) -> str:
        seen = "" if self.mixing is None else f", seen through {self.mixing!r}"
        return f"Structural distribution of {self.dim} variables{seen}"
