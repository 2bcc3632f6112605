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
        placed["table"] = _table(own["table"], room, placed.get("couch"))
    return Scene(room, placed, room.camera)


def _couch(r: np.random.Generator, room: Room) -> Placed:
    """Against the back wall or a little before it."""
    low, high = room.camera.reach(1.15)
    low, high = max(low, room.stage[0]), min(high, room.stage[1])
    couch = couches.draw(r, high - low)
    if couch.chaise and couch.length > 1.45:
        couch = replace(couch, length=1.45)
    turn = float(np.clip(r.normal(0, 0.06), -0.15, 0.15)) if r.random() < 0.3 else 0.0
    half = couch.width / 2 + 0.02
    away = r.uniform(0.03, 0.16) + abs(np.sin(turn)) * half
    middle = r.uniform(low + half, high - half) if high - low > 2 * half else (low + high) / 2
    return Placed(couch, middle, away, turn=turn)


def _painting(r: np.random.Generator, room: Room) -> Placed:
    low, high = room.hanging
    painting = paintings.draw(r, (high - low, _HIGHEST - _LOWEST))
    x = r.uniform(low + painting.width / 2, high - painting.width / 2)
    return Placed(painting, x, 0.0, r.uniform(_LOWEST, _HIGHEST - painting.height))


def _table(r: np.random.Generator, room: Room, couch: Placed | None) -> Placed:
    """Anywhere on the floor that is seen; before the couch where there is one."""
    table, free, turn = tables.draw(r), r.random(3), float(r.normal(0, 0.05))
    half = table.depth / 2 + abs(np.sin(turn)) * table.width / 2
    first, last = 0.15 + half, room.camera.floor - 0.05 - half
    y = first + free[0] * (last - first)
    near = _clear(room, y, table)
    x = near[0] + free[1] * (near[1] - near[0])
    if couch is None:
        return Placed(table, x, y, turn=turn)
    return _before(room, couch, table, free, turn, half, last)


def _before(room: Room, couch: Placed, table: Table, free: np.ndarray, turn: float, half: float, last: float) -> Placed:
    """Before the couch's middle, or beside its chaise."""
    front = max(float(p.mesh.high[1]) for p in couch.parts())
    y = min(front + 0.12 + half + 0.25 * free[0], max(last, front + 0.05 + half))
    near = _clear(room, y, table)
    x = float(np.clip(couch.x + 0.5 * (free[1] - 0.5), *near))
    return Placed(table, x, y, turn=turn)


def _clear(room: Room, y: float, table: Table) -> tuple[float, float]:
    """Between which x a table at depth y is in the picture and inside the room."""
    low, high = room.camera.reach(y + table.depth / 2)
    half = table.width / 2 + 0.04
    low, high = max(low, -room.width / 2) + half, min(high, room.width / 2) - half
    return (low, high) if low < high else ((low + high) / 2,) * 2
