"""FLUX.1-schnell through diffusers, prompts weighted through compel: pictures that are functions of their seeds.

Flux has two text encoders. T5's vectors, one a token, carry the weights: compel moves a token of weight w from its
place in an empty prompt by w times the way, e + w (z - e). CLIP gives one vector for the whole prompt, which compel
does not weight. A prompt without weights is encoded as the pipeline itself would.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyscore.devices import check_device, plain_defaults
from polyscore.errors import ArgumentError, PolyscoreError, require, shorten
from polyscore.extras import load as need
from polyscore.extras import quiet
from polyscore.pipelines.folders import check_sizes, whole_parts

SCHNELL = "black-forest-labs/FLUX.1-schnell"
TOKENS = 256  # of T5, as schnell was distilled with
_WHAT = "generating rooms"


class Flux:
    """A pipeline that draws.

    Args:
        pipeline: a `diffusers.FluxPipeline`, on its device.
    """

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        pipeline.set_progress_bar_config(disable=True)
        self._encoded: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def multiple(self) -> int:
        """Sides must be a multiple of this: pixels of a latent, which are packed two by two."""
        return 2 * int(self.pipeline.vae_scale_factor)

    @torch.inference_mode()
    def paint(self, prompt: str, seeds: Sequence[int], side: int, steps: int) -> NDArray[np.uint8]:
        """Return one picture a seed, (N, side, side, 3), whatever else is in the batch."""
        tokens, pooled = self.encode(prompt)
        # Noise comes from the CPU, so that a seed is the same picture on every device, up to rounding.
        made = self.pipeline(
            prompt_embeds=tokens.expand(len(seeds), -1, -1), pooled_prompt_embeds=pooled.expand(len(seeds), -1),
            height=side, width=side, num_inference_steps=steps, guidance_scale=0.0,
            generator=[torch.Generator().manual_seed(seed) for seed in seeds], output_type="np",
        ).images  # fmt: skip
        require(np.isfinite(made).all(), "pictures", "be finite", "others", "Try float32: pass device='cpu'.")
        return np.asarray(np.rint(255 * np.clip(made, 0, 1)), dtype=np.uint8)

    def encode(self, prompt: str) -> tuple[Tensor, Tensor]:
        """Return a weighted prompt as T5's tokens (1, L, D) and CLIP's pooled vector (1, d); kept for the next time."""
        if prompt not in self._encoded:
            clip, t5 = self._encoders()
            parts = clip.parse_prompt_string(prompt).prompts  # several where it joins some, or blends them
            require(len(parts) == 1 and not hasattr(parts[0], "prompts"), "a prompt", "be one, with weights",
                    shorten(prompt, 80), "Write one text, without .and() and .blend().")  # fmt: skip
            self._encoded[prompt] = t5(prompt), clip(prompt)
        return self._encoded[prompt]

    def _encoders(self) -> tuple[Any, Any]:
        with quiet():
            compel = need("compel", _WHAT)
        pipe, device = self.pipeline, str(self.pipeline._execution_device)
        clip = compel.Compel(
            tokenizer=pipe.tokenizer, text_encoder=pipe.text_encoder, device=device,
            returned_embeddings_type=compel.ReturnedEmbeddingsType.POOLED,
        )  # fmt: skip
        # compel's own CompelForFlux is these two, but with all 512 tokens of T5's tokenizer.
        length = min(TOKENS, pipe.tokenizer_2.model_max_length)
        return clip, compel.Compel(
            tokenizer=pipe.tokenizer_2, text_encoder=pipe.text_encoder_2, device=device, model_max_length=length
        )


def require_installed() -> None:
    """Raise `ArgumentError` unless what generates rooms is installed."""
    for package in ("diffusers", "compel"):
        need(package, _WHAT)


@plain_defaults()
def load(model: str = SCHNELL, device: torch.device | str | None = None, offload: bool = False) -> Flux:
    """Load a Flux pipeline: from a folder, from what was downloaded before, or by downloading it now (34 GB).

    Args:
        model: a folder that `save_pretrained` or a download wrote, or a name.
        device: the GPU where there is one; half precision there, single on a CPU.
        offload: keep on the GPU only the part that works; for GPUs of less than 40 GB. Needs accelerate.
    """
    where = check_device(device)
    require(not offload or where.type == "cuda", "offload", "have a GPU to keep parts off", where, "Leave it out.")
    dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    pipeline = _pipeline(model, dtype, local=True) or _pipeline(model, dtype, local=False)
    if pipeline is None:
        raise ArgumentError(
            f"model must be a Flux pipeline; {model!r} is neither a folder with one, nor downloaded, nor within reach. "
            "Download it where there is a network, and pass its folder (--model)."
        )
    if offload:
        pipeline.enable_model_cpu_offload(device=where)
        return Flux(pipeline)
    return Flux(pipeline.to(where))


def _parts(folder: Path, dtype: torch.dtype) -> dict[str, Any]:
    """The networks of a folder, which may be anybody's."""
    check_sizes(folder)
    return whole_parts(folder, dtype=dtype)


def _pipeline(model: str, dtype: torch.dtype, local: bool) -> Any:
    """The pipeline, or None where it is not to be had."""
    with quiet():
        diffusers = need("diffusers", _WHAT)
        try:
            # Weights are read as safetensors only: a pickle could do anything.
            parts = _parts(Path(model), dtype) if Path(model).is_dir() else {}
            return diffusers.FluxPipeline.from_pretrained(
                model, dtype=dtype, local_files_only=local, use_safetensors=True, **parts
            )
        except PolyscoreError:
            raise
        except OSError:
            return None
        except (ValueError, TypeError, AttributeError, KeyError) as error:  # as diffusers refuses another model
            raise ArgumentError(
                f"model must be a whole Flux pipeline; {model!r} is not ({error}). Check the folder."
            ) from error
