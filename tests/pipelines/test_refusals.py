"""What cannot be composed is refused before the work starts: rule, value, remedy."""

import json
import math
import subprocess
import sys

import diffusers
import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler, EulerDiscreteScheduler, PNDMScheduler, UNet2DConditionModel
from safetensors.torch import load_file, save_file

import polyscore as ps
from pipelines.small import ddpm, flow, unet
from pipelines.tiny import flux, pixels, stable_diffusion, vae
from polyscore.errors import ArgumentError, CompositionError, PolyscoreError, PolyscoreWarning, UnknownConditionError
from polyscore.pipelines.folders import read_folder
from polyscore.pipelines.schedulers import noising_of
from polyscore.schedules import Tabulated

ANCESTRAL = {"grid": "timesteps", "integrator": "ancestral"}


def refused(match, *args, **options):
    with pytest.raises(PolyscoreError, match=match):
        ps.from_diffusers(*args, **options)


# --- schedulers


@pytest.mark.parametrize("other", [
    ddpm(beta_end=0.03), ddpm(beta_schedule="squaredcos_cap_v2"), ddpm(num_train_timesteps=500), flow(),
    ddpm("v_prediction", zero_snr=True),
], ids=["betas", "cosine", "count", "flow", "zero-snr"])  # fmt: skip
def test_models_of_different_noise_are_refused(other):
    pipelines = {"a": pixels(), "b": pixels()}
    pipelines["b"].scheduler = other
    refused("all schedulers must have the same noise at the same timesteps; 'a' has Tabulated.*'b' has .*train one",
            pipelines)  # fmt: skip


@pytest.mark.parametrize("kind", [DDIMScheduler, PNDMScheduler, EulerDiscreteScheduler, DDPMScheduler])
def test_schedulers_of_one_noise_are_one_schedule(kind):
    assert noising_of(kind.from_config(ddpm().config)).schedule == noising_of(ddpm(spacing="leading")).schedule


def test_euler_writes_a_little_signal_for_none():
    config = ddpm("v_prediction", zero_snr=True).config
    schedule = noising_of(EulerDiscreteScheduler.from_config(config)).schedule
    assert schedule.alphas[-1] == 0 and schedule.ends_in_pure_noise
    assert schedule == noising_of(DDPMScheduler.from_config(config)).schedule


def test_different_predictions_of_one_noise_compose():
    pipelines = {"a": pixels(), "b": pixels()}
    pipelines["b"].scheduler = ddpm("v_prediction")
    x, p = torch.randn(2, 3, 8, 8), ps.from_diffusers(pipelines)
    alone = {name: ps.from_diffusers(pipeline)["data"].score(x, 0.4) for name, pipeline in pipelines.items()}
    torch.testing.assert_close((p["a"] * p["b"] ** 0.5).score(x, 0.4), alone["a"] + 0.5 * alone["b"])


def test_a_scheduler_that_takes_answers_for_another_thing_is_refused():
    refused("prediction_type must be what the model was trained for; the pipeline's says 'epsilon', scheduler= "
            "'v_prediction'. Leave scheduler= out", pixels(), scheduler=ddpm("v_prediction"))  # fmt: skip
    refused("same noise at the same timesteps", stable_diffusion(), scheduler=ddpm())
    own = stable_diffusion()
    trailing = DDIMScheduler.from_config(own.scheduler.config, timestep_spacing="trailing")
    assert ps.from_diffusers(own, scheduler=trailing).schedule.spacing == "trailing"


@pytest.mark.parametrize("scheduler, match", [
    (None, "scheduler must be the one that the model was trained with; got none. Pass scheduler="),
    ("ddpm", "scheduler must be a scheduler of diffusers; got str"),
    (ddpm(zero_snr=True), "prediction_type must be v_prediction or sample where alpha is 0.*got epsilon"),
    (ddpm(thresholding=True), "scheduler's thresholding must be off; got True"),
    (ddpm("flow"), "prediction_type must be one of epsilon, v_prediction, sample; got 'flow'"),
])  # fmt: skip
def test_schedulers_that_say_nothing_of_use_are_refused(scheduler, match):
    refused(match, unet(), scheduler=scheduler)


def told(scheduler, **config):
    """A scheduler whose configuration somebody wrote by hand."""
    scheduler.register_to_config(**config)
    return scheduler


def with_alphas(alphas):
    scheduler = ddpm()
    scheduler.alphas_cumprod = alphas
    return scheduler


DYNAMIC = {"use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256,
           "max_image_seq_len": 4096}  # fmt: skip


@pytest.mark.parametrize("make, match", [
    (lambda: told(ddpm(), clip_sample=True, clip_sample_range=-1), "clip_sample_range must be a positive number; got"),
    (lambda: told(ddpm(), clip_sample=True, clip_sample_range=None), "clip_sample_range must be a positive number"),
    (lambda: told(ddpm(), clip_sample=True, clip_sample_range="x"), "clip_sample_range must be a positive number"),
    (lambda: told(ddpm(), steps_offset="x"), "offset must be a timestep; got 'x'"),
    (lambda: told(ddpm(), steps_offset=10**9), "offset must be a timestep; got 1000000000"),
    (lambda: with_alphas(None), "alphas_cumprod must be a number or a regular array"),
    (lambda: with_alphas("x"), "alphas_cumprod must be a number or a regular array"),
    (lambda: with_alphas(torch.zeros(0)), "alphas_cumprod must have one number a timestep"),
    (lambda: with_alphas(torch.ones(2, 2)), "alphas_cumprod must have one number a timestep"),
    (lambda: told(flow(), num_train_timesteps="x"), "Flow's timesteps must be a whole number"),
    (lambda: told(flow(), num_train_timesteps=None), "Flow's timesteps must be a whole number"),
    (lambda: told(flow(), shift=None), "Flow's shift must be positive; got None"),
    (lambda: told(flow(), **DYNAMIC | {"base_shift": None}), "dynamic shift must have numbers"),
    (lambda: told(flow(), **DYNAMIC | {"max_image_seq_len": 256}), "dynamic shift must have numbers"),
])  # fmt: skip
def test_configurations_that_cannot_be_are_refused(make, match):
    refused(match, unet(), scheduler=make())


def test_no_clip_hides_an_infinite_answer():
    """As of a model that overflows in half precision."""
    model = unet()
    model.register_forward_hook(lambda module, given, answer: (answer[0] * math.inf,))
    scheduler = told(ddpm(), clip_sample=True, clip_sample_range=1.0)
    family = ps.from_diffusers(model, scheduler=scheduler, conditions={"a": None})
    with pytest.raises(PolyscoreError, match="every score must be finite"):
        ps.Denoise(steps=4).sample(family["a"], 2)


def test_a_shift_beyond_all_numbers_is_still_one():
    family = ps.from_diffusers(unet(), scheduler=told(flow(), **DYNAMIC | {"base_shift": 1e9}), conditions={"a": None})
    assert family.schedule.shift > 1e300


def test_a_device_that_is_not_there_and_a_configuration_without_end_are_refused(saved):
    refused("device must name a device of this machine", unet(), scheduler=ddpm(), device="nowhere")
    (saved / "config.json").write_text("[" * 100_000)
    refused("must", saved)


def test_a_flow_transformer_needs_a_flow():
    transformer = flux().transformer
    told = {"a": {"encoder_hidden_states": torch.zeros(4, 12), "pooled_projections": torch.zeros(8)}}
    refused("scheduler of a flow transformer must be one of flow matching", transformer, scheduler=ddpm(),
            conditions=told, size=8)  # fmt: skip
    assert list(ps.from_diffusers(transformer, scheduler=flow(), conditions=told, size=8)) == ["a"]


# --- models, conditions, shapes


@pytest.mark.parametrize("options, match", [
    ({"conditions": {"a": 3}}, r"conditions\['a'\] must be a class from 0 to 2; got 3"),
    ({"conditions": {"a": True}}, "must be a class from 0 to 2; got True"),
    ({"conditions": {"a": "couch"}}, "must be a class from 0 to 2; got 'couch'"),
    ({"conditions": []}, "conditions must be a mapping from names"),
    ({"conditions": {" ": 1}}, "a condition must be a non-empty string"),
    ({"most_rows": 0}, "most_rows must be a whole number of at least 1, or None; got 0"),
    ({"size": (8, 0)}, "size must be height and width"),
    *(({"size": size}, "size must be height and width") for size in (0, False, True, (True, True), {}, torch.ones(2))),
    ({"guidance": float("nan")}, "guidance must be a finite number"),
])  # fmt: skip
def test_wrong_options_are_refused(options, match):
    refused(match, unet(3), scheduler=ddpm(), **options)


def test_a_size_and_a_class_may_be_numpys():
    assert ps.from_diffusers(unet(3), scheduler=ddpm(), size=np.int64(16)).event == (3, 16, 16)
    p = ps.from_diffusers(unet(3), scheduler=ddpm(), conditions=dict(zip("ab", np.arange(2), strict=True)))
    assert [type(member.index) for member in p.members.values()] == [int, int]


def test_a_model_that_goes_back_to_training_is_told_of():
    """It is put into evaluation mode at the door; dropout would make other samples at every call."""
    model = unet(3)
    model.mid_block.resnets[0].dropout = torch.nn.Dropout(0.5)
    family = ps.from_diffusers(model, scheduler=ddpm())
    model.train()
    with pytest.warns(PolyscoreWarning, match=r"UNet2DModel is in training mode.*Call model.eval\(\) first"):
        ps.Denoise(steps=3, **ANCESTRAL).sample(family["0"], 2, seed=0)


def test_models_that_are_none_of_these_are_refused():
    refused("model must be a U-Net or flow transformer of diffusers", torch.nn.Linear(2, 2), scheduler=ddpm())
    refused("model must be a U-Net", 7, scheduler=ddpm())
    refused("a denoiser must return as many channels as it takes, 3, or twice", unet(out=4), scheduler=ddpm())
    refused("mapping with at least one model", {}, scheduler=ddpm())
    embedded = unet(3)
    embedded.class_embedding = torch.nn.Identity()  # as class_embed_type="identity" makes it
    refused("class_embed_type must be a table of classes .* got Identity", embedded, scheduler=ddpm())
    refused("the model of 'a' must have one condition; got 2 or more", {"a": unet(2)}, scheduler=ddpm())
    refused("conditions must be left out", {"a": unet()}, scheduler=ddpm(), conditions={"a": 1})
    refused("be None: the model knows no classes; got 1", unet(), scheduler=ddpm(), conditions={"a": 1})
    refused("all conditions must have one shape", {"a": unet(), "b": unet(size=16)}, scheduler=ddpm())


@pytest.mark.parametrize("build", [
    lambda: diffusers.Transformer2DModel(2, 4, in_channels=8, num_layers=1, sample_size=8, norm_num_groups=4),
    lambda: diffusers.DiTTransformer2DModel(2, 4, in_channels=4, num_layers=1, sample_size=8, num_embeds_ada_norm=3,
                                            norm_num_groups=4),
    lambda: vae(4),
], ids=["timeless", "dit", "vae"])  # fmt: skip
def test_other_models_of_diffusers_are_refused_before_they_are_asked(build):
    """The first of them answers when it is asked as a U-Net is, and is never told the time."""
    model = build()
    refused(rf"a model of diffusers must be one of UNet2DModel.*; got {type(model).__name__}. Wrap it in ps.Learned",
            model, scheduler=ddpm())  # fmt: skip


def test_a_pipeline_that_takes_prompts_in_another_way_is_refused():
    """As those of DeepFloyd IF, whose second argument is another."""
    pipeline = stable_diffusion()
    pipeline.encode_prompt = lambda prompt, guided, number: None
    refused("a pipeline must take a prompt as Stable Diffusion's do; StableDiffusionPipeline raised TypeError.*Pass "
            "its model", pipeline)  # fmt: skip


def test_models_of_prompts_need_their_embeddings():
    model = stable_diffusion().unet
    refused("conditions must be a mapping from names; got None. Pass the pipeline with its text encoders", model,
            scheduler=ddpm())  # fmt: skip
    refused(r"conditions\['a'\] must hold tensors for encoder_hidden_states; got 1", model, scheduler=ddpm(),
            conditions={"a": 1})  # fmt: skip
    assert isinstance(model, UNet2DConditionModel)
    p = ps.from_diffusers(model, scheduler=ddpm(), conditions={"a": torch.zeros(4, 5)})
    with pytest.raises(CompositionError, match=r"condition 'a' must have a score at x.*Mend UNet"):
        p["a"].score(torch.zeros(1, 4, 8, 8), 0.5)


def test_conditions_that_are_missing_and_points_of_other_shapes():
    p = ps.from_diffusers(unet(3), scheduler=ddpm(), conditions={"couch": 1})
    with pytest.raises(UnknownConditionError, match="a condition must be one of 'couch'; got 'coach'"):
        p["coach"]
    with pytest.raises(ArgumentError, match=r"x must have points of shape \(3, 8, 8\) last; got \(2, 3, 8, 9\)"):
        p["couch"].score(torch.zeros(2, 3, 8, 9), 0.5)
    with pytest.raises(ArgumentError, match=r"x must have points of shape \(3, 8, 8\) last; got \(2, 192\)"):
        p.decode(torch.zeros(2, 192))


@pytest.mark.parametrize("prompt", [7, None, "x" * 6000])
def test_prompts_that_are_no_text_are_refused(prompt):
    p = ps.from_diffusers(stable_diffusion())
    with pytest.raises(PolyscoreError, match=r"a prompt must be text|a condition must be"):
        p[prompt]


# --- grids


def test_own_timesteps_are_the_models_alone():
    p = ps.from_diffusers(unet(), scheduler=ddpm())
    with pytest.raises(ArgumentError, match="steps on a model's own timesteps must be at most 1000; got 1001"):
        ps.Denoise(1001, **ANCESTRAL).sample(p["data"], 1)
    with pytest.raises(ArgumentError, match="spacing must be one of leading, trailing, linspace; got even"):
        ps.Denoise(10, grid={"kind": "timesteps", "spacing": "even"})
    closed = ps.Family({"a": ps.Gaussian()})
    with pytest.raises(ArgumentError, match="the grid 'timesteps' must go with a model that has timesteps of its own"):
        ps.Denoise(10, **ANCESTRAL).sample(closed["a"], 1)


@pytest.mark.parametrize("alphas", [(0.9,), (0.9, 0.95), (1.0, 0.5), (0.9, -0.1), (0.9, float("nan"))])
def test_tables_that_do_not_fall_are_refused(alphas):
    with pytest.raises(ArgumentError, match=r"Tabulated's (alphas|timesteps) must"):
        Tabulated(alphas)


# --- folders


@pytest.fixture
def saved(tmp_path):
    unet(2).save_pretrained(tmp_path)
    ddpm().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kept", [0, 4, 100, 0.5, 0.999])
def test_weights_that_were_cut_short_are_refused(saved, kept):
    file = saved / "diffusion_pytorch_model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    refused(r"must hold a whole model saved by diffusers, weights in safetensors; got \w+: .*Save or download it again",
            saved)  # fmt: skip
    file.write_bytes(whole)
    assert len(ps.from_diffusers(saved)) == 2


def test_folders_without_a_model_are_refused(saved, tmp_path):
    refused("model must be a folder that exists; got .*nowhere. Download a model first", tmp_path / "nowhere")
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config)[:40])
    refused("must hold a whole model saved by diffusers.*JSON", saved)
    (saved / "config.json").write_text(json.dumps({**config, "_class_name": "AutoencoderKL"}))
    refused("a model's folder must hold one of UNet2DModel.*got 'AutoencoderKL'", saved)
    (saved / "config.json").write_text(json.dumps({**config, "block_out_channels": [8, 32]}))
    refused("must hold a whole model saved by diffusers", saved)
    for many in (10**6, [2, 10**6]):
        (saved / "config.json").write_text(json.dumps({**config, "layers_per_block": many}))
        refused(r"layers_per_block of .* must be at most 1000; got 1000000", saved)
    (saved / "config.json").write_text(json.dumps(config))
    scheduler = json.loads((saved / "scheduler_config.json").read_text())
    (saved / "scheduler_config.json").write_text(json.dumps({**scheduler, "num_train_timesteps": 10**9}))
    refused(r"num_train_timesteps of .* must be at most 100000; got 1000000000", saved)
    (saved / "scheduler_config.json").write_text(json.dumps(scheduler))
    (saved / "config.json").unlink()
    refused("must hold config.json or model_index.json", saved)


def test_weights_that_can_hold_programs_are_not_read(saved):
    torch.save(unet(2).state_dict(), saved / "diffusion_pytorch_model.bin")
    (saved / "diffusion_pytorch_model.safetensors").unlink()
    refused("weights in safetensors; got", saved)


@pytest.mark.parametrize("place", ["pipeline", "part", "library"])
def test_programs_in_a_folder_are_not_run(tmp_path, place, monkeypatch):
    stable_diffusion().save_pretrained(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for folder in (tmp_path, tmp_path / "unet"):
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    index = json.loads((tmp_path / "model_index.json").read_text())
    if place == "pipeline":
        index["_class_name"] = ["evil", "Evil"]
    else:
        index["unet" if place == "part" else "scheduler"] = ["evil", "Evil"]
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    refused("must hold a whole model saved by diffusers", tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_pipeline_that_was_cut_short_is_refused(tmp_path):
    stable_diffusion().save_pretrained(tmp_path)
    file = tmp_path / "text_encoder" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    refused("must hold a whole model saved by diffusers", tmp_path)


@pytest.mark.parametrize("part", ["unet", "vae", "text_encoder"])
def test_weights_that_a_file_lacks_are_not_drawn_at_random(saved, tmp_path, part):
    """Diffusers and transformers draw them anew at every start, with a line in a log."""
    stable_diffusion().save_pretrained(tmp_path / "pipeline")
    for folder in (saved, tmp_path / "pipeline" / part):
        (file,) = folder.glob("*.safetensors")
        weights = load_file(file)
        save_file({name: weights[name] for name in list(weights)[1:]}, file, metadata={"format": "pt"})
        refused("weights of .* must be all that its configuration asks for; got a file without .* Save or download it "
                "again", saved if folder is saved else tmp_path / "pipeline")  # fmt: skip


def test_weights_that_have_no_place_are_warned_of(saved):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "add_attention": False}))
    with pytest.warns(
        PolyscoreWarning, match=r"mid_block\.attentions.*have none. Another network was saved than is read"
    ):
        ps.from_diffusers(saved)


def test_a_pipelines_networks_are_those_that_diffusers_reads(tmp_path):
    for make in (stable_diffusion, flux, pixels):
        make().save_pretrained(tmp_path / make.__name__)
        found, _ = read_folder(tmp_path / make.__name__, None)
        wanted = diffusers.DiffusionPipeline.from_pretrained(tmp_path / make.__name__, use_safetensors=True)
        assert found.components.keys() == wanted.components.keys()
        for name, part in wanted.components.items():
            if isinstance(part, torch.nn.Module):
                assert type(found.components[name]) is type(part) and part.training == found.components[name].training
                ours, theirs = (network.state_dict() for network in (found.components[name], part))
                assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_without_diffusers_models_are_still_families_and_folders_say_what_to_install(saved):
    program = f"""
import sys
sys.modules["diffusers"] = None
import polyscore as ps
try:
    ps.from_diffusers({str(saved)!r})
except ValueError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "pip install 'polyscore[images]'" in said
