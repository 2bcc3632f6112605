"""Mixtures as `fit` returns them where no network is believed: closed forms that know how well they are known."""

from __future__ import annotations

import copy
import math

import torch
from torch import Generator, Tensor

from polyscore.distributions import Mixture, mixture_of
from polyscore.distributions.components import Components
from polyscore.mixtures import Parts, redrawn, support
from polyscore.nn import ScoreNetwork
from polyscore.nn.mixture import Mixed

_SAME = 1e-5  # of a variance or an axis, by which rounding may have moved it


class Fitted(Mixture):
    """One condition of a network that is a mixture and no more, as the distribution that it is.

    Attributes:
        network, index: where it came from, which is what files hold.
        points: how many it was fitted to.
    """

    def __init__(self, network: ScoreNetwork, index: int) -> None:
        held = {name: network.tensors()[name] for name in Mixed.per_condition}
        tensors = {name: part.flatten(0, 1)[index].double().cpu() for name, part in held.items()}
        found = _components(*(tensors[name] for name in Parts._fields))
        if found is None:
            raise ValueError("a mixture with weights and variances above 0")
        self.network, self.index, self.points = network, index, max(1.0, tensors["points"].item())
        self.dim, self.components = network.dim, found
        rows = zip(*(tensors[f"half_{name}"] for name in Parts._fields), strict=True)
        self._halves = [_components(*row) for row in rows]

    @property
    def errors(self) -> Tensor:
        """Relative standard error of each component's variances, `(M,)`: sqrt(2 / n) for n points behind them."""
        return (2 / support(self._parts, self.points).amin(-1)).sqrt()

    @property
    def _parts(self) -> Parts:
        own = self.components
        eye = torch.eye(self.dim, dtype=torch.float64).expand(own.count, -1, -1)
        return Parts(own.weights, own.means, own.variances, eye if own.bases is None else own.bases)

    def redrawn(self, source: Generator) -> Mixture:
        """Return another mixture that as many points could as well have given."""
        parts = redrawn(self._parts, self.points, source)
        return mixture_of(Components(parts.means, parts.variances, parts.bases, parts.weights))

    def halves(self) -> list[Mixture]:
        """Return what each half of the points gave by itself; none where that was not asked, as up to 0.6.0."""
        return [mixture_of(half) for half in self._halves if half is not None]

    def widened(self, by: float) -> Fitted:
        """Return the mixture whose variances are multiplied by 1 + `by` errors, or divided where that is negative."""
        factor = (1 + abs(by) * self.errors) ** math.copysign(1.0, by)
        own, other = self.components, copy.copy(self)
        other.components = Components(own.means, own.variances * factor[:, None], own.bases, own.weights)
        return other

    def moved(self, by: Tensor, size: float = 1.0) -> Fitted:
        """Return the mixture of (x + by) / size, as well known as it was."""
        other = copy.copy(self)
        other.components = self.components.moved(by, size)
        other._halves = [None if half is None else half.moved(by, size) for half in self._halves]
        return other

    def with_tail(self, wide: float) -> Fitted:
        """Return the mixture with one point more, spread over `wide` times its covariance."""
        own, parts, other = self.components, self._parts, copy.copy(self)
        mean, covariance = own.moments()
        values, basis = torch.linalg.eigh(covariance if covariance.ndim == 2 else covariance.diag())
        one = own.weights.new_tensor([1 / (self.points + 1)])
        other.components = Components(
            torch.cat([own.means, mean[None]]), torch.cat([own.variances, wide * values[None]]),
            torch.cat([parts.bases, basis[None]]), torch.cat([(1 - one) * own.weights, one]),
        )  # fmt: skip
        return other


def _components(weights: Tensor, means: Tensor, variances: Tensor, bases: Tensor) -> Components | None:
    """The components that are there, or None."""
    kept = weights > 0
    if not bool(kept.any()) or not bool((variances[kept] > 0).all()):
        return None
    return Components(means[kept], *_along_axes(variances[kept], bases[kept]), weights[kept] / weights[kept].sum())


def _along_axes(variances: Tensor, bases: Tensor) -> tuple[Tensor, Tensor | None]:
    """Variances along the data's axes and no bases, where all bases are these in some order or turn nothing."""
    aligned = (bases.abs() < _SAME) | (bases.abs() > 1 - _SAME)
    round_ = variances.amax(-1) <= (1 + _SAME) * variances.amin(-1)
    if not bool((aligned.all(-1).all(-1) | round_).all()):
        return variances, bases
    along = (bases.square() @ variances[..., None])[..., 0]
    return torch.where(round_[:, None], variances.mean(-1, keepdim=True), along), None


def is_a_mixture(network: ScoreNetwork) -> bool:
    """Whether a network is a mixture and no more: by its kind, or because all its gates are shut."""
    stack = getattr(network, "stack", None)
    return isinstance(stack, Mixed) and stack.is_a_mixture


def are_fitted(members: list[object]) -> bool:
    """Whether all are fitted mixtures of one network, which files can hold."""
    fitted = [member for member in members if isinstance(member, Fitted)]
    return len(fitted) == len(members) > 0 and all(member.network is fitted[0].network for member in fitted)
