"""The six synthetic settings of the paper, each a family of `a1`, `a2` and `base` to be composed as a1 * a2 / base.

Where the paper's text and its experiments disagree, these are the experiments: mixture components in distribution have
standard deviation 0.6 (variance 0.36), and the second mean of a1 out of distribution is (9, 0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from polyscore.algebra import Family
from polyscore.distributions import Gaussian, Mixture
from polyscore.errors import require_known
from polyscore.schedules import VP

_SCHEDULE = VP(beta_min=0.1, beta_max=20.0)
_GRID = ((-3.0, 2.5), (0.0, 2.5), (3.0, 2.5), (-3.0, -2.5), (0.0, -2.5), (3.0, -2.5))
_FAR = ((-6.0, 1.5), (9.0, 0.0), (0.0, -9.0), (-1.5, 6.0))


def gaussians(base: float) -> Family:
    """Return N(0, diag(10, 1)), N(0, diag(1, 10)) and the base N(0, base I)."""
    return Family({"a1": Gaussian(cov=[10, 1]), "a2": Gaussian(cov=[1, 10]), "base": Gaussian(cov=base)}, _SCHEDULE)


def grid_mixtures() -> Family:
    """Return mixtures over a 2 x 3 grid: the composed modes are modes of every source."""
    members = {"a1": (0, 1, 2, 3), "a2": (1, 2, 4, 5), "base": range(6)}
    return Family({name: Mixture([_GRID[k] for k in chosen], cov=0.36) for name, chosen in members.items()}, _SCHEDULE)


def far_mixtures() -> Family:
    """Return mixtures that share no mode: the composition lives where no source has mass."""
    members = {"a1": _FAR[:2], "a2": _FAR[2:], "base": _FAR}
    return Family({name: Mixture(means, cov=1.0) for name, means in members.items()}, _SCHEDULE)


SETTINGS: dict[str, Callable[[], Family]] = {
    "gaussian-factorized-id": partial(gaussians, 10.0),
    "gaussian-nonfactorized-id": partial(gaussians, 20.0),
    "gaussian-factorized-ood": partial(gaussians, 1.0),
    "gaussian-nonfactorized-ood": partial(gaussians, 1.1),
    "mixture-id": grid_mixtures,
    "mixture-ood": far_mixtures,
}


@dataclass(frozen=True)
class Setting:
    """A setting as the source of an experiment's family: its name is its content."""

    name: str
    content: None = None

    def build(self) -> Family:
        """Return the family."""
        return setting(self.name)


def setting(name: str) -> Family:
    """Return the family of a setting by name."""
    require_known(name, SETTINGS, "a setting")
    return SETTINGS[name]()
