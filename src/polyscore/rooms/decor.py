"""What rooms of every class may hold: rugs, plants, lamps."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from polyscore.rooms import materials, textures
from polyscore.rooms.materials import Material, hsv, lamp
from polyscore.rooms.meshes import Mesh, ball, box, joined, lathe, panel, rod
from polyscore.rooms.parts import ROOM, Part, moved, part


def warm(r: np.random.Generator) -> materials.Colour:
    """Draw the colour of a bulb, its largest part 1."""
    return 1.0, r.uniform(0.72, 0.9), r.uniform(0.45, 0.75)


def rug(r: np.random.Generator, low: float, high: float, front: float) -> list[Part]:
    """Draw a rug between x = low and high that ends at about `front`."""
    width, depth = r.uniform(0.5, 0.85) * (high - low), r.uniform(1.0, 1.6)
    x, y = r.uniform(low + width / 2, high - width / 2), front - r.uniform(0.0, 0.5) - depth
    top = panel((x + width / 2, y + depth, 0.012), (-width, 0, 0), (0, -depth, 0), unit=True)
    edge = box((x - width / 2, y, 0.0), (x + width / 2, y + depth, 0.011), 0.002)
    cloth = textures.rug(r)
    return [part(ROOM, cloth, top), part(ROOM, Material(cloth.colour), edge)]


def plant(r: np.random.Generator, x: float, y: float) -> list[Part]:
    """Draw a plant in a pot: leaves that bend outwards."""
    pot = lathe([(1e-6, 0), (0.1, 0), (0.14, 0.26), (0.125, 0.26), (0.12, 0.22), (1e-6, 0.22)], 24, smooth=False)
    tall, green = r.uniform(0.5, 0.9), hsv(r.uniform(0.22, 0.37), r.uniform(0.35, 0.7), r.uniform(0.25, 0.5))
    leaves = [
        _leaf(tall * r.uniform(0.6, 1.0), r.uniform(0.05, 0.09), r.uniform(0.12, 0.32)).turned(angle + r.normal(0, 0.2))
        for angle in np.linspace(0, 2 * math.pi, int(r.integers(9, 16)), endpoint=False)
    ]
    clay = Material(materials.bright(r) if r.random() < 0.5 else hsv(0.06, 0.2, 0.85), gloss=0.03)
    made = [part(ROOM, clay, pot), part(ROOM, Material(green, gloss=0.03), *(leaf.moved(0, 0, 0.2) for leaf in leaves))]
    return moved(made, x, y)


def _leaf(length: float, width: float, bend: float) -> Mesh:
    """A blade that leans outwards: cones from joint to joint, thickest in its lower third."""
    steps = np.linspace(0.15, 1, 5)
    joints = [(bend * s**1.6, 0.0, length * s) for s in steps]
    radii = [max(0.003, 0.5 * width * math.sin(math.pi * (0.2 + 0.75 * s))) for s in steps]
    return joined(
        rod(*ends, *_taper(*pair), sides=6) for ends, pair in zip(pairwise(joints), pairwise(radii), strict=True)
    )


def _taper(first: float, last: float) -> tuple[float, float]:
    return first, last / first


def floor_lamp(r: np.random.Generator, x: float, y: float, lit: bool) -> list[Part]:
    """Draw a lamp on a pole."""
    tall, wide = r.uniform(1.35, 1.65), r.uniform(0.13, 0.2)
    stand = [
        lathe([(1e-6, 0), (0.13, 0), (0.13, 0.02), (0.012, 0.03)], 24, smooth=False),
        rod((0, 0, 0.02), (0, 0, tall), 0.011),
    ]
    shade = lathe([(wide, tall - 0.14), (wide * r.uniform(0.55, 0.95), tall + 0.12)], 28)
    cloth = (
        lamp(warm(r), r.uniform(0.7, 1.8)) if lit else Material(hsv(0.11, r.uniform(0.05, 0.3), r.uniform(0.6, 0.95)))
    )
    return moved([part(ROOM, materials.metal(r), *stand), part(ROOM, cloth, shade)], x, y)


def ceiling_lamp(r: np.random.Generator, x: float, y: float, height: float, power: float) -> list[Part]:
    """Draw a lamp below the ceiling: a globe on a cord, or a flat disc."""
    glow = lamp(warm(r), power)
    if r.random() < 0.5:
        return [part(ROOM, glow, lathe([(1e-6, -0.06), (0.2, -0.06), (0.22, -0.01)], 24).moved(x, y, height))]
    cord = rod((x, y, height - 0.5), (x, y, height), 0.006)
    return [part(ROOM, Material((0.05, 0.05, 0.05)), cord), part(ROOM, glow, ball((x, y, height - 0.55), 0.13))]
