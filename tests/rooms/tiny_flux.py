"""A Flux pipeline of the same classes as FLUX.1-schnell, random and of a few thousand weights, with real tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from polyscore.rooms.prompts import PROMPTS


def words() -> list[str]:
    """Every word of the prompts, and the marks between them."""
    text = " ".join(PROMPTS.values()).lower()
    return sorted({word.strip("().,14") for word in text.split()} | {".", ","} - {""})


def clip_tokenizer() -> Any:
    """A byte-pair tokenizer that knows single letters only."""
    from transformers import CLIPTokenizer

    letters = [chr(k) for k in range(33, 127)]
    known = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={token: k for k, token in enumerate(known)}, merges=[], model_max_length=77)


def t5_tokenizer() -> Any:
    """A unigram tokenizer that knows whole words, and letters for the rest."""
    from transformers import T5TokenizerFast

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -20.0)]
    pieces += [(f"▁{word}", -5.0) for word in words()] + [("▁", -8.0), (".", -6.0), (",", -6.0)]
    pieces += [(chr(k), -12.0) for k in range(97, 123)] + [(chr(k), -12.0) for k in range(65, 91)]
    unique = dict(pieces)
    return T5TokenizerFast(vocab=list(unique.items()), extra_ids=0, model_max_length=512)


def tiny_flux(seed: int = 0) -> Any:
    """Return a pipeline whose latents have four pixels a side for a picture of 16."""
    import diffusers
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    clip, t5 = clip_tokenizer(), t5_tokenizer()
    torch.manual_seed(seed)
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=24, pooled_projection_dim=20, axes_dims_rope=(4, 4, 8), guidance_embeds=False,
    )  # fmt: skip
    clip_config = CLIPTextConfig(
        vocab_size=len(clip), hidden_size=20, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=77, bos_token_id=clip.bos_token_id, eos_token_id=clip.eos_token_id,
        pad_token_id=clip.pad_token_id,
    )  # fmt: skip
    t5_config = T5Config(vocab_size=len(t5), d_model=24, d_kv=8, d_ff=32, num_layers=2, num_heads=2, pad_token_id=0)
    vae = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8), norm_num_groups=4, latent_channels=4, sample_size=16, shift_factor=0.1,
        scaling_factor=0.4, use_quant_conv=False, use_post_quant_conv=False,
    )  # fmt: skip
    return diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0), vae=vae, transformer=transformer,
        text_encoder=CLIPTextModel(clip_config).eval(), tokenizer=clip,
        text_encoder_2=T5EncoderModel(t5_config).eval(), tokenizer_2=t5,
    )  # fmt: skip


def save(folder: Path, seed: int = 0) -> Path:
    """Write the pipeline as a download would lie there."""
    tiny_flux(seed).save_pretrained(folder)
    return folder
