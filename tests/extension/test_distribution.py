"""Distributions from outside: one with a density that is no mixture, one with a score alone, used like our own."""

import functools
import itertools
import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor
from typer.testing import CliRunner

import polyscore as ps
from polyscore.algebra.family_file import parse_family
from polyscore.cli import app
from polyscore.errors import CompositionError, DegeneracyWarning

F64 = torch.float64
CANNOT_TELL = "could not be told: nothing is known of the tails"


# --- the extension
@ps.distributions.KINDS.register("student-t")
class StudentT(ps.Density):
    """mean + scale t_nu, a mixture of N(mean, v scale^2 I) over 1 / v ~ Gamma(nu / 2, nu / 2): a sum over log v."""

    def __init__(self, nu: float = 3.0, mean: Sequence[float] = (0.0,), scale: float = 1.0) -> None:
        self.nu, self.scale, self.dim = nu, scale, len(mean)
        self.mean, half = torch.tensor(mean, dtype=torch.float64), 0.5 * nu
        log_v = torch.arange(-5, 40 / (half + 0.5), 0.4, dtype=torch.float64)
        self.log_shares = torch.log_softmax(-half * (log_v + (-log_v).exp()), 0)
        self.variances = scale**2 * log_v.exp()

    def _parts(self, x: Tensor, alpha, sigma) -> tuple[Tensor, Tensor, Tensor]:
        alpha, sigma = (torch.as_tensor(scale).to(x)[..., None] for scale in (alpha, sigma))
        away, variance = x - alpha * self.mean.to(x), alpha**2 * self.variances.to(x) + sigma**2
        square = away.square().sum(-1, keepdim=True) / variance
        return away, variance, self.log_shares.to(x) - 0.5 * (square + self.dim * (2 * math.pi * variance).log())

    def log_prob(self, x: Tensor, alpha=1.0, sigma=0.0) -> Tensor:
        return self._parts(x, alpha, sigma)[2].logsumexp(-1)

    def score(self, x: Tensor, alpha=1.0, sigma=0.0) -> Tensor:
        away, variance, logs = self._parts(x, alpha, sigma)
        return -away * (logs.softmax(-1) / variance).sum(-1, keepdim=True)

    def moments(self):
        return (self.mean, self.scale**2 * self.nu / (self.nu - 2) * torch.ones(self.dim)) if self.nu > 2 else None


# --- end


# --- the extension
class Ring(ps.Distribution):
    """Uniform on a circle: without noise it has no density, and with noise a score that is known (Bessel functions)."""

    dim = 2

    def __init__(self, radius: float = 1.0) -> None:
        self.radius = radius

    def score(self, x: Tensor, alpha=1.0, sigma=0.0) -> Tensor:
        alpha, sigma = (torch.as_tensor(scale).to(x)[..., None] for scale in (alpha, sigma))
        r = x.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        kappa = alpha * self.radius * r / sigma**2
        pull = torch.special.i1e(kappa) / torch.special.i0e(kappa)
        return (alpha * self.radius * pull * x / r - x) / sigma**2


# --- end


def composed(**exponents: float) -> ps.Composition:
    """Two Student-t's, a Gaussian and a wide base, in one dimension."""
    p = ps.Family({"a": StudentT(3, [-1.0], 0.7), "b": StudentT(5, [1.0], 1.5), "n": ps.Gaussian([0.5], 2.0),
                   "base": StudentT(2.5, [0.0], 3.0)})  # fmt: skip
    return ps.Composition(p, exponents)


SCIPY = {"a": stats.t(3, -1, 0.7), "b": stats.t(5, 1, 1.5), "n": stats.norm(0.5, 2**0.5), "base": stats.t(2.5, 0, 3.0)}
FINE = np.sinh(np.linspace(-22, 22, 400_001))


def unnormalised(exponents: dict[str, float], x: np.ndarray | float) -> np.ndarray:
    """The same composition by SciPy's densities."""
    return np.exp(sum(w * SCIPY[name].logpdf(x) for name, w in exponents.items()))


def mass(exponents: dict[str, float]) -> float:
    """Its integral by SciPy's quadrature."""
    cuts = [-math.inf, -30, -3, 0, 3, 30, math.inf]
    f = functools.partial(unnormalised, exponents)
    return sum(integrate.quad(f, a, b, limit=500, epsabs=1e-12)[0] for a, b in itertools.pairwise(cuts))


EXPONENTS = {
    "one": {"a": 1.0}, "product": {"a": 1.0, "b": 1.0}, "with a Gaussian": {"a": 1.0, "n": 1.0},
    "over a base": {"a": 1.0, "b": 1.0, "base": -1.0}, "W = 0.7": {"a": 0.3, "b": 0.4}, "W = 1.7": {"a": 1.2, "n": 0.5},
}  # fmt: skip
each = pytest.mark.parametrize("exponents", EXPONENTS.values(), ids=EXPONENTS)
quiet = pytest.mark.filterwarnings("ignore:whether .* could not be told")


# the laws that built-in distributions keep
@pytest.mark.parametrize("dim", [1, 2])
def test_its_density_is_scipys_and_its_score_the_gradient(dim):
    part = StudentT(3, [0.3] * dim, 0.8)
    x = 3 * torch.randn(50, dim, dtype=F64, generator=torch.Generator().manual_seed(0))
    expected = stats.multivariate_t([0.3] * dim, 0.64 * np.eye(dim), 3).logpdf(x.numpy())
    torch.testing.assert_close(part.log_prob(x), torch.from_numpy(expected.reshape(50)), rtol=1e-7, atol=1e-7)
    for alpha, sigma in ((1.0, 0.0), (0.8, 0.6), (0.1, 0.99)):
        y = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(part.log_prob(y, alpha, sigma).sum(), y)
        torch.testing.assert_close(part.score(x, alpha, sigma), slope, rtol=1e-9, atol=1e-9)


@each
def test_the_algebra_takes_it(exponents):
    q, x = composed(**exponents), torch.linspace(-4, 4, 9, dtype=F64)[:, None]
    expected = torch.from_numpy(unnormalised(exponents, x[:, 0].numpy())).log()
    torch.testing.assert_close(q.log_density(x), expected, rtol=1e-6, atol=1e-6)
    y = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(q.log_density(y, 0.3).sum(), y)
    torch.testing.assert_close(q.score(x, 0.3), slope)
    assert q.residual(x, 0.3).shape == (9,)
    assert ps.parse("a * b / base", q.family) == q.family["a"] * q.family["b"] / q.family["base"]


# exact, against SciPy
@quiet
@each
def test_exact_in_one_dimension(exponents):
    target = ps.exact(composed(**exponents))
    assert target.method == "grid"
    assert target.log_evidence == pytest.approx(math.log(mass(exponents)), abs=1e-6)
    ks(target.sample(4000, seed=1)[:, 0], exponents)
    at = target.log_prob(torch.tensor([[0.7]], dtype=F64)).exp().item()
    assert at == pytest.approx(unnormalised(exponents, 0.7) / mass(exponents), rel=1e-4)


def ks(draws: Tensor, exponents: dict[str, float], slack: float = 0.0) -> None:
    """Kolmogorov's distance to SciPy's integral; 2.2 / sqrt(n) is exceeded by chance once in 8,000 times."""
    below = integrate.cumulative_trapezoid(unnormalised(exponents, FINE), FINE, initial=0)
    found = stats.kstest(draws.double().numpy(), lambda x: np.interp(x, FINE, below / below[-1]))
    assert found.statistic < 2.2 / math.sqrt(len(draws)) + slack, found


@quiet
def test_exact_in_two_dimensions():
    members = {"a": StudentT(3, [1.0, -2.0], 0.5), "b": StudentT(4, [0.0, 0.0], 2.0), "n": ps.Gaussian(cov=[3.0, 1.0])}
    q = ps.Composition(ps.Family(members), {"a": 1.0, "b": 0.5, "n": 0.5})
    u, step = np.linspace(-10, 10, 1501, retstep=True)
    points = np.sinh(np.stack(np.meshgrid(u, u, indexing="ij"), -1))
    values = (
        stats.multivariate_t([1, -2], 0.25 * np.eye(2), 3).pdf(points)
        * stats.multivariate_t([0, 0], 4 * np.eye(2), 4).pdf(points) ** 0.5
        * stats.multivariate_normal([0, 0], np.diag([3.0, 1.0])).pdf(points) ** 0.5
    )
    values *= np.sqrt(1 + points**2).prod(-1) * step**2
    target = ps.exact(q)
    assert target.log_evidence == pytest.approx(math.log(values.sum()), abs=1e-5)
    # Means of cosines, of deviation at most 1, within 5 standard errors: 6e-7 each.
    draws = target.sample(4000, seed=2).double().numpy()
    expected = (values[..., None] * np.cos(points)).sum((0, 1)) / values.sum()
    assert np.cos(draws).mean(0) == pytest.approx(expected, abs=5 / math.sqrt(4000))


@pytest.mark.parametrize("exponents", [EXPONENTS["W = 1.7"], EXPONENTS["one"]], ids=str)
def test_exact_in_the_datas_units(exponents):
    q, units = composed(**exponents), (torch.tensor([10.0]), torch.tensor([0.2]))
    moved = ps.Composition(ps.Family(q.family.members, units=units), exponents)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegeneracyWarning)
        plain, other = ps.exact(q), ps.exact(moved)
    assert other.log_evidence == pytest.approx(plain.log_evidence + (1 - q.total) * math.log(0.2), abs=1e-6)
    x = plain.sample(500, seed=2)
    torch.testing.assert_close(other.sample(500, seed=2), 10 + 0.2 * x, rtol=1e-5, atol=1e-4)


# validity
@pytest.mark.parametrize(
    "exponents, t, proper",
    [({"a": 1}, 0, True), ({"a": 0.4, "b": 0.6}, 0, True), ({"a": 1, "n": 2}, 0, True), ({"a": 0.1, "n": 0.1}, 0, True),
     ({"a": 1, "b": 1}, 0.5, True), ({"a": 1, "b": 1}, 0, None), ({"a": 0.3}, 0, None), ({"a": 0.3}, 0.5, None),
     ({"a": 1, "n": -1}, 0, None), ({"n": 1, "base": -1}, 0, None), ({"n": 1}, 0, True)],
    ids=str,
)  # fmt: skip
def test_validity_proves_what_it_can_and_says_what_it_cannot(exponents, t, proper):
    answer = composed(**exponents).validity(t)
    assert answer.proper is proper
    if proper is None:
        assert "nothing is known of the tails of" in answer.reason and "which is no Gaussian mixture" in answer.reason


def test_no_answer_is_told_and_sampling_goes_on():
    q = composed(a=1, b=1, base=-1)
    for sampler in (ps.Denoise(steps=10), ps.FeynmanKac(4, steps=10)):
        with pytest.warns(DegeneracyWarning, match=f"whether .* {CANNOT_TELL} of 'a', which is no Gaussian mixture"):
            run = sampler.sample(q, 8)
        assert run.samples.isfinite().all() and any(CANNOT_TELL in doubt for doubt in run.doubts)
    ps.FeynmanKac(4, steps=10).sample(composed(a=0.4, b=0.6), 8)  # proved: a warning would be an error here


# samplers and evidence
@quiet
@each
def test_feynman_kac_draws_from_it_and_knows_its_evidence(exponents):
    run = ps.FeynmanKac(16, steps=80).sample(composed(**exponents), 1000, seed=3)
    error = max(run.log_evidence_error, 1e-6)
    assert run.total_log_evidence == pytest.approx(math.log(mass(exponents)), abs=5 * error + 0.01)
    ks(run.samples[:, 0], exponents, slack=0.015)
    assert run.arithmetic == "closed form" and "closed form" in run.summary()


def test_denoising_draws_from_it():
    for name in ("a", "n"):
        run = ps.Denoise(steps=200).sample(composed(**{name: 1}), 2000, seed=4)
        ks(run.samples[:, 0], {name: 1.0}, slack=0.015)


def test_units_do_not_move_its_evidence():
    members, units = composed(a=1).family.members, (torch.tensor([7.0]), torch.tensor([0.01]))
    q = ps.Composition(ps.Family(members, units=units), {"a": 0.5, "n": 0.5})
    run = ps.FeynmanKac(16).sample(q, 500, seed=1, dtype=F64)
    assert run.total_log_evidence == pytest.approx(ps.exact(q).log_evidence, abs=0.02)
    assert (run.samples - 7).abs().median() < 0.05


# a score alone
def ring(mean: float = 0.8, **members: ps.Distribution) -> ps.Composition:
    p = ps.Family({"ring": Ring(1.5), "n": ps.Gaussian([mean, 0.0], 0.6), **members})
    return p["ring"] * p["n"]


def angles(run: ps.Run) -> np.ndarray:
    return torch.atan2(run.samples[:, 1], run.samples[:, 0]).numpy()


def test_a_score_alone_is_composed_sampled_and_weighed():
    """The Gaussian on the circle is von Mises's distribution; the evidence is its mean over the circle.

    Kolmogorov's distance exceeds 2.2 / sqrt(n) by chance once in 8,000 times.
    """
    q = ring()
    run = ps.FeynmanKac(16, steps=150).sample(q, 1000, seed=0, dtype=F64)
    assert run.samples.norm(dim=1).sub(1.5).abs().max() < 0.02
    distance = stats.kstest(angles(run), stats.vonmises(1.5 * 0.8 / 0.6).cdf).statistic
    assert distance < 2.2 / math.sqrt(1000) + 0.01
    points = np.stack([1.5 * np.cos(a := np.linspace(0, 2 * np.pi, 1000, endpoint=False)), 1.5 * np.sin(a)], 1)
    evidence = stats.multivariate_normal.pdf(points, [0.8, 0], 0.6).mean()
    assert run.total_log_evidence == pytest.approx(math.log(evidence), abs=5 * run.log_evidence_error + 0.02)
    alone = ps.Denoise(steps=150).sample(q.family["ring"], 2000, seed=1)
    assert alone.samples.norm(dim=1).sub(1.5).abs().max() < 0.02
    assert stats.kstest(angles(alone), stats.uniform(-np.pi, 2 * np.pi).cdf).statistic < 2.2 / math.sqrt(2000)


def test_what_a_score_alone_cannot_do_is_said():
    q = ring()
    assert q.is_closed_form and not q.has_density and q.mixtures is None
    assert q.validity().proper is True and (q / q.family["n"] ** 2).validity().proper is None
    for ask in (lambda: ps.exact(q), lambda: q.log_density(torch.zeros(3, 2)), lambda: q.density("ring")):
        with pytest.raises(CompositionError, match="'ring' must have a density here; got Ring"):
            ask()
    with pytest.raises(ValueError, match=r"Ring must have sample\(n, seed, dtype\) to be drawn from"):
        q.distribution("ring").sample(5)


# files and the command line
FAMILY = """
conditions:
  a: {kind: student-t, nu: 3, mean: [-1.0], scale: 0.7}
  n: {kind: gaussian, mean: [0.5], cov: 2.0}
"""


def test_a_family_file_and_the_command_line_know_it_by_kind(tmp_path: Path):
    (tmp_path / "family.yaml").write_text(FAMILY)
    out = tmp_path / "out.csv"
    shown = CliRunner().invoke(app, ["sample", str(tmp_path / "family.yaml"), "a^0.5 * n^0.5", "-n", "64", "-K", "4",
                                     "--steps", "20", "--out", str(out), "--json"])  # fmt: skip
    assert shown.exit_code == 0, shown.output
    summary = json.loads(shown.stdout)
    assert summary["exact_log_evidence"] == pytest.approx(math.log(mass({"a": 0.5, "n": 0.5})), abs=1e-6)
    assert "Hoelder" in summary["validity"] and len(out.read_text().splitlines()) == 65


def test_a_run_of_it_is_saved(tmp_path: Path):
    run = ps.FeynmanKac(4, steps=10).sample(composed(a=0.5, n=0.5), 16, seed=2)
    with np.load(run.save(tmp_path / "run.npz")) as found:
        np.testing.assert_array_equal(found["samples"], run.samples.numpy())


@pytest.mark.parametrize(
    "entry, parts",
    [("{kind: student, nu: 3}", ["'student'", "Did you mean 'student-t'?"]),
     ("{kind: student-t, nuu: 3}", ["'nuu'", "Did you mean 'nu'?"]),
     ("{kind: student-t, nu: three}", ["condition 'a' must be what student-t can be made of", "TypeError"]),
     ("{kind: 'os:system'}", ["must be one of gaussian, mixture", "'os:system'", "KINDS.register"])],
)  # fmt: skip
def test_what_a_file_gets_wrong_of_it_is_named(entry, parts):
    with pytest.raises(ValueError, match=r"mine\.yaml: ") as caught:
        parse_family(f"conditions: {{a: {entry}}}", "mine.yaml")
    assert all(part in str(caught.value) for part in parts), str(caught.value)
