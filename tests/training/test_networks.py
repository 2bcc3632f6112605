"""Stacked networks against plain `nn.Sequential` ones with the same weights, and the field that samplers see."""

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import polyscore as ps
from cases import F64, SCHEDULES, naive_excess, time_grid
from polyscore.devices import matmul_precision
from polyscore.errors import PolyscoreError
from polyscore.fields import NetworkField, ScoreField, prepare
from polyscore.models.network import Network
from polyscore.nn.mlp import ACTIVATIONS, IN_PLACE, StackedMLP
from training.networks import LAYERS, build, families, twin

CLOSE = {"rtol": 2e-5, "atol": 2e-6}
shared_and_separate = pytest.mark.parametrize("shared", [True, False], ids=["shared", "separate"])

# Random networks belong to no densities, so their weights degenerate; here only equality counts.
pytestmark = pytest.mark.filterwarnings(
    "ignore:weight should be shared", "ignore:swarms should", "ignore:log Z", "ignore:K should"
)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("activation", LAYERS)
@pytest.mark.parametrize(("width", "depth"), [(1, 1), (7, 2), (32, 4), (64, 3), (128, 5)])
def test_a_stack_is_so_many_plain_networks(activation, width, depth):
    stack = StackedMLP(5, 3, seeds=[3, 1, 4, 1], width=width, depth=depth, activation=activation)
    assert stack.count == 4
    assert sum(w.numel() for w in stack.weights) == 4 * (5 * width + (depth - 1) * width**2 + 3 * width)
    x = normal(4, 11, 5)
    out = stack(x)
    assert out.shape == (4, 11, 3)
    for g in range(4):
        torch.testing.assert_close(out[g], twin(stack, g)(x[g]), **CLOSE)


def test_every_activation_is_tested():
    assert set(ACTIVATIONS) == set(LAYERS)


def test_gradients_of_a_stack_are_those_of_plain_networks():
    stack = StackedMLP(4, 2, seeds=[0, 1, 2], width=16, depth=2)
    x = normal(3, 9, 4)
    stack(x).square().sum().backward()
    for g in range(3):
        model = twin(stack, g)
        model(x[g]).square().sum().backward()
        torch.testing.assert_close(stack.weights[1].grad[g].T, model[2].weight.grad, **CLOSE)
        torch.testing.assert_close(stack.biases[0].grad[g, 0], model[0].bias.grad, **CLOSE)


def test_the_start_depends_on_its_own_seed_alone():
    before = torch.random.get_rng_state()
    alone = StackedMLP(4, 2, seeds=[7], width=16, depth=2)
    among = StackedMLP(4, 2, seeds=[1, 2, 7, 3], width=16, depth=2)
    assert torch.equal(torch.random.get_rng_state(), before)
    for one, other in zip(alone.parameters(), among.parameters(), strict=True):
        assert torch.equal(one[0], other[2])
        assert not torch.equal(one[0], other[1])
    # Layers and kinds share no numbers: equal shapes would else start equal.
    square = StackedMLP(16, 16, seeds=[7], width=16, depth=2)
    assert not torch.equal(square.weights[0], square.weights[1])


def test_the_start_is_pytorchs_own():
    """Uniform on +-1/sqrt(fan_in). The mean square of 65,536 uniforms: false alarm below 1e-6 at 2 %."""
    stack = StackedMLP(64, 256, seeds=[0], width=256, depth=2)
    for weight, bias, fan_in in zip(stack.weights, stack.biases, [64, 256, 256], strict=True):
        bound = 1 / math.sqrt(fan_in)
        for value in (weight, bias):
            assert value.abs().max() <= bound
        assert weight.square().mean().item() == pytest.approx(bound**2 / 3, rel=0.03)
        assert abs(weight.mean().item()) < 0.03 * bound


@pytest.mark.parametrize("options", [{"width": 0}, {"depth": 0}, {"activation": "swish"}])
def test_a_stack_refuses_bad_shapes(options):
    with pytest.raises(PolyscoreError, match=next(iter(options))):
        StackedMLP(4, 2, seeds=[0], **options)


@shared_and_separate
@pytest.mark.parametrize("conditions", [1, 2, 3, 5])
@pytest.mark.parametrize(("dim", "batch"), [(1, 1), (2, 7), (3, 129), (16, 33), (64, 5), (2, 9001)])
def test_noise_of_all_conditions_is_the_plain_networks(shared, conditions, dim, batch):
    network, functions = build(conditions, dim, shared, width=24, depth=3, seed=conditions + dim)
    assert network.conditions == conditions
    assert network.shared == shared
    assert network.width == 24
    x, times = normal(batch, dim, seed=1), uniform(4, seed=2)
    offsets = network.offsets(times)
    assert offsets.shape == (4, conditions, 24)
    for i, t in enumerate(times):
        expected = torch.stack([f(x, t.expand(batch)) for f in functions])
        torch.testing.assert_close(network.noise(x, (offsets[i],)), expected, **CLOSE)
        torch.testing.assert_close(network.noise_at(x, t), expected, **CLOSE)
    each = uniform(batch, seed=3)
    expected = torch.stack([f(x, each) for f in functions])
    torch.testing.assert_close(network.noise_at(x, each), expected, **CLOSE)


@shared_and_separate
@pytest.mark.parametrize("activation", LAYERS)
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_noise_for_every_activation_and_depth(shared, activation, depth):
    network, functions = build(3, 2, shared, width=20, depth=depth, activation=activation)
    x, t = normal(13, 2), torch.tensor(0.3)
    expected = torch.stack([f(x, t.expand(13)) for f in functions])
    torch.testing.assert_close(network.noise_at(x, t), expected, **CLOSE)
    torch.testing.assert_close(network.noise(x, (network.offsets(t[None])[0],)), expected, **CLOSE)


@shared_and_separate
def test_noise_of_swarms_and_of_broadcast_times(shared):
    network, functions = build(2, 3, shared)
    x = normal(4, 5, 3)
    t = uniform(4, 1, seed=1)
    flat = t.expand(4, 5).reshape(-1)
    expected = torch.stack([f(x.view(-1, 3), flat) for f in functions]).view(2, 4, 5, 3)
    torch.testing.assert_close(network.noise_at(x, t), expected, **CLOSE)
    torch.testing.assert_close(network.noise_at(x[0, 0], t[0, 0]), expected[:, 0, 0], **CLOSE)


@shared_and_separate
@pytest.mark.parametrize("which", [[0], [3], [3, 1], [0, 1, 2, 3], [2, 0, 3]])
def test_picking_conditions(shared, which):
    network, functions = build(4, 2, shared)
    x, times = normal(9, 2), uniform(3)
    whole = network.noise_at(x, times[0])
    picked = network.pick(which)
    expected = torch.stack([functions[a](x, times[0].expand(9)) for a in which])
    assert picked.conditions == len(which)
    torch.testing.assert_close(picked.noise_at(x, times[0]), expected, **CLOSE)
    torch.testing.assert_close(picked.offsets(times), network.offsets(times)[:, which], **CLOSE)
    torch.testing.assert_close(picked.pick([0]).noise_at(x, times[0])[0], expected[0], **CLOSE)
    assert torch.equal(network.noise_at(x, times[0]), whole)  # the original is as it was


def test_low_precision_is_near():
    network, functions = build(3, 2, True, width=64)
    x, t = normal(50, 2), torch.tensor(0.5)
    expected = torch.stack([f(x, t.expand(50)) for f in functions])
    got = network.noise(x, (network.offsets(t[None])[0],), torch.bfloat16)
    assert got.dtype == torch.float32
    assert (got - expected).norm() < 2e-2 * expected.norm()
    assert not torch.equal(got, expected)


def test_matmul_precision_is_put_back():
    before = torch.get_float32_matmul_precision()
    with pytest.raises(RuntimeError), matmul_precision("high", torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "high"
        raise RuntimeError
    assert torch.get_float32_matmul_precision() == before
    with matmul_precision("high", torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == before


EXPONENTS = [{"c0": 1.0}, {"c0": 1.0, "c1": 1.0, "c2": -1.0}, {"c2": 0.5, "c0": 0.3}, {"c1": 2.0, "c2": -0.5},
             {"c2": 1.0, "c1": 0.7, "c0": -0.4}]  # fmt: skip
every_composition = pytest.mark.parametrize("exponents", EXPONENTS, ids=str)


@shared_and_separate
@every_composition
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_the_field_is_the_familys_scores_composed(shared, exponents, schedule):
    together, apart = families(3, 2, shared, schedule, seed=5)
    q, reference = ps.Composition(together, exponents), ps.Composition(apart, exponents)
    times, x = time_grid(40), 2 * normal(6, 4, 2)
    field = prepare(q, times, x)
    assert isinstance(field, NetworkField)
    assert isinstance(prepare(reference, times, x), ScoreField)
    for i in (0, 1, 13, 29, 39, 40):
        scores = reference.family.scores(x, times[i].float(), reference.conditions)
        score, excess = field(x, i)
        size = scores.abs().max().item()
        composed = sum(w * s for w, s in zip(exponents.values(), scores.double(), strict=True))
        torch.testing.assert_close(score.double(), composed, rtol=1e-4, atol=1e-5 * size)
        expected = naive_excess(scores, list(exponents.values()))
        torch.testing.assert_close(excess.double(), expected, rtol=1e-3, atol=1e-4 * size**2)
        alone, nothing = field(x, i, want_excess=False)
        assert nothing is None
        assert torch.equal(alone, score)
        by_index, excess_by_index = field(x, torch.tensor([i]))
        assert torch.equal(by_index, score)
        assert torch.equal(excess_by_index, excess)


@shared_and_separate
@every_composition
def test_an_ensembles_field_is_the_mean_of_its_models(shared, exponents):
    """All models in one evaluation, against plain functions one by one."""
    pairs = [families(3, 2, shared, seed=seed) for seed in (5, 6, 7)]
    together, apart = (
        ps.Family({name: ps.Ensemble([pair[kind].members[name] for pair in pairs]) for name in ("c0", "c1", "c2")})
        for kind in (0, 1)
    )
    q, reference = ps.Composition(together, exponents), ps.Composition(apart, exponents)
    times, x = time_grid(40), 2 * normal(6, 4, 2)
    field = prepare(q, times, x)
    assert isinstance(field, NetworkField)
    assert isinstance(prepare(reference, times, x), ScoreField)
    for i in (0, 13, 40):
        scores = reference.family.scores(x, times[i].float(), reference.conditions)
        size = scores.abs().max().item()
        score, excess = field(x, i)
        composed = sum(w * s for w, s in zip(exponents.values(), scores.double(), strict=True))
        torch.testing.assert_close(score.double(), composed, rtol=1e-4, atol=1e-5 * size)
        expected = naive_excess(scores, list(exponents.values()))
        torch.testing.assert_close(excess.double(), expected, rtol=1e-3, atol=1e-4 * size**2)


def test_ensembles_that_cannot_be_one_network_are_asked_one_by_one():
    one, two, wide = (families(2, 2, True, seed=s, width=w)[0].members for s, w in ((0, 24), (1, 24), (2, 40)))
    exact = families(2, 2, True, seed=3)[0]
    exact.to(precision="float32")
    mixed = {
        "widths": {"c0": ps.Ensemble([one["c0"], wide["c0"]])},
        "precisions": {"c0": ps.Ensemble([one["c0"], exact.members["c0"]])},
        "orders": {"c0": ps.Ensemble([one["c0"], two["c0"]]), "c1": ps.Ensemble([two["c1"], one["c1"]])},
        "nested": {"c0": ps.Ensemble([ps.Ensemble([one["c0"]]), two["c0"]])},
    }
    x, times = normal(5, 1, 2), time_grid(10)
    for members in mixed.values():
        q = ps.Composition(ps.Family(members), dict.fromkeys(members, 1.0))
        field = prepare(q, times, x)
        assert isinstance(field, ScoreField)
        torch.testing.assert_close(field(x, 3)[0], q.score(x, times[3].float()))


@shared_and_separate
@every_composition
def test_a_composition_of_a_network_is_that_of_plain_models(shared, exponents):
    together, apart = families(3, 4, shared, seed=2)
    q, reference = ps.Composition(together, exponents), ps.Composition(apart, exponents)
    x = normal(10, 4)
    for t in (torch.tensor(0.4), uniform(10), 0.7):
        torch.testing.assert_close(q.score(x, t), reference.score(x, t), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(q.residual(x, t), reference.residual(x, t), rtol=1e-3, atol=1e-3)
    for name in together:
        alone = together.members[name].score(x, torch.tensor(0.4))
        torch.testing.assert_close(alone, apart.members[name].score(x, torch.tensor(0.4)), rtol=1e-4, atol=1e-5)


@shared_and_separate
@every_composition
@pytest.mark.parametrize("schedule", [ps.VP(), ps.VP(0.5, 16.0), ps.DDPM()], ids=str)
def test_sampling_a_network_is_sampling_plain_models(shared, exponents, schedule):
    together, apart = families(3, 2, shared, schedule, seed=8)
    sampler = ps.FeynmanKac(particles=3, steps=5)
    got = sampler.sample(ps.Composition(together, exponents), 20, seed=4)
    want = sampler.sample(ps.Composition(apart, exponents), 20, seed=4)
    # A weight on the edge of a resampling slot may fall to the other side: allow one swarm of twenty.
    near = ((got.particles - want.particles).abs() <= 1e-3 * (1 + want.particles.abs())).flatten(1).all(1)
    assert near.sum() >= 19
    torch.testing.assert_close(got.log_evidence[near], want.log_evidence[near], rtol=1e-3, atol=1e-3)
    assert torch.equal(got.ancestors[near], want.ancestors[near])


@shared_and_separate
@pytest.mark.parametrize("schedule", [ps.Cosine(), ps.LinearFlow(), ps.DDPM(zero_snr=True)], ids=str)
def test_denoising_a_network_is_denoising_plain_models(shared, schedule):
    """From alpha(1) = 0 a random network explodes, and weights with it: points only, relative to their size."""
    together, apart = families(3, 2, shared, schedule, seed=8)
    got, want = (ps.Denoise(steps=5).sample(ps.parse("c0 * c1 / c2", p), 50, seed=4).samples for p in (together, apart))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * want.abs().max().item())


@shared_and_separate
def test_chunks_change_nothing(shared):
    q = ps.parse("c0 * c1 / c2", families(3, 2, shared)[0])
    sampler = ps.FeynmanKac(particles=4, steps=6)
    whole, cut = sampler.sample(q, 700, seed=1), sampler.sample(q, 700, seed=1, max_particles=1024)
    near = torch.isclose(whole.samples, cut.samples, rtol=1e-4, atol=1e-4).all(-1)
    assert near.float().mean() > 0.98  # float sums in other batch sizes; a rare resampling may flip
    again = sampler.sample(q, 700, seed=1)
    assert torch.equal(whole.particles, again.particles)


def test_units_of_a_family_only_change_the_way_out():
    plain, _ = families(2, 2, True)
    units = (torch.tensor([1000.0, -50.0]), torch.tensor([100.0, 0.5]))
    moved = ps.Family(plain.members, units=units)
    assert moved.log_volume(normal(5, 2)) == pytest.approx(math.log(100 * 0.5))
    assert plain.log_volume(normal(5, 2)) == 0
    x = normal(5, 2)
    torch.testing.assert_close(moved.restore(x), x * units[1] + units[0])
    assert plain.restore(x) is x
    for exponents in ({"c0": 1.0}, {"c0": 1.0, "c1": 1.0}, {"c0": 0.5, "c1": 0.2}):
        sampler, total = ps.FeynmanKac(particles=4, steps=5), sum(exponents.values())
        a, b = (sampler.sample(ps.Composition(p, exponents), 6, seed=0) for p in (plain, moved))
        torch.testing.assert_close(b.samples, a.samples * units[1] + units[0])
        torch.testing.assert_close(b.log_evidence, a.log_evidence + (1 - total) * math.log(50.0))


def test_precision_is_a_choice_of_five():
    p, _ = families(2, 2, True)
    for precision in ("auto", "table", "fp16", "tf32", "float32"):
        assert p.to(precision=precision) is p
        assert p.members["c0"].group.precision == precision
        assert bool(ps.Denoise(steps=3).sample(p["c0"], 4).samples.isfinite().all())
    with pytest.raises(PolyscoreError, match="fp8"):
        p.to(precision="fp8")


def test_precision_reaches_the_members_of_an_ensemble():
    one, two = families(2, 2, True)[0], families(2, 2, True, seed=1)[0]
    p = ps.Family({"c0": ps.Ensemble([one.members["c0"], two.members["c0"]])})
    p.to(precision="float32")
    assert {member.group.precision for member in p.members["c0"].models} == {"float32"}
    assert len(p.groups) == 2


@shared_and_separate
def test_points_in_double_precision(shared):
    """NumPy's arrays are float64: a score there must not end in PyTorch's dtype error."""
    together, apart = families(3, 2, shared)
    q, reference = ps.parse("c0 * c1 / c2", together), ps.parse("c0 * c1 / c2", apart)
    x = normal(8, 2, dtype=F64)
    got = q.score(x, 0.4)
    assert got.dtype == F64
    torch.testing.assert_close(got.float(), reference.score(x.float(), 0.4), rtol=1e-4, atol=1e-4)


def test_sampling_in_double_precision():
    p, _ = families(3, 2, True)
    run = ps.FeynmanKac(particles=2, steps=5).sample(ps.parse("c0 * c1 / c2", p), 4, dtype=F64)
    assert run.samples.dtype == F64


def test_scores_can_be_differentiated():
    """Jacobians of learned scores are what trust and likelihoods need."""
    p, _ = families(2, 2, True)
    ps.Denoise(steps=2).sample(p["c0"], 2)
    x = normal(3, 2).requires_grad_()
    (gradient,) = torch.autograd.grad(p["c0"].score(x, 0.5).sum(), x)
    assert bool(gradient.isfinite().all())
    assert gradient.abs().sum() > 0


def test_a_group_names_its_schedule():
    network, _ = build(2, 2, True)
    with pytest.raises(PolyscoreError, match="half"):
        Network(network, ps.VP(), precision="half")


# ---- Calculus and modes --------------------------------------------------------------------------------------------


@shared_and_separate
def test_memory_kept_by_samplers_outlives_any_mode(shared):
    """In a thread of its own: its first call, which allocates, is inside inference mode."""
    p = families(2, 2, shared)[0]

    def work():
        with torch.inference_mode():
            first = ps.Denoise(steps=3).sample(p["c0"], 5, seed=1).samples.clone()
        return first, ps.Denoise(steps=3).sample(p["c0"], 5, seed=1).samples

    with ThreadPoolExecutor(1) as pool:
        first, second = pool.submit(work).result()
    assert torch.equal(first, second)


@shared_and_separate
def test_scores_of_networks_can_be_differentiated_in_every_way(shared):
    p = families(2, 2, shared)[0]
    x, direction = normal(6, 2), normal(6, 2, seed=1)

    def score(y):
        return p["c0"].score(y, 0.4)

    h = 1e-2
    finite = (score(x + h * direction) - score(x - h * direction)) / (2 * h)
    _, forward = torch.func.jvp(score, (x,), (direction,))
    torch.testing.assert_close(forward, finite, rtol=2e-2, atol=2e-3)
    jacobian = torch.func.vmap(torch.func.jacrev(score))(x)
    torch.testing.assert_close(torch.einsum("bij,bj->bi", jacobian, direction), forward, rtol=1e-3, atol=1e-4)
    t = torch.tensor(0.4, requires_grad=True)
    (slope,) = torch.autograd.grad(p["c0"].score(x, t).sum(), t)
    finite = (p["c0"].score(x, 0.4 + h).sum() - p["c0"].score(x, 0.4 - h).sum()) / (2 * h)
    torch.testing.assert_close(slope, finite, rtol=2e-2, atol=2e-3)


@shared_and_separate
def test_no_points_have_no_scores(shared):
    p = families(2, 3, shared)[0]
    assert p["c0"].score(torch.zeros(0, 3), 0.4).shape == (0, 3)


def test_a_cpu_imports_no_gpu_package():
    """In a process of its own: training, sampling and measuring, then a look at what was loaded."""
    script = """
import sys, torch, polyscore as ps
p = ps.fit({"a": torch.randn(50, 2), "b": torch.randn(50, 2) + 1}, steps=3, width=64, device="cpu")
run = ps.FeynmanKac(particles=4, steps=5).sample(p["a"] * p["b"], 10, device="cpu")
ps.sliced_wasserstein(run.samples, run.samples), ps.mmd2(run.samples, run.samples)
gpu = ("triton", "polyscore.nn.fast.hopper", "polyscore.nn.fast.layered", "polyscore.nn.fast.activation")
print(sorted(name for name in gpu if name in sys.modules), torch.cuda.is_initialized())
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[] False"


def test_activations_in_place_are_the_activations():
    z = torch.cat([torch.linspace(-30, 30, 20_001), torch.linspace(-1e-3, 1e-3, 2001), torch.tensor([-1e30, 1e30])])
    for name, act in IN_PLACE.items():
        torch.testing.assert_close(act(z.clone()), ACTIVATIONS[name](z), rtol=0, atol=2.4e-7)
    assert IN_PLACE["tanh"](torch.tensor([math.nan, math.inf])).isnan().tolist() == [True, False]


@shared_and_separate
@pytest.mark.parametrize("activation", LAYERS)
@pytest.mark.parametrize("points", [1, 3, 2048, 2049, 5000])
def test_in_place_and_in_pieces_a_network_is_itself(activation, shared, points):
    network, _ = build(3, 2, shared, activation=activation, width=32)
    x, at = normal(points, network.dim), tuple(part[0] for part in network.embed(torch.tensor([0.4])))
    torch.testing.assert_close(network.noise_in_place(x, at), network.noise(x, at), **CLOSE)
    assert network._rows_at_once(points) * -(-points // network._rows_at_once(points)) - points < 32
