"""Couches: two to four seats; arms, cushions, legs and pillows of several kinds; sometimes with a chaise."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from polyscore.rooms import materials, textures
from polyscore.rooms.materials import Material
from polyscore.rooms.meshes import Mesh, box, rod
from polyscore.rooms.parts import Part, part

ARMS = ("none", "slim", "wide", "rolled")
LEGS = ("tapered", "block", "plinth")
_ARM_WIDTH = {"none": 0.0, "slim": 0.1, "wide": 0.2, "rolled": 0.2}


@dataclass(frozen=True)
class Couch:
    """A couch, its back at y = 0, its middle at x = 0.

    Attributes:
        width, depth, height: of the whole, without a chaise.
        seat: height of the seat.
        seats: how many.
        arms: one of ARMS.
        legs: one of LEGS.
        leg: their height.
        bench: whether the seat is one cushion.
        chaise: side of the chaise, -1 or 1; 0 where there is none.
        length: depth of the chaise.
        pillows: (x, turn, size) of each.
    """

    width: float
    depth: float
    height: float
    seat: float
    seats: int
    arms: str
    legs: str
    leg: float
    bench: bool
    chaise: int
    length: float
    pillows: tuple[tuple[float, float, float], ...]
    cover: Material
    wood: Material
    pillow_covers: tuple[Material, ...]

    @property
    def inner(self) -> float:
        """Width between the arms."""
        return self.width - 2 * _ARM_WIDTH[self.arms]

    @property
    def front(self) -> float:
        """How far it reaches into the room."""
        return max(self.depth, self.length if self.chaise else 0.0)

    def parts(self) -> list[Part]:
        """Return its meshes."""
        covered = [*self._body(), *self._cushions(), *self._arms()]
        pillows = [
            part("couch", cover, self._pillow(*pillow))
            for pillow, cover in zip(self.pillows, self.pillow_covers, strict=True)
        ]
        return [part("couch", self.cover, *covered), part("couch", self.wood, *self._legs()), *pillows]

    def _body(self) -> list[Mesh]:
        half, low = self.width / 2, self.leg
        base = box((-half, 0, low), (half, self.depth - 0.01, self.seat - 0.13), 0.03)
        back = box((-half, 0, low), (half, 0.17, self.height - 0.04), 0.05)
        if not self.chaise:
            return [base, back]
        x0, x1 = self.chaise_sides
        return [base, back, box((x0, 0, low), (x1, self.length, self.seat - 0.13), 0.03)]

    @property
    def chaise_sides(self) -> tuple[float, float]:
        """Smallest and largest x of the chaise."""
        edge, seat = self.chaise * self.width / 2, self.inner / self.seats + _ARM_WIDTH[self.arms]
        return (edge - seat, edge) if self.chaise > 0 else (edge, edge + seat)

    def _cushions(self) -> list[Mesh]:
        seats = [(-self.inner / 2, self.inner / 2)] if self.bench else self._places()
        made = [self._seat(k, *side) for k, side in enumerate(seats)]
        return made + [self._rest(*side) for side in self._places()]

    def _places(self) -> list[tuple[float, float]]:
        edges = np.linspace(-self.inner / 2, self.inner / 2, self.seats + 1)
        return list(pairwise(map(float, edges)))

    def _seat(self, k: int, x0: float, x1: float) -> Mesh:
        chosen = self.chaise and not self.bench and k == (self.seats - 1 if self.chaise > 0 else 0)
        front = self.length if chosen else self.depth
        gap = 0.004
        return box((x0 + gap, 0.15, self.seat - 0.16), (x1 - gap, front + 0.01, self.seat - 0.01), 0.045, 0.015)

    def _rest(self, x0: float, x1: float) -> Mesh:
        tall = self.height - self.seat + 0.02
        cushion = box((x0 + 0.006, -0.09, 0), (x1 - 0.006, 0.09, tall), 0.06, 0.03)
        return cushion.turned(0.17, "x").moved(0, 0.27, self.seat - 0.02)

    def _arms(self) -> list[Mesh]:
        wide, half = _ARM_WIDTH[self.arms], self.width / 2
        if self.arms == "none":
            return []
        top = self.seat + 0.2
        edge = 0.03 if self.arms == "slim" else 0.07
        made = []
        for x0 in (-half, half - wide):
            made.append(box((x0, 0, self.leg), (x0 + wide, self.depth, top), edge))
            if self.arms == "rolled":
                x = x0 + wide / 2
                made.append(rod((x, 0.0, top - 0.03), (x, self.depth + 0.02, top - 0.03), 0.125, sides=24))
        return made

    def _legs(self) -> list[Mesh]:
        x, y = self.width / 2 - 0.08, (0.1, self.depth - 0.09)
        if self.legs == "plinth":
            return [box((-x, 0.05, 0), (x, self.depth - 0.06, self.leg + 0.02), 0.004)]
        places = [(side * x, depth) for side in (-1, 1) for depth in y]
        if self.chaise:
            low, high = self.chaise_sides
            places += [(low + 0.08, self.length - 0.09), (high - 0.08, self.length - 0.09)]
        if self.legs == "block":
            return [box((a - 0.03, b - 0.03, 0), (a + 0.03, b + 0.03, self.leg + 0.02), 0.004) for a, b in places]
        return [rod((a, b, 0), (a, b, self.leg + 0.03), 0.016, 1.9) for a, b in places]

    def _pillow(self, x: float, turn: float, size: float) -> Mesh:
        cushion = box((-size / 2, -0.035, 0), (size / 2, 0.035, size), 0.035, 0.06)
        return cushion.turned(0.42, "x").turned(turn).moved(x, 0.47, self.seat - 0.02)


def draw(r: np.random.Generator, room: float) -> Couch:
    """Draw a couch that fits into `room` metres of wall (at least 1.4)."""
    seats, arms, leg = int(r.choice([2, 3, 4], p=[0.4, 0.45, 0.15])), ARMS[r.integers(len(ARMS))], r.uniform(0.05, 0.16)
    width = min(seats * r.uniform(0.54, 0.7) + 2 * _ARM_WIDTH[arms], room, 2.7)
    depth, seat = r.uniform(0.8, 0.95), r.uniform(0.38, 0.46)
    chaise = int(r.choice([-1, 1])) if r.random() < 0.3 and seats > 2 and width > 1.8 else 0
    pillows, leather = _pillows(r, width, arms), r.random() < 0.25
    colour = materials.fabric(r)
    cover = Material(colour, gloss=0.05, rough=r.uniform(0.25, 0.4)) if leather else textures.cloth(r, colour)
    return Couch(
        width, depth, r.uniform(0.72, 0.92), seat, seats, arms, LEGS[r.integers(len(LEGS))], leg,
        bool(r.random() < 0.2 and not chaise), chaise, min(depth + r.uniform(0.4, 0.6), 1.45), pillows, cover,
        materials.furniture_wood(r) if r.random() < 0.7 else materials.metal(r),
        tuple(textures.cloth(r, materials.bright(r)) for _ in pillows),
    )  # fmt: skip


def _pillows(r: np.random.Generator, width: float, arms: str) -> tuple[tuple[float, float, float], ...]:
    """None to four pillows, apart from each other, those at the ends first."""
    reach = width / 2 - _ARM_WIDTH[arms] - 0.26
    places = [-reach, reach, -reach + 0.42, reach - 0.42][
        : int(r.choice([0, 1, 2, 3, 4], p=[0.3, 0.25, 0.25, 0.1, 0.1]))
    ]
    if reach < 0.5:
        places = places[:2]
    flip = r.choice([-1, 1])
    return tuple((flip * x, r.normal(0, 0.15), r.uniform(0.34, 0.44)) for x in places)
