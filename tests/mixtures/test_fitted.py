"""Fitted mixtures as closed forms: how well each component is known, which axes they have, what a file may hold."""

import math

import pytest
import torch

import polyscore as ps
from mixtures.by_hand import fit, network
from polyscore.mixtures import Parts, redrawn
from polyscore.models.fitted import Fitted, are_fitted, is_a_mixture
from polyscore.nn.stack import StackNetwork

F64 = torch.float64


def test_an_error_is_that_of_the_variance_that_fewest_points_stand_behind():
    """The second components' variances 2 and 7: the first is one number with a variance of the other component."""
    found = Fitted(network(fit([0.3, 0.7], [[[2.0, 0.0], [0.0, 5.0]], [[2.0, 0.0], [0.0, 7.0]]])), 0)
    expected = [math.sqrt(2 / 300), math.sqrt(2 / 700)]
    torch.testing.assert_close(found.errors, torch.tensor(expected, dtype=F64), rtol=1e-5, atol=0)
    wide, narrow = found.widened(3.0), found.widened(-3.0)
    factor = 1 + 3 * found.errors[:, None]
    torch.testing.assert_close(wide.components.variances, found.components.variances * factor)
    torch.testing.assert_close(narrow.components.variances, found.components.variances / factor)


def test_bases_that_turn_nothing_are_not_kept():
    """Axes of the data in another order, and round components on any axes; not an ellipse that is turned."""
    c, s = math.cos(0.4), math.sin(0.4)
    turned = [[4 * c * c + s * s, 3 * c * s], [3 * c * s, 4 * s * s + c * c]]
    straight = Fitted(network(fit([0.5, 0.5], [[[3.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 2.0]]])), 0)
    assert straight.components.bases is None
    torch.testing.assert_close(straight.components.variances.float(), torch.tensor([[3.0, 1.0], [1.0, 2.0]]))
    stack = network(fit([0.5, 0.5], [[[3.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 2.0]]])).stack
    stack.bases[0, 0, 1] = torch.tensor([[c, -s], [s, c]])
    stack.variances[0, 0, 1, 1] *= 1 + 4e-6
    rounded = Fitted(StackNetwork(stack), 0)
    assert rounded.components.bases is None
    assert rounded.components.variances[1, 0] == rounded.components.variances[1, 1]
    assert Fitted(network(fit([1.0], [turned])), 0).components.bases is not None


def test_a_condition_has_its_own_components_and_weights_that_sum_to_one():
    both = network(fit([1.0], [[[1.0]]]), fit([1 / 3, 2 / 3], [[[4.0]], [[9.0]]], points=77))
    found = Fitted(both, 1)
    assert found.components.count == 2 and found.points == 77 and found.halves() == []
    assert found.components.weights.sum().item() == pytest.approx(1, abs=1e-15)
    torch.testing.assert_close(found.components.weights, torch.tensor([1 / 3, 2 / 3], dtype=F64), rtol=1e-6, atol=0)
    assert is_a_mixture(both)


def test_mixtures_of_two_networks_are_no_file_of_one():
    one, other = (network(fit([1.0], [[[v]]])) for v in (1.0, 2.0))
    assert are_fitted([Fitted(one, 0), Fitted(one, 0)]) and not are_fitted([Fitted(one, 0), Fitted(other, 0)])
    assert not are_fitted([Fitted(one, 0), ps.Gaussian(dim=1)]) and not are_fitted([])


def test_a_tail_is_one_point_more_with_the_whole_covariance():
    """Components at (0, 0) and (10, 10), 400 points: N((7, 7), 3 C) with the weight of one of 401."""
    first, second = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=F64), torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=F64)
    found = Fitted(network(fit([0.3, 0.7], [first.tolist(), second.tolist()], 400)), 0)
    tail = found.with_tail(3.0).components
    covariance = 0.3 * first + 0.7 * second + 0.3 * 0.7 * 100
    torch.testing.assert_close(tail.means[-1], torch.tensor([7.0, 7.0], dtype=F64), rtol=1e-5, atol=0)
    spread = (tail.bases[-1] * tail.variances[-1]) @ tail.bases[-1].mT
    torch.testing.assert_close(spread, 3 * covariance, rtol=1e-5, atol=0)
    weights = torch.tensor([0.3 * 400, 0.7 * 400, 1], dtype=F64) / 401
    torch.testing.assert_close(tail.weights, weights, rtol=1e-6, atol=0)


def test_weights_and_means_are_redrawn_by_the_points_behind_them():
    """Dirichlet, and N(m, v / (w n)): 600 draws know a mean to 1/24 of a deviation, and that to 3 %; five such each."""
    parts = Fitted(network(fit([0.2, 0.3, 0.5], [[[1.0]], [[2.0]], [[3.0]]])), 0)._parts
    source = torch.Generator().manual_seed(0)
    drawn = [redrawn(parts, 200.0, source) for _ in range(600)]
    weights, means = (torch.stack([getattr(one, name) for one in drawn]) for name in ("weights", "means"))
    torch.testing.assert_close(weights.sum(1), torch.ones(600, dtype=F64))
    of_weights = (parts.weights * (1 - parts.weights) / 201).sqrt()
    of_means = (parts.variances / (200 * parts.weights[:, None])).sqrt()
    for found, expected, deviation in ((weights, parts.weights, of_weights), (means, parts.means, of_means)):
        assert bool(((found.mean(0) - expected).abs() < 5 / 600**0.5 * deviation).all())
        torch.testing.assert_close(found.std(0), deviation, rtol=0.15, atol=0)


def test_one_covariance_of_all_components_is_redrawn_as_one():
    form = [[3.0, 1.0], [1.0, 2.0]]
    parts = Fitted(network(fit([0.2, 0.8], [form, form])), 0)._parts
    other = redrawn(parts, 100.0, torch.Generator().manual_seed(0))
    covariances = (other.bases * other.variances[:, None]) @ other.bases.mT
    torch.testing.assert_close(covariances[0], covariances[1])
    assert (covariances[0] - torch.tensor(form, dtype=F64)).abs().min() > 1e-3


def test_directions_turn_by_the_fewest_points_behind_either():
    """As a Wishart's: Cov(i, j) of variances 4, 1, 1 in turned axes has the variance 4 / n of the n points behind the
    free one, though twice as many stand behind the other two; 2000 redraws know it to 3 %, five such."""
    bases = torch.linalg.qr(torch.randn(1, 3, 3, generator=torch.Generator().manual_seed(4), dtype=F64)).Q
    parts = Parts(torch.ones(1, dtype=F64), torch.zeros(1, 3, dtype=F64), torch.tensor([[4.0, 1, 1]], dtype=F64), bases)
    source, found = torch.Generator().manual_seed(0), []
    for _ in range(2000):
        other = redrawn(parts, 4000, source)
        found.append(bases[0].mT @ (other.bases[0] * other.variances[0]) @ other.bases[0].mT @ bases[0])
    spread = torch.stack(found).var(0) * 4000
    assert spread[0, 1].item() == pytest.approx(4, rel=0.16) and spread[0, 2].item() == pytest.approx(4, rel=0.16)
    assert spread[0, 0].item() == pytest.approx(2 * 16, rel=0.16) and spread[1, 2] < 1e-2
