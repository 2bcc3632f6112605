"""Paintings: framed, with or without a mount, or bare canvases."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from polyscore.rooms import art, materials
from polyscore.rooms.materials import Material, Texture, hsv
from polyscore.rooms.meshes import Mesh, box, panel
from polyscore.rooms.parts import Part, part


@dataclass(frozen=True)
class Painting:
    """A painting about x = 0 on the wall y = 0, its lower edge at z = 0.

    Attributes:
        width, height: with its frame.
        frame: how wide the frame is; 0 is a bare canvas.
        mount: how wide the white mount inside is.
        deep: how far it stands out from the wall.
    """

    width: float
    height: float
    frame: float
    mount: float
    deep: float
    wood: Material
    content: Texture = field(repr=False, compare=False)

    def parts(self) -> list[Part]:
        """Return its meshes."""
        inset = self.frame + self.mount
        picture = part("painting", Material(texture=self.content), self._canvas(inset, 0.6 * self.deep + 0.002))
        board = part("painting", Material((0.85, 0.84, 0.81)), self._block())
        return [picture, board, *([part("painting", self.wood, *self._frame())] if self.frame else [])]

    def _canvas(self, inset: float, y: float) -> Mesh:
        # Seen from the room, x runs to the left: the picture's left edge is at the larger x.
        x, z = self.width / 2 - inset, self.height - 2 * inset
        return panel((x, y, inset), (-2 * x, 0, 0), (0, 0, z), unit=True)

    def _block(self) -> Mesh:
        x = self.width / 2 - self.frame / 2
        return box((-x, 0.004, self.frame / 2), (x, 0.6 * self.deep, self.height - self.frame / 2), 0.002)

    def _frame(self) -> list[Mesh]:
        x, f, z = self.width / 2, self.frame, self.height
        low, high = 0.002, self.deep
        return [
            box((-x, low, 0), (x, high, f), 0.004),
            box((-x, low, z - f), (x, high, z), 0.004),
            box((-x, low, f), (-x + f, high, z - f), 0.004),
            box((x - f, low, f), (x, high, z - f), 0.004),
        ]


def draw(r: np.random.Generator, room: tuple[float, float]) -> Painting:
    """Draw a painting that fits into `room`, (width, height) in metres."""
    area, ratio = r.uniform(0.35, 0.95), math.exp(r.uniform(-0.45, 0.6))
    width, height = min(math.sqrt(area * ratio), room[0]), min(math.sqrt(area / ratio), room[1])
    bare = r.random() < 0.15
    frame = 0.0 if bare else r.uniform(0.02, 0.065)
    mount = r.uniform(0.03, 0.09) if r.random() < 0.35 and not bare else 0.0
    inset = 2 * (frame + mount)
    content = art.picture(r, (width - inset) / (height - inset))
    return Painting(width, height, frame, mount, r.uniform(0.025, 0.045), _wood(r), content)


def _wood(r: np.random.Generator) -> Material:
    """Wood, black, white or gold."""
    if r.random() < 0.5:
        return materials.furniture_wood(r)
    colours = [hsv(0.1, 0.1, 0.12), hsv(0.1, 0.03, 0.93), hsv(0.115, 0.6, 0.72)]
    return Material(colours[r.integers(3)], gloss=0.08, rough=0.25)
