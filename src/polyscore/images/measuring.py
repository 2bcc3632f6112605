"""What is measured of generated images: verdicts against exact masses, and distances to real rooms in feature space.

Rooms drawn by the exact masses are what a perfect sampler would give: the distance to them, beside that of as many
other real rooms (`floor`), is the error as a whole; `warp`, the mean of the distances within each class, leaves wrong
counts out. Where a class has too few rooms for both sides, no floor is given: rooms are at no distance from themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyscore.features import frechet, kernel_distance
from polyscore.images.classifier import Classifier
from polyscore.images.counting import Tally
from polyscore.images.real import Real
from polyscore.rng import derive

FEWEST = 8  # images of a class for a distance of its own
_OF_CLASS = 512  # real rooms of a class that its images are compared with
_GROUPS = 8  # of the jackknife
Images = NDArray[np.uint8]
Features = NDArray[np.float32]
Embed = Callable[[Images], Features]
Room = tuple[str, int]  # its class and its place there


def embedding(device: Any = None) -> Embed:
    """Return the pretrained features, EfficientNet's."""
    from polyscore.features import embed

    return lambda images: embed(images, device=device)


@dataclass
class Yardstick:
    """Real rooms and a classifier, by which generated images are measured.

    Attributes:
        reference: real rooms that a set of images is compared with.
        device: where distances are computed.
    """

    real: Real
    classifier: Classifier
    embed: Embed
    reference: int = 1024
    device: str = "cpu"
    _known: dict[Room, Features] = field(default_factory=dict)

    def measure(
        self, images: Images, masses: Mapping[str, float], seed: int
    ) -> tuple[dict[str, float], NDArray[np.int64]]:
        """Return numbers by name and the verdicts, as places in `masses`; past its end is none of them.

        Args:
            masses: exact ones of the classes among which to decide.
        """
        classes = tuple(masses)
        verdicts = self.classifier.verdicts(images, classes)
        counts = np.bincount(verdicts, minlength=len(classes) + 1)
        confusion = tuple(map(tuple, self.classifier.confusion(classes).tolist()))
        tally = Tally(classes, tuple(counts.tolist()), confusion, dict(masses), seed)
        accuracy = {"accuracy": self.classifier.accuracy(classes), "alarms": self.classifier.false_alarms}
        return tally.results() | accuracy | self._distances(images, verdicts, masses, seed), verdicts

    def _distances(
        self, images: Images, verdicts: NDArray[np.int64], masses: Mapping[str, float], seed: int
    ) -> dict[str, float]:
        seen, chosen = self.embed(images), self._chosen(_drawn(masses, len(images) + self.reference, seed), seed)
        both = self._features(chosen)
        others, reference = both[: len(images)], both[len(images) :]
        sides = {"": seen} if set(chosen[: len(images)]) & set(chosen[len(images) :]) else {"": seen, " floor": others}
        distances = {"frechet": frechet, "kernel": kernel_distance}.items()
        found = {f"{name}{side}": self._far(far, x, reference) for name, far in distances for side, x in sides.items()}
        return found | self._warp(seen, [list(masses)[k] if k < len(masses) else "" for k in verdicts], masses, seed)

    def _far(self, distance: Callable[[Any, Any], float], a: Features, b: Features) -> float:
        return float(distance(*(torch.from_numpy(x).to(self.device) for x in (a, b))))

    def _warp(self, seen: Features, shown: Sequence[str], masses: Mapping[str, float], seed: int) -> dict[str, float]:
        """Kernel distances of each class that is seen often enough, and their mean by counts with its standard error.

        The error is the jackknife's over eight groups of images.
        """
        mine = {name: seen[[one == name for one in shown]] for name in masses}
        mine = {name: rows for name, rows in mine.items() if len(rows) >= FEWEST}
        real = {name: self._of_class(name, seed) for name in mine}
        found = {name: self._far(kernel_distance, rows, real[name]) for name, rows in mine.items()}
        if not found:
            return {}
        without = [
            _mean({name: (len(rows), self._far(kernel_distance, np.delete(rows, np.s_[k::_GROUPS], 0), real[name]))
                   for name, rows in mine.items()})
            for k in range(_GROUPS)
        ]  # fmt: skip
        warp = _mean({name: (len(rows), found[name]) for name, rows in mine.items()})
        error = float(np.sqrt((_GROUPS - 1) * np.var(without)))
        return {f"kernel {name}": value for name, value in found.items()} | {"warp": warp, "warp error": error}

    def _of_class(self, name: str, seed: int) -> Features:
        most = min(self.reference, _OF_CLASS, len(self.real.images[name]))
        return self.rooms([name] * most, seed)

    def rooms(self, classes: Sequence[str], seed: int) -> Features:
        """Return the features of one room of each class that is listed; a room comes twice only once all have come."""
        return self._features(self._chosen(classes, seed))

    def _chosen(self, classes: Sequence[str], seed: int) -> list[Room]:
        wanted = {name: iter(self._order(name, classes.count(name), seed)) for name in dict.fromkeys(classes)}
        return [(name, next(wanted[name])) for name in classes]

    def _features(self, chosen: Sequence[Room]) -> Features:
        self._embed([one for one in dict.fromkeys(chosen) if one not in self._known])
        return np.stack([self._known[one] for one in chosen])

    def _order(self, name: str, count: int, seed: int) -> list[int]:
        draw = np.random.default_rng(derive(seed, "rooms", name))
        rooms = len(self.real.images[name])
        rounds = [draw.permutation(rooms) for _ in range(-(-count // rooms))]
        return np.concatenate(rounds)[:count].tolist()

    def _embed(self, missing: list[Room]) -> None:
        for name in dict.fromkeys(name for name, _ in missing):
            places = [place for one, place in missing if one == name]
            for place, row in zip(places, self.embed(self.real.images[name][places]), strict=True):
                self._known[name, place] = row


def _mean(weighted: Mapping[str, tuple[int, float]]) -> float:
    """The mean of values by their weights."""
    return sum(n * value for n, value in weighted.values()) / sum(n for n, _ in weighted.values())


def _drawn(masses: Mapping[str, float], count: int, seed: int) -> list[str]:
    """Classes drawn by their masses."""
    draw = np.random.default_rng(derive(seed, "masses"))
    return [list(masses)[k] for k in draw.choice(len(masses), count, p=np.array(list(masses.values())))]
