"""Low tables: round or rectangular, on legs of several kinds, with things on them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from polyscore.rooms import materials
from polyscore.rooms.materials import Material, hsv
from polyscore.rooms.meshes import Mesh, ball, box, lathe, rod
from polyscore.rooms.parts import Part, part

LEGS = ("straight", "splayed", "pedestal", "sled", "block")
ITEMS = ("vase", "bowl", "books", "cup", "plant")


@dataclass(frozen=True)
class Table:
    """A table about x = 0, y = 0.

    Attributes:
        width, depth, height: of the whole; a round one is as deep as wide.
        round: whether it is.
        legs: one of LEGS.
        thick: of its top.
        shelf: whether it has a lower board.
        items: (kind, x, colour) of what stands on it, one of ITEMS each.
    """

    width: float
    depth: float
    height: float
    round: bool
    legs: str
    thick: float
    shelf: bool
    items: tuple[tuple[str, float, Material], ...]
    top: Material
    frame: Material

    def parts(self) -> list[Part]:
        """Return its meshes."""
        boards = [self._board(self.height - self.thick, self.height, 1.0)]
        if self.shelf and self.legs in ("straight", "sled"):
            boards.append(self._board(0.3 * self.height, 0.3 * self.height + 0.018, 0.86))
        things = [part("table", material, *_item(kind, x, self.height)) for kind, x, material in self.items]
        return [part("table", self.top, *boards), part("table", self.frame, *self._legs()), *things]

    def _board(self, low: float, high: float, share: float) -> Mesh:
        x, y = share * self.width / 2, share * self.depth / 2
        if not self.round:
            return box((-x, -y, low), (x, y, high), 0.006)
        rim = [(x - 0.006, low), (x, low + 0.006), (x, high - 0.006), (x - 0.006, high)]
        return lathe([(1e-6, low), *rim, (1e-6, high)], 40, smooth=False)

    def _legs(self) -> list[Mesh]:
        return {"straight": self._straight, "splayed": self._splayed, "pedestal": self._pedestal, "sled": self._sled,
                "block": self._block}[self.legs]()  # fmt: skip

    def _corners(self, inset: float) -> list[tuple[float, float]]:
        share = 0.68 if self.round else 1.0
        x, y = share * (self.width / 2 - inset), share * (self.depth / 2 - inset)
        return [(x, y), (-x, y), (x, -y), (-x, -y)]

    def _straight(self) -> list[Mesh]:
        h, top = 0.025, self.height - self.thick
        legs = [box((x - h, y - h, 0), (x + h, y + h, top), 0.003) for x, y in self._corners(0.05)]
        if self.round:
            return legs
        (x, y), low = self._corners(0.05)[0], top - 0.06
        return [*legs, *(box((-x, s * y - 0.01, low), (x, s * y + 0.01, top), 0.002) for s in (-1, 1)),
                *(box((s * x - 0.01, -y, low), (s * x + 0.01, y, top), 0.002) for s in (-1, 1))]  # fmt: skip

    def _splayed(self) -> list[Mesh]:
        top, corners = self.height - self.thick, self._corners(0.04)
        lean = 0.28 * math.hypot(*corners[0])
        low = 0.016 * lean / math.hypot(lean, top)  # a leaning leg stands on the edge of its foot
        return [rod((x, y, low), (0.72 * x, 0.72 * y, top), 0.016, 1.6) for x, y in corners]

    def _pedestal(self) -> list[Mesh]:
        foot, top = 0.3 * min(self.width, self.depth), self.height - self.thick
        profile = [
            (1e-6, 0.0),
            (foot, 0.0),
            (foot, 0.015),
            (0.3 * foot, 0.04),
            (0.035, 0.1),
            (0.035, top - 0.05),
            (0.1, top),
        ]
        return [lathe(profile, 32, smooth=False)]

    def _sled(self) -> list[Mesh]:
        (x, y), h, top = self._corners(0.06)[0], 0.015, self.height - self.thick
        made = []
        for side in (-x, x):
            made += [box((side - h, s * y - h, 0), (side + h, s * y + h, top), 0.003) for s in (-1, 1)]
            made += [box((side - h, -y, z), (side + h, y, z + 2 * h), 0.003) for z in (0.0, top - 2 * h)]
        return made

    def _block(self) -> list[Mesh]:
        top = self.height - self.thick
        if self.round:
            x = 0.42 * self.width
            return [lathe([(x, 0.0), (x, top)], 40, smooth=False)]
        x, y = 0.46 * self.width, 0.42 * self.depth
        return [box((-x, -y, 0), (x, y, top), 0.006)]


_PROFILES = {  # (radius, height) from below to above
    "vase": [(1e-6, 0), (0.045, 0), (0.07, 0.06), (0.065, 0.12), (0.03, 0.18), (0.04, 0.21)],
    "bowl": [(1e-6, 0), (0.05, 0), (0.11, 0.04), (0.13, 0.075), (0.12, 0.075), (0.05, 0.02), (1e-6, 0.015)],
    "cup": [(1e-6, 0), (0.035, 0), (0.042, 0.09), (0.037, 0.09), (0.03, 0.02), (1e-6, 0.02)],
    "plant": [(1e-6, 0), (0.05, 0), (0.065, 0.09)],
}


def _item(kind: str, x: float, z: float) -> list[Mesh]:
    """What stands on a table at x."""
    if kind == "books":
        stack = [(0.13, 0.09, 0.0, 0.03), (0.115, 0.08, 0.03, 0.055)]
        return [box((x - a, -b, z + low), (x + a, b, z + high), 0.003) for a, b, low, high in stack]
    turned = lathe(_PROFILES[kind], 20).moved(x, 0.0, z)
    return [turned, ball((x, 0, z + 0.16), 0.1, 0.9)] if kind == "plant" else [turned]


def draw(r: np.random.Generator) -> Table:
    """Draw a table."""
    round_ = bool(r.random() < 0.35)
    width = r.uniform(0.65, 0.85) if round_ else r.uniform(0.9, 1.25)
    depth = width if round_ else r.uniform(0.45, 0.62)
    kinds = [kind for kind in LEGS if not (round_ and kind == "sled")]
    top = _top(r)
    frame = materials.metal(r) if r.random() < 0.35 else top if r.random() < 0.6 else materials.furniture_wood(r)
    return Table(
        width, depth, r.uniform(0.38, 0.54), round_, kinds[r.integers(len(kinds))], r.uniform(0.02, 0.05),
        bool(r.random() < 0.3), _items(r, width), top, frame,
    )  # fmt: skip


def _top(r: np.random.Generator) -> Material:
    """Wood most often; white, black or stone."""
    if r.random() < 0.65:
        return materials.furniture_wood(r)
    return Material(hsv(r.random(), r.uniform(0, 0.12), r.choice([0.12, 0.6, 0.9])), gloss=0.06, rough=0.15)


def _items(r: np.random.Generator, width: float) -> tuple[tuple[str, float, Material], ...]:
    places = np.linspace(-0.3, 0.3, 3) * width
    chosen = r.permutation(3)[: int(r.choice([0, 1, 2, 3], p=[0.25, 0.35, 0.3, 0.1]))]
    kinds = [ITEMS[r.integers(len(ITEMS))] for _ in chosen]
    green = Material(hsv(r.uniform(0.24, 0.38), r.uniform(0.4, 0.7), r.uniform(0.25, 0.5)))
    return tuple(
        (kind, places[k], green if kind == "plant" else Material(materials.bright(r), gloss=0.04, rough=0.2))
        for kind, k in zip(kinds, chosen, strict=True)
    )
