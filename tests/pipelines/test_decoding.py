"""Images of latents are those of the pipelines themselves, whatever their VAE is called, scales, shifts or needs."""

import warnings

import pytest
import torch
from diffusers import AutoencoderKL, DiffusionPipeline, LDMPipeline, VQModel

import polyscore as ps
from pipelines.small import ddpm, unet
from pipelines.test_families import close, points
from pipelines.tiny import stable_diffusion, stable_diffusion_xl, vae


def own_images(pipeline, x):
    """What a pipeline makes of points that its scheduler does not move."""
    pipeline.set_progress_bar_config(disable=True)
    pipeline.scheduler.step = lambda answer, timestep, sample, **_: (sample,)
    pipeline.scheduler.init_noise_sigma = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return pipeline(
            ["a"] * len(x), height=16, width=16, num_inference_steps=1, guidance_scale=1.0, output_type="pt", latents=x
        ).images


@pytest.mark.parametrize("build", [stable_diffusion, stable_diffusion_xl])
def test_latents_are_decoded_as_their_pipeline_does(build):
    pipeline, x = build(), points(3, 4, 8, 8)
    close(ps.from_diffusers(pipeline).decode(x), own_images(pipeline, x))


def test_a_mean_and_a_deviation_of_each_channel_are_put_back():
    pipeline, x = stable_diffusion_xl(), points(3, 4, 8, 8)
    pipeline.vae.register_to_config(latents_mean=[0.5, -1.0, 2.0, 0.3], latents_std=[2.0, 3.0, 0.5, 1.0])
    close(ps.from_diffusers(pipeline).decode(x), own_images(pipeline, x))


def test_a_vae_that_overflows_in_half_precision_is_asked_in_float32():
    """As SDXL's: force_upcast. Its group norms make numbers of any size small again, were they finite."""
    pipeline, x = stable_diffusion_xl().to(torch.float16), points(3, 4, 8, 8)
    with torch.no_grad():
        pipeline.vae.decoder.conv_in.weight.mul_(3e4)
    images = ps.from_diffusers(pipeline).decode(x)
    assert pipeline.vae.dtype == torch.float16 and bool(images.isfinite().all())
    close(images, own_images(pipeline, x.half()), 1e-2)
    pipeline.vae.register_to_config(force_upcast=False)
    assert not ps.from_diffusers(pipeline).decode(x).isfinite().all()


@torch.no_grad()
def test_a_pipeline_of_latents_without_prompts_has_a_vae_too():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        quantised = VQModel(
            latent_channels=4, block_out_channels=(4, 8), norm_num_groups=2, scaling_factor=0.2,
            down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        )  # fmt: skip
    pipeline, x = LDMPipeline(quantised, unet(channels=4), ddpm()), points(3, 4, 8, 8)
    images = ps.from_diffusers(pipeline).decode(x)
    assert images.shape == (3, 3, 16, 16)
    close(images, (quantised.decode(x / 0.2).sample / 2 + 0.5).clamp(0, 1))


class Latents(DiffusionPipeline):
    """A model of classes in latents."""

    def __init__(self, vae: AutoencoderKL, unet, scheduler) -> None:
        super().__init__()
        self.register_modules(vae=vae, unet=unet, scheduler=scheduler)


@pytest.mark.parametrize("several", [False, True])
def test_a_vae_moves_with_its_model(several):
    pipelines = {name: Latents(vae(4).train(), unet(seed=k, channels=4), ddpm()) for k, name in enumerate("ab")}
    p = ps.from_diffusers(pipelines if several else pipelines["a"])
    assert not pipelines["a"].vae.training
    p.to("meta")
    assert pipelines["a"].vae.device.type == "meta"
