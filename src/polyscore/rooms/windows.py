"""Windows: openings in a wall with a frame, a view, and curtains. A window is made on the wall y = 0 and turned."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from polyscore.rooms.materials import Material, Texture, hsv
from polyscore.rooms.meshes import Mesh, box, panel, rod, wave
from polyscore.rooms.parts import ROOM, Part, moved, part

_WHITE = Material((0.8, 0.79, 0.76), gloss=0.03)


@dataclass(frozen=True)
class Window:
    """A window.

    Attributes:
        wall: "back", "left" or "right", the last two where x is smallest and largest.
        centre: its middle along the wall: x on the back wall, y on the others.
        width, sill, top: of the opening.
        bars: panes side by side.
        view: what is seen through it, radiance.
        curtains: their cloth, or None.
    """

    wall: str
    centre: float
    width: float
    sill: float
    top: float
    bars: int
    view: Texture
    curtains: Material | None

    def parts(self, room_width: float) -> list[Part]:
        """Return its meshes on its wall of a room."""
        made = [part(ROOM, Material(texture=self.view, glows=True), self._pane()), part(ROOM, _WHITE, *self._frame())]
        if self.curtains is not None:
            made.append(part(ROOM, self.curtains, *self._curtains()))
            made.append(part(ROOM, Material((0.3, 0.28, 0.26), gloss=0.2), self._pole()))
        if self.wall == "back":
            return moved(made, self.centre, 0.0)
        side = -1 if self.wall == "left" else 1
        return moved(made, side * room_width / 2, self.centre, side * math.pi / 2)

    def _pane(self) -> Mesh:
        x, z = self.width / 2, self.top - self.sill
        return panel((x, 0.012, self.sill), (-self.width, 0, 0), (0, 0, z), unit=True)

    def _frame(self) -> list[Mesh]:
        x, low, high, f = self.width / 2, self.sill, self.top, 0.055
        made = [
            box((-x - f, 0, high - 0.01), (x + f, 0.05, high + f), 0.004),
            box((-x - f, 0, low), (-x + 0.01, 0.05, high), 0.004),
            box((x - 0.01, 0, low), (x + f, 0.05, high), 0.004),
            box((-x - 0.09, 0, low - 0.05), (x + 0.09, 0.13, low), 0.006),
        ]
        uprights = np.linspace(-x, x, self.bars + 1)[1:-1]
        made += [box((u - 0.022, 0.005, low), (u + 0.022, 0.035, high), 0.003) for u in uprights]
        cross = high - 0.3 * (high - low)
        return [*made, box((-x, 0.005, cross - 0.018), (x, 0.03, cross + 0.018), 0.003)]

    def _curtains(self) -> list[Mesh]:
        wide, low = 0.14 + 0.12 * self.width, 0.03
        tall, x = self.top + 0.12 - low, self.width / 2
        cloth = wave(wide, tall, max(3, round(wide / 0.07)), 0.022).moved(0, 0.1, low)
        return [cloth.moved(x - 0.05), cloth.moved(-x + 0.05 - wide)]

    def _pole(self) -> Mesh:
        x = self.width / 2 + 0.3
        return rod((-x, 0.1, self.top + 0.13), (x, 0.1, self.top + 0.13), 0.012)


def view(r: np.random.Generator, power: float, evening: bool) -> Texture:
    """Draw what is outside: a sky that pales towards a soft green or grey horizon; at night a dark blue."""
    rows = np.linspace(1, 0, 24)[:, None, None]
    sky, pale = np.asarray(hsv(0.58, r.uniform(0.1, 0.5), 1.0)), np.asarray(hsv(0.1, r.uniform(0, 0.15), 1.0))
    ground = np.asarray(hsv(r.uniform(0.1, 0.4), r.uniform(0.1, 0.5), 0.6))
    line = r.uniform(0.1, 0.45)
    image = np.where(rows > line, pale + (sky - pale) * (rows - line) / (1 - line), ground)
    if evening:
        image = image * np.asarray(hsv(0.61, 0.35, 0.6))
    return np.asarray(np.tile(image * power, (1, 4, 1)), dtype=np.float32)


def draw(r: np.random.Generator, wall: str, span: tuple[float, float], power: float, evening: bool) -> Window:
    """Draw a window that lies within `span` along its wall."""
    width = min(r.uniform(0.9, 2.0), span[1] - span[0])
    sill = r.choice([0.12, r.uniform(0.6, 0.95)], p=[0.3, 0.7])
    cloth = hsv(r.random(), r.uniform(0.02, 0.45), r.uniform(0.5, 0.95))
    return Window(
        wall, r.uniform(span[0] + width / 2, span[1] - width / 2), width, float(sill), r.uniform(2.0, 2.2),
        int(r.integers(1, 4)), view(r, power, evening), Material(cloth) if r.random() < 0.5 else None,
    )  # fmt: skip
