"""Sampling and training on a GPU: the graph is the plain loop, the device is the CPU up to its own random numbers."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import compositions
from polyscore.errors import DegeneracyWarning
from polyscore.samplers import Kernel
from polyscore.samplers.loop import iterate
from polyscore.samplers.plan import make_plan
from polyscore.samplers.step import evaluate
from polyscore.training import DivergenceError
from training.networks import families

# Random networks belong to no densities, so their weights degenerate; here only equality counts.
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:weight should", "ignore:swarms should", "ignore:log Z", "ignore:K should"),
]

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

QS = {
    **compositions(),
    "network": ps.parse("c0 * c1 / c2", families(3, 2, True, width=128)[0]),
    "network W": ps.parse("c0^0.5 * c2^0.2", families(3, 2, True, width=128)[0]),
    "network separate": ps.parse("c0 * c1 / c2", families(3, 5, False, width=64)[0]),
    "network eager": ps.parse("c0 * c1 / c2", families(3, 2, True, width=40)[0]),
    "network tanh": ps.parse("c0 * c1 / c2", families(3, 2, True, width=64, activation="tanh")[0]),
}
STEPS = 30


@dataclasses.dataclass(frozen=True)
class Langevin(Kernel):
    """Two small Langevin steps, the second thrown away by a coin: it reads normals, uniforms and scalars."""

    normals = 2
    uniforms = 1

    def __call__(self, plan, state, i, z, u):
        size = 0.05 * plan.coefficients(i).sigma ** 2
        once = evaluate(plan, state, state.x + size * state.score + (2 * size) ** 0.5 * z[0], i)
        twice = once.x + size * once.score + (2 * size) ** 0.5 * z[1]
        return evaluate(plan, state, torch.where(u[0][..., None] < 0.5, once.x, twice), i)


SAMPLERS = {
    "sde": ps.Denoise(STEPS),
    "ode": ps.Denoise(STEPS, churn=0.0),
    "fk": ps.FeynmanKac(4, STEPS),
    "fk clip": ps.FeynmanKac(4, STEPS, clip=2.0),
    "fk threshold": ps.FeynmanKac(4, STEPS, resampling="stratified", threshold=0.5),
    "fk published": ps.FeynmanKac.published(4, STEPS),
    "fk kernel": ps.FeynmanKac(4, STEPS, kernels=(Langevin(),)),
}


def last(plan, n, graphs):
    with torch.inference_mode():
        *_, state = iterate(plan, 0, n, graphs=graphs)
        return state


@pytest.mark.parametrize("name", QS)
@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_graph_is_the_plain_loop(name, kind):
    q, sampler, n = QS[name], SAMPLERS[kind], 300
    with torch.inference_mode():
        plan = make_plan(q, sampler, 5, torch.empty(0, device="cuda"))
    if not plan.graphable:
        pytest.skip("this field asks its family, on the host")
    graph, plain = last(plan, n, True), last(plan, n, False)
    size = 1 + plain.x.abs().flatten(1).amax(1)
    near = ((graph.x - plain.x).abs().flatten(1).amax(1) <= 1e-3 * size).float().mean().item()
    # Scalars are float32 in the graph and float64 outside it; a resampling may fall to the other side, rarely.
    assert near == 1 if not sampler.weighted else near > 0.9
    if sampler.weighted:
        close = torch.isclose(graph.log_evidence, plain.log_evidence, rtol=2e-3, atol=2e-2).float().mean().item()
        assert close > 0.85
    again = last(plan, n, True)
    assert torch.equal(graph.x, again.x)


@pytest.mark.parametrize("name", ["gaussians-2d-1,1,-1", "shared-2d-1,1,-1", "network", "network separate"])
def test_a_run_on_the_gpu_is_repeatable_and_free_of_chunks(name):
    sampler = ps.FeynmanKac(particles=4, steps=STEPS)
    one, two = (sampler.sample(QS[name], 1000, seed=3, device="cuda") for _ in range(2))
    for field in ("samples", "particles", "log_weights", "log_evidence", "ess", "ancestors"):
        assert torch.equal(getattr(one, field), getattr(two, field)), field
    assert one.samples.is_cuda
    cut = sampler.sample(QS[name], 1000, seed=3, device="cuda", max_particles=1024)
    near = torch.isclose(one.samples, cut.samples, rtol=1e-3, atol=1e-3).all(-1).float().mean().item()
    assert near > 0.95


@pytest.mark.parametrize("name", ["gaussians-2d-1,1,-1", "shared-2d-1,1,-1", "network"])
def test_both_devices_draw_from_one_law(name):
    """Other random numbers, one distribution: SW2 of 4000 against 4000, false alarm far below 1e-3 at this bound."""
    sampler = ps.FeynmanKac(particles=4, steps=STEPS)
    cpu = sampler.sample(QS[name], 4000, seed=3, device="cpu")
    gpu = sampler.sample(QS[name], 4000, seed=4, device="cuda")
    other = sampler.sample(QS[name], 4000, seed=5, device="cpu")
    floor = ps.sliced_wasserstein(cpu.samples, other.samples)
    assert ps.sliced_wasserstein(cpu.samples, gpu.samples.cpu()) < 3 * floor + 0.02


@pytest.mark.parametrize("precision", ["auto", "table", "fp16", "tf32", "float32"])
def test_every_precision_is_near_the_cpu(precision):
    from cases import time_grid
    from polyscore.fields import prepare

    times, x = time_grid(20), 2 * torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    for shared in (True, False):
        p = families(3, 2, shared, width=512, depth=4)[0].to(precision=precision)
        q = ps.parse("c0 * c1 / c2", p)
        expected = [prepare(q, times, x)(x, i)[0] for i in (0, 10, 19)]
        field = prepare(q, times, x.cuda())
        for i, want in zip((0, 10, 19), expected, strict=True):
            got = field(x.cuda(), i)[0].cpu()
            # The composed score: errors of three conditions against their sum.
            assert (got - want).norm() <= (1e-5 if precision == "float32" else 4e-3) * want.norm(), i


def test_sampling_elsewhere_leaves_the_family_where_it_was():
    p = families(3, 2, True)[0]
    ps.Denoise(steps=3).sample(p["c0"], 4, device="cuda")
    assert p.device.type == "cpu"


def test_scores_can_be_differentiated_after_sampling_on_the_gpu():
    p = families(3, 2, True)[0]
    ps.Denoise(steps=3).sample(p["c0"], 4, device="cuda")
    x = torch.ones(3, 2, device=p.device).requires_grad_()
    (gradient,) = torch.autograd.grad(p["c0"].score(x, 0.5).sum(), x)
    assert bool(gradient.isfinite().all())


def test_an_ensemble_trained_on_the_gpu_samples():
    rng = np.random.default_rng(0)
    p = ps.fit(
        {"a": rng.normal(size=(50, 2)), "b": rng.normal(size=(50, 2))},
        members=2,
        kind="vanilla",
        steps=5,
        width=64,
        depth=2,
    )
    assert p.device.type == "cuda"
    run = ps.FeynmanKac(particles=2, steps=3).sample(p["a"] * p["b"], 5)
    assert bool(run.samples.isfinite().all())


def test_metrics_on_the_gpu_are_those_on_the_cpu():
    for n, m, dim in ((700, 700, 2), (500, 801, 3), (60, 60, 20)):
        x, y = (torch.randn(k, dim, generator=torch.Generator().manual_seed(k + dim)) for k in (n, m))
        y = 1.3 * y + 0.5
        assert ps.sliced_wasserstein(x.cuda(), y.cuda()) == pytest.approx(ps.sliced_wasserstein(x, y), rel=1e-5)
        assert ps.mmd2(x.cuda(), y.cuda()) == pytest.approx(ps.mmd2(x, y), rel=1e-4, abs=1e-7)
        assert ps.mmd2(x.cuda(), y.cuda(), gamma=0.3) == pytest.approx(ps.mmd2(x, y, gamma=0.3), rel=1e-4, abs=1e-7)


def test_a_gpu_that_is_too_small_halves_the_chunk():
    # The layered kernels of width 256 pass activations through memory: 4.9 GB for 1.6 million particles.
    q = ps.parse("c0 * c1 / c2", families(3, 2, True, width=256)[0].to(precision="fp16"))
    sampler = ps.FeynmanKac(particles=16, steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegeneracyWarning)  # of a random network's weights
        few = sampler.sample(q, 512, seed=1, device="cuda")
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(3e9 / total)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = sampler.sample(q, 100_000, seed=1, device="cuda", max_particles=16 * 100_096)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    told = [w for w in caught if issubclass(w.category, DegeneracyWarning) and "memory" in str(w.message)]
    assert len(told) == 1
    assert run.samples.shape == (100_000, 2)
    near = torch.isclose(run.samples[:512], few.samples, rtol=1e-3, atol=1e-3).all(-1).float().mean().item()
    assert near > 0.95


# ---- Training on the GPU ----


def data(seed, sizes=(60, 35), dim=2):
    rng = np.random.default_rng(seed)
    return {f"c{a}": rng.normal(size=(n, dim)) + a for a, n in enumerate(sizes)}


@pytest.mark.parametrize("model", ["conditional", "separate"])
def test_stacked_training_is_one_by_one_on_the_gpu(model):
    """TF32 products: sums in another order differ by 1e-3 of a weight after 200 steps of Adam."""
    options = {"kind": "vanilla", "width": 64, "depth": 3, "batch": 96, "model": model, "steps": 200}
    datasets, seeds = [data(1), data(2, (10, 200)), data(3, (2, 3))], [5, 9, 5]
    together = ps.fit_many(datasets, seeds, **options)
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0)).cuda()
    for points, seed, family in zip(datasets, seeds, together, strict=True):
        alone = ps.fit(points, seed=seed, **options)
        assert alone.device.type == "cuda"
        for name in family:
            a, b = family[name].score(x, 0.5), alone[name].score(x, 0.5)
            assert (a - b).norm() < 5e-3 * b.norm()
    again = ps.fit_many(datasets, seeds, **options)
    for one, other in zip(together, again, strict=True):
        assert torch.equal(one["c0"].score(x, 0.5), other["c0"].score(x, 0.5))  # same company, same bytes


@pytest.mark.filterwarnings("ignore::polyscore.errors.PolyscoreWarning")  # networks of 40 steps are poor
@pytest.mark.parametrize("model", ["conditional", "separate"])
@pytest.mark.parametrize("kind", ["vanilla", "mixture", "structured"])
def test_every_kind_trains_and_is_sampled_by_every_sampler_on_the_gpu(kind, model):
    """Captured steps: a network that reads a number of a tensor cannot be trained here at all."""
    p = ps.fit(data(1), kind=kind, model=model, steps=40, width=64, depth=2, batch=96)
    q = ps.parse("c0^0.5 * c1^0.5", p)
    for sampler in (ps.Denoise(10), ps.FeynmanKac(4, 10), ps.Controlled(4, 10), ps.Controlled(4, 10, bumps=0)):
        assert bool(sampler.sample(q, 50, seed=0, device="cuda").samples.isfinite().all()), sampler
    run = ps.auto(q, most=16, steps=10).sample(q, 50, seed=0, device="cuda")
    assert run.reason and bool(run.samples.isfinite().all())


def test_a_training_resumes_on_the_gpu(tmp_path):
    options = {"kind": "vanilla", "width": 64, "depth": 3, "batch": 96, "ema": 0.9}
    path = tmp_path / "run.safetensors"
    whole = ps.fit(data(1), steps=130, **options)
    for steps in (40, 77, 130):
        resumed = ps.fit(data(1), steps=steps, checkpoint=path, **options)
    x = torch.randn(50, 2, device="cuda")
    torch.testing.assert_close(resumed["c0"].score(x, 0.5), whole["c0"].score(x, 0.5), rtol=1e-5, atol=1e-5)
    back = ps.load(whole.save(tmp_path / "model"), device="cuda")
    assert torch.equal(back["c0"].score(x, 0.5), whole["c0"].score(x, 0.5))
    assert ps.load(tmp_path / "model").device.type == "cpu"


@pytest.mark.filterwarnings("ignore::polyscore.errors.DegeneracyWarning")  # data of 1e30 is warned of
def test_a_training_that_diverges_on_the_gpu_says_so(tmp_path):
    """The captured step cannot look at its own loss; what is read now and then must still stop the training."""
    path = tmp_path / "run.safetensors"
    options = {"kind": "vanilla", "width": 64, "depth": 3, "batch": 96, "checkpoint": path, "checkpoint_every": 20}
    ps.fit(data(1), steps=40, **options)
    before = path.read_bytes()
    with pytest.raises(DivergenceError, match="loss must not diverge"):
        ps.fit(data(1), steps=400, learning_rate=1e6, **options | {"checkpoint": tmp_path / "other.safetensors"})
    with pytest.raises(DivergenceError, match="dataset 1"):
        ps.fit_many([data(1), {"c0": np.full((50, 2), 1e30), "c1": np.ones((9, 2))}], [0, 1], steps=400, width=64,
                    standardise=False)  # fmt: skip
    assert path.read_bytes() == before


def test_the_loss_on_the_gpu_falls_like_that_on_the_cpu():
    options = {
        "kind": "vanilla",
        "width": 64,
        "depth": 3,
        "batch": 512,
        "learning_rate": 2e-3,
        "steps": 600,
        "ema": 0.99,
    }
    points = {"a": np.random.default_rng(0).normal(size=(3000, 2)) * [3, 1]}
    scores = []
    x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 1.0])
    for device in ("cpu", "cuda"):
        p = ps.fit(
            points, device=device, standardise=False, **options
        )  # noise in the data's units, as in the exact score
        scores.append(p["a"].score(x.to(device), 0.3).cpu())
    exact = ps.Gaussian(cov=[9.0, 1.0]).score(x, ps.VP().alpha(torch.tensor(0.3)), ps.VP().sigma(torch.tensor(0.3)))
    for score in scores:
        assert (score - exact).norm() < 0.3 * exact.norm()
