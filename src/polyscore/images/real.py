"""Real rooms in memory at the resolution that is asked for, of a dataset or of its shards, which are unpacked once.

Of every class each tenth room is held out (index 9, 19, ...): no classifier is trained on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyscore.errors import ArgumentError
from polyscore.experiments.protocol import digest
from polyscore.files.regular import open_regular
from polyscore.rooms import Dataset, pictures, unpack

EVERY = 10  # one room in so many is held out
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


class Kept(Dataset):
    """A dataset whose pictures are decoded once: a stage trains a dozen models on them."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        self._decoded: dict[str, Images] = {}

    def images(self, name: str, indices: Iterable[int] | None = None) -> Images:
        """Return the pictures of a class, or some of them."""
        if name not in self._decoded:
            self._decoded[name] = super().images(name)
        return self._decoded[name] if indices is None else self._decoded[name][list(indices)]


def opened(data: Path | str, cache: Path | str) -> Kept:
    """Return a dataset, or the one that a folder of shards holds, unpacked once into `cache`."""
    data = Path(data)
    return Kept(data) if (data / "dataset.json").exists() else _unpacked(data, Path(cache))


def _unpacked(shards: Path, cache: Path) -> Kept:
    found = [[file.name, _hash(file)] for file in sorted(shards.glob("shard-*.zip"))]
    place = cache / f"rooms-{digest(found)}"
    while place.exists() and not (place / "dataset.json").exists():  # cut while unpacking
        place = place.with_name(place.name + "-again")
    if not place.exists():
        unpack(shards, place)
    return Kept(place)


def _hash(file: Path) -> str:
    """A hash of what a file holds: shards of two datasets may have the same names and sizes."""
    try:
        with open(file, "rb", opener=open_regular) as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise ArgumentError(
            f"a shard must be readable; {str(file)!r} is not ({error.strerror}). Copy it again."
        ) from error


class Real:
    """The rooms of a dataset at one resolution.

    Args:
        resolution: that of the dataset, or one that divides it.
    """

    def __init__(self, dataset: Dataset, resolution: int) -> None:
        self.dataset, self.resolution, self.classes = dataset, resolution, dataset.classes

    @cached_property
    def images(self) -> dict[str, Images]:
        """The rooms of each class, (n, resolution, resolution, 3)."""
        return {name: pictures.shrunk(self.dataset.images(name), self.resolution) for name in self.classes}

    @cached_property
    def digest(self) -> str:
        """A short hash of what decides a result: classes in their order, pixels, and indices, which hold rooms out.

        It is that of the dataset's own resolution, whatever files hold the pixels and whatever is said of them.
        """
        total = hashlib.sha256()
        for name in self.classes:
            rooms, indices = self.dataset.images(name), [record.index for record in self.dataset.records(name)]
            total.update(repr((name, rooms.shape, indices)).encode())
            total.update(np.ascontiguousarray(rooms).data)
        return digest(total.hexdigest())

    @property
    def size(self) -> int:
        """The fewest rooms that a class has."""
        return min(len(self.dataset.records(name)) for name in self.classes)

    def part(self, held_out: bool) -> tuple[Images, Labels]:
        """Return images and numbers of classes: those that are held out, or all others."""
        chosen = [self._of(name, held_out) for name in self.classes]
        labels = np.repeat(np.arange(len(chosen)), [len(one) for one in chosen])
        return np.concatenate(chosen), labels

    def _of(self, name: str, held_out: bool) -> Images:
        last = np.array([record.index % EVERY == EVERY - 1 for record in self.dataset.records(name)])
        return self.images[name][last if held_out else ~last]
