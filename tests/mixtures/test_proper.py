"""How sure it is that a composition of fits decays: against sums over angles, with components of their own errors."""

import math

import numpy as np
import pytest
import torch

from mixtures.by_hand import composed, fit
from polyscore.algebra.proper import certainty, proper


def turned(angle: float, *variances: float) -> list[list[float]]:
    c, s = math.cos(angle), math.sin(angle)
    turn = np.array([[c, -s], [s, c]])
    return (turn @ np.diag(variances) @ turn.T).tolist()


def by_angles(fits, exponents, moved=0.0) -> float:
    """min over v of sum_a w_a min_k v'P_k v, variances moved by their errors, over the error of what is not moved."""
    angles = np.linspace(0, np.pi, 20_001)
    v, rate, variance = np.stack([np.cos(angles), np.sin(angles)]), 0.0, 0.0
    for one, w in zip(fits, exponents, strict=True):
        forms = np.einsum("dn,kde,en->kn", v, np.linalg.inv(one.covariances.numpy()), v)
        errors = np.sqrt(2 / (one.weights.numpy() * one.points))
        scale = (1 + moved * errors) ** np.sign(w)
        rate = rate + w * (scale[:, None] * forms).min(0)
        variance = variance + (w * errors[forms.argmin(0)] * forms.min(0)) ** 2
    return float((rate / np.sqrt(variance)).min())


@pytest.mark.parametrize("moved", [0.0, 2.5])
@pytest.mark.parametrize("exponents", [(1.0, 1.0, -1.0), (1.6, 0.4, -0.7)])
def test_certainty_is_the_least_rate_in_its_errors(exponents, moved):
    """The widest component of the first lies across both axes of the others, and few points stand behind it."""
    fits = [
        fit([0.9, 0.1], [turned(0.1, 1.3, 0.6), turned(0.8, 5.0, 0.7)], 900),
        fit([0.4, 0.6], [turned(1.2, 2.1, 0.9), turned(0.0, 0.5, 0.3)], 400),
        fit([0.7, 0.3], [turned(0.3, 1.9, 1.4), turned(2.0, 1.1, 0.8)], 700),
    ]
    q = composed(fits, exponents)
    found = certainty(q.factors, list(q.exponents.values()), moved)
    assert found == pytest.approx(by_angles(fits, exponents, moved), abs=0.02)  # 256 directions, not 20,001


def test_the_direction_that_decays_least_is_found_among_many():
    """Twelve dimensions, one of them narrow in the denominator: at random directions nothing would be seen of it."""
    turn = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    wide, short = torch.full((12,), 2.0, dtype=torch.float64), torch.full((12,), 2.0, dtype=torch.float64)
    short[5] = 0.9  # 1 / 2 + 1 / 2 - 1 / 0.9 is below 0, all others are 1 / 2
    fits = [fit([1.0], [((turn * v) @ turn.T).tolist()]) for v in (wide, wide, short)]
    q = composed(fits, (1.0, 1.0, -1.0))
    # A round covariance is one number, behind which all coordinates of its points stand.
    error = math.hypot(0.5 * math.sqrt(2 / 12_000), 0.5 * math.sqrt(2 / 12_000), math.sqrt(2 / 1000) / 0.9)
    found = certainty(q.factors, [1.0, 1.0, -1.0], 0.0)
    assert found == pytest.approx((1 - 1 / 0.9) / error, rel=1e-4)


def test_one_point_of_doubt_moves_no_composition_that_is_proper():
    """A component of a single point is known to 1.4 of its variance: what makes it sure would move all others, by far
    more than chance could. The composition is proper as it is, and nothing is warned of."""
    fits = [
        fit([0.999, 0.001], [[[1.0]], [[1 / 0.95]]], 1000),
        fit([1.0], [[[1.0]]], 3000),
        fit([1.0], [[[1 / 1.9]]], 3000),
    ]
    q = composed(fits, (1.0, 1.0, -1.0))
    assert 0 < certainty(q.factors, [1.0, 1.0, -1.0], 0.0) < 0.1 and q.validity().proper is True
    assert proper(q) is q
