"""Training pictures: all of them on the device, as bytes, and batches that are a function of (seed, step).

A batch element draws a condition uniformly, then a class by that condition's mixture, then a picture of that class,
then whether to mirror it. Every process draws the whole batch and takes its rows, so that their number changes nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyscore.errors import ArgumentError, listed, require
from polyscore.images.mixtures import Mixtures
from polyscore.images.recipe import Recipe
from polyscore.images.unet import TIMES
from polyscore.rng import derive
from polyscore.rooms import Dataset, pictures

REPEATS = 4  # times at which a held-out picture is looked at


class Batch(NamedTuple):
    """Pictures (b, H, W, 3) as bytes, whether to mirror each, numbers of conditions, times, noise (b, 3, H, W)."""

    pixels: Tensor
    mirrored: Tensor
    labels: Tensor
    times: Tensor
    noise: Tensor

    def rows(self, part: slice) -> Batch:
        """Return some of its elements."""
        return Batch(*(tensor[part] for tensor in self))


@dataclass(frozen=True)
class Pictures:
    """The pictures of each class, (N, H, W, 3) bytes, that a training uses, and those that are held out.

    Attributes:
        digest: of every byte of them.
    """

    classes: tuple[str, ...]
    trained: tuple[NDArray[np.uint8], ...]
    held_out: tuple[NDArray[np.uint8], ...]
    digest: str

    @property
    def count(self) -> int:
        """How many are trained on."""
        return sum(map(len, self.trained))


def read(dataset: Dataset, mixtures: Mixtures, recipe: Recipe) -> Pictures:
    """Read the classes that some condition shows, made smaller where the network is; hold some of each out."""
    _check_classes(dataset, mixtures)
    used = [any(masses[place] > 0 for masses in mixtures.conditions.values()) for place in range(len(mixtures.classes))]
    size = recipe.unet.resolution
    _check_sizes(dataset.resolution, size)
    none = np.zeros((0, size, size, 3), np.uint8)
    found = [
        pictures.shrunk(dataset.images(c), size) if u else none for c, u in zip(mixtures.classes, used, strict=True)
    ]
    digest = hashlib.sha256(repr((mixtures.classes, [len(part) for part in found])).encode())
    for part in found:
        digest.update(np.ascontiguousarray(part).data)
    kept = [_held(name, len(part), recipe.held_out) for name, part in zip(mixtures.classes, found, strict=True)]
    trained = tuple(part[k:] for part, k in zip(found, kept, strict=True))
    return Pictures(mixtures.classes, trained, tuple(p[:k] for p, k in zip(found, kept, strict=True)),
                    digest.hexdigest())  # fmt: skip


def _check_classes(dataset: Dataset, mixtures: Mixtures) -> None:
    """Every class that a mixture names must be in the dataset."""
    missing = [name for name in mixtures.classes if name not in dataset.classes]
    require(not missing, "a class of the mixtures", f"be one of the dataset's, {', '.join(dataset.classes)}",
            listed(missing), f"Make it and put it into {dataset.path}, or leave it out.")  # fmt: skip


def _check_sizes(there: int, wanted: int) -> None:
    require(there >= wanted and there % wanted == 0, "the pictures' resolution",
            f"be {wanted}, as the network's, or a multiple of it: they are made smaller, never larger", there,
            "Choose another preset, or make the pictures again.")  # fmt: skip


def _held(name: str, there: int, wanted: int) -> int:
    """How many pictures of a class to hold out: its first ones, an eighth at most, and one at least."""
    if there == 1:
        raise ArgumentError(f"class {name} must hold at least 2 pictures, one to measure with; got 1. Make more.")
    return min(wanted, max(1, there // 8)) if there else 0


class Pool:
    """Batches of the pictures on a device.

    Args:
        pictures: what `read` returned.
        mixtures: conditions; their order is that of the labels.
        seed: of every batch.
    """

    def __init__(self, pictures: Pictures, mixtures: Mixtures, recipe: Recipe, seed: int, device: torch.device) -> None:
        self.recipe, self.seed, self.device, self.conditions = recipe, seed, device, tuple(mixtures.conditions)
        self.masses = torch.tensor(list(mixtures.conditions.values()), dtype=torch.float64)  # (A, classes)
        self._pixels = torch.from_numpy(np.concatenate(pictures.trained)).to(device)
        sizes = torch.tensor([len(part) for part in pictures.trained])
        self._sizes, self._starts = sizes.to(device), (sizes.cumsum(0) - sizes).to(device)
        self._bounds = _bounds(self.masses).to(device)
        self._held = pictures.held_out
        self._source = torch.Generator(device=device)

    def batch(self, step: int, size: int) -> Batch:
        """Return the batch of a step."""
        source = self._source.manual_seed(derive(self.seed, "batch", step))
        u = torch.rand(4, size, generator=source, device=self.device, dtype=torch.float64)
        labels = (u[0] * len(self.conditions)).long()
        shown = (u[1, :, None] >= self._bounds[labels]).sum(1)
        which = self._starts[shown] + (u[2] * self._sizes[shown]).long()
        mirrored = (u[3] < 0.5) & self.recipe.flip
        times = torch.randint(TIMES, (size,), generator=source, device=self.device)
        return Batch(self._pixels[which], mirrored, labels, times, self._noise(size, source))

    def _noise(self, size: int, source: torch.Generator) -> Tensor:
        side = self.recipe.unet.resolution
        return torch.randn(size, 3, side, side, generator=source, device=self.device)

    def held_out(self) -> tuple[Batch, Tensor]:
        """Return held-out pictures at fixed times with fixed noise, and each one's share of a condition's loss.

        The shares (A, rows) are m_a(c) / rows of class c: the expectation over classes is exact, and times are
        stratified. Labels are for the caller to set.
        """
        pixels = torch.from_numpy(np.concatenate(self._held)).to(self.device).repeat_interleave(REPEATS, 0)
        rows, source = len(pixels), torch.Generator(device=self.device).manual_seed(derive(0, "held out"))
        order = torch.randperm(rows, generator=source, device=self.device)
        u = torch.rand(rows, generator=source, device=self.device, dtype=torch.float64)
        times = ((order + u) * TIMES / rows).long().clamp_max(TIMES - 1)
        nothing = torch.zeros(rows, dtype=torch.long, device=self.device)
        batch = Batch(pixels, nothing.bool(), nothing, times, self._noise(rows, source))
        counts = torch.tensor([REPEATS * len(part) for part in self._held])
        shares = (self.masses / counts.clamp_min(1)).repeat_interleave(counts, 1)
        return batch, shares.to(self.device)


def _bounds(masses: Tensor) -> Tensor:
    """Where each class of a condition ends on [0, 1); rounding leaves nothing behind the last one that has mass."""
    ends = masses.cumsum(1)
    last = masses.shape[1] - 1 - (masses > 0).int().flip(1).argmax(1)
    behind = torch.arange(masses.shape[1]) >= last[:, None]
    return torch.where(behind, 2.0, ends)
