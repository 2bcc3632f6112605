"""DINOv2 through transformers: what a picture shows, learned without labels. Its weights are downloaded once (1.2 GB).

The feature is the class token behind the last layer norm, as the model's `pooler_output`: 1024 numbers of the large
one. Pictures are prepared as the weights' own `preprocessor_config.json` says.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyscore.errors import ArgumentError, PolyscoreError
from polyscore.extras import load as need
from polyscore.extras import quiet, read_whole

NAME, SOURCE = "dinov2-large", "facebook/dinov2-large"


class DinoV2:
    """A model and its image processor: pictures (N, 3, H, W) of bytes become features (N, hidden size)."""

    def __init__(self, network: Any, processor: Any, device: torch.device) -> None:
        self.network, self.processor = network.eval().requires_grad_(False).to(device), processor

    def __call__(self, images: Tensor) -> Tensor:
        pictures = list(images.permute(0, 2, 3, 1).cpu().numpy())
        pixels = self.processor(pictures, return_tensors="pt", input_data_format="channels_last")["pixel_values"]
        features: Tensor = self.network(pixels.to(self.network.device, self.network.dtype)).pooler_output
        return features


def load(device: torch.device, weights: str | None = None) -> DinoV2:
    """Load weights onto a device: from a folder, from what was downloaded before, or by downloading them now.

    Args:
        weights: a folder that `save_pretrained` or a download wrote, or the name of a model; DINOv2-large by default.
    """
    source = weights or SOURCE
    parts = _parts(source, local=True) or _parts(source, local=False)
    if parts is None:
        raise ArgumentError(
            f"the embedding {NAME} must have weights; {source!r} is neither a folder with them, nor downloaded, nor "
            "within reach. Download it where there is a network and pass its folder as weights (--weights), or use "
            "efficientnet-lite0, which needs none."
        )
    return DinoV2(*parts, device)


def is_here(weights: str | None = None) -> bool:
    """Whether the weights can be loaded without a network."""
    try:
        transformers = need("transformers", f"the embedding {NAME}")
        with quiet():
            transformers.AutoConfig.from_pretrained(weights or SOURCE, local_files_only=True)
    except (OSError, ValueError):
        return False
    return True


def _parts(source: str, local: bool) -> tuple[Any, Any] | None:
    """The model and its processor, or None where they are not to be had."""
    transformers = need("transformers", f"the embedding {NAME}")
    try:
        with quiet():
            # Weights are read as safetensors only: a pickle could do anything.
            network = read_whole(transformers.AutoModel, source, local_files_only=local)
            processor = transformers.AutoImageProcessor.from_pretrained(source, local_files_only=local)
    except PolyscoreError:
        raise
    except OSError:
        return None
    except ValueError as error:
        raise ArgumentError(
            f"weights must be a model's that transformers knows; {source!r} are not ({error}). Save them "
            "with save_pretrained."
        ) from error
    return network, processor
