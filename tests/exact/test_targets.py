"""Exact references: each method against closed forms, plain grid sums and the others."""

import math
import warnings

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import (
    F64,
    closed_form,
    compose,
    gaussian_family,
    own_mixtures,
    shared_mixtures,
    vector,
    within_standard_errors,
)
from polyscore.errors import ArgumentError, CompositionError, DegeneracyWarning, ImproperError


def shared_components(dim: int = 3) -> ps.Family:
    """Mixtures over the same components, as rejection needs."""
    means = np.stack([vector(dim, seed, 2) for seed in (71, 72, 73)])
    weights = {"a": [0.7, 0.2, 0.1], "b": [0.5, 0.1, 0.4], "base": [0.4, 0.3, 0.3]}
    return ps.Family({name: ps.Mixture(means, cov=0.8, weights=w) for name, w in weights.items()})


def grid_moments(q: ps.Composition, half: float = 16, count: int = 401):
    """log Z, mean and second moments by a plain sum over a box."""
    dim = q.event[0]
    axis = torch.linspace(-half, half, count if dim == 2 else 8001 if dim == 1 else 101, dtype=F64)
    grid = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
    logs = q.log_density(grid)
    p = torch.softmax(logs, 0)
    log_z = torch.logsumexp(logs, 0).item() + dim * math.log((axis[1] - axis[0]).item())
    return log_z, p @ grid, torch.einsum("n,ni,nj->ij", p, grid, grid)


def check_draws(x: torch.Tensor, mean, second, sigmas: float = 5.5, slack: float = 0.0) -> None:
    """First and second moments within 5.5 standard errors: 4e-8 each, under 1e-5 over a file."""
    x = x.double()
    within_standard_errors(x, mean, sigmas, slack)
    within_standard_errors(torch.einsum("ni,nj->nij", x, x), second, sigmas, slack)


GAUSSIANS = [{"a": 1, "b": 1, "base": -1}, {"a": 2, "base": -0.5}, {"a": 0.3, "b": 0.2}, {"b": 1}]


@pytest.mark.parametrize("exponents", GAUSSIANS, ids=str)
@pytest.mark.parametrize("dim", [1, 2, 4])
def test_closed_form(dim, exponents):
    q = compose(gaussian_family(dim), **exponents)
    target = ps.exact(q)
    mean, cov, log_z = closed_form(q)
    assert target.method == "closed form"
    assert target.log_evidence == pytest.approx(log_z, abs=1e-9)
    check_draws(target.sample(20_000, seed=1), mean, cov + np.outer(mean, mean))
    x = torch.randn(10, dim, dtype=F64, generator=torch.Generator().manual_seed(0))
    gap = x.numpy() - mean
    expected = (
        -0.5 * np.einsum("ni,ij,nj->n", gap, np.linalg.inv(cov), gap) - 0.5 * np.linalg.slogdet(2 * np.pi * cov)[1]
    )
    torch.testing.assert_close(target.log_prob(x), torch.from_numpy(expected))
    torch.testing.assert_close(target.log_prob(x), q.log_density(x) - log_z)


TWO = {
    "own": compose(own_mixtures(2), a=0.7, b=0.6, base=-0.1),
    "shared": compose(shared_mixtures(2), a=1, b=1, base=-1),
    "one-dimensional": compose(own_mixtures(1), a=1.2, b=0.5, base=-0.3),
    "single": compose(own_mixtures(2), a=1),
}


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("method", [None, "importance"])
def test_mixtures_in_one_and_two_dimensions(name, method):
    q = TWO[name]
    log_z, mean, second = grid_moments(q)
    target = ps.exact(q, method=method)
    assert target.method == (method or "grid")
    assert target.log_evidence == pytest.approx(log_z, abs=1e-4 if method is None else 0.03)
    check_draws(target.sample(4000, seed=2), mean, second, slack=0.0 if method is None else 0.01)
    x = torch.randn(10, *q.event, dtype=F64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(target.log_prob(x), q.log_density(x) - log_z, rtol=0, atol=0.04)


@pytest.mark.slow
def test_the_grid_agrees_with_the_closed_form():
    q = compose(gaussian_family(2), a=1, b=1, base=-1)
    mean, cov, log_z = closed_form(q)
    target = ps.exact(q, method="grid")
    assert target.log_evidence == pytest.approx(log_z, abs=1e-4)
    check_draws(target.sample(4000, seed=3), mean, cov + np.outer(mean, mean))


@pytest.mark.parametrize("exponents", [{"a": 1, "b": 1, "base": -1}, {"a": 2, "base": -0.5}, {"a": 1.5}], ids=str)
def test_rejection_beyond_two_dimensions(exponents):
    q = compose(shared_components(), **exponents)
    target = ps.exact(q)
    log_z, mean, second = grid_moments(q, half=9)
    assert target.method == "rejection"
    assert target.log_evidence == pytest.approx(log_z, abs=0.02)
    check_draws(target.sample(4000, seed=4), mean, second)


def test_the_rejection_bound_is_a_bound():
    q = compose(shared_components(2), a=1, b=1, base=-1)
    target = ps.exact(q, method="rejection")
    axis = torch.linspace(-12, 12, 301, dtype=F64)
    grid = torch.cartesian_prod(axis, axis)
    ratio = q.log_density(grid) - target.proposal.log_prob(grid)
    assert ratio.max().item() <= target.log_bound + 1e-9


@pytest.mark.slow
def test_importance_beyond_two_dimensions():
    q = compose(own_mixtures(3), a=0.7, b=0.6, base=-0.1)
    target = ps.exact(q)
    log_z, mean, second = grid_moments(q, half=11)
    assert target.method == "importance"
    assert target.log_evidence == pytest.approx(log_z, abs=0.03)
    check_draws(target.sample(4000, seed=5), mean, second, slack=0.02)
    assert 500 < target.ess < 5_000_000


@pytest.mark.parametrize(
    "q",
    [compose(gaussian_family(2), a=1), TWO["one-dimensional"], compose(shared_components(), a=1, b=1, base=-1),
     compose(own_mixtures(3), a=0.7, b=0.6)],
    ids=["closed form", "grid", "rejection", "importance"],
)  # fmt: skip
def test_draws_belong_to_their_seed(q):
    state = torch.random.get_rng_state()
    target = ps.exact(q)
    one, again, other = (target.sample(50, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert one.shape == (50, *q.event)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_order_of_importance_draws_carries_no_structure():
    """Halves of a draw of 4000 have one mean: 5.5 standard errors, 4e-8 each."""
    x = ps.exact(TWO["own"], method="importance").sample(4000, seed=1).double()
    first, second = x[:2000], x[2000:]
    error = (first.var(0) / 2000 + second.var(0) / 2000).sqrt()
    assert bool(((first.mean(0) - second.mean(0)).abs() < 5.5 * error).all())


def test_exact_refuses():
    with pytest.raises(ImproperError, match="normalisable"):
        ps.exact(compose(gaussian_family(2), a=0.2, base=-1))
    with pytest.raises(ArgumentError, match="method must be one of closed form, grid"):
        ps.exact(TWO["own"], method="magic")
    with pytest.raises(ArgumentError, match="Gaussians"):
        ps.exact(TWO["own"], method="closed form")
    with pytest.raises(ArgumentError, match="one or two dimensions"):
        ps.exact(compose(own_mixtures(3), a=1), method="grid")
    with pytest.raises(ArgumentError, match="rejection must"):
        ps.exact(compose(own_mixtures(3), a=1, b=1, base=-1), method="rejection")
    for q in (compose(gaussian_family(2), a=1), TWO["one-dimensional"], compose(shared_components(), a=1)):
        with pytest.raises(ArgumentError, match="n must be at least 1"):
            ps.exact(q).sample(0)

    class Learned:
        event = (2,)

        def score(self, x, t):
            return -x

    with pytest.raises(CompositionError, match="closed form"):
        ps.exact(ps.Family({"m": Learned()})["m"])


def test_a_poor_importance_reference_is_warned_of():
    """Eight dimensions, denominators that leave the numerators' product far behind: either a high ESS or a warning."""
    q = compose(own_mixtures(8), a=3, b=3, base=-0.2)
    target = ps.exact(q, method="product importance")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        target.sample(100, seed=0)
    assert (target.ess < 500) == any(issubclass(w.category, DegeneracyWarning) for w in caught)
