"""Three families of diffusers as families of ours: U-Nets of pixels, of latents with prompts, flow transformers."""

import pytest
import torch

import polyscore as ps
from pipelines.small import ddpm, unet
from pipelines.tiny import flux, pixels, stable_diffusion, stable_diffusion_xl
from polyscore.samplers.checks import Asked, before

ANCESTRAL = {"grid": "timesteps", "integrator": "ancestral"}
quiet = pytest.mark.filterwarnings("ignore::polyscore.errors.DegeneracyWarning")


def points(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def count_rows(module):
    """Note the rows of every call of a module."""
    rows = []
    module.register_forward_pre_hook(
        lambda _, args, options: rows.append(len(args[0] if args else options["hidden_states"])), with_kwargs=True
    )
    return rows


def close(one, other, tolerance=1e-4):
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * other.abs().max().item())


# --- what is asked: all conditions at once, the same numbers as one by one


@torch.no_grad()
def test_classes_share_one_call_and_answer_as_if_asked_alone():
    model, scheduler = unet(5), ddpm("v_prediction")
    p = ps.from_diffusers(model, scheduler=scheduler, conditions={"base": 0, "couch": 3, "table": 4})
    q = ps.Composition(p, {"couch": 1.2, "table": 0.5, "base": -0.4})
    rows, x = count_rows(model), points(2, 3, 3, 8, 8)
    scores = q.scores(x, 0.25)
    assert rows == [18] and scores.shape == (3, 2, 3, 3, 8, 8)
    alpha, sigma = scheduler.alphas_cumprod[249] ** 0.5, (1 - scheduler.alphas_cumprod[249]) ** 0.5
    for score, label in zip(scores, (3, 4, 0), strict=True):
        v = model(x.flatten(0, 1), 249, class_labels=torch.full((6,), label)).sample.view_as(x)
        close(score, -(alpha * v + sigma * x) / sigma)


@torch.no_grad()
def test_conditions_that_nobody_keeps_are_not_taken_for_each_other():
    """A condition that was let go leaves its address to the next one."""
    group, x = ps.from_diffusers(unet(4), scheduler=ddpm()).groups[0], points(2, 3, 8, 8)
    kept = [group.condition(label) for label in range(4)]
    expected = [condition.score(x, 0.25) for condition in kept]
    del kept
    group._kept.clear()
    for label in range(4):
        torch.testing.assert_close(group.condition(label).score(x, 0.25), expected[label])


@torch.no_grad()
def test_what_a_model_is_told_is_kept_once_whatever_the_points():
    """Embeddings that are repeated over points would take as much memory as many points."""
    p = ps.from_diffusers(stable_diffusion())
    q, group = p["a couch"] / p[""], p.groups[0]
    for count in (1, 5):
        q.score(points(count, 4, 8, 8), 0.25)
    ((_, told),) = group._kept.values()
    assert len(told["encoder_hidden_states"]) == 2


@torch.no_grad()
def test_what_is_kept_of_conditions_has_an_end_and_the_models_precision():
    p = ps.from_diffusers(stable_diffusion())
    q, group, x = p["a couch"] / p[""], p.groups[0], points(1, 4, 8, 8)
    single = q.score(x, 0.25)
    group.model.double()
    close(q.score(x, 0.25), single)
    assert [part.dtype for _, told in group._kept.values() for part in told.values()] == [torch.float32, torch.float64]
    for k in range(70):
        p[f"{k} tables"].score(x, 0.25)
    assert len(group._kept) <= 64


@torch.no_grad()
def test_a_learned_variance_behind_the_answer_is_cut_off():
    model, x = unet(5, out=6), points(2, 3, 8, 8)
    noise = model(x, 249, class_labels=torch.full((2,), 3)).sample
    p = ps.from_diffusers(model, scheduler=ddpm(), conditions={"couch": 3})
    close(p["couch"].score(x, 0.25), -noise[:, :3] / (1 - ddpm().alphas_cumprod[249]) ** 0.5)
    assert not torch.allclose(noise[:, :3], noise[:, 3:], atol=1e-3)


@quiet
def test_no_step_dwells_below_the_first_timestep():
    model, asked = unet(2), []
    model.register_forward_pre_hook(lambda _, args: asked.append(args[1].min().item()))
    ps.Denoise(30).sample(ps.from_diffusers(model, scheduler=ddpm())["1"], 2, seed=0)
    assert len(asked) > 30 and sum(timestep == 0 for timestep in asked) <= 2


def test_a_prompt_is_told_height_before_width():
    """Of SDXL: sizes of the image as it was and as it shall be, and where it was cut."""
    p = ps.from_diffusers(stable_diffusion_xl(), size=(8, 4))
    assert p.members["a couch"].index["time_ids"].tolist() == [[16, 8, 0, 0, 16, 8]]


@quiet
def test_prompts_are_looked_up_on_demand_and_composed_in_one_call():
    pipeline = stable_diffusion()
    p = ps.from_diffusers(pipeline)
    q = p["a couch"] * p["a painting"] / p[""]
    assert list(p) == ["", "a couch", "a painting"] and q.exponents == {"a couch": 1, "a painting": 1, "": -1}
    rows = count_rows(pipeline.unet)
    run = ps.FeynmanKac(4, 5, **ANCESTRAL).sample(q, 3, seed=0)
    assert run.samples.shape == (3, 4, 8, 8) and bool(run.samples.isfinite().all())
    assert rows == [36] * 6
    images = p.decode(run.samples)
    assert images.shape == (3, 3, 16, 16) and 0 <= images.min() < images.max() <= 1
    own = pipeline.vae.decode(run.samples / 0.5).sample / 2 + 0.5
    close(images, own.clamp(0, 1))


@torch.no_grad()
def test_the_scores_of_a_prompt_are_those_of_the_pipelines_own_call():
    pipeline = stable_diffusion()
    p, x = ps.from_diffusers(pipeline), points(2, 4, 8, 8)
    embeds, _ = pipeline.encode_prompt("a couch", "cpu", 1, False)
    noise = pipeline.unet(x, 399, encoder_hidden_states=embeds.expand(2, -1, -1)).sample
    close(p["a couch"].score(x, 0.4), -noise / (1 - pipeline.scheduler.alphas_cumprod[399]) ** 0.5)
    assert not torch.allclose(p["a couch"].score(x, 0.4), p["a table"].score(x, 0.4))


def first_noise(q, steps):
    """What a run of two swarms with seed 3 starts from."""
    plan = before(ps.Denoise(steps, churn=0, **ANCESTRAL), q, Asked(2, 3))
    z = plan.stream("start", (1, *q.event), 0, 2, normal=True)(0)[:, 0]
    return z * plan.q.schedule.sigma(plan.times[0]).float()  # spacings that do not begin at the end leave some signal


@quiet
@torch.no_grad()
@pytest.mark.parametrize("build", [stable_diffusion, stable_diffusion_xl])
def test_the_ode_of_a_prompt_is_its_pipelines(build):
    """The whole loop of the pipeline without guidance, from the same noise; its DDIM must end in the data itself."""
    pipeline, steps = build(), 5
    pipeline.set_progress_bar_config(disable=True)
    p = ps.from_diffusers(pipeline)
    run = ps.Denoise(steps, churn=0, **ANCESTRAL).sample(p["a couch"], 2, seed=3)
    own = pipeline(
        ["a couch"] * 2, height=16, width=16, num_inference_steps=steps, guidance_scale=1.0, output_type="pt",
        latents=first_noise(p["a couch"], steps),
    ).images  # fmt: skip
    close(p.decode(run.samples), own)


@quiet
@torch.no_grad()
@pytest.mark.parametrize("build", [stable_diffusion, stable_diffusion_xl])
def test_guidance_is_a_composition_with_the_empty_prompt(build):
    """score(c) + (g - 1) (score(c) - score("")) as pipelines do it; those of two encoders take zeros for no prompt."""
    pipeline, steps, g = build(), 5, 3.0
    pipeline.set_progress_bar_config(disable=True)
    p = ps.from_diffusers(pipeline)
    q = p["a couch"] ** g / p[""] ** (g - 1)
    run = ps.Denoise(steps, churn=0, **ANCESTRAL).sample(q, 2, seed=3)
    own = pipeline(
        ["a couch"] * 2, height=16, width=16, num_inference_steps=steps, guidance_scale=g, output_type="latent",
        latents=first_noise(q, steps),
    ).images  # fmt: skip
    close(run.samples, own)


@quiet
@torch.no_grad()
@pytest.mark.parametrize("guidance", [True, False])
@pytest.mark.parametrize("shifting", [{}, {"use_dynamic_shifting": True}], ids=["plain", "shifted"])
def test_the_ode_of_a_flow_transformer_is_its_pipelines(guidance, shifting):
    """The whole of FluxPipeline's own loop, from the same noise: sizes, patches, prompts, guidance and times agree."""
    pipeline, steps = flux(guidance, **shifting), 4
    pipeline.set_progress_bar_config(disable=True)
    p = ps.from_diffusers(pipeline, size=8, guidance=2.5)
    run = ps.Denoise(steps, churn=0, **ANCESTRAL).sample(p["a couch"], 2, seed=3)
    x = first_noise(p["a couch"], steps)
    own = pipeline(
        ["a couch"] * 2, height=16, width=16, num_inference_steps=steps, guidance_scale=2.5, output_type="pt",
        latents=pipeline._pack_latents(x, 2, 4, 8, 8), max_sequence_length=16,
    ).images  # fmt: skip
    close(p.decode(run.samples), own, 1e-4)


@torch.no_grad()
@pytest.mark.parametrize("guidance, tokens", [(True, 512), (False, 256)])
def test_a_prompt_is_filled_up_as_it_was_in_the_training(guidance, tokens):
    """FLUX.1-dev sees 512 tokens, as its pipeline does by itself, and schnell 256: those that fill change the rest."""
    pipeline = flux(guidance)
    pipeline.tokenizer_2.model_max_length = 512
    told = ps.from_diffusers(pipeline, size=8).members["a couch"].index
    embeds, _, _ = pipeline.encode_prompt("a couch", None, max_sequence_length=tokens)
    assert torch.equal(told["encoder_hidden_states"], embeds) and embeds.shape[1] == tokens


@quiet
def test_flow_transformers_compose_with_weights():
    pipeline = flux()
    p = ps.from_diffusers(pipeline, size=(8, 4), most_rows=7)
    rows = count_rows(pipeline.transformer)
    q = p["a couch"] ** 0.8 * p["a table"] ** 0.5 / p[""] ** 0.3
    run = ps.FeynmanKac(3, 4, **ANCESTRAL).sample(q, 2, seed=0)
    assert run.samples.shape == (2, 4, 8, 4) and bool(run.log_weights.isfinite().all())
    assert max(rows) <= 7 and sum(rows) == 5 * 18
    assert p.decode(run.particles).shape == (2, 3, 3, 16, 8)


@quiet
def test_separate_models_are_the_conditions():
    models = {name: unet(seed=seed) for seed, name in enumerate(("couch", "painting", "base"))}
    p = ps.from_diffusers(models, scheduler=ddpm("sample", zero_snr=True))
    run = ps.FeynmanKac(2, 5, **ANCESTRAL).sample(ps.base_composition(p), 2)
    assert run.samples.shape == (2, 3, 8, 8) and len(p.groups) == 3
    x = points(2, 3, 8, 8)
    alone = ps.from_diffusers(models["painting"], scheduler=ddpm("sample", zero_snr=True))
    assert torch.equal(p["painting"].score(x, 0.3), alone["data"].score(x, 0.3))


@quiet
def test_a_pipeline_without_prompts_has_its_classes():
    p = ps.from_diffusers(pixels(3))
    assert list(p) == ["0", "1", "2"]
    run = ps.Denoise(5, **ANCESTRAL).sample(p["1"], 2)
    images = p.decode(run.samples)
    assert torch.equal(images, (run.samples / 2 + 0.5).clamp(0, 1))
    assert list(ps.from_diffusers(pixels())) == ["data"]
    assert list(ps.from_diffusers(pixels(3), conditions={"couch": 2})) == ["couch"]


@torch.no_grad()
def test_models_without_their_pipeline_are_told_embeddings():
    pipeline, x = stable_diffusion(), points(2, 4, 8, 8)
    embeds, _ = pipeline.encode_prompt("a couch", "cpu", 1, False)
    p = ps.from_diffusers(pipeline.unet, scheduler=pipeline.scheduler, conditions={"couch": embeds[0]})
    close(p["couch"].score(x, 0.4), ps.from_diffusers(pipeline)["a couch"].score(x, 0.4))
    named = ps.from_diffusers(pipeline, conditions={"couch": "a couch"})
    assert torch.equal(named["couch"].score(x, 0.4), ps.from_diffusers(pipeline)["a couch"].score(x, 0.4))


def test_prompts_with_names_are_the_conditions_from_the_start():
    """As of any family: what is made of all conditions is not made of the empty prompt alone."""
    names = {"couch": "a couch", "table": "a table", "none": ""}
    p = ps.from_diffusers(stable_diffusion(), conditions=names)
    assert list(p) == list(names)
    assert ps.base_composition(p, base="none").exponents == {"couch": 1, "table": 1, "none": -1}
    assert list(ps.from_diffusers(stable_diffusion())) == [""]


@torch.no_grad()
@pytest.mark.parametrize("label", [torch.tensor(3), torch.tensor([3])], ids=["a number", "of one row"])
def test_embeddings_may_come_with_a_class(label):
    model, scheduler, x = stable_diffusion().unet, ddpm(), points(2, 4, 8, 8)
    with torch.random.fork_rng():
        model.class_embedding = torch.nn.Embedding(5, model.time_embedding.linear_2.out_features)
    told = {"encoder_hidden_states": points(6, 8, seed=2), "class_labels": label}
    p = ps.from_diffusers(model, scheduler=scheduler, conditions={"a": told})
    hidden = told["encoder_hidden_states"].expand(2, -1, -1)
    noise = model(x, 399, encoder_hidden_states=hidden, class_labels=torch.tensor([3, 3])).sample
    close(p["a"].score(x, 0.4), -noise / (1 - scheduler.alphas_cumprod[399]) ** 0.5)


# --- how it is asked: memory, precision, folders


@torch.no_grad()
@pytest.mark.parametrize("most", [1, 4, 7, None])
def test_no_call_takes_more_rows_than_were_allowed(most):
    model = unet(3)
    free = ps.from_diffusers(unet(3), scheduler=ddpm())
    p = ps.from_diffusers(model, scheduler=ddpm(), most_rows=most)
    rows, x = count_rows(model), points(5, 3, 8, 8)
    got = (p["0"] * p["1"] / p["2"]).score(x, 0.3)
    assert sum(rows) == 15 and max(rows) <= (most or 15)
    close(got, (free["0"] * free["1"] / free["2"]).score(x, 0.3))


@pytest.mark.parametrize("build", [lambda: ps.from_diffusers(pixels()), lambda: ps.from_diffusers(flux(), size=8)])
def test_the_default_bound_follows_the_free_memory(build, monkeypatch):
    from polyscore.pipelines import denoiser

    bounds = []
    for free in (1 << 20, 1 << 30, 1):
        monkeypatch.setattr(denoiser, "available_memory", lambda free=free: free)
        bounds.append(build().groups[0].most_rows)
    assert bounds[1] == pytest.approx(1024 * bounds[0], rel=0.2) and bounds[2] == 1


@torch.no_grad()
def test_a_call_that_does_not_fit_is_made_in_halves_and_said_so(monkeypatch):
    model, x = unet(3), points(5, 3, 8, 8)
    p, free = (ps.from_diffusers(m, scheduler=ddpm()) for m in (model, unet(3)))
    rows = []

    def fails(module, args):
        rows.append(len(args[0]))
        if len(args[0]) > 6:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.register_forward_pre_hook(fails)
    with pytest.warns(UserWarning, match=r"memory must hold a call of the model; going on with 7 rows .*most_rows="):
        got = (p["0"] * p["1"] / p["2"]).score(x, 0.3)
    assert rows == [15, 6, 6, 3]
    close(got, (free["0"] * free["1"] / free["2"]).score(x, 0.3))
    rows.clear()
    (p["0"] * p["1"] / p["2"]).score(x, 0.3)
    assert rows == [6, 6, 3]  # what was found out stays known


@pytest.mark.parametrize("build", [
    lambda: ps.from_diffusers(unet(3), scheduler=ddpm("v_prediction", zero_snr=True, clip_sample=True)),
    lambda: ps.from_diffusers(stable_diffusion()), lambda: ps.from_diffusers(flux(), size=8),
], ids=["unet", "sd", "flux"])  # fmt: skip
def test_nothing_waits_for_a_device(build):
    """On the meta device a tensor has no values: whoever wanted to see one would fail, as he would make a GPU wait."""
    p = build()
    names = list(p) if len(p) > 1 else ["a couch", ""]
    q = p[names[0]] ** 2 / p[names[1]]
    p.to("meta")
    for shape in ((), (2, 5)):
        scores = p.standard_scores(torch.empty(2, 5, *p.event, device="meta"), torch.empty(shape, device="meta"), names)
        assert scores.shape == (len(names), 2, 5, *p.event)
    assert q.family.device == torch.device("meta")


@quiet
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("build", [lambda: pixels(2).unet, stable_diffusion, flux], ids=["unet", "sd", "flux"])
def test_weights_in_half_precision_give_scores_in_float32(build, dtype):
    whole, half = build(), build().to(dtype)
    if isinstance(whole, torch.nn.Module):
        p, other = (ps.from_diffusers(m, scheduler=ddpm()) for m in (whole, half))
        names = ["0", "1"]
    else:
        p, other = ps.from_diffusers(whole, size=8), ps.from_diffusers(half, size=8)
        names = ["a couch", ""]
    x = points(3, *p.event)
    scores = [(family[names[0]] ** 2 / family[names[1]]).score(x, 0.6) for family in (p, other)]
    assert scores[1].dtype == torch.float32
    assert (scores[0] - scores[1]).abs().max() < 0.1 * scores[0].abs().max()
    run = ps.FeynmanKac(2, 3, **ANCESTRAL).sample(other[names[0]] ** 2 / other[names[1]], 2)
    assert run.samples.dtype == run.log_weights.dtype == torch.float32
    assert other.decode(run.samples).dtype == torch.float32


@quiet
@pytest.mark.parametrize("build", [lambda: pixels(2), stable_diffusion], ids=["unet", "sd"])
def test_saved_folders_are_read_again(build, tmp_path):
    pipeline = build()
    pipeline.save_pretrained(tmp_path / "pipeline")
    p, again = ps.from_diffusers(pipeline), ps.from_diffusers(str(tmp_path / "pipeline"))
    x, name = points(2, *p.event), next(iter(p))
    assert torch.equal(p[name].score(x, 0.5), again[name].score(x, 0.5))


def test_a_models_folder_takes_the_scheduler_beside_it(tmp_path):
    model, scheduler = unet(2), ddpm("v_prediction")
    model.save_pretrained(tmp_path)
    scheduler.save_pretrained(tmp_path / "scheduler")
    x = points(2, 3, 8, 8)
    p = ps.from_diffusers(tmp_path, conditions={"a": 1})
    assert torch.equal(p["a"].score(x, 0.5), ps.from_diffusers(model, scheduler=scheduler)["1"].score(x, 0.5))


@torch.no_grad()
def test_prompts_stand_in_expressions():
    p = ps.from_diffusers(stable_diffusion())
    q = ps.parse('"a couch" * "a table"^0.5 / ""', p)
    assert q == p["a couch"] * p["a table"] ** 0.5 / p[""]
    assert ps.Composition(p, {"a lamp": 1.0}).score(points(1, 4, 8, 8), 0.5).shape == (1, 4, 8, 8)
