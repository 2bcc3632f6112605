"""Theorems 1 to 3, the Lyapunov law and appendix B, each with the predicted and the simulated side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from polyscore.algebra import Composition, Family, base_composition
from polyscore.distributions import Gaussian, Mixture
from polyscore.errors import ImproperError, is_count, require
from polyscore.limits import require_memory
from polyscore.paper.theory.covariance import composed_covariance, naive_covariance, product_covariance
from polyscore.paper.theory.interventions import disconnected, doubled, largest_residual, overlapping, reweighted
from polyscore.paper.theory.statement import Statement, compare, numbers, state
from polyscore.rng import generator
from polyscore.samplers import Denoise, FeynmanKac

_FIRST = [[2.0, 0.9], [0.9, 1.0]]
_SECOND = [[0.8, -0.5], [-0.5, 3.0]]
_BASE = [[4.0, 0.6], [0.6, 5.0]]


def statements(n: int = 4000, steps: int = 400, seed: int = 0) -> Iterator[Statement]:
    """Yield every statement, one computed at a time.

    Args:
        n: samples behind each covariance; tolerances widen as n falls.
        steps: time steps of the simulations.
        seed: of the simulations.
    """
    require(is_count(n) and n >= 2, "n", "be a whole number of at least 2", n, "Draw two or more.")
    require(is_count(steps), "steps", "be a whole number of at least 1", steps, "Pass one or more.")
    require_memory(3000 * int(n), f"the {25 * n} samples of a statement", "Use a smaller n.")
    works: list[Callable[[], Statement]] = [
        lambda: composed("W = 1", {"a1": 1, "a2": 1, "base": -1}, n, steps, seed),
        lambda: composed("W = 1.5", {"a1": 0.7, "a2": 1.2, "base": -0.4}, n, steps, seed),
        refused,
        lambda: naive_ode(n, steps, seed),
        lambda: naive_sde("commuting", [10, 1], [1, 10], 1.1, n, steps, seed),
        lambda: naive_sde("non-commuting", _FIRST, _SECOND, _BASE, n, steps, seed),
        lambda: factorized(rotated=False, seed=seed),
        lambda: factorized(rotated=True, seed=seed),
        lambda: not_factorized(seed=seed),
        lambda: doubled(n, steps, seed),
        lambda: reweighted(n, seed),
        lambda: overlapping(n, steps, seed),
        lambda: disconnected(seed),
    ]
    return (work() for work in works)


def composed(label: str, exponents: dict[str, float], n: int, steps: int, seed: int) -> Statement:
    """Theorem 1: Feynman-Kac samples have covariance (sum_a w_a cov_a^-1)^-1, here with non-commuting covariances."""
    q = Composition(_three(_FIRST, _SECOND, _BASE), exponents)
    run = FeynmanKac(particles=16, steps=steps).sample(q, n, seed)
    meaning = "corrected samples have covariance (sum w_a cov_a^-1)^-1"
    return compare(f"Theorem 1, {label}", meaning, composed_covariance(q), run.samples, steps)


def refused() -> Statement:
    """Theorem 1, the other side: where sum_a w_a cov_a^-1 is not positive definite the composition is refused."""
    q = Composition(_three(_FIRST, _SECOND, [[0.5, 0.1], [0.1, 0.4]]), {"a1": 1, "a2": 1, "base": -1})
    precision = sum(w * q.distribution(name).precision for name, w in q.exponents.items())  # type: ignore[attr-defined]
    expected = torch.linalg.eigh(torch.as_tensor(precision)).eigenvectors[:, 0]
    found = torch.tensor(q.validity().direction or (math.nan, math.nan), dtype=torch.float64)
    error = 1 - abs((expected @ found).item())
    try:
        Denoise(steps=2).sample(q, 2)
        error = math.inf
    except ImproperError:
        found = found * torch.sign(expected @ found)
    return state(
        "Theorem 1, refused", "an invalid weighting is refused, with the direction in which its density grows",
        numbers(expected), numbers(found), "1 - |cos| of the directions", error, 1e-9,
    )  # fmt: skip


def naive_ode(n: int, steps: int, seed: int) -> Statement:
    """Theorem 2: for commuting covariances the naive ODE gives prod_a cov_a^{w_a} instead."""
    q = base_composition(_three([10, 1], [1, 10], 1.1))
    run = Denoise(steps=2 * steps, churn=0).sample(q, 4 * n, seed)
    meaning = "the naive ODE has covariance prod cov_a^w_a (commuting covariances)"
    return compare("Theorem 2, ODE", meaning, product_covariance(q), run.samples, 2 * steps)


def naive_sde(label: str, first: Any, second: Any, base: Any, n: int, steps: int, seed: int) -> Statement:
    """Beyond the paper: the naive SDE has the covariance of its Lyapunov equation, commuting or not."""
    q = base_composition(_three(first, second, base))
    run = Denoise(steps=2 * steps, churn=1).sample(q, 4 * n, seed)
    meaning = "the naive SDE has the covariance of dC = (A C + C A' + eta^2 I) dtau"
    return compare(f"Lyapunov law, SDE, {label}", meaning, naive_covariance(q, 1.0), run.samples, 2 * steps)


def factorized(rotated: bool, seed: int = 0) -> Statement:
    """Theorem 3: the residual of factorized conditionals is 0 at every x and t, in every orthogonal basis."""
    largest, scale = _largest_residual(0.0, rotated, seed), _largest_residual(0.6, rotated, seed)
    basis = "in a random orthogonal basis" if rotated else "in the axes"
    return state(
        f"Theorem 3, {'rotated' if rotated else 'axes'}", f"factorized conditionals have residual 0, {basis}",
        0.0, largest, "max |g| over that of a non-factorized control", largest / scale, 1e-9,
    )  # fmt: skip


def not_factorized(seed: int = 0) -> Statement:
    """The control of Theorem 3: one correlation between the blocks, and the residual is far from 0."""
    largest = _largest_residual(0.6, True, seed)
    meaning = "a correlation of 0.6 between two blocks makes the residual large"
    return state("Theorem 3, control", meaning, "above 1", largest, "1 / max |g|", 1 / largest, 1.0)


def _largest_residual(correlation: float, rotated: bool, seed: int) -> float:
    """That of two mixtures and a base in R^4, blocks {1, 2}, {3} and {4}."""
    basis = _orthogonal(4, seed) if rotated else torch.eye(4, dtype=torch.float64)
    return largest_residual(base_composition(_four(correlation, basis)), seed)


def _four(correlation: float, basis: Tensor) -> Family:
    """a1 changes the third coordinate, a2 the fourth; `correlation` ties them in a1 and breaks the factorization."""
    background = torch.eye(4, dtype=torch.float64)
    background[0, 1] = background[1, 0] = 0.5
    tied = background.clone()
    tied[2, 3] = tied[3, 2] = correlation
    first = Mixture(_means(2, (-2.0, 1.0, 3.0)) @ basis.T, basis @ tied @ basis.T, [0.2, 0.5, 0.3])
    second = Mixture(_means(3, (-1.0, 2.5)) @ basis.T, basis @ background @ basis.T, [0.7, 0.3])
    return Family({"a1": first, "a2": second, "base": Gaussian(cov=basis @ background @ basis.T)})


def _means(axis: int, values: tuple[float, ...]) -> Tensor:
    means = torch.zeros(len(values), 4, dtype=torch.float64)
    means[:, axis] = torch.tensor(values, dtype=torch.float64)
    return means


def _orthogonal(dim: int, seed: int) -> Tensor:
    return torch.linalg.qr(torch.randn(dim, dim, generator=generator(seed, "basis"), dtype=torch.float64)).Q


def _three(first: Any, second: Any, base: Any) -> Family:
    return Family({"a1": Gaussian(cov=first), "a2": Gaussian(cov=second), "base": Gaussian(cov=base)})
