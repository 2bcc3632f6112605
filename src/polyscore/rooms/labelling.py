"""One person's way through a dataset: which picture is next, what was answered, what is taken back. No page here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from polyscore.errors import is_count, require
from polyscore.rng import derive
from polyscore.rooms.dataset import Dataset
from polyscore.rooms.growing import names_of
from polyscore.rooms.labels import Labels, Picture

PER_CLASS = 1000


class Progress(NamedTuple):
    """Labels of a class: accepted, rejected, and how many are wanted."""

    accepted: int
    rejected: int
    wanted: int

    @property
    def done(self) -> int:
        """Labels in all."""
        return self.accepted + self.rejected


class Labelling:
    """Pictures one at a time, class by class, in an order that looks random and is always the same.

    Args:
        classes: those to label, in this order; all by default.
        per_class: labels that are wanted of each class, or as many as it has pictures.
    """

    def __init__(self, dataset: Dataset, classes: Collection[str] | None = None, per_class: int = PER_CLASS) -> None:
        require(is_count(per_class), "per_class", "be a whole number of at least 1", per_class,
                "Leave it out for the default.")  # fmt: skip
        self._queues = {name: _shuffled(dataset, name) for name in names_of(classes or None, dataset.classes)}
        self._known = {picture for queue in self._queues.values() for picture in queue}
        self.labels = Labels(dataset.path)
        self._wanted = {name: min(per_class, len(queue)) for name, queue in self._queues.items()}
        self._answered: list[Picture] = []
        self.current: Picture | None = None
        self._move_on()

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that are labelled."""
        return tuple(self._queues)

    def progress(self) -> dict[str, Progress]:
        """Return how far each class is."""
        found = Counter((picture.name, ok) for picture, ok in self.labels.items() if picture in self._known)
        return {name: Progress(found[name, True], found[name, False], n) for name, n in self._wanted.items()}

    def answer(self, picture: Picture, accepted: bool) -> bool:
        """Label a picture and go on; False where it is not the one in hand: nobody labels what he did not see."""
        if picture != self.current:
            return False
        self.labels.add(picture, accepted)
        self._answered.append(picture)
        self._move_on(picture.name)
        return True

    def undo(self) -> Picture | None:
        """Take the last label back and show its picture again: this person's last, before those of earlier days."""
        self.labels.refresh()
        last = self._last()
        if last is not None:
            self.labels.add(last, None)
            self.current = last
        return last

    def _last(self) -> Picture | None:
        while self._answered:
            if (picture := self._answered.pop()) in self.labels:
                return picture
        return next((picture for picture, _ in reversed(self.labels.items()) if picture in self._known), None)

    def choose(self, name: str) -> None:
        """Go on with a class, also beyond the labels that were wanted."""
        require(name in self._queues, "a class", f"be one of {', '.join(self._queues)}", name, "Load the page again.")
        self.labels.refresh()
        self.current = self._next(name) or self.current

    def following(self) -> Picture | None:
        """Return the picture that comes after the one in hand in its class, to be loaded early."""
        if self.current is None:
            return None
        left = (p for p in self._queues[self.current.name] if p not in self.labels and p != self.current)
        return next(left, None)

    def _move_on(self, name: str | None = None) -> None:
        """Stay in a class until it has what is wanted, then take the first that has not."""
        progress = self.progress()
        short = [one for one, known in progress.items() if known.done < known.wanted]
        ordered = [name, *short] if name in short else short
        self.current = next((found for one in ordered if (found := self._next(str(one))) is not None), None)

    def _next(self, name: str) -> Picture | None:
        return next((picture for picture in self._queues[name] if picture not in self.labels), None)


def _shuffled(dataset: Dataset, name: str) -> list[Picture]:
    """The pictures of a class by a number that belongs to each: new ones change no order of those that are there."""
    pictures = [Picture(name, record.file) for record in dataset.records(name)]
    return sorted(dict.fromkeys(pictures), key=lambda picture: derive(0, "labelling", *picture))
