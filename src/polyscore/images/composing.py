"""Composed images: a family of image models, exponents, and one picture of every swarm.

Sampling is ancestral on the model's own timesteps, without a clip. Swarms come in parts whose size depends on K and the
image alone, each with a seed of its own: memory is bounded, and the same call gives the same pictures.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyscore.algebra import Composition, Family
from polyscore.errors import DegeneracyWarning, ScoreError, is_count, require, shorten
from polyscore.rng import derive
from polyscore.samplers import FeynmanKac, Run, Sampler

# Numbers of the particles that are held at once: 800 MB in float32, and a model's activations beside them.
_MOST_NUMBERS = 2 * 10**8
Images = NDArray[np.uint8]


@dataclass(frozen=True)
class Composed:
    """One image of each swarm.

    Attributes:
        images: uint8 `(n, H, W, 3)`.
        ancestors: different starting particles that survive in each swarm, `(n,)`.
        ess: effective sample size, averaged over steps and swarms.
        outside: share of pixels that were beyond the range of a picture by more than a tenth of it.
    """

    images: Images
    ancestors: NDArray[np.int64]
    ess: float
    outside: float


def ancestral(particles: int, steps: int) -> Sampler:
    """Return the sampler: ancestral steps, weights without a clip, resampling after each."""
    return FeynmanKac(particles=particles, steps=steps, clip=None, grid="timesteps", integrator="ancestral")


def compose(
    family: Family,
    exponents: Mapping[str, float],
    n: int = 256,
    *,
    particles: int = 16,
    steps: int = 100,
    seed: int = 0,
    device: torch.device | str | None = None,
    sampler: Callable[[int, int], Sampler] = ancestral,
    progress: Any = False,
) -> Composed:
    """Return images of the composition prod_a p_a^{w_a}; one condition by itself is `{condition: 1.0}`.

    Args:
        family: of images `(3, H, W)` in [-1, 1].
        n: swarms, of each of which one image is kept.
        sampler: made of (particles, steps).
    """
    require(is_count(n), "n", "be a whole number of at least 1", shorten(n), "Pass n=1 or more.")
    q = Composition(family, dict(exponents))
    require(len(q.event) == 3 and q.event[0] == 3, "images", "have shape (3, H, W)", q.event, "Compose an image model.")
    runs = [_run(q, sampler(particles, steps), *part, seed, device, progress) for part in _parts(n, particles, q.event)]
    images = [to_uint8(samples) for samples, _, _ in runs]
    ess = sum(ess * len(ancestors) for _, ancestors, ess in runs) / n
    outside = sum((samples.abs() > 1.2).float().mean().item() * len(samples) for samples, _, _ in runs) / n
    return Composed(np.concatenate(images), np.concatenate([a for _, a, _ in runs]), ess, outside)


def _parts(n: int, particles: int, event: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the number and size of each part."""
    most = max(1, _MOST_NUMBERS // (particles * torch.Size(event).numel()))
    yield from ((k, min(most, n - first)) for k, first in enumerate(range(0, n, most)))


def _run(
    q: Composition, sampler: Sampler, part: int, count: int, seed: int, device: torch.device | str | None, progress: Any
) -> tuple[Tensor, NDArray[np.int64], float]:
    """Samples on the CPU, surviving ancestors and mean ESS of one part; its particles are let go."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegeneracyWarning)  # collapse is counted, as `ancestors` and `ess`
        run: Run = sampler.sample(q, count, derive(seed, "images", part), device=device, progress=progress)
    samples = run.samples.float().cpu()
    if not samples.isfinite().all():
        raise ScoreError(f"images must be finite; those of {q} are not. Train longer, or use more steps.")
    return samples, run.unique_ancestors.cpu().numpy(), run.mean_ess.float().mean().item()


def to_uint8(samples: Tensor) -> Images:
    """Return images `(n, 3, H, W)` in [-1, 1] as uint8 `(n, H, W, 3)`."""
    return ((samples.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
