"""Scenes: a room, and the objects of its class put where they stand in life.

A painting hangs somewhere on the wall, whatever stands below. A table alone stands anywhere on the floor; with a couch
it stands before it, since both want the same floor.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from polyscore.rooms import couch as couches
from polyscore.rooms import painting as paintings
from polyscore.rooms import room as empty_rooms
from polyscore.rooms import table as tables
from polyscore.rooms.camera import Camera
from polyscore.rooms.couch import Couch
from polyscore.rooms.painting import Painting
from polyscore.rooms.parts import Part, moved
from polyscore.rooms.room import Room
from polyscore.rooms.table import Table

_LOWEST, _HIGHEST = 1.04, 2.12  # of paintings: above every couch, below what every camera shows
_REACH = 1.15  # depth up to which a couch may stand out from the wall


@dataclass(frozen=True)
class Placed:
    """An object and where it is.

    Attributes:
        x, y: of its own origin (a couch's back, a table's middle, a painting's middle).
        z: height of a painting's lower edge; 0 for what stands.
        turn: about the vertical axis, radians.
    """

    thing: Couch | Painting | Table
    x: float
    y: float
    z: float = 0.0
    turn: float = 0.0

    @property
    def couch(self) -> Couch:
        """The thing, where it is a couch."""
        assert isinstance(self.thing, Couch)
        return self.thing

    @property
    def front(self) -> float:
        """How far a couch's seat, or a turned couch's corner, reaches into the room; a chaise reaches further."""
        return self.y + self.couch.depth + abs(float(np.sin(self.turn))) * self.couch.width / 2

    def parts(self) -> list[Part]:
        """Return its meshes in the room."""
        return [
            Part(p.thing, p.mesh.moved(0, 0, self.z), p.material)
            for p in moved(self.thing.parts(), self.x, self.y, self.turn)
        ]


@dataclass(frozen=True)
class Scene:
    """A room with its objects by name."""

    room: Room
    objects: dict[str, Placed]
    camera: Camera

    def parts(self) -> list[Part]:
        """Return all meshes."""
        return [*self.room.parts, *(part for placed in self.objects.values() for part in placed.parts())]


def draw(r: np.random.Generator, objects: Collection[str]) -> Scene:
    """Draw a scene that holds these of "couch", "painting", "table".

    Each of them has a generator of its own, so that one object neither moves nor changes because of another, but where
    they compete for space.
    """
    own = dict(zip(("room", "couch", "painting", "table"), r.spawn(4), strict=True))
    room = empty_rooms.draw(own["room"])
    placed: dict[str, Placed] = {}
    if "couch" in objects:
        placed["couch"] = _couch(own["couch"], room)
    if "painting" in objects:
        placed["painting"] = _painting(own["painting"], room)
    if "table" in objects:
        couch, placed["table"] = _table(own["table"], room, placed.get("couch"))
        placed |= {"couch": couch} if couch is not None else {}
    return Scene(room, placed, room.camera)


def _couch(r: np.random.Generator, room: Room) -> Placed:
    """Against the back wall or a little before it."""
    low, high = _span(room, _REACH)
    couch = couches.draw(r, high - low)
    ahead = _span(room, couch.front + _REACH - couch.depth)
    if couch.chaise and ahead[1] - ahead[0] < couch.width + 0.1:
        couch = replace(couch, chaise=0)
    elif couch.chaise:
        low, high = ahead
    turn = float(np.clip(r.normal(0, 0.06), -0.15, 0.15)) if r.random() < 0.3 and not couch.chaise else 0.0
    half = couch.width / 2 + 0.02
    away = r.uniform(0.03, 0.16) + abs(np.sin(turn)) * half
    middle = r.uniform(low + half, high - half) if high - low > 2 * half else (low + high) / 2
    return Placed(couch, middle, away, turn=turn)


def _span(room: Room, y: float) -> tuple[float, float]:
    """Between which x the stage is in the picture at depth y."""
    low, high = room.camera.reach(y)
    return max(low, room.stage[0]), min(high, room.stage[1])


def _painting(r: np.random.Generator, room: Room) -> Placed:
    low, high = room.hanging
    painting = paintings.draw(r, (high - low, _HIGHEST - _LOWEST))
    leftmost, rightmost = low + painting.width / 2, high - painting.width / 2
    x = r.uniform(leftmost, max(leftmost, rightmost))  # one that fills the wall may be too wide by a rounding
    return Placed(painting, x, 0.0, r.uniform(_LOWEST, _HIGHEST - painting.height))


def _table(r: np.random.Generator, room: Room, couch: Placed | None) -> tuple[Placed | None, Placed]:
    """Anywhere on the floor that is seen; before the couch where there is one, which may lose its chaise."""
    table, free, turn = tables.draw(r), r.random(2), float(r.normal(0, 0.05))
    half = table.depth / 2 + abs(np.sin(turn)) * table.width / 2
    first, last = 0.15 + half, room.camera.floor - 0.05 - half
    if couch is not None:
        first = couch.front + 0.1 + half
        last = min(max(last, first), first + 0.3)
    y = first + free[0] * (last - first)
    low, high = _clear(room, y, table)
    if couch is not None:
        beside = _beside(couch, table, low, high)
        couch = couch if beside else replace(couch, thing=replace(couch.couch, chaise=0))
        low, high = beside or (float(np.clip(couch.x + side, low, high)) for side in (-0.25, 0.25))
    return couch, Placed(table, low + free[1] * (high - low), y, turn=turn)


def _beside(couch: Placed, table: Table, low: float, high: float) -> tuple[float, float] | None:
    """Between which x a table stands beside a couch's chaise; None without a chaise, or where there is no room."""
    edges, away, side = couch.couch.chaise_sides, table.width / 2 + 0.1, couch.couch.chaise
    nearest = couch.x + (edges[0] - away if side > 0 else edges[1] + away)
    if not side or not low <= nearest <= high:
        return None
    return (max(low, nearest - 0.3), nearest) if side > 0 else (nearest, min(high, nearest + 0.3))


def _clear(room: Room, y: float, table: Table) -> tuple[float, float]:
    """Between which x a table at depth y is in the picture and inside the room."""
    low, high = room.camera.reach(y + table.depth / 2)
    half = table.width / 2 + 0.04
    low, high = max(low, -room.width / 2) + half, min(high, room.width / 2) - half
    return (low, high) if low < high else ((low + high) / 2,) * 2
