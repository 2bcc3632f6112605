"""The objects over which law tests run: add one to a list, and every law is checked for it.

Everything a test compares *with* (closed forms, moments, naive formulas) is written here in plain NumPy or plain loops,
sharing no code with the package.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

import polyscore as ps
from polyscore.samplers.grids import equal_grid

F64 = torch.float64


def spd(dim: int, seed: int, scale: float = 1.0, floor: float = 0.3) -> np.ndarray:
    """A full covariance with no symmetry: two different seeds do not commute."""
    a = np.random.default_rng(seed).normal(size=(dim, dim))
    return scale * (a @ a.T / dim + floor * np.eye(dim))


def vector(dim: int, seed: int, scale: float = 1.0) -> np.ndarray:
    return scale * np.random.default_rng(seed).normal(size=dim)


SCHEDULES = {
    "VP": ps.VP(),
    "VP-narrow": ps.VP(0.5, 16.0),
    "DDPM": ps.DDPM(),
    "DDPM-200": ps.DDPM(timesteps=200, beta_start=1e-3, beta_end=0.06),
    "DDPM-zero-snr": ps.DDPM(zero_snr=True),
    "DDPM-200-zero-snr": ps.DDPM(timesteps=200, beta_start=1e-3, beta_end=0.03, zero_snr=True),
    "Cosine": ps.Cosine(),
    "Cosine-offset": ps.Cosine(offset=0.008),
    "LinearFlow": ps.LinearFlow(),
}
PURE_NOISE = {name: s for name, s in SCHEDULES.items() if name.endswith("zero-snr") or name[:6] in ("Cosine", "Linear")}

DISTRIBUTIONS = {
    "gaussian-1": ps.Gaussian(mean=[0.7], cov=2.3),
    "gaussian-2-scalar": ps.Gaussian(cov=0.6),
    "gaussian-2-diagonal": ps.Gaussian(mean=[1.0, -2.0], cov=[4.0, 0.25]),
    "gaussian-3-full": ps.Gaussian(mean=vector(3, 1), cov=spd(3, 2)),
    "gaussian-4-full": ps.Gaussian(mean=vector(4, 3), cov=spd(4, 4)),
    "gaussian-5-full": ps.Gaussian(mean=vector(5, 5), cov=spd(5, 6)),
    "mixture-1": ps.Mixture([[-2.0], [0.5], [3.0]], cov=[0.2, 0.9, 0.4], weights=[0.2, 0.5, 0.3]),
    "mixture-2-paper": ps.Mixture([[-3, 2.5], [0, 2.5], [3, -2.5]]),
    "mixture-2-shared-full": ps.Mixture([[-3, 1], [2, 0.5], [0, -2]], cov=spd(2, 7), weights=[1, 3, 2]),
    "mixture-2-own": ps.Mixture([[-1.5, 0], [1, 1], [2, -2]], cov=[0.4, [1.0, 0.2], spd(2, 8)], weights=[5, 2, 3]),
    "mixture-3-shared-full": ps.Mixture(np.stack([vector(3, 9, 2), vector(3, 10, 2)]), cov=spd(3, 11), weights=[4, 1]),
    "mixture-5-own": ps.Mixture(
        np.stack([vector(5, 12, 2), vector(5, 13, 2), vector(5, 14, 2)]), cov=[spd(5, 15), spd(5, 16), 0.5]
    ),
}  # fmt: skip


def gaussian_family(dim: int, schedule: ps.Schedule | None = None) -> ps.Family:
    """Three Gaussians with non-zero means and full covariances that do not commute; "base" is wide."""
    return ps.Family(
        {
            "a": ps.Gaussian(mean=vector(dim, 21, 0.8), cov=spd(dim, 22, 1.2)),
            "b": ps.Gaussian(mean=vector(dim, 23, 0.8), cov=spd(dim, 24, 0.8)),
            "base": ps.Gaussian(mean=vector(dim, 25, 0.5), cov=spd(dim, 26, 2.0, floor=1.5)),
        },
        schedule=schedule,
    )


def gentle_family(dim: int, schedule: ps.Schedule | None = None) -> ps.Family:
    """As `gaussian_family`, but nearly factorized: the ODE's importance weights then have a finite variance.

    (2 Lambda - C^-1 is positive definite, with C the covariance that the ODE pushes the start to.)
    """

    def cov(narrow: int | None, seed: int) -> np.ndarray:
        diagonal = np.full(dim, 2.2 if narrow is None else 2.0)
        if narrow is not None:
            diagonal[narrow] = 1.0
        return np.diag(diagonal) + 0.25 * spd(dim, seed, floor=0.0)

    return ps.Family(
        {
            "a": ps.Gaussian(mean=vector(dim, 21, 0.4), cov=cov(0, 22)),
            "b": ps.Gaussian(mean=vector(dim, 23, 0.4), cov=cov(1, 24)),
            "base": ps.Gaussian(mean=vector(dim, 25, 0.4), cov=cov(None, 26)),
        },
        schedule=schedule,
    )


def shared_mixtures(dim: int, schedule: ps.Schedule | None = None) -> ps.Family:
    """Mixtures (and one Gaussian) of one full covariance."""
    cov = spd(dim, 31, 0.7)
    return ps.Family(
        {
            "a": ps.Mixture(np.stack([vector(dim, 32, 2), vector(dim, 33, 2)]), cov=cov, weights=[0.3, 0.7]),
            "b": ps.Mixture(np.stack([vector(dim, s, 2) for s in (34, 35, 36, 37)]), cov=cov, weights=[4, 3, 2, 1]),
            "base": ps.Gaussian(mean=vector(dim, 38), cov=cov),
        },
        schedule=schedule,
    )


def own_mixtures(dim: int, schedule: ps.Schedule | None = None) -> ps.Family:
    """Mixtures whose components differ in shape, and a wide base."""
    means = [np.stack([vector(dim, 41 + 3 * i + k, 1.5) for k in range(3)]) for i in range(2)]
    return ps.Family(
        {
            "a": ps.Mixture(means[0], cov=[spd(dim, 51), spd(dim, 52, 0.5), 0.8], weights=[0.5, 0.3, 0.2]),
            "b": ps.Mixture(means[1], cov=[0.6, spd(dim, 53), spd(dim, 54, 0.6)], weights=[0.1, 0.3, 0.6]),
            "base": ps.Mixture(means[0][:2] + 0.3, cov=[6.0, 4.0], weights=[0.4, 0.6]),
        },
        schedule=schedule,
    )


def compose(family: ps.Family, **exponents: float) -> ps.Composition:
    return ps.Composition(family, exponents)


def compositions(schedule: ps.Schedule | None = None) -> dict[str, ps.Composition]:
    """Proper compositions of every kind: W = 1 and not, one to three factors, one to four dimensions."""
    g1, g2, g3, g4 = (gaussian_family(dim, schedule) for dim in (1, 2, 3, 4))
    s2, s3, o2, o3 = (make(dim, schedule) for make in (shared_mixtures, own_mixtures) for dim in (2, 3))
    return {
        "single": compose(g2, a=1),
        "gaussians-1d-1,1": compose(g1, a=1, b=1),
        "gaussians-2d-1,1,-1": compose(g2, a=1, b=1, base=-1),
        "gaussians-3d-.3,.2": compose(g3, a=0.3, b=0.2),
        "gaussians-3d-2,-.5": compose(g3, a=2, base=-0.5),
        "gaussians-4d-.5,.5": compose(g4, a=0.5, b=0.5),
        "shared-2d-1,1,-1": compose(s2, a=1, b=1, base=-1),
        "shared-3d-1.3,.4,-.6": compose(s3, a=1.3, b=0.4, base=-0.6),
        "own-2d-1,1,-1": compose(o2, a=1, b=1, base=-1),
        "own-3d-.7,.6,-.1": compose(o3, a=0.7, b=0.6, base=-0.1),
        "own-3d-single-power": compose(o3, b=1.5),
    }


def closed_form(q: ps.Composition) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, covariance and log normalising constant of a composition of Gaussians, by NumPy inverses."""
    dim = q.event[0]
    precision, shift, constant = np.zeros((dim, dim)), np.zeros(dim), 0.0
    for name, w in q.exponents.items():
        part = q.family.members[name]
        mean, cov = part.mean.numpy(), part.cov.numpy()
        p = np.linalg.inv(cov)
        precision += w * p
        shift += w * p @ mean
        constant += w * (-0.5 * dim * math.log(2 * math.pi) - 0.5 * np.linalg.slogdet(cov)[1] - 0.5 * mean @ p @ mean)
    cov = np.linalg.inv(precision)
    log_z = constant + 0.5 * dim * math.log(2 * math.pi) + 0.5 * np.linalg.slogdet(cov)[1] + 0.5 * shift @ cov @ shift
    return cov @ shift, cov, log_z


def naive_excess(scores: Tensor, exponents: list[float]) -> Tensor:
    """|S|^2 - sum w |s|^2 to the letter, in float64; scores (A, ..., d)."""
    scores = scores.double()
    composed = sum(w * s for w, s in zip(exponents, scores, strict=True))
    return (composed**2).sum(-1) - sum(w * (s**2).sum(-1) for w, s in zip(exponents, scores, strict=True))


def points(q: ps.Composition, n: int, seed: int = 0, scale: float = 2.0, dtype: torch.dtype = F64) -> Tensor:
    return scale * torch.randn(n, *q.event, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class Opaque:
    """A distribution dressed as a learned model: scores only, no closed form."""

    def __init__(self, part: ps.Gaussian | ps.Mixture, schedule: ps.Schedule) -> None:
        self.part, self.schedule, self.event = part, schedule, part.event

    def score(self, x: Tensor, t: Tensor) -> Tensor:
        return self.part.score(x, self.schedule.alpha(t), self.schedule.sigma(t))


def opaque(q: ps.Composition) -> ps.Composition:
    """The same composition with every member hidden behind `Opaque`."""
    members = {name: Opaque(member, q.schedule) for name, member in q.family.members.items()}
    return ps.Composition(ps.Family(members, q.schedule), q.exponents)


def weighted_moments(run: ps.Run) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of all particles, each swarm's weights normalised."""
    weights = torch.softmax(run.log_weights.double(), -1).flatten()
    weights = (weights / weights.sum()).numpy()
    x = run.particles.double().flatten(0, 1).numpy()
    mean = weights @ x
    return mean, (weights[:, None] * (x - mean)).T @ (x - mean)


def within_standard_errors(
    values: Tensor, expected: Tensor | np.ndarray | float, sigmas: float, slack: float = 0.0
) -> None:
    """Assert that the mean over rows is `expected` within so many of its own standard errors, plus `slack`."""
    values = values.double()
    mean, error = values.mean(0), values.std(0) / math.sqrt(len(values))
    gap = (mean - torch.as_tensor(expected, dtype=F64)).abs()
    assert bool((gap <= sigmas * error + slack).all()), f"gap {gap}, standard error {error}"


def time_grid(steps: int) -> torch.Tensor:
    """Equal times of the default schedule."""
    return equal_grid(ps.VP(), steps).times
