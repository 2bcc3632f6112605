"""Parts: a mesh, what it is made of, and which thing it belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from polyscore.rooms.materials import Material
from polyscore.rooms.meshes import Mesh, joined

ROOM = "room"  # what is no object of a class: walls, light, plants


@dataclass(frozen=True)
class Part:
    """One mesh of one material.

    Attributes:
        thing: "couch", "painting", "table", or "room" for everything else.
    """

    thing: str
    mesh: Mesh
    material: Material


def part(thing: str, material: Material, *meshes: Mesh) -> Part:
    """Return meshes of one material as one part."""
    return Part(thing, joined(meshes), material)


def moved(parts: Iterable[Part], x: float, y: float, turn: float = 0.0) -> list[Part]:
    """Return parts turned about the vertical axis and put at (x, y)."""
    return [Part(p.thing, p.mesh.turned(turn).moved(x, y), p.material) for p in parts]
