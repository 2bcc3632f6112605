"""Every bad input gets our error: the rule, the value, the remedy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import gaussian_family
from polyscore.errors import (
    ArgumentError,
    CompositionError,
    ExpressionError,
    ImproperError,
    PolyscoreError,
    ScoreError,
)
from polyscore.registry import Registry
from polyscore.samplers.grids import TimeGrid
from polyscore.samplers.integrators import euler_steps
from polyscore.samplers.kernels import Kernel

P = gaussian_family(2)
X = torch.zeros(3, 2)
SAMPLERS = {
    "denoise": ps.Denoise(steps=10),
    "ode": ps.Denoise(steps=10, churn=0),
    "fk": ps.FeynmanKac(particles=4, steps=10),
    "fk threshold": ps.FeynmanKac(particles=4, steps=10, threshold=0.5),
    "fk stratified": ps.FeynmanKac(particles=4, steps=10, resampling="stratified"),
    "fk residual": ps.FeynmanKac(particles=4, steps=10, resampling="residual"),
}
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)


class Model:
    """A score model N(0, I) that can be made to fail."""

    def __init__(self, event=(2,), schedule=None, fail=None):
        self.event, self.fail = event, fail
        if schedule is not None:
            self.schedule = schedule

    def score(self, x, t):
        score = -x
        if self.fail is None:
            return score
        return torch.where(self.fail(x, t), torch.full_like(score, float("nan")), score)


def test_all_our_errors_are_value_errors():
    for kind in (ArgumentError, CompositionError, ExpressionError, ImproperError, ScoreError):
        assert issubclass(kind, PolyscoreError)
        assert issubclass(kind, ValueError)


# compositions that cannot be sampled
@every_sampler
def test_improper_composition(sampler):
    p = ps.Family({"wide": ps.Gaussian(cov=[1, 9]), "base": ps.Gaussian(cov=2)})
    with pytest.raises(ImproperError, match=r"must be normalisable; got wide \* base\^-0\.9.*\(-?0, -?1\).*Lower"):
        sampler.sample(p["wide"] / p["base"] ** 0.9, 3)


@every_sampler
@pytest.mark.parametrize("exponents, total", [({"a": 1, "base": -1}, "0"), ({"a": 1, "b": -1.5}, "-0.5")])
def test_w_not_positive(sampler, exponents, total):
    p = ps.Family({"a": ps.Gaussian(cov=0.1), "b": ps.Gaussian(cov=9), "base": ps.Gaussian(cov=9)})
    with pytest.raises(ArgumentError, match=rf"sum of the exponents, must be positive; got {total}\..*raise"):
        sampler.sample(ps.Composition(p, exponents), 3)


@every_sampler
def test_a_composition_that_cancels(sampler):
    with pytest.raises(PolyscoreError, match="must have a factor"):
        sampler.sample(P["a"] / P["a"], 3)


@every_sampler
@pytest.mark.parametrize("n", [0, -1, 2.5])
def test_number_of_swarms(sampler, n):
    with pytest.raises(ArgumentError, match=rf"n must be .*at least 1; got {n}"):
        sampler.sample(P["a"], n)


@every_sampler
def test_max_particles(sampler):
    with pytest.raises(ArgumentError, match="max_particles must be a whole number of at least 1, or None; got 0"):
        sampler.sample(P["a"], 1, max_particles=0)


# settings
@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: ps.FeynmanKac(particles=0), "particles must be .* at least 1; got 0"),
        (lambda: ps.FeynmanKac(particles=2.0), "whole number"),
        (lambda: ps.FeynmanKac(steps=0), "steps must be .* at least 1; got 0"),
        (lambda: ps.Denoise(steps=-3), "steps must be .* at least 1; got -3"),
        (lambda: ps.Denoise(steps=1.5), "whole number"),
        (lambda: ps.Denoise(churn=-0.1), "churn must be a number of at least 0, .*; got -0.1.*ODE"),
        (lambda: ps.Denoise(churn=float("nan")), "churn must"),
        (lambda: ps.Denoise(churn=float("inf")), "churn must"),
        (lambda: ps.Denoise(order=3), "order must be 1 or 2; got 3"),
        (lambda: ps.Denoise(order=2), "Heun.* must go with churn 0; got churn 1"),
        (lambda: ps.FeynmanKac(clip=0), "clip must be a number above 0, and below .*, or None; got 0"),
        (lambda: ps.FeynmanKac(clip=float("nan")), "clip must"),
        (lambda: ps.FeynmanKac(threshold=1.5), "threshold must be .*; got 1.5"),
        (lambda: ps.FeynmanKac(threshold=float("nan")), "threshold must"),
        (lambda: ps.FeynmanKac(window=(0.5, 0.2)), "window must be"),
        (lambda: ps.FeynmanKac(window=(0.5,)), "window must be"),
        (lambda: ps.FeynmanKac(resampling="bootstrap"), "resampling must be one of systematic.*'bootstrap'"),
        (lambda: ps.Denoise(churn=0, order=2).sample(gaussian_family(2, ps.Cosine())["a"], 2), "finite drift"),
    ],
)
def test_settings_outside_their_domain(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


# distributions
@pytest.mark.parametrize(
    "make, words",
    [
        (
            lambda: ps.Gaussian(cov=[[1, 2], [2, 1]]),
            r"cov must be positive definite; got smallest eigenvalue -1 .*jitter",
        ),
        (lambda: ps.Gaussian(cov=[[1, 1], [1, 1]]), "positive definite"),
        (lambda: ps.Gaussian(cov=-1.0), "cov must be positive definite; got smallest eigenvalue -1"),
        (lambda: ps.Gaussian(cov=0.0), "positive definite"),
        (lambda: ps.Gaussian(cov=[1, 0]), "positive definite"),
        (lambda: ps.Gaussian(cov=[[1, 0.5], [0.2, 1]]), r"cov must be symmetric; got .*0\.3.*Symmetrise"),
        (lambda: ps.Gaussian(cov=np.ones((2, 3))), "cov must|agree on the dimension"),
        (lambda: ps.Gaussian(cov=np.ones((2, 2, 2))), r"cov must be a scalar"),
        (lambda: ps.Gaussian(mean=[0, 0, 0], cov=[1, 2]), r"agree on the dimension; got \[2, 3\]"),
        (lambda: ps.Gaussian(mean=[0, 0], dim=3), r"agree on the dimension; got \[2, 3\]"),
        (lambda: ps.Gaussian(mean=1.0), r"mean must be a vector.*got 1\.0.*Write mean="),
        (lambda: ps.Gaussian(mean=[0, float("nan")]), "mean must be finite"),
        (lambda: ps.Gaussian(cov=[float("inf"), 1]), "cov must be finite"),
        (lambda: ps.Gaussian(cov=[[1, 2], [3]]), "cov must be a number or a regular array"),
        (lambda: ps.Gaussian(dim=0), "dim"),
        (lambda: ps.Gaussian().sample(0), "n must be at least 1; got 0"),
        (lambda: ps.Mixture([1.0, 2.0]), r"means must be a matrix \(M, d\); got shape \(2,\)"),
        (lambda: ps.Mixture([[0, 0], [1, 1], [2, 2]], cov=[1, 1, -1]), "cov of component 2 must be positive definite"),
        (lambda: ps.Mixture([[0, 0, 0], [1, 1, 1]], cov=[1, 1, 1, 1]), "cov must be one shared covariance or 2"),
        (lambda: ps.Mixture([[0, 0], [1, 1]], weights=[1, -1]), "weights must be at least 0"),
        (lambda: ps.Mixture([[0, 0], [1, 1]], weights=[0, 0]), "weights must be at least 0, not all 0"),
        (lambda: ps.Mixture([[0, 0], [1, 1]], weights=[1, 1, 1]), "one entry per component"),
        (lambda: ps.Mixture([[0, 0], [1, 1]], weights=[1, float("nan")]), "weights must be finite"),
        (lambda: ps.Mixture([[0, 0]]).sample(-1), "n must be at least 1"),
    ],
)
def test_impossible_distributions(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


# families
def test_unknown_condition_offers_the_nearest():
    family = ps.Family({"couch": ps.Gaussian(), "painting": ps.Gaussian(), "empty": ps.Gaussian()})
    with pytest.raises(
        CompositionError, match=r"must be one of 'couch', 'painting', 'empty'; got 'coach'\. Did you mean 'couch'"
    ):
        family["coach"]
    with pytest.raises(CompositionError, match="Did you mean 'painting'"):
        ps.parse("couch * paintin", family)
    with pytest.raises(CompositionError, match="got 'zzz'") as info:
        ps.Composition(family, {"zzz": 1})
    assert "Did you mean" not in str(info.value)


def test_mixed_dimensions():
    with pytest.raises(CompositionError, match=r"one shape; 'a' has \(2,\), 'b' has \(3,\)"):
        ps.Family({"a": ps.Gaussian(dim=2), "b": ps.Gaussian(dim=3)})
    with pytest.raises(CompositionError, match=r"'m' has \(3, 8, 8\)"):
        ps.Family({"a": ps.Gaussian(dim=2), "m": Model(event=(3, 8, 8))})


def test_mixed_schedules():
    with pytest.raises(CompositionError, match=r"one schedule; 'b' was trained with Cosine\(offset=0.*VP.*Retrain"):
        ps.Family({"a": Model(schedule=ps.VP()), "b": Model(schedule=ps.Cosine())})
    with pytest.raises(CompositionError, match="one schedule"):
        ps.Family({"a": Model(schedule=ps.VP())}, schedule=ps.VP(0.1, 10))
    assert ps.Family({"g": ps.Gaussian(), "a": Model(schedule=ps.Cosine())}).schedule == ps.Cosine()
    assert ps.Family({"a": Model(), "b": ps.Gaussian()}).schedule == ps.VP()


def test_two_families_do_not_mix():
    other = gaussian_family(2)
    for operation in (lambda: P["a"] * other["b"], lambda: P["a"] / other["a"]):
        with pytest.raises(CompositionError, match="both factors must come from one family; got two"):
            operation()
    assert P["a"] != other["a"]


@pytest.mark.parametrize("members", [{}, {"": ps.Gaussian()}, {3: ps.Gaussian()}, {'a"b': ps.Gaussian()}])
def test_impossible_families(members):
    with pytest.raises(CompositionError, match="must"):
        ps.Family(members)


def test_log_density_needs_closed_forms():
    with pytest.raises(CompositionError, match="'m' must have a closed form"):
        ps.Family({"m": Model()})["m"].log_density(X)


# expressions: the caret stands below the offending character
@pytest.mark.parametrize(
    "text, column",
    [
        ("", 0),
        ("   ", 0),
        ("a *", 3),
        ("a * * b", 4),
        ("* a", 0),
        ("a b", 2),
        ("a * (b / base", 13),
        ("a * b)", 5),
        ("()", 1),
        ("a ^ b", 4),
        ("a ^", 3),
        ("a^(0.5", 6),
        ("2 * a", 0),
        ("a * 2", 4),
        ("a + b", 2),
        ("a * b $ base", 6),
        ("a * c", 4),
        ("a * bas / b", 4),
        ('a * "b', 4),
        ("a^0.5b", 2),
        ("a^--1", 2),
    ],
)
def test_malformed_expressions_carry_a_caret(text, column):
    with pytest.raises(ExpressionError) as info:
        ps.parse(text, P)
    assert info.value.position == column, str(info.value)
    _, shown, caret = str(info.value).rsplit("\n", 2)
    assert shown == f"  {text}"
    assert caret == "  " + " " * column + "^"


@pytest.mark.parametrize(
    "text", ["__import__('os')", "a; b", "a.__class__", "p['a']", "lambda: 0", "a\n* c", "a^1e999", "a^1/0"]
)
def test_nothing_else_gets_through_the_parser(text):
    with pytest.raises(PolyscoreError):
        ps.parse(text, P)


# times and scores
@pytest.mark.parametrize("t", [-0.01, 1.01, float("nan"), torch.tensor([0.5, 0.5, 2.0])])
def test_times_outside_of_zero_and_one(t):
    q = P["a"] * P["b"]
    for ask in (q.score, q.residual, q.log_density, q.scores):
        with pytest.raises(ArgumentError, match=r"t must lie in \[0, 1\]; got"):
            ask(X, t)


@pytest.mark.parametrize("t", ["0.5", None, object(), [0.5, "x"], 1j, [[0.1], [0.1, 0.2]]])
def test_times_that_are_no_numbers(t):
    q = P["a"] * P["b"]
    for ask in (q.score, q.residual, q.log_density, q.scores):
        with pytest.raises(ArgumentError, match=r"t must be a number or a tensor of them; got"):
            ask(X, t)


@every_sampler
def test_a_score_that_turns_nan_names_condition_and_time(sampler):
    p = ps.Family({"good": Model(), "bad": Model(fail=lambda x, t: (t < 0.5) & (x == x))})
    with pytest.raises(ScoreError, match=r"condition 'bad' gives .* at t = 0\.4") as info:
        sampler.sample(p["good"] * p["bad"], 30)
    assert "'good'" not in str(info.value)


@every_sampler
@pytest.mark.parametrize("threshold", [0.6, 1.2, 2.0])
def test_a_few_bad_scores_are_found_too(sampler, threshold):
    """NaN at a few particles only, below t = 0.35: resampling must not lose them before they are seen."""
    fail = lambda x, t: ((x[..., :1] > threshold) & (t < 0.35)).expand_as(x)  # noqa: E731
    p = ps.Family({"good": Model(), "bad": Model(fail=fail)})
    with pytest.raises(ScoreError, match="'bad'"):
        sampler.sample(p["good"] ** 0.5 * p["bad"] ** 0.5, 200)


def test_an_infinite_score_is_found():
    class Infinite(Model):
        def score(self, x, t):
            return torch.where(t < 0.3, -x / 0, -x)

    with pytest.raises(ScoreError, match="'m'"):
        ps.FeynmanKac(particles=4, steps=10).sample(ps.Family({"m": Infinite()})["m"], 10)


def test_a_bad_score_that_a_replay_does_not_show_is_an_error_all_the_same():
    """A model that answers otherwise the second time: the result of the first must not pass for good."""
    asked = []

    class Moody(Model):
        def score(self, x, t):
            asked.append(t)
            return -x / 0 if len(asked) == 8 else -x

    with pytest.raises(ScoreError, match="all are in a replay"):
        ps.FeynmanKac(particles=4, steps=10).sample(ps.Family({"m": Moody()})["m"], 10)


@pytest.mark.parametrize("clip", [None, 5.0])
def test_a_rate_that_overflows_between_finite_scores_is_found(clip):
    """Scores of 1e25 are finite in float32, their squares are not, and infinity less infinity has no sign to clip."""

    class Steep(Model):
        def __init__(self, slope):
            super().__init__()
            self.slope = torch.tensor(slope)

        def score(self, x, t):
            return torch.where(t < 0.3, 1e25 * self.slope.expand_as(x), -x)

    p = ps.Family({"a": Steep([1.0, 0.0]), "b": Steep([-1.0, 0.0]), "c": Steep([0.0, 1.0])})
    with pytest.raises(ScoreError, match=r"log-weight rate must be finite.* at t = 0\.2"):
        ps.FeynmanKac(particles=4, steps=10, clip=clip).sample(p["a"] * p["b"] / p["c"], 10)


def test_a_model_of_the_wrong_output_shape_is_refused_or_at_least_not_silent():
    class Wrong(Model):
        def score(self, x, t):
            return x.sum(-1)

    with pytest.raises((PolyscoreError, RuntimeError)):
        ps.Denoise(steps=3).sample(ps.Family({"m": Wrong()})["m"], 5)


# parts of a user's
def mine(*lengths):
    """A grid of these times."""

    def grid(schedule, steps, extent):
        times = torch.tensor(lengths, dtype=torch.float64)
        return TimeGrid(times, times[:-1] - times[1:])

    return grid


HALVES = torch.tensor([0.9, 0.5, 0.1], dtype=torch.float64)


@pytest.mark.parametrize(
    "grid, words",
    [
        (lambda *a: HALVES, "return a TimeGrid"),
        (lambda *a: None, "return a TimeGrid.*NoneType"),
        (mine(), "return a TimeGrid"),
        (mine(0.5), "return a TimeGrid"),
        (mine(0.1, 0.5, 0.9), "times that fall.*Reverse"),
        (mine(0.5, 0.5), "times that fall"),
        (mine(1.5, 0.5, 0.1), r"times in \[0, 1\]"),
        (mine(0.9, 0.5, -0.1), r"times in \[0, 1\]"),
        (mine(0.9, float("nan"), 0.1), "finite times"),
        (lambda *a: TimeGrid(HALVES, HALVES), r"lengths \(steps,\)"),
        (lambda *a: TimeGrid(HALVES, HALVES.diff()), "lengths between its times"),
        (lambda *a: TimeGrid(HALVES, torch.ones(2)), "lengths between its times"),
        (lambda *a: TimeGrid(HALVES, torch.full((2,), float("nan"))), "lengths between its times"),
    ],
)
def test_a_grid_that_is_none_is_named(grid, words):
    with pytest.raises(ArgumentError, match=rf"the grid '(<lambda>|grid)' must .*{words}"):
        ps.Denoise(steps=2, grid=grid).sample(P["a"], 3)


def columns(**changed):
    """An integrator whose table has other columns."""

    def own(schedule, grid, total, churn, move):
        return euler_steps(schedule, grid, total, churn, move)._replace(**changed)

    return own


@pytest.mark.parametrize(
    "integrator, words",
    [
        (lambda *a: None, "6 columns.*NoneType"),
        (lambda *a: (torch.ones(2),), "6 columns"),
        (columns(keep=1.0), "6 columns"),
        (columns(pull=torch.ones(3)), r"6 columns \(2,\)"),
        (columns(keep=torch.tensor([1.0, float("nan")])), "be finite"),
        (columns(noise=torch.tensor([1.0, -1.0])), "at least 0"),
    ],
)
def test_an_integrator_without_a_table_is_named(integrator, words):
    with pytest.raises(ArgumentError, match=rf"the steps of the move 'Balanced' by the integrator .* must .*{words}"):
        ps.Denoise(steps=2, integrator=integrator).sample(P["a"], 3)


class Odd(Kernel):
    """A kernel that returns anything."""

    def __init__(self, answer=None, normals=1, uniforms=0):
        self.answer, self.normals, self.uniforms = answer or (lambda state: state), normals, uniforms

    def __call__(self, plan, state, i, z, u):
        return self.answer(state)


@pytest.mark.parametrize(
    "kernel, words",
    [
        (Odd(lambda state: None), "the kernel 'Odd' must return a State; got NoneType"),
        (Odd(lambda state: state.x), "the kernel 'Odd' must return a State; got Tensor"),
        (Odd(lambda state: replace(state, x=state.x[:, :1])), "the kernel 'Odd' must return a state whose x has shape"),
        (Odd(lambda state: replace(state, score=state.x[0])), "a state whose score has shape"),
        (Odd(lambda state: replace(state, x=None)), "a state whose x has shape .*got None"),
        (Odd(normals=-1), "normals of the kernel 'Odd' must be a whole number of at least 0.*got -1"),
        (Odd(normals=1.5), "normals of the kernel 'Odd' must be a whole number"),
        (Odd(uniforms=None), "uniforms of the kernel 'Odd' must be a whole number"),
        (Odd(uniforms=10**12), "uniforms of the kernel 'Odd' must be a whole number"),
    ],
)
def test_a_kernel_that_returns_no_state_is_named(kernel, words):
    with pytest.raises(ArgumentError, match=words):
        ps.FeynmanKac(particles=4, steps=2, kernels=[kernel]).sample(P["a"], 3)


@pytest.mark.parametrize("dim", [10**20, 1.5, "x", None, 0, -1, True])
def test_a_dimension_that_is_none_is_named_at_once(dim):
    class Wide(ps.Distribution):
        def score(self, x, alpha=1.0, sigma=0.0):
            return -x

    member = Wide()
    with pytest.raises(CompositionError, match=r"must have an event.*'w' has none.*Set dim"):
        ps.Family({"w": member})
    member.dim = dim
    with pytest.raises(CompositionError, match=r"an event must be positive whole numbers.*'w' has .*Wide"):
        ps.Family({"w": member})


def test_a_log_density_that_carries_gradients_has_an_exact_target():
    rate = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)

    class Steep(ps.Density):
        dim = 1

        def log_prob(self, x, alpha=1.0, sigma=0.0):
            return -rate * x[..., 0] ** 2 - 0.5 * math.log(2 * math.pi)

        def score(self, x, alpha=1.0, sigma=0.0):
            return -2 * rate * x

    target = ps.exact(ps.Family({"s": Steep()})["s"])
    assert target.sample(4000, seed=1).var().item() == pytest.approx(1.0, abs=0.12)  # five standard errors


def test_two_functions_without_a_name_do_not_share_one():
    parts = Registry("a part")
    parts.register("one")(lambda: 1)
    with pytest.raises(ArgumentError, match="a name of its own; got 'one' again"):
        parts.register("one")(lambda: 2)
    parts.register("two")(mine(1.0, 0.5))
    with pytest.raises(ArgumentError, match="a name of its own; got 'two' again"):
        parts.register("two")(mine(0.9, 0.1))
    assert parts["one"]() == 1
