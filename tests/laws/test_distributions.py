"""Distributions: score = gradient of log-density, densities integrate to 1, draws have the stated moments."""

import math

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import DISTRIBUTIONS, F64, SCHEDULES, within_standard_errors
from polyscore.errors import ArgumentError
from polyscore.rng import derive

every = pytest.mark.parametrize("part", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
LEVELS = [(1.0, 0.0), (0.99, 0.05), (0.7, 0.6), (0.2, 0.98), (0.0, 1.0), (0.5, 2.0)]  # alpha^2 + sigma^2 = 1 or not


def normals(part, n, seed=0, dtype=F64, scale=2.0):
    return scale * torch.randn(n, part.dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def gradient(part, x, alpha, sigma):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(part.log_prob(x, alpha, sigma).sum(), x)[0]


def components(part):
    """Weights, means, covariances as NumPy arrays."""
    weights = part.weights.numpy() if isinstance(part, ps.Mixture) else np.ones(1)
    return weights, part.components.means.numpy(), part.components.covariances.numpy()


def reference_log_prob(part, x, alpha, sigma):
    """Sum of component densities with a NumPy inverse and determinant each, in float64."""
    weights, means, covs = components(part)
    density = np.zeros(len(x))
    for w, mean, cov in zip(weights, means, covs, strict=True):
        noised = alpha**2 * cov + sigma**2 * np.eye(part.dim)
        gap = x - alpha * mean
        exponent = -0.5 * np.einsum("ni,ij,nj->n", gap, np.linalg.inv(noised), gap)
        density += w * np.exp(exponent) / math.sqrt((2 * math.pi) ** part.dim * np.linalg.det(noised))
    return np.log(density)


@every
@pytest.mark.parametrize("alpha, sigma", LEVELS)
def test_score_is_the_gradient(part, alpha, sigma):
    x = normals(part, 64)
    torch.testing.assert_close(part.score(x, alpha, sigma), gradient(part, x, alpha, sigma), rtol=1e-9, atol=1e-9)


@every
@pytest.mark.parametrize("alpha, sigma", LEVELS)
def test_float32_score_and_density_agree_with_float64(part, alpha, sigma):
    x = normals(part, 64, dtype=torch.float32)
    score, log_prob = part.score(x, alpha, sigma), part.log_prob(x, alpha, sigma)
    assert score.dtype == log_prob.dtype == torch.float32
    torch.testing.assert_close(score.double(), part.score(x.double(), alpha, sigma), rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(log_prob.double(), part.log_prob(x.double(), alpha, sigma), rtol=2e-5, atol=2e-4)
    torch.testing.assert_close(score, gradient(part, x, alpha, sigma), rtol=2e-4, atol=2e-4)


@every
@pytest.mark.parametrize("alpha, sigma", LEVELS)
def test_log_prob_against_numpy_inverses(part, alpha, sigma):
    x = normals(part, 64, scale=1.0)
    expected = reference_log_prob(part, x.numpy(), alpha, sigma)
    torch.testing.assert_close(part.log_prob(x, alpha, sigma), torch.from_numpy(expected), rtol=1e-9, atol=1e-9)


@every
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_batch_of_times_is_the_loop_over_times(part, schedule):
    t = torch.tensor([1e-5, 0.1, 0.33, 0.8, 0.999], dtype=F64)
    x = torch.stack([normals(part, 5, seed) for seed in range(4)])  # (4, 5, d)
    alpha, sigma = schedule.alpha(t), schedule.sigma(t)
    scores, logs = part.score(x, alpha, sigma), part.log_prob(x, alpha, sigma)
    assert scores.shape == x.shape
    assert logs.shape == x.shape[:-1]
    for i in range(len(t)):
        torch.testing.assert_close(scores[:, i], part.score(x[:, i], alpha[i].item(), sigma[i].item()))
        torch.testing.assert_close(logs[:, i], part.log_prob(x[:, i], alpha[i].item(), sigma[i].item()))


@pytest.mark.parametrize("alpha, sigma", LEVELS)
@pytest.mark.parametrize("name", [name for name, part in DISTRIBUTIONS.items() if part.dim <= 2])
def test_density_integrates_to_one(name, alpha, sigma):
    part = DISTRIBUTIONS[name]
    axis = torch.linspace(-22, 22, 701 if part.dim == 2 else 20_001, dtype=F64)
    step = (axis[1] - axis[0]).item()
    grid = torch.cartesian_prod(*[axis] * part.dim).reshape(-1, part.dim)
    mass = sum(part.log_prob(chunk, alpha, sigma).exp().sum().item() for chunk in grid.split(1 << 18))
    assert mass * step**part.dim == pytest.approx(1, abs=1e-6)


@every
def test_sample_moments(part):
    """Mean and second moments of 40,000 draws within 5.5 standard errors: under 4e-8 each, about 5e-6 over all."""
    weights, means, covs = components(part)
    mean = weights @ means
    second = np.einsum("k,kij->ij", weights, covs + np.einsum("ki,kj->kij", means, means))
    x = part.sample(40_000, seed=3, dtype=F64)
    within_standard_errors(x, mean, 5.5)
    products = torch.einsum("ni,nj->nij", x, x)
    within_standard_errors(products, second, 5.5)
    if isinstance(part, ps.Mixture):  # a third moment, which only the right pairing of weights and covariances gives
        cubes = means**3 + 3 * means * np.diagonal(covs, axis1=1, axis2=2)
        within_standard_errors(x**3, weights @ cubes, 5.5)


@every
def test_draws_belong_to_their_seed(part):
    state = torch.random.get_rng_state()
    first = part.sample(50, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first.shape == (50, part.dim)
    assert first.dtype == torch.float32
    assert torch.equal(first, part.sample(50, seed=1))
    assert not torch.equal(first, part.sample(50, seed=2))


def test_noised_draws_have_the_noised_density():
    """E[exp] test: the mean of p_t(alpha x + sigma z) equals the integral of p_t^2. 5.5 standard errors: 4e-8."""
    part, alpha, sigma = DISTRIBUTIONS["mixture-2-own"], 0.7, 0.6
    z = torch.randn(100_000, 2, generator=torch.Generator().manual_seed(1), dtype=F64)
    values = part.log_prob(alpha * part.sample(100_000, seed=2, dtype=F64) + sigma * z, alpha, sigma).exp()
    axis = torch.linspace(-14, 14, 401, dtype=F64)
    density = part.log_prob(torch.cartesian_prod(axis, axis), alpha, sigma).exp()
    within_standard_errors(values[:, None], (density**2).sum().item() * (axis[1] - axis[0]).item() ** 2, 5.5)


@pytest.mark.parametrize("distance", [50.0, 500.0])
def test_a_mixture_far_from_its_components_stays_finite(distance):
    part = DISTRIBUTIONS["mixture-2-own"]
    x = torch.tensor([[distance, -distance], [-distance, 0.3 * distance]])
    assert bool(part.score(x).isfinite().all())
    assert bool(part.log_prob(x).isfinite().all())
    torch.testing.assert_close(part.score(x).double(), part.score(x.double()), rtol=1e-3, atol=1e-3)


def test_cov_shapes_mean_the_same():
    full = ps.Gaussian(mean=[1, 2, 3], cov=[[2, 0, 0], [0, 2, 0], [0, 0, 2]])
    for other in (ps.Gaussian(mean=[1, 2, 3], cov=2.0), ps.Gaussian(mean=[1, 2, 3], cov=[2, 2, 2])):
        assert torch.equal(full.cov, other.cov)
    assert ps.Gaussian().dim == 2
    assert ps.Gaussian(dim=5).dim == 5
    assert ps.Gaussian(cov=np.eye(4)).dim == 4
    assert torch.equal(ps.Gaussian().mean, torch.zeros(2, dtype=F64))


NOT_NUMBERS = {
    "truth": True, "truths": [True, False], "one truth": [1.0, True], "truth tensor": torch.ones(2) > 0,
    "text": "1", "texts": ["1", "2"], "nothing": None, "nothing in a list": [1.0, None], "complex": 1 + 2j,
    "complex array": np.array([1j, 2]), "complex tensor": torch.tensor([1 + 2j, 3]), "huge": 10**400,
    "date": np.datetime64("2001-01-01"), "dates": np.array(["2001-01-01", "2002-01-01"], "M8[D]"),
    "span": np.array([1, 2], "m8[s]"), "mask": np.ma.array([1.0, 2.0], mask=[False, True]), "ragged": [[1, 2], [3]],
    "object": object(), "mapping": {"a": 1},
}  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", NOT_NUMBERS.values(), ids=NOT_NUMBERS)
@pytest.mark.parametrize("name", ["cov", "mean", "means", "weights", "mixture cov"])
def test_what_is_not_a_number_is_refused(name, value):
    make = {
        "cov": lambda: ps.Gaussian(cov=value),
        "mean": lambda: ps.Gaussian(mean=value if isinstance(value, (list, np.ndarray)) else [value, 0.0]),
        "means": lambda: ps.Mixture([value, value]),
        "weights": lambda: ps.Mixture([[0.0, 0.0], [1.0, 1.0]], weights=value if value is not None else [None, None]),
        "mixture cov": lambda: ps.Mixture([[0.0, 0.0], [1.0, 1.0]], cov=value),
    }[name]
    with pytest.raises(
        ArgumentError, match=r"must (be a number or a regular array|be one shared covariance|have 2 entries)"
    ):
        make()


class HasArray:
    def __init__(self, value):
        self.value = value

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.value, dtype=dtype)


def test_numbers_are_numbers_whatever_holds_them():
    for cov in (2, 2.0, np.float16(2), np.int8(2), np.array(2), torch.tensor(2), [2, 2], (2, 2.0),
                np.array([2, 2], "u8"),
                torch.tensor([2, 2], dtype=torch.bfloat16), HasArray([2, 2]), np.ma.array([2, 2]),
                [torch.tensor(2), 2]):  # fmt: skip
        assert torch.equal(ps.Gaussian(cov=cov).cov, 2 * torch.eye(2, dtype=F64))
    assert ps.Gaussian(cov=10**25).cov[0, 0].item() == 1e25
    with pytest.raises(ArgumentError, match="must be a number"):
        ps.Gaussian(cov=HasArray([1j, 2]))


@pytest.mark.parametrize("dim", [2.7, 2.0, "2", True, 0, -1, math.nan, math.inf, [2], 1j])
def test_a_dimension_is_a_whole_number(dim):
    with pytest.raises(ArgumentError, match="dim must be a whole number of at least 1; got "):
        ps.Gaussian(dim=dim)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, 5e-324, [1.0, math.nan]])
def test_a_covariance_is_finite_and_positive(value):
    for make in (lambda: ps.Gaussian(cov=value), lambda: ps.Mixture([[0, 0]], cov=value)):
        with pytest.raises(ArgumentError, match=r"cov must be (finite|positive definite); got "):
            make()


@pytest.mark.parametrize("seed", [1.7, 1.0, True, "1", None, 1j, math.nan, [1], torch.tensor(1.0), 2**5000], ids=repr)
def test_a_seed_is_a_whole_number_everywhere(seed):
    p = ps.Family({"a": ps.Gaussian(), "b": ps.Mixture([[0.0, 0.0]])})
    x = torch.randn(4, 2)
    for use in (
        lambda: derive(seed, "x"), lambda: p["a"].distribution("a").sample(3, seed=seed),
        lambda: p["b"].distribution("b").sample(3, seed=seed), lambda: ps.exact(p["a"]).sample(3, seed=seed),
        lambda: ps.exact(p["b"], "importance").sample(3, seed=seed),
        lambda: ps.exact(p["b"], "grid").sample(3, seed=seed),
        lambda: ps.sliced_wasserstein(x, x, seed=seed), lambda: ps.Denoise(steps=2).sample(p["a"], 2, seed=seed),
        lambda: ps.FeynmanKac(particles=2, steps=2).sample(p["a"], 2, seed=seed),
        lambda: ps.fit({"a": x, "b": x}, steps=1, width=8, seed=seed),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match="seed must be a whole number of at most 4096 bits; got "):
            use()


def test_whole_seeds_keep_their_numbers():
    part = DISTRIBUTIONS["gaussian-3-full"]
    assert torch.equal(part.sample(3, seed=np.int64(7)), part.sample(3, seed=7))
    assert derive(-3, "x") == 3187063942164264454 and derive(2**70, "x") == 3581558953831452334


@pytest.mark.parametrize("n", [10**12, 10**18, 10**400, 10**5000], ids=lambda n: f"{n.bit_length()} bits")
def test_more_draws_than_memory_holds_are_refused_before(n):
    for part in (DISTRIBUTIONS["gaussian-3-full"], DISTRIBUTIONS["mixture-2-own"]):
        with pytest.raises(ArgumentError, match=r"draws in \d dimensions must fit into memory; got .* needed"):
            part.sample(n)
    with pytest.raises(ArgumentError, match="must fit into memory"):
        ps.Gaussian(dim=n)


@pytest.mark.parametrize("n", [0, -1, 2.0, "2", None, True, math.nan])
def test_a_count_of_draws_is_a_whole_number(n):
    for part in (DISTRIBUTIONS["gaussian-3-full"], DISTRIBUTIONS["mixture-2-own"]):
        with pytest.raises(ArgumentError, match=r"n must be .*at least 1; got "):
            part.sample(n)


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, "float32", None, np.float32])
def test_draws_are_floating_point(dtype):
    with pytest.raises(ArgumentError, match="dtype must be a floating-point type of torch"):
        ps.Gaussian().sample(3, dtype=dtype)


@pytest.mark.parametrize(
    "x", [torch.zeros(3, 2, dtype=torch.long), torch.zeros(5, 1), torch.zeros(5, 3), torch.zeros(()), [0.0, 0.0]]
)
def test_points_of_another_kind_or_dimension_are_refused(x):
    for part in (ps.Gaussian(), ps.Mixture([[0.0, 0.0]])):
        for ask in (part.log_prob, part.score):
            with pytest.raises(ArgumentError, match=r"x must (be a tensor of floating|hold points of 2)"):
                ask(x)


def test_the_input_array_is_not_shared():
    mean = torch.zeros(2, dtype=F64)
    part = ps.Gaussian(mean=mean)
    mean += 5
    assert torch.equal(part.mean, torch.zeros(2, dtype=F64))


def test_a_covariance_of_float32_products_is_symmetric_enough():
    draw = torch.Generator().manual_seed(3)
    basis = torch.linalg.qr(torch.randn(40, 40, generator=draw)).Q
    cov = (basis * torch.linspace(0.3, 2.0, 40)) @ basis.T
    assert not torch.equal(cov, cov.T)
    exact = 0.5 * (cov + cov.T).double()
    x = torch.randn(5, 40, generator=draw, dtype=torch.float64)
    torch.testing.assert_close(ps.Gaussian(cov=cov).score(x), -torch.linalg.solve(exact, x.T).T)


def test_precision_is_the_inverse():
    part = DISTRIBUTIONS["gaussian-4-full"]
    torch.testing.assert_close(part.precision @ part.cov, torch.eye(4, dtype=F64))


def test_a_mixture_of_one_is_a_gaussian():
    x = normals(DISTRIBUTIONS["gaussian-3-full"], 32)
    one = DISTRIBUTIONS["gaussian-3-full"]
    mixture = ps.Mixture(one.mean[None], cov=one.cov)
    torch.testing.assert_close(mixture.log_prob(x, 0.6, 0.8), one.log_prob(x, 0.6, 0.8))
    torch.testing.assert_close(mixture.score(x, 0.6, 0.8), one.score(x, 0.6, 0.8))


def test_a_component_of_weight_zero_is_not_there():
    x = torch.randn(32, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    two = ps.Mixture([[0, 0, 1], [1, 2, 0]], cov=[0.5, 0.7], weights=[0.3, 0.7])
    more = ps.Mixture([[0, 0, 1], [1, 2, 0], [0, 1, 0], [0, 0, 0]], cov=[0.5, 0.7, 0.1, 9.0], weights=[0.3, 0.7, 0, 0])
    torch.testing.assert_close(more.log_prob(x), two.log_prob(x))
    torch.testing.assert_close(more.score(x), two.score(x))
    far = ps.Mixture([[0, 0, 1], [100, 100, 100], [1, 2, 0]], cov=0.5, weights=[0.3, 0, 0.7])
    assert far.sample(10_000).abs().max() < 50
