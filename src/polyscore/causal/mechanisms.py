"""Mechanisms: how one variable is set from its parents, as a conditional density Q(z_i | parents) and a way to draw.

    Linear:    z_i = sum_k b_k z_k + shift + N(0, variance)
    Additive:  z_i = f(z_parents) + noise of a known density

One without parents is what a perfect intervention puts in the place of another.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from polyscore.causal.graph import check_names
from polyscore.distributions import Density, Gaussian
from polyscore.errors import is_finite, require, shorten
from polyscore.models.asking import ModelError, asking

_Kind = TypeVar("_Kind", bound="Mechanism")


class Mechanism(ABC):
    """Q(z_i | parents). One of your own has `parents`, `log_prob` and `sample`.

    Attributes:
        parents: names of the variables that it reads, in the order in which it is given their values.
    """

    parents: tuple[str, ...]

    @abstractmethod
    def log_prob(self, value: Tensor, given: Tensor) -> Tensor:
        """Return log Q(value | given), `(...)` and `(..., p) -> (...)`, normalised in value."""

    @abstractmethod
    def sample(self, given: Tensor, seed: int) -> Tensor:
        """Return one draw for each row of `given`, `(n, p) -> (n,)`, float64; the same for the same seed."""

    def changed(self: _Kind, **fields: Any) -> _Kind:
        """Return a copy with some fields replaced: `model["y"].changed(shift=2.0)` is a soft intervention's."""
        known: list[str] = [f.name for f in dataclasses.fields(self)] if dataclasses.is_dataclass(self) else []
        for name in fields:
            require(name in known, f"a field of {type(self).__name__}", f"be one of {', '.join(known) or 'none'}",
                    shorten(name), "Leave it out, or write another mechanism.")  # fmt: skip
        return dataclasses.replace(self, **fields)  # type: ignore[type-var]


class _WithNoise(Mechanism):
    """centre(parents) + noise."""

    noise: Density

    @abstractmethod
    def centre(self, given: Tensor) -> Tensor:
        """Return where the noise is added, `(..., p) -> (...)`."""

    def log_prob(self, value: Tensor, given: Tensor) -> Tensor:
        return self.noise.log_prob((value - self.centre(given)).unsqueeze(-1))

    def sample(self, given: Tensor, seed: int) -> Tensor:
        return self.centre(given) + self.noise.sample(len(given), seed, torch.float64).squeeze(-1)


@dataclass(frozen=True)
class Linear(_WithNoise):
    """sum_k b_k z_k + shift + N(0, variance).

    Args:
        coefficients: b_k by parent; none for a variable without parents, or under a perfect intervention.
        shift: any number.
        variance: of the noise, positive.
    """

    coefficients: Mapping[str, float] = field(default_factory=dict)
    shift: float = 0.0
    variance: float = 1.0

    def __post_init__(self) -> None:
        require(isinstance(self.coefficients, Mapping), "coefficients", "be a mapping from parent to number",
                shorten(self.coefficients), "Write Linear({'x': 0.8}, shift=1.0).")  # fmt: skip
        check_names(self.coefficients, "a parent")
        for name, value in self.coefficients.items():
            require(is_finite(value), f"the coefficient of {name!r}", "be a finite number", shorten(value),
                    "Leave a parent without effect out.")  # fmt: skip
        require(is_finite(self.shift), "shift", "be a finite number", shorten(self.shift), "Pass shift=0.0 for none.")
        _check_variance(self.variance, "variance")
        plain = {name: float(value) for name, value in self.coefficients.items()}
        object.__setattr__(self, "coefficients", plain)
        object.__setattr__(self, "shift", float(self.shift))
        object.__setattr__(self, "variance", float(self.variance))

    @property
    def parents(self) -> tuple[str, ...]:  # type: ignore[override]
        """The variables with a coefficient, 0 too: the graph is what is written, not what it happens to do."""
        return tuple(self.coefficients)

    @property
    def noise(self) -> Gaussian:  # type: ignore[override]
        """N(0, variance)."""
        return Gaussian(cov=self.variance, dim=1)

    def centre(self, given: Tensor) -> Tensor:
        return given @ given.new_tensor(list(self.coefficients.values())) + self.shift

    def __repr__(self) -> str:
        return f"Linear({self.coefficients}, shift={self.shift:g}, variance={self.variance:g})"


@dataclass(frozen=True)
class Additive(_WithNoise):
    """f(z_parents) + noise.

    Args:
        function: f, from values `(..., p)` in the order of `parents` to `(...)`; or a number.
        parents: the variables that it reads, none for a number.
        noise: a density on the line that can be drawn from, such as `ps.Mixture([[-1], [2]])`; or the variance of a
            Gaussian.
    """

    function: Callable[[Tensor], Tensor] | float
    parents: Sequence[str] = ()  # type: ignore[assignment]
    noise: Density | float = 1.0  # type: ignore[assignment]

    def __post_init__(self) -> None:
        require(callable(self.function) or is_finite(self.function), "function",
                "be a function of the parents' values (..., p), or a number", shorten(self.function),
                "Write Additive(lambda v: v[..., 0].sin(), ['x']).")  # fmt: skip
        require(isinstance(self.parents, (list, tuple)), "parents", "be a list of names", shorten(self.parents),
                "Write ['x'].")  # fmt: skip
        require(callable(self.function) == bool(self.parents), "parents", "be named for a function, and only for one",
                shorten(self.parents), "Write Additive(0.0) or Additive(function, ['x']).")  # fmt: skip
        check_names(self.parents, "a parent")
        object.__setattr__(self, "parents", tuple(self.parents))
        object.__setattr__(self, "noise", _noise(self.noise))

    def centre(self, given: Tensor) -> Tensor:
        if not callable(self.function):
            return given.new_full(given.shape[:-1], float(self.function))
        where = f"the function of {', '.join(self.parents)}"
        with asking(lambda got: f"{where} must take values {tuple(given.shape)}; got {got}. Mend it."):
            value = self.function(given)
        good = isinstance(value, Tensor) and value.shape == given.shape[:-1]
        if not good:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ModelError(f"{where} must return a tensor {tuple(given.shape[:-1])} for values "
                             f"{tuple(given.shape)}; got {got}. Read parents by v[..., 0], v[..., 1], ...")  # fmt: skip
        return value

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", shorten(self.function, 60))
        return f"Additive({name}, {list(self.parents)}, noise={self.noise!r})"


def _noise(noise: Any) -> Density:
    """A density on the line: as it is, or a Gaussian of the given variance."""
    if isinstance(noise, Density):
        require(noise.event == (1,), "noise", "be a density in one dimension", f"event {noise.event}",
                "Write ps.Gaussian(cov=0.5, dim=1) or ps.Mixture([[-1.0], [2.0]]).")  # fmt: skip
        require(noise.has_sample, "noise", "have sample(n, seed, dtype)", type(noise).__name__, "Write it.")
        return noise
    _check_variance(noise, "noise, as a variance,")
    return Gaussian(cov=float(noise), dim=1)


def _check_variance(value: Any, subject: str) -> None:
    require(is_finite(value) and value > 0, subject, "be a positive number", shorten(value),
            "A variable without noise has no density: use a small variance.")  # fmt: skip
