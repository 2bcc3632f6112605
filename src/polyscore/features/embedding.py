"""Embeddings by name: pictures in, one vector each out, in batches, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyscore.devices import check_device
from polyscore.errors import is_count, require
from polyscore.features import dinov2, efficientnet
from polyscore.notices import warn
from polyscore.progress import reporting
from polyscore.registry import Registry

Embed = Callable[[Tensor], Tensor]  # (N, 3, H, W) bytes on the device -> (N, d)
Load = Callable[[torch.device, str | None], Embed]  # the device, and weights where they are the user's choice
DEFAULT, AUTO = efficientnet.NAME, "auto"
EMBEDDINGS = Registry[Load](
    "an embedding", {efficientnet.NAME: efficientnet.load, dinov2.NAME: dinov2.load}, hint="Or register your own."
)


def choose(name: str, weights: str | None = None) -> tuple[str, str | None]:
    """Return an embedding and its weights; "auto" is DINOv2 where its weights are here, else the default and a warning.

    Two embeddings give two selections: which one it was is kept with what came of it.
    """
    if name != AUTO:
        EMBEDDINGS[name]
        return name, weights
    if dinov2.is_here(weights):
        return dinov2.NAME, weights
    warn(
        f"the weights of {dinov2.NAME} should be here for the embedding auto; they are not, and {DEFAULT} is used. "
        "Name an embedding to be sure of it."
    )
    return DEFAULT, None


def embed(
    images: NDArray[np.uint8],
    name: str = DEFAULT,
    device: torch.device | str | None = None,
    batch: int = 64,
    *,
    weights: str | None = None,
    progress: Any = False,
) -> NDArray[np.float32]:
    """Return the features of pictures, (N, d); 1280 of efficientnet-lite0, 1024 of dinov2-large.

    Args:
        images: (N, H, W, 3) bytes, RGB, of any size.
        name: one of `EMBEDDINGS`.
        device: the GPU where there is one.
        batch: pictures at a time; features do not depend on it beyond rounding.
        weights: folder or name of the weights, for an embedding that has a choice.
        progress: called with (pictures done, pictures in all).
    """
    images = np.asarray(images)
    good = images.dtype == np.uint8 and images.ndim == 4 and images.shape[-1] == 3 and images.size
    require(good, "images", "be bytes of shape (N, H, W, 3)", f"{images.dtype} of shape {images.shape}",
            "Convert them: (255 * images).astype(np.uint8), channels last.")  # fmt: skip
    require(is_count(batch), "batch", "be a whole number of at least 1", batch, "Leave it out for the default.")
    where = check_device(device)
    network = _loaded(str(where), weights, EMBEDDINGS[name])
    rows: list[NDArray[np.float32]] = []
    with reporting(progress, "features") as report, torch.inference_mode():
        for first in range(0, len(images), batch):
            part = torch.from_numpy(np.array(images[first : first + batch])).to(where).permute(0, 3, 1, 2)
            rows.append(network(part).float().cpu().numpy())
            if report is not None:
                report(min(first + batch, len(images)), len(images))
    return np.concatenate(rows)


@lru_cache(maxsize=2)
def _loaded(device: str, weights: str | None, load: Load) -> Embed:
    return load(torch.device(device), weights)
