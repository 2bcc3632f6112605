"""Densities that are no mixtures: found wherever they are, right to 1e-4 and better, or refused in words."""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from scipy import integrate, stats

import polyscore as ps
from polyscore.errors import ArgumentError, CompositionError, DegeneracyWarning
from polyscore.models.learned import ModelError
from polyscore.schema import Checked, number, setting
from polyscore.targets.axes import EdgedAxes

F64 = torch.float64


class Own(ps.Density):
    """A density from a function of points, with whatever else it is given."""

    def __init__(self, log_prob, dim=1, moments=None, draws=None):
        self.function, self.dim, self.known, self.draws = log_prob, dim, moments, draws

    def log_prob(self, x, alpha=1.0, sigma=0.0):
        return self.function(x)

    def score(self, x, alpha=1.0, sigma=0.0):
        return -x

    def moments(self):
        return self.known


class Drawn(Own):
    def sample(self, n, seed=0, dtype=torch.float32):
        return self.draws(n, torch.Generator().manual_seed(seed)).to(dtype)


def single(log_prob, dim=1, **known):
    return ps.Family({"own": (Drawn if "draws" in known else Own)(log_prob, dim, **known)})["own"]


def normal(mean, deviation):
    mean = torch.as_tensor(mean, dtype=F64)

    def log_prob(x):
        return -0.5 * ((x - mean) / deviation).square().sum(-1) - x.shape[-1] * math.log(
            deviation * math.sqrt(2 * math.pi)
        )

    return log_prob


def student(nu, mean=0.0, scale=1.0, dim=1):
    log_z = math.lgamma(nu / 2) - math.lgamma((nu + dim) / 2) + dim / 2 * math.log(nu * math.pi) + dim * math.log(scale)
    mean = torch.as_tensor(mean, dtype=F64)
    return lambda x: -(nu + dim) / 2 * torch.log1p(((x - mean) / scale).square().sum(-1) / nu) - log_z


def mixed(shares, parts):
    return lambda x: torch.stack([math.log(w) + part(x) for w, part in zip(shares, parts, strict=True)]).logsumexp(0)


def uniform(low, high, dim=1):
    return lambda x: torch.where(((x > low) & (x < high)).all(-1), -dim * math.log(high - low), -math.inf)


def positive(log_prob):
    """A density of positive numbers."""
    return lambda x: torch.where(x[..., 0] > 0, log_prob(x[..., 0].clamp_min(1e-300)), -math.inf)


def tilted(correlation):
    cov = torch.tensor([[1, correlation], [correlation, 1]], dtype=F64)
    gaussian = ps.Gaussian(cov=cov)
    return gaussian.log_prob


many = [(20 * torch.randn(2, generator=torch.Generator().manual_seed(k), dtype=F64)) for k in range(6)]

FOUND = {
    "t, nu = 3": (student(3), 1),
    "t, nu = 1": (student(1), 1),
    "t, nu = 0.7": (student(0.7), 1),
    "t, far and narrow": (student(3, 1e4, 1e-3), 1),
    "normal, far": (normal(1e6, 0.01), 1),
    "normal, narrow": (normal(0.3, 1e-6), 1),
    "normal, wide": (normal(-3.0, 1e5), 1),
    "two, narrow": (mixed([0.3, 0.7], [normal(-5.0, 1e-3), normal(5.0, 1e-4)]), 1),
    "two, one far": (mixed([0.01, 0.99], [normal(-1000.0, 1.0), normal(5.0, 0.01)]), 1),
    "skewed": (lambda x: normal(0.0, 1.0)(x) + math.log(2) + torch.special.log_ndtr(50 * x[..., 0]), 1),
    "exponential": (positive(lambda x: math.log(100) - 100 * x), 1),
    "lognormal": (positive(lambda x: normal(0.0, 3.0)(x.log()[..., None]) - x.log()), 1),
    "gamma, with a pole": (positive(lambda x: -0.5 * x.log() - x - math.lgamma(0.5)), 1),
    "uniform": (uniform(3.0, 4.0), 1),
    "t in the plane": (student(3, [100.0, -3e3], 0.1, 2), 2),
    "Cauchy in the plane": (student(1, dim=2), 2),
    "square": (uniform(-1.0, 2.0, 2), 2),
    "disc": (lambda x: torch.where(x.square().sum(-1) < 1, -math.log(math.pi), -math.inf), 2),
    "ridge": (tilted(0.99), 2),
    "six in the plane": (mixed([1 / 6] * 6, [normal(mean, 0.3) for mean in many]), 2),
}


@pytest.mark.parametrize("log_prob, dim", FOUND.values(), ids=FOUND)
def test_a_density_is_found_without_any_hint(log_prob, dim):
    """Its mass is 1; nothing but the function is known."""
    assert ps.exact(single(log_prob, dim)).log_evidence == pytest.approx(0, abs=5e-5 if dim == 2 else 1e-6)


@pytest.mark.parametrize("low, high, dim", [(1e5, 1e5 + 1, 1), (0.3, 0.3001, 1), (50.0, 50.3, 2)])
def test_what_cannot_be_found_is_refused_and_found_by_a_hint(low, high, dim):
    log_prob = uniform(low, high, dim)
    with pytest.raises(
        ArgumentError, match=r"a density must be found; got own, 0 wherever was looked. Write its sample"
    ):
        ps.exact(single(log_prob, dim))
    moments = (torch.full((dim,), 0.5 * (low + high), dtype=F64), torch.full((dim,), (high - low) ** 2 / 12, dtype=F64))
    by_draws = single(log_prob, dim, draws=lambda n, g: low + (high - low) * torch.rand(n, dim, generator=g, dtype=F64))
    for q in (single(log_prob, dim, moments=moments), by_draws):
        assert ps.exact(q).log_evidence == pytest.approx(0, abs=1e-5)


def test_parts_that_were_not_found_are_missed():
    """Twenty narrow parts between which every cell sees nothing: not silently a few of them."""
    means = [1000 * torch.randn(2, generator=torch.Generator().manual_seed(k), dtype=F64) for k in range(20)]
    log_prob = mixed([1 / 20] * 20, [normal(mean, 1e-3) for mean in means])
    with pytest.raises(
        ArgumentError, match=r"must hold the density of every factor, whose mass is 1; that .* 'own' has 0"
    ):
        ps.exact(single(log_prob, 2))


def test_a_density_that_is_not_normalised_is_told_apart():
    with pytest.raises(
        ArgumentError, match=r"whose mass is 1; that of condition 'own' has 2.* It is not normalised, or"
    ):
        ps.exact(single(lambda x: normal(0.0, 1.0)(x) + math.log(2)))


@pytest.mark.filterwarnings("ignore:a grid should resolve the density")
@pytest.mark.parametrize(
    "log_prob, dim", [(tilted(0.9999), 2), (positive(lambda x: -0.9 * x.log() - x - math.lgamma(0.1)), 1)]
)
def test_features_finer_than_the_cells_are_warned_of(log_prob, dim):
    with pytest.warns(DegeneracyWarning, match=r"a density should have a mass of 1; that of condition 'own' has"):
        target = ps.exact(single(log_prob, dim))
    assert target.log_evidence == pytest.approx(0, abs=0.01)


ONE_SIDED = {
    "half-Cauchy": lambda x: math.log(2 / math.pi) - torch.log1p(x**2),
    "Lomax(0.9)": lambda x: math.log(0.9) - 1.9 * torch.log1p(x),
    "Levy": lambda x: -0.5 * math.log(2 * math.pi) - 1.5 * x.log() - 0.5 / x,
}


@pytest.mark.parametrize("name", ONE_SIDED)
def test_one_sided_tails_without_a_mean_are_found(name):
    target = ps.exact(single(positive(ONE_SIDED[name])))
    assert target.log_evidence == pytest.approx(0, abs=1e-4)
    assert (
        stats.kstest(
            target.sample(2000, seed=1)[:, 0].numpy().clip(max=1e6),
            {"half-Cauchy": stats.halfcauchy, "Lomax(0.9)": stats.lomax(0.9), "Levy": stats.levy}[name].cdf,
        ).statistic
        < 0.05
    )  # fmt: skip  (by chance once in 10^4)


@pytest.mark.filterwarnings("ignore:whether .* could not be told")
@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("powers", [{"a": 0.1, "b": 0.1}, {"a": 0.1, "b": 0.15}])
def test_a_product_without_an_end_is_refused_whatever_comes_first(order, powers):
    """Tails of r^-0.8 and r^-1, of a factor 1 and one 10,000 wide."""
    members = {"a": Own(student(3)), "b": Own(student(3, scale=1e4))}
    p = ps.Family({name: members[name] for name in order})
    with pytest.raises(ArgumentError, match="it may have no end"):
        ps.exact(ps.parse(" * ".join(f"{name}^{powers[name]}" for name in order), p))


@pytest.mark.filterwarnings("ignore:whether .* could not be told")
@pytest.mark.parametrize("power", [1.95, 1.99])
def test_a_pole_that_holds_the_mass_is_refused(power):
    """Gamma(1/2) to a power near 2, where the integral diverges: log Z was 2.17 instead of 2.54 at 1.95."""
    q = single(positive(lambda x: -0.5 * x.log() - x - math.lgamma(0.5))) ** power
    with pytest.raises(ArgumentError, match=r"in its two highest cells, as at a pole"):
        ps.exact(q)


@pytest.mark.filterwarnings("ignore:whether .* could not be told")
def test_a_denominator_that_underflows_far_out_is_no_zero():
    secant = stats.hypsecant(0, 2)
    below = Own(lambda x: torch.from_numpy(secant.pdf(x[..., 0].clamp(-1600, 1600).numpy())).log())
    p = ps.Family({"n": ps.Gaussian([0.4], 1.69), "s": below})
    expected = integrate.quad(lambda x: stats.norm(0.4, 1.3).pdf(x) / secant.pdf(x), -30, 30)[0]
    assert ps.exact(p["n"] / p["s"]).log_evidence == pytest.approx(math.log(expected), abs=1e-4)


# products
def family(**members):
    return ps.Family(members)


@pytest.mark.filterwarnings("ignore:whether .* could not be told")
@pytest.mark.parametrize(
    "exponents",
    [{"u": 1, "e": 1}, {"t": 1, "u": 0.5}, {"t": 2, "e": 1}, {"t": 8}, {"t": 0.5, "n": 0.5, "e": 0.3}],
    ids=str,
)
def test_products_over_supports_against_quadrature(exponents):
    members = {
        "u": Own(uniform(0.25, 3.0)), "e": Own(positive(lambda x: -x)), "t": Own(student(3, 1.0)),
        "n": ps.Gaussian([40.0], 0.01),
    }  # fmt: skip
    log = {
        "u": stats.uniform(0.25, 2.75).logpdf, "e": stats.expon().logpdf, "t": stats.t(3, 1).logpdf,
        "n": stats.norm(40, 0.1).logpdf,
    }  # fmt: skip
    cuts = [-math.inf, -30, -3, 0, 0.25, 1, 3, 39.5, 40, 40.5, 100, math.inf]
    f = lambda x: math.exp(sum(w * log[name](x) for name, w in exponents.items()))  # noqa: E731
    mass = sum(integrate.quad(f, a, b, limit=300, epsabs=1e-300)[0] for a, b in itertools.pairwise(cuts))
    target = ps.exact(ps.Composition(family(**members), exponents))
    assert target.log_evidence == pytest.approx(math.log(mass), abs=1e-6)
    draws = target.sample(1000, seed=1)
    assert bool(((draws > 0.25) & (draws < 3)).all()) or "u" not in exponents


@pytest.mark.filterwarnings("ignore:whether .* could not be told")
def test_a_denominator_that_is_zero_where_numerators_are_not():
    p = family(t=Own(student(3)), u=Own(uniform(-1.0, 1.0)), v=Own(uniform(-0.5, 0.5)))
    with pytest.raises(ArgumentError, match=r"a denominator of t \* u\^-1 is 0 at x = .* where its numerators are not"):
        ps.exact(p["t"] / p["u"])
    assert ps.exact(p["v"] / p["u"]).log_evidence == pytest.approx(math.log(2), abs=1e-6)  # 0 / 0 outside is 0
    x = torch.tensor([[0.2], [0.7], [5.0]], dtype=F64)
    assert (p["v"] / p["u"]).log_density(x).exp().tolist() == pytest.approx([2, 0, 0])


@pytest.mark.filterwarnings("ignore:whether .* could not be told")
def test_factors_that_do_not_overlap_have_no_product():
    p = family(u=Own(uniform(-1.0, 1.0)), v=Own(uniform(2.0, 3.0)))
    with pytest.raises(ArgumentError, match=r"u \* v is 0 wherever its factors are not. Choose factors that overlap"):
        ps.exact(p["u"] * p["v"])


@pytest.mark.filterwarnings("ignore:whether .* could not be told")
@pytest.mark.parametrize("power", [0.1, 0.25, 0.27])
def test_a_power_that_has_no_end_is_refused(power):
    """t_3^w decays like r^(-4 w): it has no mass to speak of for w up to 1/4, and too much far away just above."""
    with pytest.raises(ArgumentError, match=r"a grid must hold the density; .* % of that of own\^0.* may have no end"):
        ps.exact(single(student(3)) ** power)
    assert ps.exact(single(student(3)) ** 0.5).log_evidence == pytest.approx(_log_power(0.5), abs=1e-6)


def _log_power(w):
    f = lambda x: stats.t(3).pdf(x) ** w  # noqa: E731
    return math.log(2 * (integrate.quad(f, 0, 5)[0] + integrate.quad(f, 5, math.inf)[0]))


def test_draws_of_a_grid_of_uneven_cells():
    """Kolmogorov's distance below 2.2 / sqrt(n): exceeded by chance once in 8,000 times."""
    draws = ps.exact(single(student(1, 5.0, 0.1))).sample(5000, seed=3)[:, 0].double().numpy()
    assert stats.kstest(draws, stats.cauchy(5, 0.1).cdf).statistic < 2.2 / math.sqrt(5000)
    again = ps.exact(single(student(1, 5.0, 0.1))).sample(5000, seed=3)[:, 0].double().numpy()
    assert (draws == again).all()


def test_cells_of_edged_axes_integrate_cubics_exactly():
    """Two Gauss points an interval: polynomials up to the third degree, whatever the widths."""
    ends = torch.tensor([0.0, 0.1, 0.7, 0.8, 2.0], dtype=F64)
    axes = EdgedAxes.halving([ends])
    x, volumes = axes.centres()[:, 0], axes.log_volumes().exp()
    for power in range(4):
        assert (x**power * volumes).sum().item() == pytest.approx(2 ** (power + 1) / (power + 1))
    assert axes.shape == (8,) and axes.wider().shape == (4,)
    inside = axes.at(torch.tensor([[0.0], [1.5], [8.0]], dtype=F64))[:, 0]
    assert inside.tolist() == pytest.approx([0.0, 0.075, 2.0])


# what users may get wrong
WRONG = {
    "nan": (lambda x: x[..., 0] * math.nan, r"must be a number, or -inf outside of its support; got nan at x = \["),
    "inf": (lambda x: torch.full(x.shape[:-1], math.inf, dtype=F64), r"or -inf outside of its support; got inf at x"),
    "shape": (lambda x: -x, r"must have shape \(\d+,\); got \(\d+, 1\). Mend Own.log_prob: one number a point"),
    "number": (lambda x: 0.0, r"must have shape \(\d+,\); got float. Mend Own.log_prob"),
    "error": (lambda x: x[10**9], r"must have a log-density at x .*; got IndexError: .* Mend Own.log_prob; outside"),
    "support": (
        lambda x: torch.distributions.Exponential(1.0, validate_args=True).log_prob(x[..., 0]),
        r"(?s)got ValueError: .* returns -inf",
    ),
}


@pytest.mark.parametrize("log_prob, words", WRONG.values(), ids=WRONG)
def test_a_wrong_density_is_named(log_prob, words):
    with pytest.raises(ModelError, match=words) as caught:
        ps.exact(single(log_prob))
    assert "condition 'own'" in str(caught.value)


@pytest.mark.parametrize(
    "score", [lambda x: x[..., 0], lambda x: 0.0, lambda x: x @ x], ids=["shape", "number", "error"]
)
def test_a_wrong_score_is_named(score):
    class Wrong(ps.Distribution):
        dim = 3

        def score(self, x, alpha=1.0, sigma=0.0):
            return score(x)

    p = ps.Family({"w": Wrong(), "n": ps.Gaussian(dim=3)})
    for ask in (lambda: (p["w"] * p["n"]).score(torch.zeros(5, 3), 0.5), lambda: ps.Denoise(steps=5).sample(p["w"], 4)):
        with pytest.raises(ModelError, match=r"condition 'w' must (be like x, \(.*, 3\); got|have a score at x)"):
            ask()


class Narrow(ps.Distribution):
    """N(0, 1e-6 I), its score in float64 whatever x is."""

    dim, known = 2, None

    def score(self, x, alpha=1.0, sigma=0.0):
        alpha, sigma = (torch.as_tensor(scale, dtype=F64)[..., None] for scale in (alpha, sigma))
        return -x.double() / (1e-6 * alpha**2 + sigma**2)

    def moments(self):
        return self.known


def test_scores_of_another_dtype_become_that_of_the_points():
    run = ps.Denoise(steps=100).sample(ps.Family({"n": Narrow()})["n"], 4)
    assert run.samples.dtype == torch.float32


def test_samples_of_an_unknown_size_are_told_and_moments_resolve_them():
    """Deviations of 1000 draws by moments, within 6 standard errors and 2 %: once in 10^8."""
    part = Narrow()
    q = ps.Family({"n": part})["n"]
    with pytest.warns(DegeneracyWarning, match=r"of unknown size should be about 1 wide.* or write its moments"):
        ps.Denoise(steps=100).sample(q, 100)
    part.known = (torch.zeros(2), 1e-6 * torch.ones(2))
    run = ps.Denoise(steps=100).sample(q, 1000, seed=1)
    assert run.samples.std(0).numpy() == pytest.approx(1e-3, rel=6 / math.sqrt(2000) + 0.02)


@pytest.mark.parametrize(
    "moments, words",
    [((torch.zeros(2), torch.ones(1)), r"mean in Own.moments\(\) of condition 'own' must be a vector \(1,\)"),
     ((torch.zeros(1), -torch.ones(1)), r"covariance in Own.moments\(\) of condition 'own' must be positive definite"),
     (([0.0], [[1.0, 0.0]]), r"covariance in Own.moments\(\) of condition 'own' must be"),
     (3.0, r"Own.moments\(\) of condition 'own' must be \(mean, covariance\), or None")],
)  # fmt: skip
def test_wrong_moments_are_named(moments, words):
    for use in (lambda q: ps.Denoise(steps=4).sample(q, 2), ps.exact):
        with pytest.raises(ArgumentError, match=words):
            use(single(normal(0.0, 1.0), moments=moments))


def test_wrong_draws_are_named():
    for draws in (lambda n, g: torch.zeros(n, 2), lambda n, g: torch.full((n, 1), math.nan), lambda n: n):
        with pytest.raises(ArgumentError, match=r"Drawn.sample\(n, seed, dtype\) must return finite points \(n, 1\)"):
            ps.exact(single(normal(0.0, 1.0), draws=draws))


def test_other_methods_and_more_dimensions_are_refused():
    q = single(student(3, dim=3), 3)
    with pytest.raises(ArgumentError, match=r"a grid must have one or two dimensions; got 3.*FeynmanKac"):
        ps.exact(q)
    for method in ("importance", "rejection", "closed form"):
        with pytest.raises(ArgumentError, match="method must be 'grid' for densities that are no mixtures"):
            ps.exact(single(student(3)), method)


def test_a_kind_may_have_domains():
    @ps.distributions.KINDS.register("test-logistic")
    @dataclass(frozen=True)
    class Logistic(Checked, ps.Density):
        scale: float = setting(1.0, number(0, ends=False))
        dim = 1

        def log_prob(self, x, alpha=1.0, sigma=0.0):
            z = x[..., 0].abs() / self.scale
            return -z - 2 * torch.log1p((-z).exp()) - math.log(self.scale)

        def score(self, x, alpha=1.0, sigma=0.0):
            return -torch.tanh(0.5 * x / self.scale) / self.scale

    from polyscore.algebra.family_file import parse_family

    p = parse_family("conditions: {a: {kind: test-logistic, scale: 2}}")
    assert ps.exact(p["a"]).log_evidence == pytest.approx(0, abs=1e-8)
    with pytest.raises(ArgumentError, match="condition 'a': scale must be a number above 0; got -1"):
        parse_family("conditions: {a: {kind: test-logistic, scale: -1}}")


def test_learned_members_have_no_exact_target():
    class Model:
        event = (1,)

        def score(self, x, t):
            return -x

    p = ps.Family({"m": Model(), "n": ps.Gaussian([0.0])})
    with pytest.raises(CompositionError, match="'m' must have a closed form here"):
        ps.exact(p["n"] * p["m"])


def test_a_log_density_that_grows_without_end_is_refused():
    with pytest.raises(ArgumentError, match=r"must have its mass somewhere.*grows without end"):
        ps.exact(single(lambda x: -x[..., 0]))
