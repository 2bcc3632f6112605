"""A sampler from outside: annealed Langevin (Song & Ermon 2019), with a move, a grid and a kernel of its own."""

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import closed_form, compose, gaussian_family, opaque, within_standard_errors
from polyscore import samplers
from polyscore.errors import ArgumentError, DegeneracyWarning
from polyscore.samplers import build_sampler, describe
from training.networks import families


# --- the extension
@samplers.GRIDS.register("even-levels")
def even_levels(schedule, steps, extent):
    ends = math.log(50), math.log(0.05 * extent.narrowest)  # of the noise over the signal
    times = schedule.time_at(torch.linspace(*ends, steps + 1, dtype=torch.float64))
    return samplers.TimeGrid(times, -times.diff())


@samplers.MOVES.register("stay")
class Stay(samplers.moves.Balanced):
    def steps(self, schedule, grid, total, churn, integrator):
        none = torch.zeros_like(grid.lengths)
        return samplers.Steps(keep=1 + none, pull=none, noise=none, back=none, of_x=none, of_score=none)


@samplers.KERNELS.register("langevin")
@dataclass(frozen=True)
class Langevin(samplers.Kernel):
    normals: int = 30
    size: float = 0.2

    def __call__(self, plan, state, i, z, u):
        step = self.size * plan.coefficients(i).sigma ** 2
        for normal in z:
            x = state.x + step * state.score + (2 * step) ** 0.5 * normal
            state = samplers.step.evaluate(plan, state, x, i)
        return state


@samplers.SAMPLERS.register("own-langevin")
@dataclass(frozen=True, repr=False)
class AnnealedLangevin(samplers.Sampler):
    steps: int = 80
    move: samplers.Move = Stay()
    grid: str = "even-levels"
    kernels: tuple[samplers.Kernel, ...] = (Langevin(),)


# --- end

GAUSSIANS = compose(gaussian_family(3), a=1, b=0.7, base=-0.3)
SHORT = AnnealedLangevin(steps=8, kernels=(Langevin(normals=3),))
FIELDS = ("samples", "particles", "log_weights", "ancestors", "lowest_ess")


def same(one: ps.Run, other: ps.Run) -> None:
    for name in FIELDS:
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_it_samples_a_composition_of_gaussians_without_weights():
    """Mean and covariance of 6000 samples, W = 1.4, against the closed form, all 9 of them within 5 standard errors: a
    false alarm in 10^5 runs. Levels go on before particles are quite there: 0.04 deviations of a lag are allowed."""
    x = AnnealedLangevin().sample(GAUSSIANS, 6000, seed=1).samples.double()
    mean, cov, _ = closed_form(GAUSSIANS)
    scale = torch.as_tensor(np.sqrt(np.diag(cov)))
    z = (x - torch.as_tensor(mean)) / scale
    within_standard_errors(z, 0.0, 5, slack=0.04)
    expected = torch.as_tensor(cov) / scale / scale[:, None]
    within_standard_errors((z[:, :, None] * z[:, None]).flatten(1), expected.flatten(), 5, slack=0.04)
    added = ps.Denoise().sample(GAUSSIANS, 6000, seed=1).samples.double()  # which adding scores does not
    assert ((added.var(0) / torch.tensor(np.diag(cov))) - 1).abs().max() > 0.1


def test_it_samples_a_composition_of_mixtures():
    """Against 6000 exact draws: means and second moments within 5 standard errors, a false alarm in 10^5, besides the
    lag."""
    parts = {
        "a": ps.Mixture([[-1.0, 0.0], [1.0, 0.5]], 0.8),
        "b": ps.Mixture([[0.0, -1.0], [0.5, 1.0]], 0.8, [0.3, 0.7]),
    }
    q = compose(ps.Family(parts | {"base": ps.Mixture([[0.0, 0.0], [1.0, 1.0]], 0.8)}), a=1, b=1, base=-0.5)
    x = AnnealedLangevin().sample(q, 6000, seed=2).samples.double()
    y = ps.exact(q).sample(6000, seed=3).double()
    scale = y.std(0)
    for power in (1, 2):
        a, b = (((points - y.mean(0)) / scale) ** power for points in (x, y))
        error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
        assert bool(((a.mean(0) - b.mean(0)).abs() < 5 * error + 0.04).all())


def test_its_kernel_serves_the_other_samplers():
    """Small Langevin steps leave the path as it is, so Feynman-Kac weights keep their meaning: log Z of 8 swarms of 256
    is within 0.1, over five times its root mean square error in six other seeds."""
    run = ps.FeynmanKac(256, 60, kernels=[Langevin(3, 0.05)]).sample(GAUSSIANS, 8, seed=1)
    assert run.total_log_evidence == pytest.approx(closed_form(GAUSSIANS)[2], abs=0.1)
    plain = ps.FeynmanKac(256, 60, integrator="frozen").sample(GAUSSIANS, 8, seed=1)
    assert not torch.equal(run.samples, plain.samples)
    none = ps.FeynmanKac(256, 60, integrator="frozen", kernels=(Langevin(normals=0),)).sample(GAUSSIANS, 8, seed=1)
    assert torch.equal(none.samples, plain.samples)  # a kernel that does nothing changes nothing
    assert ps.FeynmanKac(4, 10, clip=0.1, kernels=["langevin"]).sample(GAUSSIANS, 8).clipped_fraction <= 1


def test_names_stand_for_it_in_files():
    for sampler in (AnnealedLangevin(), SHORT, ps.FeynmanKac(8, 20, move="stay", kernels=[Langevin(3)])):
        text = json.dumps(describe(sampler))
        assert build_sampler(json.loads(text)) == sampler
    assert build_sampler("own-langevin") == AnnealedLangevin()
    kind = {"kind": "own-langevin", "steps": 8, "kernels": [{"kind": "langevin", "normals": 3}]}
    same(build_sampler(kind).sample(GAUSSIANS, 20, seed=4), SHORT.sample(GAUSSIANS, 20, seed=4))
    with pytest.raises(ArgumentError, match="Did you mean 'own-langevin'"):
        build_sampler("on-langevin")
    with pytest.raises(ArgumentError, match=r"kernel must be one of .*langevin.*Did you mean 'langevin'"):
        AnnealedLangevin(kernels=["langevn"])
    with pytest.raises(ArgumentError, match="Did you mean 'normals'"):
        AnnealedLangevin(kernels=[{"kind": "langevin", "normal": 3}])
    with pytest.raises(ArgumentError, match="steps must be a whole number"):  # a new default keeps the field's domain
        AnnealedLangevin(steps=0)


def test_the_loop_is_the_one_of_all_samplers(tmp_path):
    told = []
    run = SHORT.sample(GAUSSIANS, 700, seed=5, device="cpu", progress=lambda *counts: told.append(counts))
    assert told[-1] == (8, 8) and run.ess.shape == (8, 700)
    same(run, SHORT.sample(GAUSSIANS, 700, seed=5, max_particles=256))
    assert torch.equal(SHORT.sample(GAUSSIANS, 40, seed=5).samples, run.samples[:40])
    assert not torch.equal(SHORT.sample(GAUSSIANS, 40, seed=6).samples, run.samples[:40])
    assert "AnnealedLangevin" in run.summary() and "closed form" in run.summary()
    assert np.load(run.save(tmp_path / "x.npz"))["samples"].shape == (700, 3)
    assert SHORT.sample(GAUSSIANS, 5, dtype=torch.float64).samples.dtype == torch.float64


@pytest.mark.filterwarnings("ignore:sources of unknown size", "ignore:samples should lie", "ignore:samples must stay")
def test_it_runs_on_models_and_in_units():
    model = SHORT.sample(opaque(GAUSSIANS), 50, seed=5)
    assert model.arithmetic == "model" and model.samples.isfinite().all()
    p = families(3, 2, True)[0]
    run = SHORT.sample(p["c0"] * p["c1"] / p["c2"], 50, seed=5)
    assert run.arithmetic == "float32" and run.samples.shape == (50, 2)
    inside = gaussian_family(2)
    units = torch.tensor([5.0, -3.0], dtype=torch.float64), torch.tensor([2.0, 0.5], dtype=torch.float64)
    outside = ps.Family(inside.members, units=units)
    x, y = (SHORT.sample(p["a"] * p["b"], 50, seed=5).samples.double() for p in (inside, outside))
    torch.testing.assert_close(units[0] + units[1] * x, y, rtol=1e-5, atol=1e-5)


def test_parts_of_ones_own_need_no_name():
    def levels(schedule, steps, extent):
        return even_levels(schedule, steps, extent)

    run = replace(SHORT, grid=levels).sample(GAUSSIANS, 30, seed=1)
    same(run, SHORT.sample(GAUSSIANS, 30, seed=1))
    with pytest.raises(ArgumentError, match="be registered to be written down"):
        describe(replace(SHORT, grid=levels))
    assert replace(SHORT, grid=even_levels) == SHORT  # what has a name goes by it


def test_kernels_that_cost_the_second_order_are_told_of():
    """With a kernel the step is of first order: 25 of them leave 0.83 of the variance, and the run says so."""
    sampler = ps.Denoise(steps=25, kernels=(Langevin(1, 0.0),))
    with pytest.warns(DegeneracyWarning, match=r"comes out with 0\.\d+ times its variance"):
        sampler.sample(ps.Family({"a": ps.Gaussian(cov=[2.0, 0.5])})["a"], 50, seed=1)
