"""The rooms' settings: in distribution, out of it, and out of it with both objects as target; a painting or a table.

Classes are empty, couch, X, couch+X. The compositions couch * X / base have the class masses

    id        0.0004, 0.020, 0.020, 0.960       alpha = 0.01
    ood       0.0002, 0.496, 0.496, 0.009       beta = 0.05 / 3: one object *or* the other, not both
    ood-both  0.003,  0.047, 0.047, 0.903       epsilon = 0.05: presence of either object independent in every source

so that the text's out-of-distribution target is not both objects; the third kind has both as its target, and hardly any
in its sources.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polyscore.errors import require_known
from polyscore.images.mixtures import Mixtures

OBJECTS = ("painting", "table")
ALPHA, BETA, EPSILON = 0.01, 0.05 / 3, 0.05
Vectors = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]  # of base, couch, X


def in_distribution(alpha: float = ALPHA) -> Vectors:
    """Return vectors under which both objects are common: base uniform, the others half their object, half both."""
    half = 0.5 - alpha
    return (0.25,) * 4, (alpha, half, alpha, half), (alpha, alpha, half, half)


def out_of_distribution(beta: float = BETA) -> Vectors:
    """Return vectors that are each nearly one class: empty, couch, X; beta is the mass of every other one."""
    most = 1 - 3 * beta
    return (most, beta, beta, beta), (beta, most, beta, beta), (beta, beta, most, beta)


def independent(epsilon: float = EPSILON) -> Vectors:
    """Return vectors in which objects are independent: there with probability epsilon, one's own with 1 - epsilon."""

    def both(couch: float, other: float) -> tuple[float, ...]:
        return ((1 - couch) * (1 - other), couch * (1 - other), (1 - couch) * other, couch * other)

    return both(epsilon, epsilon), both(1 - epsilon, epsilon), both(epsilon, 1 - epsilon)


KINDS: dict[str, Callable[[], Vectors]] = {
    "id": in_distribution,
    "ood": out_of_distribution,
    "ood-both": independent,
}


@dataclass(frozen=True)
class ImageSetting:
    """Conditions and the composition of them.

    Attributes:
        other: the object beside the couch.
    """

    name: str
    mixtures: Mixtures
    other: str

    @property
    def exponents(self) -> dict[str, float]:
        """Couch and X over base."""
        return {"couch": 1.0, self.other: 1.0, "base": -1.0}

    @property
    def target(self) -> dict[str, float]:
        """The exact class masses of the composition."""
        return self.mixtures.masses(self.exponents)


def made(name: str, vectors: Vectors, other: str) -> ImageSetting:
    """Return a setting of one's own: vectors of base, couch and X over empty, couch, X, couch+X."""
    classes = ("empty", "couch", other, f"couch+{other}")
    return ImageSetting(name, Mixtures(classes, dict(zip(("base", "couch", other), vectors, strict=True))), other)


SETTINGS = {
    f"{kind}-{other}": made(f"{kind}-{other}", vectors(), other) for other in OBJECTS for kind, vectors in KINDS.items()
}


def setting(name: str) -> ImageSetting:
    """Return a setting by name, such as "ood-both-table"."""
    require_known(name, SETTINGS, "a setting")
    return SETTINGS[name]
