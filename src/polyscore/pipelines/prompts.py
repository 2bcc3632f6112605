"""Prompts as conditions: what a pipeline's text encoders make of them, and images of latents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from polyscore.errors import require, shorten
from polyscore.models.asking import asking
from polyscore.pipelines.denoiser import Told
from polyscore.pipelines.family import pixels

_GUIDED, _SHORT = 512, 256  # tokens of a prompt that Flux was trained with: FLUX.1-dev, and schnell
_LONGEST = 5000
_DECODED = 8  # latents that become images at once


@torch.no_grad()
def embed(pipeline: Any, prompt: str, event: tuple[int, ...]) -> Told:
    """Return what a pipeline's model is told of a prompt."""
    check_prompt(prompt)
    made = type(pipeline).__name__
    with asking(lambda said: f"a pipeline must take a prompt as Stable Diffusion's do; {made} raised {said}. Pass its "
                "model, with conditions= for what it is told."):  # fmt: skip
        return _embedded(pipeline, prompt, event)


def _embedded(pipeline: Any, prompt: str, event: tuple[int, ...]) -> Told:
    device = pipeline._execution_device
    if getattr(pipeline, "transformer", None) is not None:
        embeds, pooled, _ = pipeline.encode_prompt(prompt, None, device=device, max_sequence_length=_limit(pipeline))
        return {"encoder_hidden_states": embeds, "pooled_projections": pooled}
    if getattr(pipeline, "text_encoder_2", None) is None:
        embeds, _ = pipeline.encode_prompt(prompt, device, 1, False)
        return {"encoder_hidden_states": embeds}
    embeds, _, pooled, _ = pipeline.encode_prompt(prompt, None, device, 1, False)
    if prompt == "" and pipeline.config.get("force_zeros_for_empty_prompt"):  # what it was told without a prompt
        embeds, pooled = torch.zeros_like(embeds), torch.zeros_like(pooled)
    factor = pipeline.vae_scale_factor
    size = [event[-2] * factor, event[-1] * factor]
    return {"encoder_hidden_states": embeds, "text_embeds": pooled,
            "time_ids": torch.tensor([[*size, 0, 0, *size]], dtype=embeds.dtype)}  # fmt: skip


def check_prompt(prompt: object) -> None:
    """Refuse what is no prompt; the empty one is."""
    good = isinstance(prompt, str) and len(prompt) <= _LONGEST and "\x00" not in prompt
    require(good, "a prompt", f"be text of at most {_LONGEST} characters", shorten(prompt, 60), "Shorten it.")


def _limit(pipeline: Any) -> int:
    """Tokens of a prompt, filled up to which the model is told it: it sees those that fill, too."""
    most = _GUIDED if pipeline.transformer.config.guidance_embeds else _SHORT
    return int(min(getattr(pipeline.tokenizer_2, "model_max_length", most), most))


def decoder_of(pipeline: Any) -> Callable[[Tensor], Tensor]:
    """Return what turns a pipeline's points into images in [0, 1]: its VAE, a few latents at a time."""
    vae = getattr(pipeline, "vae", None) or getattr(pipeline, "vqvae", None)
    if vae is None:
        return pixels
    scale, shift = _units(vae.config)

    def decode(x: Tensor) -> Tensor:
        with _wide(vae):
            z = (x.to(vae.device) * scale.to(vae.device) + shift.to(vae.device)).to(vae.dtype)
            return torch.cat([pixels(vae.decode(part, return_dict=False)[0].float()) for part in z.split(_DECODED)])

    return decode


def _units(config: Any) -> tuple[Tensor, Tensor]:
    """By what latents are multiplied, and what is added: numbers of all channels, or of each `(C, 1, 1)`."""
    mean, std = (getattr(config, name, None) for name in ("latents_mean", "latents_std"))
    own = mean is not None and std is not None
    shift = mean if own else getattr(config, "shift_factor", None) or 0.0
    scale, shift = (torch.tensor(value).view(-1, 1, 1) for value in (std if own else 1.0, shift))
    return scale / config.scaling_factor, shift


@contextmanager
def _wide(vae: Any) -> Iterator[None]:
    """A VAE that overflows in half precision (force_upcast) in float32 for a while, as its pipeline does."""
    upcast = vae.dtype == torch.float16 and getattr(vae.config, "force_upcast", False)
    vae.to(torch.float32 if upcast else vae.dtype)
    try:
        yield
    finally:
        vae.to(torch.float16 if upcast else vae.dtype)
