"""The network and its loss: presets' sizes, diffusers' own noise and velocity, quick blocks, the norm."""

import pytest
import torch
from torch.nn import functional as F

from images.flat import SHAPE
from polyscore.images import PRESETS
from polyscore.images.pool import Batch
from polyscore.images.presets import recipe_of
from polyscore.images.program import Program, form_for, program
from polyscore.images.unet import build, config, cost, noise_scales, scheduler

CPU = torch.device("cpu")
WEIGHTS = {"256": (68.7, 68.9), "128": (0, 30), "64": (0, 15), "32": (0, 10), "tiny": (0, 1)}


def batch(rows=5, side=8, conditions=3, seed=0):
    source = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (rows, side, side, 3), generator=source, dtype=torch.uint8)
    times = torch.tensor([0, 999, 500, 3, 750])[:rows]
    noise = torch.randn(rows, 3, side, side, generator=source)
    return Batch(pixels, torch.arange(rows) % 2 == 0, torch.arange(rows) % conditions, times, noise)


@pytest.mark.parametrize("name", [*PRESETS])
def test_presets_weigh_what_they_say(name):
    low, high = WEIGHTS[name]
    assert low < cost(PRESETS[name].unet).weights / 1e6 <= high


def test_the_largest_preset_is_built_as_described():
    told = config(PRESETS["256"].unet, 3)
    assert told["down_block_types"] == ("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D")
    assert told["up_block_types"] == ("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D")
    assert told["block_out_channels"] == (128, 256, 256, 512)
    recipe = PRESETS["256"]
    assert (recipe.batch, recipe.epochs, recipe.learning_rate, recipe.weight_decay) == (16, 50, 1e-4, 0.0)
    assert (recipe.warm_up, recipe.ema, recipe.clip, recipe.length(1600)) == (500, 0.9999, None, 5000)


def test_multiply_adds_are_those_of_its_layers():
    """Counted by hand: products of every layer as it runs, and 2 T^2 C of each attention over T pixels."""
    model, counted = build(SHAPE, 2), []

    def note(layer, given, out):
        counted.append(out.numel() * layer.weight[0].numel())  # one filter, or one row, for each number that comes out

    for layer in model.modules():
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            layer.register_forward_hook(note)
    model(torch.zeros(1, 3, 8, 8), torch.zeros(1), class_labels=torch.zeros(1, dtype=torch.long))
    attentions = sum(name.endswith("to_q") for name, _ in model.named_modules())
    assert attentions == 4  # down, middle, and twice up
    assert cost(SHAPE, 2).multiply_adds == sum(counted) + attentions * 2 * 16**2 * 16
    assert cost(SHAPE, 2).weights == sum(p.numel() for p in model.parameters())


def test_losses_are_those_of_diffusers():
    made, shared = batch(), program(SHAPE, 3, CPU, "float32", "plain")
    clean = made.pixels.permute(0, 3, 1, 2) / 127.5 - 1
    clean = torch.stack([x.flip(-1) if m else x for x, m in zip(clean, made.mirrored, strict=True)])
    noising = scheduler()
    noisy = noising.add_noise(clean, made.noise, made.times)
    with torch.no_grad():
        found = shared.network(noisy, made.times, class_labels=made.labels).sample
        target = noising.get_velocity(clean, made.noise, made.times)
        torch.testing.assert_close(shared.losses(made), F.mse_loss(found, target, reduction="none").mean((1, 2, 3)))


def test_the_last_time_is_pure_noise():
    alpha, sigma = noise_scales(CPU)
    assert alpha[-1] == 0
    assert sigma[-1] == 1
    torch.testing.assert_close(alpha**2 + sigma**2, torch.ones(1000))
    assert scheduler().config.timestep_spacing == "trailing"


def test_fresh_weights_depend_on_the_seed_alone():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one = build(SHAPE, 3, 1)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(6)
    same, other = build(SHAPE, 3, 1), build(SHAPE, 3, 2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.conv_in.weight, other.conv_in.weight)


def test_fresh_weights_leave_the_generators_of_gpus_alone(monkeypatch):
    """What a user drew there would be drawn again: no fork of the CPU's state brings it back."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    build(SHAPE, 3, 1)
    assert seeded == []


def gradients(shared: Program, made: Batch):
    return torch.autograd.grad(shared.plain(made).sum(), list(shared.network.parameters()))


@pytest.mark.parametrize(("form", "conditions"), [("kernels", 3), ("kernels", 1)])
def test_quick_blocks_compute_what_their_own_do(form, conditions):
    shape, made = PRESETS["tiny"].unet, batch(3, 32, conditions)
    own, quick = (program(shape, conditions, CPU, "float32", f) for f in ("plain", form))
    quick.network.load_state_dict(own.network.state_dict())
    torch.testing.assert_close(quick.plain(made), own.plain(made))
    for a, b in zip(gradients(own, made), gradients(quick, made), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-6)


@pytest.mark.slow
def test_a_quick_network_is_one_graph():
    """torch.compile finds nothing that it has to leave to Python."""
    quick = program(SHAPE, 3, CPU, "float32", "kernels")
    whole = torch.compile(quick.plain, backend="eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(whole(batch()), quick.plain(batch()))


def test_a_program_is_made_once_for_a_shape():
    assert program(SHAPE, 3, CPU, "float32", "plain") is program(SHAPE, 3, CPU, "float32", "plain")
    assert form_for("auto", CPU) == "plain"


def test_the_rate_and_the_average_suit_the_length():
    """After 3,000 steps a constant 0.9999 would hold 74 % of the start; this one holds next to nothing."""
    recipe, held = recipe_of("32"), 1.0
    for k in range(1, 3001):
        held *= recipe.decay(k)
    assert held < 1e-12
    assert 0.9999**3000 > 0.74
    assert recipe.decay(10**6) == 0.9999


def test_blocks_that_compute_otherwise_are_not_used(monkeypatch):
    from polyscore.errors import PolyscoreWarning
    from polyscore.pipelines.fast import network

    monkeypatch.setattr(network, "norm", lambda x, *_: 2 * x)
    program.cache_clear()
    with pytest.warns(PolyscoreWarning, match="quick blocks should compute what diffusers' own do"):
        made = program(SHAPE, 3, CPU, "float32", "kernels")
    assert made.form == "plain"
    own = program(SHAPE, 3, CPU, "float32", "plain")
    torch.testing.assert_close(made.losses(batch()), own.losses(batch()))
    program.cache_clear()
