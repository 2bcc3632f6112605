"""One room of a dataset, from (seed, class, index) alone: drawn, looked at, drawn again until its objects are seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polyscore.errors import ArgumentError
from polyscore.rooms import flaws, pictures, scene
from polyscore.rooms.classes import CLASSES, generator, named
from polyscore.rooms.flaws import Flaw
from polyscore.rooms.parts import ROOM
from polyscore.rooms.scene import Scene
from polyscore.rooms.tracing import Image, Layers, as_mitsuba, denoise, develop, layers, trace
from polyscore.rooms.visibility import LEAST, Seen, seen
from polyscore.schema import Checked, count, number, setting

_FINEST = 128  # pixels a side of the look that decides what is seen, at least
_SMOOTHED = 256  # pixels a side up to which edges get four rays a pixel
_ATTEMPTS = 50


@dataclass(frozen=True)
class Look(Checked):
    """How rooms are rendered.

    Attributes:
        resolution: pixels a side.
        samples: paths a pixel.
        flawed: share of rooms that get a flaw.
    """

    resolution: int = setting(64, count(8, 2048))
    samples: int = setting(16, count(1, 4096))
    flawed: float = setting(0.0, number(0, 1))


@dataclass(frozen=True)
class Drawn:
    """A room of a dataset.

    Attributes:
        name: the class that was asked for.
        attempt: how many drawings before were not taken.
        objects: what is seen of each object.
        flaw: what is wrong with it on purpose, or None.
    """

    name: str
    index: int
    attempt: int
    objects: dict[str, Seen]
    flaw: Flaw | None
    image: Image

    def to_dict(self) -> dict[str, Any]:
        """Return all but the picture as JSON holds it."""
        return {
            "index": self.index,
            "class": self.name,
            "shows": named(frozenset(self.objects)),
            "objects": {name: one.to_dict() for name, one in self.objects.items()},
            "flaw": None if self.flaw is None else self.flaw.to_dict(),
            "attempt": self.attempt,
        }


def draw(seed: int, name: str, index: int, look: Look) -> Drawn:
    """Return room `index` of a class."""
    flaw = flaw_of(seed, name, index, look.flawed)
    for attempt in range(_ATTEMPTS):
        drawn = _attempt(seed, name, index, attempt, look, flaw)
        if drawn is not None:
            return drawn
    raise ArgumentError(
        f"a room must show its objects; {name} {index} of seed {seed} did not in {_ATTEMPTS} drawings. Choose another "
        "seed."
    )


def flaw_of(seed: int, name: str, index: int, share: float) -> Flaw | None:
    """Return the flaw of a room, or None."""
    objects, start = CLASSES[name], float(generator(seed, name, 0, "flaws").random())
    if not flaws.is_flawed(start, index, share):
        return None
    return flaws.draw(generator(seed, name, index, "flaw"), objects)


def compose(seed: int, name: str, index: int, attempt: int, flaw: Flaw | None) -> Scene:
    """Return the scene of one attempt."""
    made = scene.draw(generator(seed, name, index, attempt), flaws.contents(CLASSES[name], flaw))
    if flaw is not None and flaw.kind == "cut":
        return flaws.cut(made, flaw, left=bool(generator(seed, name, index, attempt, "side").random() < 0.5))
    return made


def _attempt(seed: int, name: str, index: int, attempt: int, look: Look, flaw: Flaw | None) -> Drawn | None:
    """One drawing, or None where an object that should be there can hardly be seen."""
    made = compose(seed, name, index, attempt, flaw)
    loaded = as_mitsuba(made)
    seen_as = layers(loaded, made.camera, finer(look.resolution))
    objects = seen(seen_as.number, [part.thing for part in made.parts()])
    if not shows(objects, made, flaw):
        return None
    shown = {thing: one for thing, one in objects.items() if thing != ROOM and one.share >= LEAST}
    image = _picture(made, loaded, seen_as, look, seed=int(generator(seed, name, index, "paths").integers(1 << 30)))
    if flaw is not None and flaw.kind == "noise":
        image = flaws.noisy(image, flaw.strength, generator(seed, name, index, "noise"))
    return Drawn(name, index, attempt, shown, flaw, image)


def finer(resolution: int) -> int:
    """Return the multiple of a resolution at which a room is looked at: what is seen, and where edges run."""
    return resolution * max(2 if resolution <= _SMOOTHED else 1, -(-_FINEST // resolution))


def shows(objects: dict[str, Seen], made: Scene, flaw: Flaw | None) -> bool:
    """Whether what should be seen covers enough of the picture: with a cut, the object that is cut."""
    wanted = {str(flaw.object)} if flaw is not None and flaw.kind == "cut" else set(made.objects)
    return all(thing in objects and objects[thing].share >= LEAST for thing in wanted)


def _picture(made: Scene, loaded: Any, seen_as: Layers, look: Look, seed: int) -> Image:
    albedo, normal = (pictures.means(layer, look.resolution) for layer in (seen_as.albedo, seen_as.normal))
    light = trace(loaded, made.camera, look.resolution, look.samples, seed)
    return develop(denoise(light, albedo, normal), albedo, made.room.brightness)
