"""Rooms before anything is put into them: walls, floor, light, and the camera that looks at them.

Nothing here knows of classes: what surrounds the objects is drawn alike for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from polyscore.rooms import camera as cameras
from polyscore.rooms import decor, materials, textures, windows
from polyscore.rooms.camera import Camera
from polyscore.rooms.materials import Material, hsv, lamp
from polyscore.rooms.meshes import Mesh, box, panel
from polyscore.rooms.parts import ROOM, Part, part

_WHITE = (0.8, 0.79, 0.77)
_NARROWEST = 2.2  # metres of wall that furniture may need


@dataclass(frozen=True)
class Room:
    """An empty room.

    Attributes:
        width, depth, height: x from -width/2 to width/2, y from 0 to depth, z from 0 to height.
        stage: x between which furniture may stand, all of it in the picture.
        hanging: x between which paintings may hang.
        brightness: of the picture, 1 is neutral.
    """

    width: float
    depth: float
    height: float
    camera: Camera
    stage: tuple[float, float]
    hanging: tuple[float, float]
    brightness: float
    parts: tuple[Part, ...] = field(repr=False, compare=False)


def draw(r: np.random.Generator) -> Room:
    """Draw a room."""
    width, height = r.uniform(3.7, 6.2), r.uniform(2.4, 3.0)
    camera = cameras.draw(r, width)
    depth = camera.y + r.uniform(0.3, 1.3)
    seen = camera.reach(0.3)
    stage = max(seen[0], 0.1 - width / 2), min(seen[1], width / 2 - 0.1)
    stage, standing = _standing(r, stage)
    hanging, lights = _lights(r, (width, depth, height), stage)
    shell = [*_shell(r, width, depth, height), *(decor.rug(r, *stage, camera.floor) if r.random() < 0.5 else [])]
    return Room(width, depth, height, camera, stage, hanging, r.uniform(0.8, 1.15), (*shell, *standing, *lights))


def _standing(r: np.random.Generator, stage: tuple[float, float]) -> tuple[tuple[float, float], list[Part]]:
    """A plant, a lamp, or neither, at each end of the stage; what is left of it."""
    made: list[Part] = []
    for side in r.permutation(2):
        kind, inner = r.choice(["plant", "lamp", "nothing"], p=[0.22, 0.16, 0.62]), 0.5
        if kind == "nothing" or stage[1] - stage[0] - inner < _NARROWEST:
            continue
        x = stage[side] + (0.22 if side == 0 else -0.22)
        made += decor.plant(r, x, 0.45) if kind == "plant" else decor.floor_lamp(r, x, 0.35, bool(r.random() < 0.7))
        stage = (stage[0] + inner, stage[1]) if side == 0 else (stage[0], stage[1] - inner)
    return stage, made


def _lights(
    r: np.random.Generator, size: tuple[float, float, float], stage: tuple[float, float]
) -> tuple[tuple[float, float], list[Part]]:
    """Daylight from one or two sides, or lamps; and the light that comes from the rest of the flat behind us."""
    width, depth, height = size
    evening = bool(r.random() < 0.18)
    side, power = r.choice(["left", "right"]), r.uniform(0.3, 1.0) if evening else r.uniform(4.0, 11.0)
    made = windows.draw(r, side, (0.5, min(depth, 3.6) - 0.2), power, evening).parts(width)
    hanging = stage
    if r.random() < 0.2 and stage[1] - stage[0] > _NARROWEST + 0.3:
        hanging, more = _back_window(r, stage, evening)
        made += more.parts(width)
    if evening or r.random() < 0.3:
        made += decor.ceiling_lamp(r, r.uniform(-0.5, 0.5), r.uniform(1.6, 3.0), height, r.uniform(8, 20))
    rear = panel((-width / 2, depth - 0.01, 0), (width, 0, 0), (0, 0, height))
    tint = hsv(r.uniform(0.05, 0.16), r.uniform(0, 0.15), 1.0)
    return hanging, [*made, part(ROOM, lamp(tint, r.uniform(0.12, 0.6) * (0.5 if evening else 1.0)), rear)]


def _back_window(
    r: np.random.Generator, stage: tuple[float, float], evening: bool
) -> tuple[tuple[float, float], windows.Window]:
    """A window at one end of the back wall, and the wall that is left."""
    taken = r.uniform(0.36, 0.45) * (stage[1] - stage[0])
    left = bool(r.random() < 0.5)
    span = (stage[0], stage[0] + taken) if left else (stage[1] - taken, stage[1])
    window = windows.draw(r, "back", span, r.uniform(0.2, 0.5) if evening else r.uniform(2.0, 4.0), evening)
    end = window.width / 2 + (0.45 if window.curtains else 0.15)
    return ((window.centre + end, stage[1]) if left else (stage[0], window.centre - end)), window


def _shell(r: np.random.Generator, width: float, depth: float, height: float) -> list[Part]:
    """Floor, ceiling, three walls (the fourth glows), skirting boards and perhaps a cornice."""
    x = width / 2
    colour = materials.wall(r)
    back = textures.stripes(r, colour) if r.random() < 0.15 else Material(colour)
    sides = Material(materials.wall(r)) if r.random() < 0.3 else Material(colour)
    ground = panel((-x, 0, 0), (width, 0, 0), (0, depth, 0))
    if r.random() < 0.35:  # planks that run away from us
        ground = panel((x, 0, 0), (0, depth, 0), (-width, 0, 0))
    above = panel((-x, depth, height), (width, 0, 0), (0, -depth, 0))
    walls = [panel((-x, depth, 0), (0, -depth, 0), (0, 0, height)), panel((x, 0, 0), (0, depth, 0), (0, 0, height))]
    made = [
        part(ROOM, textures.floor(r), ground), part(ROOM, Material(_WHITE), above),
        part(ROOM, back, panel((x, 0, 0), (-width, 0, 0), (0, 0, height))), part(ROOM, sides, *walls),
        part(ROOM, _trim(r), *_boards(r, width, depth, height)),
    ]  # fmt: skip
    return [*made, *_wainscot(r, width)]


def _trim(r: np.random.Generator) -> Material:
    return Material(_WHITE, gloss=0.03) if r.random() < 0.7 else materials.furniture_wood(r)


def _boards(r: np.random.Generator, width: float, depth: float, height: float) -> list[Mesh]:
    x, tall, thick = width / 2, r.uniform(0.06, 0.15), 0.015
    made = [
        box((-x, 0, 0), (x, thick, tall), 0.004), box((-x, 0, 0), (-x + thick, depth, tall), 0.004),
        box((x - thick, 0, 0), (x, depth, tall), 0.004),
    ]  # fmt: skip
    if r.random() < 0.5:
        low = height - r.uniform(0.05, 0.1)
        made += [box((-x, 0, low), (x, 0.05, height), 0.01), box((-x, 0, low), (-x + 0.05, depth, height), 0.01),
                 box((x - 0.05, 0, low), (x, depth, height), 0.01)]  # fmt: skip
    return made


def _wainscot(r: np.random.Generator, width: float) -> list[Part]:
    """Panels up to the height of a chair on the back wall, now and then."""
    if r.random() > 0.15:
        return []
    tall, colour = r.uniform(0.75, 0.95), Material(materials.wall(r))
    edges = np.linspace(-width / 2, width / 2, round(width / r.uniform(0.45, 0.9)) + 1)
    panels = [box((a + 0.05, 0, 0.22), (b - 0.05, 0.016, tall - 0.08), 0.006) for a, b in pairwise(edges)]
    board = panel((width / 2, 0.006, 0), (-width, 0, 0), (0, 0, tall))
    rail = box((-width / 2, 0, tall - 0.03), (width / 2, 0.03, tall), 0.006)
    return [part(ROOM, colour, board, rail, *panels)]
