"""Whole pipelines with random weights, small enough for a test: text encoders, tokenizers, VAE, model, scheduler."""

from __future__ import annotations

import string

import torch
import transformers
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DDPMPipeline,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
)

from pipelines.small import ddpm, unet


def seeded(build):
    """Build with weights that are the same every time, and leave the global state alone."""

    def wrapped(*args, **options):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return build(*args, **options)

    return wrapped


def clip(kind=CLIPTextModel):
    """A text encoder of 8 numbers a token, and a tokenizer of single letters."""
    letters = string.ascii_lowercase
    words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[], model_max_length=16)
    config = CLIPTextConfig(
        vocab_size=len(words), hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=16, projection_dim=8, bos_token_id=52, eos_token_id=53, pad_token_id=53,
    )  # fmt: skip
    return kind(config), tokenizer


def t5():
    """A T5 encoder of 12 numbers a token, and a tokenizer of single letters."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -5.0), ("▁", -2.0), *((c, -3.0) for c in string.ascii_lowercase)]
    table = Tokenizer(models.Unigram(pieces, unk_id=2))
    table.pre_tokenizer = pre_tokenizers.Metaspace()
    table.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = transformers.T5TokenizerFast(
        tokenizer_object=table, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", extra_ids=0, model_max_length=16
    )
    config = T5Config(vocab_size=len(pieces), d_model=12, d_kv=6, d_ff=16, num_layers=1, num_heads=2)
    return T5EncoderModel(config), tokenizer


def vae(channels, **options):
    """Latents of `channels` at half the size of the images."""
    return AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=channels, block_out_channels=(4, 8), norm_num_groups=2,
        layers_per_block=1, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        **options,
    )  # fmt: skip


@seeded
def stable_diffusion(scheduler=None, size=8):
    model = UNet2DConditionModel(
        sample_size=size, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16),
        norm_num_groups=4, cross_attention_dim=8, attention_head_dim=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    encoder, tokenizer = clip()
    own = DDIMScheduler(beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=True, steps_offset=1)
    return StableDiffusionPipeline(
        vae=vae(4, scaling_factor=0.5), text_encoder=encoder, tokenizer=tokenizer, unet=model,
        scheduler=scheduler or own, safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


@seeded
def stable_diffusion_xl():
    """Two encoders, and additions to the time embedding."""
    model = UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16),
        norm_num_groups=4, cross_attention_dim=16, attention_head_dim=4, addition_embed_type="text_time",
        addition_time_embed_dim=4, projection_class_embeddings_input_dim=6 * 4 + 8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    (encoder, tokenizer), (second, second_tokens) = clip(), clip(CLIPTextModelWithProjection)
    return StableDiffusionXLPipeline(
        vae=vae(4, scaling_factor=0.5), text_encoder=encoder, tokenizer=tokenizer, text_encoder_2=second,
        tokenizer_2=second_tokens, unet=model, add_watermarker=False,
        scheduler=DDIMScheduler(clip_sample=False, timestep_spacing="trailing"),
    )  # fmt: skip


@seeded
def flux(guidance=True, **shifting):
    model = FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=12, pooled_projection_dim=8, guidance_embeds=guidance, axes_dims_rope=(2, 2, 4),
    )  # fmt: skip
    (short, short_tokens), (long, long_tokens) = clip(), t5()
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**shifting), vae=vae(4, scaling_factor=0.4, shift_factor=0.1),
        text_encoder=short, tokenizer=short_tokens, text_encoder_2=long, tokenizer_2=long_tokens, transformer=model,
    )  # fmt: skip


@seeded
def pixels(classes=None):
    """A pipeline without prompts."""
    return DDPMPipeline(unet(classes), ddpm())
