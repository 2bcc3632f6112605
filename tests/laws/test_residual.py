"""The residual is METHODS.md's master weight for this library's move; fields say what compositions say."""

import math

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import (
    F64,
    SCHEDULES,
    compose,
    compositions,
    gaussian_family,
    naive_excess,
    opaque,
    own_mixtures,
    points,
    shared_mixtures,
    spd,
    time_grid,
    vector,
)
from polyscore.algebra.scores import combine, excess
from polyscore.fields import GaussianField, MixtureField, ScoreField, UnlikeField, prepare
from polyscore.samplers.moves import Balanced, Flipped, Unbalanced

QS = compositions()
every = pytest.mark.parametrize("name", QS)


def master_weight(q, x, t, churn, multiple):
    """g = sum w d/dtau log q_a + div b + b.S - (nu^2 / 2)(div S + |S|^2) at one point, all derivatives by autograd.

    Only `log_prob` and the schedule enter: S is the gradient of the log-density, d/dtau is minus its derivative in t.
    The move is b = -multiple * u + (eta^2 + nu^2) S / 2.
    """
    time = torch.tensor(t, dtype=F64)

    def log_density(point, when):
        alpha, sigma = q.schedule.alpha(when), q.schedule.sigma(when)
        return sum(w * q.family.members[name].log_prob(point, alpha, sigma) for name, w in q.exponents.items())

    eta, drift = q.schedule.diffusion(time), q.schedule.drift(time)
    nu = churn * eta
    score = torch.func.grad(log_density)

    def move(point):
        return -multiple * drift * point + 0.5 * (eta**2 + nu**2) * score(point, time)

    forward = -torch.func.grad(log_density, argnums=1)(x, time)
    divergence_b = torch.func.jacrev(move)(x).trace()
    divergence_s = torch.func.jacrev(score)(x, time).trace()
    s = score(x, time)
    return forward + divergence_b + move(x) @ s - 0.5 * nu**2 * (divergence_s + s @ s)


@every
@pytest.mark.parametrize("schedule", ["VP", "DDPM-zero-snr", "LinearFlow"])
@pytest.mark.parametrize("churn", [0.0, 0.6, 1.0])
def test_residual_is_the_master_weight(name, schedule, churn):
    q = compositions(SCHEDULES[schedule])[name]
    x = points(q, 2, seed=5, scale=1.5)
    for t in (0.03, 0.6):
        expected = torch.stack([master_weight(q, point, t, churn, q.total) for point in x])
        torch.testing.assert_close(q.residual(x, t), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["gaussians-2d-1,1,-1", "gaussians-3d-.3,.2", "gaussians-3d-2,-.5", "own-3d-.7,.6,-.1"]
)
@pytest.mark.parametrize("move", [Balanced(), Unbalanced()], ids=["balanced", "unbalanced"])
def test_the_samplers_rates_are_the_master_weight_of_their_move(name, move):
    q = QS[name]
    times = torch.tensor([0.05, 0.5, 0.9], dtype=F64)
    rates = move.rates(q.schedule, times, q.total, q.event[0])
    x = points(q, 3, seed=6)
    for i, t in enumerate(times.tolist()):
        scores = q.scores(x, t)
        value = naive_excess(scores, list(q.exponents.values()))
        along = (x * combine(scores, list(q.exponents.values()))).sum(-1)
        got = rates.constant[i] + rates.along[i] * along + rates.across[i] * value
        expected = torch.stack([master_weight(q, point, t, 0.7, move.linear(q.total)) for point in x])
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_the_published_divergence_has_the_wrong_sign():
    q, times = QS["gaussians-3d-2,-.5"], torch.tensor([0.4], dtype=F64)
    right, published = (move.rates(q.schedule, times, q.total, 3).constant for move in (Unbalanced(), Flipped()))
    assert published.item() == -right.item() != 0


@pytest.mark.parametrize("name", ["gaussian", "shared", "own"])
@pytest.mark.parametrize("t", [0.0, 0.2, 0.9, 1.0])
def test_residual_of_one_factor_is_zero(name, t):
    make = {"gaussian": gaussian_family, "shared": shared_mixtures, "own": own_mixtures}[name]
    q = make(3)["a"]
    assert torch.equal(q.residual(points(q, 20), t), torch.zeros(20, dtype=F64))


@pytest.mark.parametrize("beta", [0.3, 1.7])
def test_annealing_against_the_literature(beta):
    """For q^beta with the paper's move: (beta - 1)(div u + eta^2 beta |s|^2 / 2) (Skreta et al. 2025)."""
    q, times = own_mixtures(3)["a"] ** beta, torch.tensor([0.35], dtype=F64)
    x, single = points(q, 10), own_mixtures(3)["a"]
    rates = Unbalanced().rates(q.schedule, times, beta, 3)
    got = rates.constant + rates.across * excess(q.scores(x, 0.35), [beta])
    eta2, div = q.schedule.diffusion(times) ** 2, 3 * q.schedule.drift(times)
    torch.testing.assert_close(got, (beta - 1) * (div + 0.5 * eta2 * beta * single.score(x, 0.35).square().sum(-1)))


@pytest.mark.parametrize("beta", [-0.5, 0.4, 2.0])
def test_geometric_average_against_the_literature(beta):
    """For exponents (beta, 1 - beta): eta^2 beta (beta - 1) |s1 - s2|^2 / 2."""
    q = compose(own_mixtures(2), a=beta, b=1 - beta)
    x, t = points(q, 10), torch.tensor(0.35, dtype=F64)
    gap = own_mixtures(2)["a"].score(x, t) - own_mixtures(2)["b"].score(x, t)
    expected = 0.5 * q.schedule.diffusion(t) ** 2 * beta * (beta - 1) * gap.square().sum(-1)
    torch.testing.assert_close(q.residual(x, t), expected)


def test_pairs_over_a_base_give_the_inner_product():
    """For (+1, +1, -1): eta^2 <s1 - s0, s2 - s0>."""
    q, p = QS["own-2d-1,1,-1"], own_mixtures(2)
    x, t = points(q, 10), torch.tensor(0.35, dtype=F64)
    one, two, zero = (p[name].score(x, t) for name in ("a", "b", "base"))
    expected = q.schedule.diffusion(t) ** 2 * ((one - zero) * (two - zero)).sum(-1)
    torch.testing.assert_close(q.residual(x, t), expected)


@pytest.mark.parametrize("name", [n for n in QS if "gaussians" in n])
def test_pure_noise_is_at_rest(name):
    """At t -> 1 every score is -x, the balanced move has no drift for N(0, I/W) beyond its own noise, and g is 0."""
    q = compositions(ps.VP(0.1, 80.0))[name]  # alpha(1) = 2e-9
    assert q.residual(points(q, 20), 1.0).abs().max().item() < 1e-5


def test_batched_times():
    q = QS["own-3d-.7,.6,-.1"]
    x, t = points(q, 12).reshape(4, 3, 3), torch.tensor([0.1, 0.4, 0.9], dtype=F64)
    for i in range(3):
        torch.testing.assert_close(q.residual(x, t)[:, i], q.residual(x[:, i], t[i]))
        torch.testing.assert_close(q.score(x, t)[:, i], q.score(x[:, i], t[i]))
    rows = torch.tensor([0.1, 0.4, 0.9, 0.2], dtype=F64)[:, None]
    torch.testing.assert_close(q.residual(x, rows)[3], q.residual(x[3], 0.2))
    torch.testing.assert_close(q.score(x, rows[..., None])[3], q.score(x[3], 0.2))  # event axes of length 1


@every
def test_float32_residual(name):
    q = QS[name]
    x = points(q, 50, dtype=torch.float32)
    for t in (0.01, 0.5, 1.0):
        exact = q.residual(x.double(), t)
        torch.testing.assert_close(q.residual(x, t).double(), exact, rtol=2e-3, atol=2e-3)


# excess and combine
@pytest.mark.parametrize(
    "exponents", [[1.0], [0.4], [1.0, 1, -1], [0.5, 0.5], [0.3, 0.2], [2.0, -0.5], [1.0, 1, 1, -2]]
)
@pytest.mark.parametrize("event", [(1,), (5,), (3, 4, 4)])
def test_excess_and_combine_are_the_naive_formulas(exponents, event):
    scores = torch.randn(len(exponents), 6, 2, *event, generator=torch.Generator().manual_seed(1), dtype=F64)
    expected = naive_excess(scores.flatten(3), exponents)
    torch.testing.assert_close(excess(scores, exponents, len(event)), expected)
    total = torch.zeros_like(scores[0])
    for a, value in enumerate(exponents):
        total += value * scores[a]
    torch.testing.assert_close(combine(scores, exponents), total)


class Fixed:
    """A learned member that returns a stored score, whatever x is."""

    def __init__(self, value, schedule):
        self.value, self.schedule, self.event = value, schedule, tuple(value.shape[1:])

    def score(self, x, t):
        return self.value


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize(
    "exponents", [(1, 1, -1), (1.5, -0.5), (0.5, 0.5), (1.3, -0.3), (0.7, 0.6, -0.3), (1.1, 0.7, -0.8)]
)
def test_half_precision_at_high_dimension(dtype, exponents):
    """12,288 dimensions, scores near 1, differences near 0.05, W = 1: plain squared norms cancel to noise."""
    generator = torch.Generator().manual_seed(2)
    common = torch.randn(4, 12_288, generator=generator)
    scores = [(common + 0.05 * torch.randn(4, 12_288, generator=generator)).to(dtype) for _ in exponents]
    family = ps.Family({f"c{a}": Fixed(s, ps.VP()) for a, s in enumerate(scores)})
    q = ps.Composition(family, {f"c{a}": float(w) for a, w in enumerate(exponents)})
    t = torch.tensor(0.25)  # exact in every format
    expected = 0.5 * ps.VP().diffusion(t.double()) ** 2 * naive_excess(torch.stack(scores), list(exponents))
    got = q.residual(torch.zeros(4, 12_288, dtype=dtype), t.to(dtype)).double()
    torch.testing.assert_close(got, expected, rtol=0.03, atol=0.03 * expected.abs().max().item())


# prepared fields
def every_time(q, dtype):
    times = time_grid(20)
    return times, prepare(q, times, torch.empty(0, dtype=dtype))


@pytest.mark.parametrize("schedule", ["VP", "DDPM-zero-snr", "Cosine", "LinearFlow"])
@every
def test_a_prepared_field_says_what_the_composition_says(name, schedule):
    q = compositions(SCHEDULES[schedule])[name]
    times, field = every_time(q, F64)
    x = points(q, 12, seed=8).reshape(4, 3, -1)
    for i, t in enumerate(times):
        score, value = field(x, i)
        scores = q.scores(x, t)
        torch.testing.assert_close(score, q.score(x, t), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(value, naive_excess(scores, list(q.exponents.values())), rtol=1e-6, atol=1e-5)
        assert field(x, i, want_excess=False)[1] is None
        assert torch.equal(field(x, i, want_excess=False)[0], score)


@every
def test_a_prepared_field_keeps_float64(name):
    """Exponents such as 0.3 must not pass through float32 on their way."""
    q = QS[name]
    times, field = every_time(q, F64)
    x = points(q, 12, seed=9)
    for i, t in enumerate(times):
        score, value = field(x, i)
        torch.testing.assert_close(score, q.score(x, t), rtol=1e-11, atol=1e-10)
        size = q.scores(x, t).square().sum((0, -1)).max().item()
        torch.testing.assert_close(
            value, naive_excess(q.scores(x, t), list(q.exponents.values())), rtol=1e-10, atol=1e-12 * size
        )


@every
def test_a_prepared_field_in_float32(name):
    q = QS[name]
    times, field = every_time(q, torch.float32)
    x = points(q, 12, seed=8, dtype=torch.float32)
    for i, t in enumerate(times):
        score, value = field(x, i)
        assert score.dtype == value.dtype == torch.float32
        exact = q.scores(x.double(), t)
        size = exact.square().sum((0, -1)).max().item()
        torch.testing.assert_close(score.double(), q.score(x.double(), t), rtol=1e-3, atol=1e-4 * math.sqrt(size))
        naive = naive_excess(exact, list(q.exponents.values()))
        torch.testing.assert_close(value.double(), naive, rtol=1e-3, atol=1e-4 * size)


def test_which_field_serves_what():
    def kind(q):
        return type(prepare(q, time_grid(4), torch.empty(0)))

    assert kind(QS["gaussians-3d-2,-.5"]) is GaussianField
    assert kind(QS["shared-3d-1.3,.4,-.6"]) is MixtureField
    assert kind(QS["own-2d-1,1,-1"]) is UnlikeField
    assert kind(opaque(QS["gaussians-2d-1,1,-1"])) is ScoreField
    assert kind(compose(own_mixtures(2), base=1, a=0.5)) is UnlikeField
    wide = ps.Mixture(torch.zeros(3, 200), cov=[1.0, 2.0, 0.5])  # 121,000 numbers a time
    assert kind(ps.Family({"a": wide})["a"]) is UnlikeField
    assert type(prepare(ps.Family({"a": wide})["a"], time_grid(100), torch.empty(0))) is ScoreField


def test_gaussian_field_of_centred_gaussians():
    q = compose(ps.Family({"a": ps.Gaussian(cov=[10, 1]), "b": ps.Gaussian(cov=[1, 10]), "c": ps.Gaussian(cov=10)}),
                a=1, b=1, c=-1)  # fmt: skip
    times, field = every_time(q, F64)
    x = points(q, 7)
    for i, t in enumerate(times):
        torch.testing.assert_close(field(x, i)[0], q.score(x, t))
        torch.testing.assert_close(field(x, i)[1], naive_excess(q.scores(x, t), [1, 1, -1]))


def test_far_means_in_float32_keep_the_field():
    """Means of 100 standard deviations: still right to a percent of the largest term's float32 rounding."""
    shift = vector(2, 61, 100)
    a, b = (ps.Mixture(np.stack([shift + low, shift + high]), cov=0.5) for low, high in ((0, 1.5), (-1, 1)))
    q = compose(ps.Family({"a": a, "b": b}), a=0.5, b=0.5)
    times, field = every_time(q, torch.float32)
    i = len(times) - 1
    x = torch.as_tensor(shift).float() + points(q, 20, dtype=torch.float32, scale=1.0)
    torch.testing.assert_close(field(x, i)[0].double(), q.score(x.double(), times[i]), rtol=0.02, atol=0.05)


def narrow_and_wide():
    """Parts from 0.02 to 4 wide, far from 0 and from each other, one of them without weight; three dimensions."""
    far = vector(3, 62, 30)
    one = ps.Mixture(np.stack([far, far + 5, far - 4]), [4e-4, spd(3, 63), [16.0, 1.0, 0.1]], weights=[1, 2, 1])
    other = ps.Mixture(np.stack([far + 1, far - 9]), [spd(3, 64, 0.1), 2.0], weights=[1, 0])
    return compose(ps.Family({"one": one, "other": other}), one=1.4, other=-0.3)


def test_mixtures_of_unlike_parts_are_nearer_to_float64_than_their_members_are():
    """Members whiten every component in float32; the field sums in float64 what float32 points say."""
    q = narrow_and_wide()
    times, field = every_time(q, torch.float32)
    assert isinstance(field, UnlikeField)
    drawn = torch.cat([member.sample(200, 1) for member in q.family.members.values()])
    for i in (4, 12, 20):
        alpha, sigma = (level(times[i]).item() for level in (q.schedule.alpha, q.schedule.sigma))
        x = (alpha * drawn + sigma * torch.randn(400, 3, generator=torch.Generator().manual_seed(i))).float()
        exact = q.score(x.double(), times[i])
        size = q.scores(x.double(), times[i]).norm(dim=-1).amax(0)
        own = ((field(x, i)[0].double() - exact).norm(dim=-1) / size).max()
        members = ((q.score(x, times[i].float()).double() - exact).norm(dim=-1) / size).max()
        assert own < 2e-7
        assert members > own


def test_unlike_mixtures_are_asked_in_pieces_that_change_nothing():
    q = QS["own-3d-.7,.6,-.1"]
    _, field = every_time(q, F64)
    x = points(q, 2 * field.most + 5, seed=3)
    whole = field(x, 7)
    alone = [torch.cat(part) for part in zip(*(field(piece, 7) for piece in x.split(1000)), strict=True)]
    for one, other in zip(whole, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
