"""Whether learned scores may belong to no density at all: by how wide their sources draw, and by how steep they are.

A Gaussian's precision is its inverse covariance and also E|<s, v>|^2, the mean square of its score. Where parts are
apart, as in a mixture, the first says how far these are from each other and the second how fast each falls off, which
is what a composition far out goes by. So both must say that it grows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.devices import without_autocast
from polyscore.errors import PolyscoreError
from polyscore.rng import generator
from polyscore.samplers.denoise import Denoise
from polyscore.schedules import T_MAX, T_MIN

_DRAWS, _STEPS, _MOST_SPREAD = 512, 32, 32  # of a source, and coordinates up to which its spread is looked at
_GROWS = 0.1  # share of all precision by which the negative ones must outweigh
_FAR = 10.0  # times the median distance beyond which a draw ran away
_NARROW = 0.03  # of the mean width, below which a source counts as constant
_NOISE = 0.3  # of the narrowest source, at which scores are asked: below, the error of a network is large


def growth(q: Composition, seed: int) -> str:
    """Return a doubt where a composition of learned scores may have no density, by draws of its sources.

    Of Gaussians with those covariances it would have none: sum_a w_a cov_a^-1 has an eigenvalue below -1/10, measured
    against sum_a |w_a| cov_a^-1, and along its vector sum_a w_a E|<s_a, v>|^2 is negative too. Draws of the sources
    share their random numbers, so that what those leave uncertain is a hundredth.
    """
    if min(q.exponents.values()) >= 0 or math.prod(q.event) > _MOST_SPREAD:
        return ""
    try:
        draws = [draws_alone(q, name, seed) for name in q.exponents]
        along = outweighed(draws, list(q.exponents.values()))
        if along is None or not steepness(q, draws, along, seed) < 0:
            return ""
    except (PolyscoreError, torch.linalg.LinAlgError):  # sources that cannot be drawn one by one tell nothing
        return ""
    shown = ", ".join(f"{value:.2g}" for value in _of_the_data(q, along)[:12].tolist())
    return (
        f"a composition must be normalisable; got {q}, which may not be: by {_DRAWS} draws of each, Gaussians as wide "
        f"as its sources would grow along ({shown}). Then samples and log Z mean nothing. Lower the negative "
        "exponents, raise the positive ones, or choose a wider base."
    )


def outweighed(draws: Sequence[Tensor], exponents: Sequence[float]) -> Tensor | None:
    """Return the unit vector along which negative precisions outweigh the positive ones most; None where none does.

    Args:
        draws: of every source, `(n, d)`; narrower than a thirtieth of them all together is as narrow as that.
    """
    covs = torch.stack([x.T.cov(correction=0).reshape(x.shape[1], -1) for x in draws])
    unresolved = _NARROW**2 * covs.diagonal(dim1=1, dim2=2).mean() * torch.eye(covs.shape[1], dtype=covs.dtype)
    precisions = torch.linalg.inv(covs + unresolved)
    powers = torch.tensor(exponents, dtype=torch.float64)[:, None, None]
    root = torch.linalg.cholesky((powers.abs() * precisions).sum(0))
    half = torch.linalg.solve_triangular(root, (powers * precisions).sum(0), upper=False)
    values, vectors = torch.linalg.eigh(torch.linalg.solve_triangular(root, half.T, upper=False))
    along = torch.linalg.solve_triangular(root.T, vectors[:, :1], upper=True)[:, 0]
    return along / along.norm() if values[0] < -_GROWS else None


def steepness(q: Composition, draws: Sequence[Tensor], along: Tensor, seed: int) -> float:
    """Return sum_a w_a E|<s_a, v>|^2 of the sources along a unit vector, at a little noise."""
    width = min(((x - x.mean(0)) @ along).std().item() for x in draws)
    t = q.schedule.time_at(torch.tensor(_NOISE * width, dtype=torch.float64).log()).clamp(T_MIN, T_MAX)
    found = [_mean_square(q, name, x, along, t, seed) for name, x in zip(q.exponents, draws, strict=True)]
    return sum(w * value for w, value in zip(q.exponents.values(), found, strict=True))


def _mean_square(q: Composition, name: str, x: Tensor, along: Tensor, t: Tensor, seed: int) -> float:
    """E|<s, v>|^2 of one source, noised to time t, by draws of it."""
    z = torch.randn(x.shape, generator=generator(seed, "spread"), dtype=x.dtype)
    like = torch.empty(0, dtype=torch.float32, device=q.family.device)
    at = (q.schedule.alpha(t) * x + q.schedule.sigma(t) * z).to(like).unflatten(1, q.event)
    with torch.no_grad(), without_autocast(like.device):
        score = q.family.standard_scores(at, t.to(like), [name])[0]
    return (score.cpu().double().flatten(1) @ along).square().mean().item()


def draws_alone(q: Composition, name: str, seed: int, count: int = _DRAWS, steps: int = _STEPS) -> Tensor:
    """Draws of one source in the coordinates where it lives, `(n, d)`, without those that ran away."""
    run = Denoise(steps=steps).sample(q.family[name], count, seed, progress=False, history=False)
    x = q.family.standardise(run.samples).cpu().double().flatten(1)
    distances = (x - x.median(0).values).norm(dim=1)
    return x[distances <= _FAR * distances.median()]


def _of_the_data(q: Composition, along: Tensor) -> Tensor:
    """A direction in the data's units, of length 1."""
    points = torch.stack([torch.zeros_like(along), along]).unflatten(1, q.event)
    start, end = q.family.restore(points).flatten(1)
    return (end - start) / (end - start).norm()
