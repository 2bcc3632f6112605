"""Tables of the plane: their order, stray points, what is not finite; samplers that read them or give them up."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from scipy.interpolate import RectBivariateSpline

import polyscore as ps
from polyscore.errors import DegeneracyWarning, ScoreError
from polyscore.fields import evaluators
from polyscore.nn.fast import plane
from polyscore.nn.fast.plane import Nodes, interpolate, tabulated
from polyscore.samplers.loop import iterate
from polyscore.samplers.plan import make_plan
from training.networks import families


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def points(count: int = 5000, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (normal(count, 2) * torch.tensor([3.0, 0.5]) + torch.tensor([10.0, -2.0])).to(dtype)


def wave(x: torch.Tensor) -> torch.Tensor:
    """Two conditions of three channels, unlike in their coordinates."""
    u, v = x[:, 0] - 10, x[:, 1] + 2
    one = torch.stack([torch.sin(u + 2 * v), torch.tanh(u), u * v], -1)
    return torch.stack([one, torch.stack([torch.cos(v), u + 0 * v, torch.exp(-u * u / 8 - v)], -1)])


def test_points_are_where_the_grid_says(monkeypatch):
    monkeypatch.setattr(plane, "SIDE", 20)
    x = points(300)
    nodes = Nodes.around(x)
    places = nodes.points().view(20, 20, 2)
    torch.testing.assert_close(places[1, 1], x.amin(0))
    torch.testing.assert_close(places[-2, -2], x.amax(0))
    index = torch.stack(torch.meshgrid(torch.arange(20), torch.arange(20), indexing="ij"), -1).double()
    torch.testing.assert_close(nodes.positions(places.reshape(-1, 2)), index.view(-1, 2))


def test_cubics_in_the_grids_own_coordinates_are_exact(monkeypatch):
    """Lagrange's formula reproduces polynomials of degree three in each coordinate, whatever the spacing."""
    monkeypatch.setattr(plane, "SIDE", 12)
    x = points(500)
    nodes = Nodes.around(x)

    def cubic(x: torch.Tensor) -> torch.Tensor:
        i, j = (nodes.positions(x) / 12).unbind(-1)
        return torch.stack([i**3 * j**2 - j**3, 1 + i * j**3], -1)[None]

    torch.testing.assert_close(tabulated(cubic, x), cubic(x), rtol=1e-9, atol=1e-9)


def test_the_error_falls_with_the_fourth_power(monkeypatch):
    x, errors = points(), []
    for side in (35, 67, 131):  # 32, 64, 128 intervals
        monkeypatch.setattr(plane, "SIDE", side)
        errors.append((tabulated(wave, x) - wave(x)).abs().max().item())
    assert 10 < errors[0] / errors[1] < 24
    assert 10 < errors[1] / errors[2] < 24
    assert errors[2] < 2e-4


def test_a_spline_of_scipy_agrees():
    """An interpolation of the same table by other hands; both are within their own small error of each other."""
    x = points()
    nodes = Nodes.around(x)
    values = wave(nodes.points())
    ours, position, axis = interpolate(values, nodes, x), nodes.positions(x), range(plane.SIDE)
    for a, c in ((0, 0), (1, 2)):
        spline = RectBivariateSpline(axis, axis, values[a, :, c].view(plane.SIDE, plane.SIDE))
        theirs = torch.from_numpy(spline(position[:, 0], position[:, 1], grid=False))
        torch.testing.assert_close(ours[a, :, c], theirs, rtol=0, atol=1e-5)


def test_a_stray_point_costs_the_others_little():
    x = points(50_000)
    calm = (tabulated(wave, x) - wave(x)).abs().amax((0, 1))
    x[7] = torch.tensor([300.0, 40.0])
    stray = (tabulated(wave, x) - wave(x))[:, torch.arange(len(x)) != 7].abs().amax((0, 1))
    assert bool((stray < 2e-3).all())
    assert bool((calm < 2e-5).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_visible(bad):
    x = points(1000, torch.float32)
    x[3, 1] = bad
    assert not bool(tabulated(wave, x)[:, 3].isfinite().all())


def test_points_that_coincide():
    x = torch.full((100, 2), 3.0)
    torch.testing.assert_close(tabulated(wave, x), wave(x))


def test_many_points_come_back_in_their_order():
    x = points(3 * plane._AT_ONCE + 5, torch.float32)
    assert tabulated(wave, x).shape == (2, len(x), 3)
    torch.testing.assert_close(tabulated(wave, x), wave(x), rtol=1e-3, atol=1e-4)


@pytest.fixture
def small_tables(monkeypatch):
    monkeypatch.setattr(plane, "WORTHWHILE", 1000)
    monkeypatch.setattr(plane, "SIDE", 96)


@cache
def trained(activation: str = "silu", seed: int = 0) -> ps.Family:
    """A small network that has seen three Gaussians, so that particles stay where particles usually are."""
    data = {f"c{a}": normal(500, 2, seed=a) * (1 + a) + torch.tensor([2.0 - a, 0.5 * a]) for a in range(3)}
    options = {
        "kind": "vanilla",
        "width": 32,
        "depth": 3,
        "activation": activation,
        "steps": 300,
        "learning_rate": 3e-3,
    }
    return ps.fit(data, seed=seed, device="cpu", **options)


def composition(activation: str = "silu") -> ps.Composition:
    return ps.parse("c0^0.8 * c1^0.5 * c2^-0.2", trained(activation))


def _precise(q: ps.Composition, precision: str) -> ps.Composition:
    q.family.to(precision=precision)
    return q


@pytest.mark.filterwarnings("ignore:samples must stay together")  # tanh cannot follow the noise of points far out
@pytest.mark.parametrize("activation", ["silu", "tanh", "gelu", "relu"])
def test_a_sampler_by_table_moves_particles_as_the_network_does(small_tables, monkeypatch, activation):
    if activation == "relu":  # its kinks are of second order only, and too coarse for the small table
        monkeypatch.setattr(plane, "SIDE", 256)
    q = composition(activation)
    runs = {
        precision: ps.Denoise(steps=40).sample(_precise(q, precision), 1500, seed=2).samples
        for precision in ("table", "fp16", "float32")
    }
    assert torch.equal(runs["fp16"], runs["float32"])  # a CPU has no other
    assert not torch.equal(runs["table"], runs["fp16"])  # so the table was read
    error = (runs["table"] - runs["fp16"]).abs().max() / runs["fp16"].abs().max()
    assert error < (1e-3 if activation == "relu" else 1e-4)


def test_weights_by_table(small_tables):
    q, sampler = composition(), ps.FeynmanKac(particles=8, steps=40, clip=3.0)
    table_run = sampler.sample(_precise(q, "table"), 300, seed=2)
    network_run = sampler.sample(_precise(q, "fp16"), 300, seed=2)
    assert not torch.equal(table_run.log_evidence, network_run.log_evidence)
    assert (table_run.arithmetic, network_run.arithmetic) == ("table", "float32")
    # Where a weight is at the edge of a resampling point, another particle is chosen, and the swarm goes its own way.
    for one, other in zip(*((run.log_evidence, *run.samples.T) for run in (table_run, network_run)), strict=True):
        assert torch.isclose(one, other, rtol=0, atol=1e-3).float().mean() > 0.95


@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_a_small_network_on_a_cpu_is_evaluated_directly(small_tables, precision):
    """So that a swarm has the same bytes in whatever chunk and company it is; "float32" is that for every network."""
    q, sampler = composition(), ps.FeynmanKac(particles=4, steps=10, clip=3.0)
    many, few = (sampler.sample(_precise(q, precision), n, seed=1).samples for n in (1500, 500))
    assert torch.equal(many[:500], few)


def test_few_particles_and_other_dimensions_are_evaluated_directly(monkeypatch):
    q = composition()
    by_table, direct = (ps.Denoise(steps=5).sample(_precise(q, p), 2000, seed=1).samples for p in ("table", "fp16"))
    assert torch.equal(by_table, direct)
    monkeypatch.setattr(plane, "WORTHWHILE", 10)
    for dim in (1, 3):
        q = ps.parse("c0 * c1", families(2, dim, True)[0])
        by_table, direct = (ps.Denoise(steps=5).sample(_precise(q, p), 500, seed=1).samples for p in ("table", "fp16"))
        assert torch.equal(by_table, direct)


def rough() -> ps.Composition:
    """A network that changes between neighbouring nodes: its first layer sees a plane 300 times as large."""
    p = families(3, 2, True, activation="tanh")[0]
    p.members["c0"].group.network.first.mul_(300)
    return ps.parse("c0 * c1 / c2", p)


def test_a_table_that_is_too_coarse_is_given_up(small_tables):
    q, told = rough(), []
    run = ps.Denoise(steps=60).sample(_precise(q, "table"), 1500, seed=4, progress=lambda *a: told.append(a))
    direct = ps.Denoise(steps=60).sample(_precise(q, "fp16"), 1500, seed=4)
    assert torch.equal(run.samples, direct.samples)
    assert run.arithmetic == "float32"  # a CPU has no fp16 to fall back upon
    assert told[-1] == (60, 60)
    assert max(done for done, _ in told) == 60


def test_roughness_that_appears_on_the_way_is_noticed(small_tables, monkeypatch):
    """The next check sends the chunk back to its start, without a table, and progress with it."""
    q, real, asked, told = composition(), plane.interpolate, [], []

    def worse(values, nodes, x):
        asked.append(len(x))
        return real(values, nodes, x) * (1.1 if len(asked) > 45 else 1.0)

    monkeypatch.setattr(plane, "interpolate", worse)
    sampler = ps.Denoise(steps=60)
    run = sampler.sample(_precise(q, "table"), 1500, seed=4, progress=lambda *done: told.append(done))
    assert 45 < len(asked) <= 60  # none after the check, whose interval is 7
    assert torch.equal(run.samples, sampler.sample(_precise(q, "fp16"), 1500, seed=4).samples)
    assert told[-1] == (60, 60)
    assert [done for done, _ in told[-60:]] == list(range(1, 61))


def strays(count: int, size: float) -> torch.Tensor:
    """Points of which the first 64 are clones far away, as resampling makes them."""
    x = normal(count, 2)
    x[:64] = size * torch.tensor([1.0, -1.5])
    return x


@pytest.mark.parametrize("size", [1e3, 1e5, 1e7])
def test_a_stray_swarm_costs_the_others_little(size):
    x = strays(100_000, size)
    field = lambda x: torch.stack([torch.tanh(x), torch.sin(2 * x.clamp(-9, 9))])  # noqa: E731
    error = (tabulated(field, x) - field(x))[:, 64:].norm() / field(x)[:, 64:].norm()
    assert error < 5e-4  # the logarithm: 4e-6 without strays


@pytest.mark.parametrize("size", [1.0, 1e4, 1e6])
def test_a_stray_swarm_does_not_hide_a_bad_table(monkeypatch, size):
    """Its own noise is huge, and may not stand for what the others lose."""
    monkeypatch.setattr(plane, "SIDE", 8)
    q = _precise(composition(), "table")
    field = make_plan(q, ps.Denoise(steps=10), 0, torch.empty(0)).field
    monkeypatch.setattr(plane, "WORTHWHILE", 20_000)
    with torch.no_grad():
        assert field.mend(strays(20_000, size), 9, alarmed=False).arithmetic(20_000) == "float32"
        assert field.mend(strays(19_999, size), 9, alarmed=False) is field  # no table, no doubt
        monkeypatch.setattr(plane, "SIDE", 256)
        assert field.mend(strays(20_000, size), 9, alarmed=False) is field


def test_a_table_serves_ensembles(small_tables):
    one, two = trained(), trained(seed=5)
    members = {name: ps.Ensemble([one.members[name], two.members[name]]) for name in one.members}
    q = ps.parse("c0 * c1 / c2", ps.Family(members))
    runs = [ps.Denoise(steps=20).sample(_precise(q, p), 1500, seed=2).samples for p in ("table", "fp16")]
    assert not torch.equal(*runs)
    torch.testing.assert_close(*runs, rtol=0, atol=3e-4)


def test_a_cpu_keeps_whole_cells_together():
    """Activations are not held for all particles at once, so a table serves all of them, not a few."""
    q = _precise(ps.parse("c0 * c1 / c2", families(3, 2, True, width=512)[0]), "table")
    plan = make_plan(q, ps.FeynmanKac(particles=64, steps=4), 0, torch.empty(0))
    assert (1 << 28) // plan.field.numbers_per_particle > 1_000_000
    assert next(iterate(plan, 0, 2)).x.shape == (2, 64, 2)


class Overflowing(evaluators.Evaluator):
    """Stands for kernels in fp16: what is far away becomes infinite."""

    arithmetic = "fp16"

    def __init__(self, case, below):
        self.exact, self.asked = below, 0
        self.made.append(self)

    @staticmethod
    def serves(case):
        return case.quick

    def __call__(self, x, i):
        self.asked += 1
        noise = self.exact(x, i)
        return torch.where((x.norm(dim=-1, keepdim=True) > 3).expand_as(noise), torch.inf, noise)


def evaluated_by(monkeypatch, kind):
    """Put a kind of evaluator in the place of those in fp16; return a list that holds it once it is made."""
    made = []
    monkeypatch.setattr(kind, "made", made, raising=False)
    ladder = (evaluators.ByTable, kind, evaluators.Float32)
    monkeypatch.setattr(evaluators, "EVALUATORS", ladder)
    return made


@pytest.mark.parametrize("worthwhile", [1000, 10**9])
def test_scores_that_overflow_in_fp16_are_computed_in_float32(worthwhile, monkeypatch):
    monkeypatch.setattr(plane, "WORTHWHILE", worthwhile)
    monkeypatch.setattr(plane, "SIDE", 64)
    q = composition()
    expected = ps.FeynmanKac(particles=4, steps=60, clip=3.0).sample(_precise(q, "float32"), 300, seed=1)
    made = evaluated_by(monkeypatch, Overflowing)
    with pytest.warns(DegeneracyWarning, match="starts again in float32"):
        run = ps.FeynmanKac(particles=4, steps=60, clip=3.0).sample(_precise(q, "table"), 300, seed=1)
    assert run.arithmetic == expected.arithmetic == "float32"
    assert 1 <= made[0].asked <= 60  # and no more after the first check that found it
    for name in ("samples", "log_evidence", "ess"):
        assert torch.equal(getattr(run, name), getattr(expected, name)), name


def test_an_overflow_in_the_very_last_step_is_noticed(monkeypatch):
    """The checks' interval is 7 and 60 is no multiple of it: the end has a check of its own."""

    class Late(Overflowing):
        def __call__(self, x, i):
            self.asked += 1
            return self.exact(x, i) * (torch.inf if self.asked == 61 else 1.0)

    q, sampler = composition(), ps.FeynmanKac(particles=4, steps=60, clip=3.0)
    expected = sampler.sample(_precise(q, "float32"), 300, seed=1)
    made = evaluated_by(monkeypatch, Late)
    with pytest.warns(DegeneracyWarning, match="starts again in float32"):
        run = sampler.sample(_precise(q, "fp16"), 300, seed=1)
    assert made[0].asked == 61
    assert torch.equal(run.samples, expected.samples) and torch.equal(run.ess, expected.ess)


def test_a_network_that_is_not_finite_is_an_error_after_all_shortcuts(small_tables):
    p = families(3, 2, True)[0]
    p.members["c0"].group.network.last[..., 0] = torch.nan
    with pytest.raises(ScoreError, match="condition 'c0'"), pytest.warns(DegeneracyWarning, match="float32"):
        ps.Denoise(steps=20).sample(_precise(p["c0"], "table"), 1500)
