"""Causal models: closed forms against a plain recursion, densities against integrals, doubles against composition."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import polyscore as ps
from cases import F64, spd, within_standard_errors
from polyscore.causal import Additive, Linear, Mechanism, Mixing, Model, Structural
from polyscore.paper.theory import naive_covariance
from polyscore.paper.theory.interventions import linear_example, nonlinear_example


def points(n: int, dim: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(n, dim, dtype=F64, generator=torch.Generator().manual_seed(seed))


def four(mixing: object = None) -> Model:
    """Listed children first: coordinates are in another order than causes."""
    return Model(
        {
            "d": Linear({"b": 0.7, "c": -0.4}, shift=0.2, variance=0.5),
            "b": Linear({"a": 0.8}, variance=0.6),
            "c": Linear({"b": 0.6, "a": -0.5}, shift=-1.0, variance=0.9),
            "a": Linear(shift=0.5),
        },
        mixing,
    )


MIXING = spd(4, 31) + np.triu(np.full((4, 4), 0.3), 1)  # not symmetric, not orthogonal
SOFT = {"b": Linear({"a": 0.3}, shift=1.0, variance=0.5)}
PERFECT = {"c": Linear(shift=-0.4, variance=0.7)}
BOTH_CHANGED = {"d": Linear({"b": 0.1, "c": -0.6}, shift=-1.0, variance=0.4), "a": Linear(variance=0.8)}
mixed = pytest.mark.parametrize("mixing", [None, MIXING], ids=["plain", "mixed"])


def recursion(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of z, one variable after the other: no matrix of the model is ever inverted."""
    index, dim = {name: i for i, name in enumerate(model.variables)}, model.dim
    mean, cov = np.zeros(dim), np.zeros((dim, dim))
    for name in model.order:
        j, mechanism = index[name], model[name]
        assert isinstance(mechanism, Linear)
        ks = [index[k] for k in mechanism.coefficients]
        b = np.array(list(mechanism.coefficients.values()))
        mean[j] = mechanism.shift + b @ mean[ks]
        row = b @ cov[ks] if ks else np.zeros(dim)
        cov[j], cov[:, j] = row, row
        cov[j, j] = mechanism.variance + (row[ks] @ b if ks else 0.0)
    return mean, cov


def gaussian(model: Model, *interventions: dict[str, Mechanism]) -> ps.Gaussian:
    found = model.distribution(*interventions)
    assert isinstance(found, ps.Gaussian)
    return found


# linear and Gaussian
@mixed
@pytest.mark.parametrize("done", [(), (SOFT,), (PERFECT,), (BOTH_CHANGED,), (SOFT, PERFECT, BOTH_CHANGED)], ids=len)
def test_linear_models_are_the_gaussians_of_a_plain_recursion(mixing, done):
    model = four(mixing)
    mean, cov = recursion(model.intervene(*done))
    m = np.eye(4) if mixing is None else mixing
    found = gaussian(model, *done)
    np.testing.assert_allclose(found.mean.numpy(), m @ mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.cov.numpy(), m @ cov @ m.T, rtol=1e-11, atol=1e-12)


@mixed
@pytest.mark.parametrize("done", [(SOFT, PERFECT), (SOFT, BOTH_CHANGED)], ids=["perfect", "soft"])
def test_mechanism_by_mechanism_is_scipys_normal(mixing, done):
    """Under the second c reads b and a, in this order."""
    model = four(mixing).intervene(*done)
    structural = Structural(model.mechanisms, model.order, model.mixing)
    mean, cov = recursion(model)
    m = np.eye(4) if mixing is None else mixing
    x = points(50, 4)
    expected = stats.multivariate_normal(m @ mean, m @ cov @ m.T).logpdf(x.numpy())
    np.testing.assert_allclose(structural.log_prob(x).numpy(), expected, rtol=1e-10, atol=1e-10)
    # means and covariances of 20,000 draws within 5 standard errors, 14 of them: a false alarm in 8e-6 seeds
    z = structural.sample(20_000, seed=1, dtype=F64)
    within_standard_errors(z, m @ mean, 5)
    centred = z - torch.from_numpy(m @ mean)
    within_standard_errors((centred[:, :, None] * centred[:, None, :]).flatten(1), (m @ cov @ m.T).ravel(), 5)


def test_a_matrix_of_coefficients_says_the_same():
    b = [[0, 0, 0], [0.8, 0, 0], [-0.5, 1.2, 0]]
    named = Model({"x": Linear(), "y": Linear({"x": 0.8}, 1.0, 0.5), "z": Linear({"x": -0.5, "y": 1.2}, 0.0, 0.3)})
    found = Model.linear(b, [0, 1, 0], [1, 0.5, 0.3], ["x", "y", "z"])
    assert found.mechanisms == named.mechanisms and found.order == ("x", "y", "z")
    inverse = np.linalg.inv(np.eye(3) - np.array(b))
    np.testing.assert_allclose(gaussian(found).cov, inverse @ np.diag([1, 0.5, 0.3]) @ inverse.T, rtol=1e-12)
    assert Model.linear(b).variables == ("z1", "z2", "z3")


def test_a_perfect_intervention_cuts_a_variable_from_its_causes():
    plain, cut = gaussian(four()).cov, gaussian(four(), PERFECT).cov
    assert plain[2, 1].abs() > 0.1 and plain[2, 3].abs() > 0.01
    assert cut[2, [1, 3]].abs().max() < 1e-12 and cut[2, 2].item() == pytest.approx(0.7)
    assert cut[0, 1].abs() > 0.1  # and others stay


# the double
@mixed
@pytest.mark.parametrize("schedule", [ps.VP(), ps.LinearFlow()], ids=repr)
def test_disjoint_targets_compose_pointwise_with_nothing_to_normalise(mixing, schedule):
    model = four(mixing)
    p = model.family({"A": SOFT, "B": PERFECT, "C": BOTH_CHANGED}, schedule=schedule)
    assert p.variables == (("d", "b", "c", "a") if mixing is None else ("x1", "x2", "x3", "x4"))
    q, double, x = p["A"] * p["B"] / p["control"], gaussian(model, SOFT, PERFECT), points(40, 4)
    torch.testing.assert_close(q.log_density(x), double.log_prob(x), rtol=1e-9, atol=1e-9)
    triple = ps.base_composition(p)
    assert dict(triple.exponents) == {"A": 1.0, "B": 1.0, "C": 1.0, "control": -2.0}
    exact, direct = ps.exact(triple), gaussian(model, SOFT, PERFECT, BOTH_CHANGED)
    torch.testing.assert_close(triple.log_density(x), direct.log_prob(x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(exact.gaussian.mean, direct.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(exact.gaussian.cov, direct.cov, rtol=1e-9, atol=1e-9)
    assert exact.log_evidence == pytest.approx(0, abs=1e-9)


def random_model(dim: int, seed: int) -> tuple[Model, dict[str, Mechanism], dict[str, Mechanism]]:
    """Weak edges between all variables, a random mixing; A changes the first two, B the last."""
    rng = np.random.default_rng(seed)
    b, shift = np.tril(0.5 * rng.normal(size=(dim, dim)), -1), 0.5 * rng.normal(size=dim)
    variance = rng.uniform(0.5, 1.2, dim)
    model = Model.linear(b, shift, variance, mixing=np.eye(dim) + 0.3 * rng.normal(size=(dim, dim)))

    def soft(name: str) -> Mechanism:
        own = model[name]
        assert isinstance(own, Linear)
        weaker = {k: 0.6 * b + 0.2 * rng.normal() for k, b in own.coefficients.items()}
        return Linear(weaker, own.shift + rng.normal(), own.variance * rng.uniform(0.6, 1.0))

    return model, {"z1": soft("z1"), "z2": soft("z2")}, {f"z{dim}": soft(f"z{dim}")}


@pytest.mark.parametrize("dim", [3, 5])
def test_corrected_samples_are_the_doubles(dim):
    # gaps of the mean in standard errors below 5, of the covariance below five of its own and 3 % for K = 32
    model, a, b = random_model(dim, seed=dim)
    q, double = ps.base_composition(model.family({"A": a, "B": b})), gaussian(model, a, b)
    run = ps.FeynmanKac(32, steps=150).sample(q, 3000, seed=1)
    within_standard_errors(run.samples, double.mean, 5, slack=0.03)
    gap = (torch.cov(run.samples.double().T) - double.cov).norm() / double.cov.norm()
    assert gap < 5 * math.sqrt(2 / 3000) + 0.03
    assert run.total_log_evidence == pytest.approx(0, abs=5 * run.log_evidence_error + 0.01)


def test_adding_scores_is_not_enough_for_connected_targets():
    model, a, b = linear_example()
    double = gaussian(model, a, b)
    naive = naive_covariance(ps.base_composition(model.family({"A": a, "B": b})))
    assert (naive - double.cov).norm() / double.cov.norm() == pytest.approx(0.396, abs=0.005)


def test_other_powers_of_causal_models():
    """W = 1.5, against precisions added by NumPy; evidence by the Gaussian integral."""
    model, a, b = random_model(3, seed=8)
    p, powers = model.family({"A": a, "B": b}), {"A": 0.7, "B": 1.2, "control": -0.4}
    parts = {"control": gaussian(model), "A": gaussian(model, a), "B": gaussian(model, b)}
    precisions = {name: np.linalg.inv(part.cov.numpy()) for name, part in parts.items()}
    precision = sum(w * precisions[name] for name, w in powers.items())
    mean = np.linalg.solve(precision, sum(w * precisions[k] @ parts[k].mean.numpy() for k, w in powers.items()))
    at = sum(w * stats.multivariate_normal(parts[k].mean, parts[k].cov).logpdf(mean) for k, w in powers.items())
    evidence = at + 1.5 * math.log(2 * math.pi) - 0.5 * np.linalg.slogdet(precision)[1]
    run = ps.FeynmanKac(32, steps=150).sample(ps.Composition(p, powers), 3000, seed=2)
    within_standard_errors(run.samples, mean, 5, slack=0.03)
    cov = np.linalg.inv(precision)
    gap = np.linalg.norm(np.cov(run.samples.double().numpy().T) - cov) / np.linalg.norm(cov)
    assert gap < 5 * math.sqrt(2 / 3000) + 0.03
    assert run.total_log_evidence == pytest.approx(evidence, abs=5 * run.log_evidence_error + 0.02)


def test_a_proper_double_may_have_an_improper_path():
    """Noise ties what the graph kept apart: so it is for 23 of the 300 random models of benchmarks/causal.py."""
    b = [[0, 0, 0, 0], [0.52, 0, 0, 0], [0.38, -2.18, 0, 0], [0.31, 0.32, -1.57, 0]]
    model = Model.linear(b, variance=[1.75, 0.37, 0.65, 0.74])
    a, c = {"z3": Linear({"z1": 2.03, "z2": -0.83}, 3.2, 2.87)}, {"z2": Linear({"z1": 0.43}, -1.8, 3.63)}
    q = ps.base_composition(model.family({"A": a, "B": c}))
    assert q.validity().proper is True
    torch.testing.assert_close(ps.exact(q).gaussian.cov, gaussian(model, a, c).cov, rtol=1e-8, atol=1e-8)
    t, validity = q.path_validity()
    assert validity.proper is False and 0.1 < t < 0.5
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ps.FeynmanKac(4, steps=20).sample(q, 16)
    assert any("is improper at t = 0.2" in str(warning.message) for warning in told)


# overlapping targets
def test_overlapping_targets_need_a_word_and_their_composition_is_another_distribution():
    model = four()
    one, two = {"b": Linear({"a": 0.8}, 1.0, 0.3)}, {"b": Linear({"a": -0.2}, 0.5, 0.4), **PERFECT}
    with pytest.raises(ValueError, match=r"interventions must have disjoint targets .*got \['b'\] in two. Give one"):
        model.distribution(one, two)
    joint = gaussian(model, {**one, **two, "b": Linear({"a": -0.2}, 1.5, 0.2)})
    composed = ps.exact(ps.base_composition(model.family({"A": one, "B": two}))).gaussian
    gap, inverse = (composed.mean - joint.mean).numpy(), np.linalg.inv(composed.cov.numpy())
    kl = 0.5 * (np.trace(inverse @ joint.cov.numpy()) - 4 + gap @ inverse @ gap
                - np.linalg.slogdet(joint.cov.numpy() @ inverse)[1])  # fmt: skip
    x = joint.sample(20_000, seed=3, dtype=F64)
    within_standard_errors((joint.log_prob(x) - composed.log_prob(x))[:, None], [kl], 5)
    assert kl > 0.1


def test_two_shifts_of_one_target_compose_to_their_sum_and_evidence_says_so():
    model = four(MIXING)
    one, two, both = ({"b": Linear({"a": 0.8}, shift, 0.6)} for shift in (0.9, -0.5, 0.4))
    q, x = ps.base_composition(model.family({"A": one, "B": two | PERFECT})), points(30, 4)
    double = gaussian(model, both, PERFECT)
    constant = torch.full((30,), 0.9 * -0.5 / 0.6, dtype=F64)
    torch.testing.assert_close(q.log_density(x) - double.log_prob(x), constant, rtol=1e-9, atol=1e-9)
    assert ps.exact(q).log_evidence == pytest.approx(-0.75)


# disconnected groups
def interaction(q: ps.Composition, x: Tensor, t: float) -> Tensor:
    """<s_A - s_0, s_B - s_0>, from the scores alone."""
    a, b, base = q.scores(x, t)
    return ((a - base) * (b - base)).sum(-1)


@pytest.mark.parametrize("mixing, between, zero", [("none", 0.0, True), ("orthogonal", 0.0, True),
                                                   ("oblique", 0.0, False), ("none", 0.8, False)])  # fmt: skip
def test_disconnected_groups_are_factorized(mixing, between, zero):
    """Under every noise level, in every orthogonal basis; neither an edge nor an oblique mixing leaves it so."""
    basis = {"none": None, "orthogonal": np.linalg.qr(MIXING)[0], "oblique": MIXING}[mixing]
    model = Model.linear([[0] * 4, [0.8, 0, 0, 0], [0] * 4, [0, between, -0.6, 0]], 0.3, [1, 0.5, 0.8, 0.4], "abcd",
                         basis)  # fmt: skip
    p = model.family({"A": {"b": Linear({"a": -0.4}, 1.0, 0.3)}, "B": {"d": Linear({"c": 0.5}, 0.7, 0.6)}})
    q, x = p["A"] * p["B"] / p["control"], points(64, 4)
    largest = max(interaction(q, x, t).abs().max().item() for t in (0.01, 0.1, 0.3, 0.6, 0.9))
    assert largest < 1e-10 if zero else largest > 0.1
    assert torch.allclose(q.residual(x, 0.3), q.schedule.diffusion(torch.tensor(0.3).double()) ** 2
                          * interaction(q, x, 0.3), atol=1e-9)  # fmt: skip


# nonlinear
def curved(mixing: object = None) -> Model:
    """x in two lumps, y around sin x with skewed noise."""
    skew = ps.Mixture([[-0.4], [0.9]], cov=[0.2, 0.5], weights=[0.7, 0.3])
    return Model({"y": Additive(lambda p: torch.sin(2 * p[..., 0]), ["x"], skew),
                  "x": Additive(0.4, noise=ps.Mixture([[-1.0], [1.3]], cov=0.3))}, mixing)  # fmt: skip


BENT = Mixing(lambda z: torch.stack([z[..., 0] * torch.exp(0.5 * z[..., 1].tanh()), z[..., 1].sinh()], -1),
              lambda x: torch.stack([x[..., 0] * torch.exp(-0.5 * x[..., 1].asinh().tanh()), x[..., 1].asinh()], -1),
              lambda z: 0.5 * z[..., 1].tanh() + z[..., 1].cosh().log())  # fmt: skip
FLAT = {"y": Linear(shift=1.0, variance=0.3)}


@pytest.mark.parametrize("mixing", [None, [[1.0, 0.5], [-0.4, 2.0]], BENT], ids=["plain", "matrix", "bent"])
@pytest.mark.parametrize("done", [(), (FLAT,)], ids=["observed", "intervened"])
def test_a_nonlinear_density_integrates_to_one_and_is_that_of_its_draws(mixing, done):
    """Shares of draws in four quadrants and means of cosines, within 5 standard errors: false alarms 3e-6 each case."""
    part = curved(mixing).distribution(*done)
    assert isinstance(part, Structural) and part.event == (2,)
    u, v = np.sinh(np.linspace(-5, 5, 901)), np.sinh(np.linspace(-5.5, 5.5, 901))
    grid = torch.from_numpy(np.stack(np.meshgrid(u, v, indexing="ij"), -1))
    density = part.log_prob(grid).exp().numpy()

    def integral(f: np.ndarray) -> float:
        return float(np.trapezoid(np.trapezoid(f, v, axis=1), u))

    assert integral(density) == pytest.approx(1, abs=2e-4)
    x = part.sample(20_000, seed=5, dtype=F64).numpy()
    for f in (lambda g: np.cos(g[..., 0]), lambda g: np.cos(g[..., 1] - g[..., 0]), lambda g: np.tanh(g[..., 1])):
        drawn = f(x)
        assert drawn.mean() == pytest.approx(integral(f(grid.numpy()) * density), abs=5 * drawn.std() / 141 + 5e-4)


def plain_log_prob(part: Structural, x: Tensor) -> np.ndarray:
    """The density by SciPy's normals and the Jacobian of the inverse by autograd, point by point."""
    assert part.mixing is not None
    out = []
    for point in x:
        z = part.mixing.inverse(point)
        jacobian = torch.autograd.functional.jacobian(part.mixing.inverse, point)
        total, value = np.linalg.slogdet(jacobian.numpy())[1], dict(zip(part.mechanisms, z, strict=True))
        for name, m in part.mechanisms.items():
            given = torch.stack([value[k] for k in m.parents]) if m.parents else torch.zeros(0, dtype=F64)
            e, noise = (value[name] - m.centre(given)).item(), m.noise.components
            scales = noise.variances[:, 0].sqrt().numpy()
            total += math.log((noise.weights.numpy() * stats.norm(noise.means[:, 0].numpy(), scales).pdf(e)).sum())
        out.append(total)
    return np.array(out)


def test_nonlinear_mixed_interventions_compose_pointwise():
    model, a, b = nonlinear_example()
    x = model.distribution().sample(60, seed=2, dtype=F64)
    logs = {name: plain_log_prob(model.distribution(*done), x)
            for name, done in {"base": (), "a": (a,), "b": (b,), "ab": (a, b)}.items()}  # fmt: skip
    np.testing.assert_allclose(model.distribution(b).log_prob(x).numpy(), logs["b"], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(model.distribution(a, b).log_prob(x).numpy(), logs["ab"], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(logs["a"] + logs["b"] - logs["base"], logs["ab"], rtol=1e-9, atol=1e-9)
    assert np.abs(logs["ab"] - logs["a"]).max() > 1  # and not because nothing changes
    overlap = {"v": Additive(lambda p: 0.3 * p[..., 0], ["u"], noise=0.5)}
    wrong = logs["a"] + model.distribution(overlap).log_prob(x).numpy() - logs["base"]
    assert np.ptp(wrong - plain_log_prob(model.distribution(a | overlap), x)) > 1  # overlapping: no constant either


def test_single_precision_is_the_callers():
    part = nonlinear_example()[0].distribution()
    x = part.sample(100, seed=1)
    assert x.dtype == torch.float32 and part.log_prob(x).dtype == torch.float32
    torch.testing.assert_close(part.log_prob(x).double(), part.log_prob(x.double()), rtol=1e-4, atol=1e-4)
    assert torch.equal(x, part.sample(100, seed=1)) and not torch.equal(x, part.sample(100, seed=2))


@dataclass(frozen=True)
class Wide(Mechanism):
    """One of our own: N(0, 0.2 + parent^2)."""

    parents: tuple[str, ...] = ("x",)

    def log_prob(self, value: Tensor, given: Tensor) -> Tensor:
        return torch.distributions.Normal(0.0, (0.2 + given[..., 0] ** 2).sqrt()).log_prob(value)

    def sample(self, given: Tensor, seed: int) -> Tensor:
        noise = torch.randn(len(given), dtype=F64, generator=torch.Generator().manual_seed(seed))
        return (0.2 + given[:, 0] ** 2).sqrt() * noise


def test_a_mechanism_from_outside():
    model = Model({"x": Linear(variance=0.5), "y": Wide()})
    part, x = model.distribution(), points(20, 2)
    u, v = x.numpy().T
    expected = stats.norm(0, math.sqrt(0.5)).logpdf(u) + stats.norm(0, np.sqrt(0.2 + u**2)).logpdf(v)
    np.testing.assert_allclose(part.log_prob(x), expected, rtol=1e-10)
    within_standard_errors(part.sample(10_000, seed=3, dtype=F64) ** 2, [0.5, 0.7], 5)  # two at 5: 1e-6


def test_new_edges_are_allowed_while_no_circle_results():
    model = Model({"x": Linear(), "y": Linear(), "z": Linear({"y": 1.0})})
    to_x, to_z = {"x": Linear({"y": 0.5})}, {"z": Linear({"x": 0.7, "y": 1.0})}
    x, p = points(20, 3), model.family({"A": to_x, "B": to_z})
    expected = gaussian(model, to_x, to_z).log_prob(x)
    torch.testing.assert_close(ps.base_composition(p).log_density(x), expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match=r"must be acyclic; got the circle .*'x'"):
        model.distribution(to_x, {"y": Linear({"x": 0.5})})


# data
def test_models_are_data_to_learn_from():
    model, a, b = nonlinear_example()
    data = model.data({"A": a, "B": b}, n=200, seed=4)
    assert list(data) == ["control", "A", "B"] and all(x.shape == (200, 5) for x in data.values())
    again = model.data({"B": b}, n=200, seed=4)
    assert torch.equal(again["B"], data["B"]) and not torch.equal(data["A"], data["control"])
    learned = ps.fit(data, steps=3, width=16, seed=0, device="cpu")
    assert dict(ps.base_composition(learned).exponents) == {"A": 1.0, "B": 1.0, "control": -1.0}
    other = model.data({"A": a}, n=5, base="untreated")
    assert list(other) == ["untreated", "A"]


def test_conditions_are_drawn_independently_also_where_nothing_was_changed():
    """Correlation of 2000 draws of the untouched a: beyond 0.12 once in 10^7, and 1 where draws are shared."""
    data = four().data({"A": SOFT, "B": PERFECT}, n=2000)
    a = torch.stack([points[:, 3] for points in data.values()])
    assert (torch.corrcoef(a) - torch.eye(3)).abs().max() < 0.12


def test_what_has_no_noised_score_does_not_pretend():
    model, a, b = nonlinear_example()
    with pytest.raises(ValueError, match=r"'control' has others, and so no noised score. Learn it: ps.fit\(model.data"):
        model.family({"A": a, "B": b})
    assert not isinstance(model.distribution(), ps.Distribution)
    with pytest.raises(ValueError, match="'A' is Structural"):
        ps.Family({"A": model.distribution(a)})
    # an intervention that is not linear makes its condition so, and no other
    with pytest.raises(ValueError, match="'A' has others"):
        four().family({"A": {"b": Additive(lambda p: p[..., 0] ** 2, ["a"])}})
