"""Triangle meshes as plain arrays, in metres: x to the right, y from the back wall towards the viewer, z up.

Everything in a room is made of the five shapes here, so a room can be measured without a renderer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Mesh:
    """Triangles with normals and texture coordinates.

    Attributes:
        points: (V, 3).
        normals: (V, 3), of length 1.
        uv: (V, 2), in metres along the surface unless a shape says otherwise.
        faces: (F, 3), indices of points.
    """

    points: Array
    normals: Array
    uv: Array
    faces: NDArray[np.int64]

    def moved(self, x: float = 0.0, y: float = 0.0, z: float = 0.0) -> Mesh:
        """Return the mesh shifted."""
        return Mesh(self.points + np.array([x, y, z]), self.normals, self.uv, self.faces)

    def turned(self, angle: float, axis: str = "z") -> Mesh:
        """Return the mesh rotated about an axis through the origin, counter-clockwise, in radians."""
        matrix = rotation(angle, axis).T
        return Mesh(self.points @ matrix, self.normals @ matrix, self.uv, self.faces)

    @property
    def low(self) -> Array:
        """Smallest coordinates, (3,)."""
        return np.asarray(self.points.min(0))

    @property
    def high(self) -> Array:
        """Largest coordinates, (3,)."""
        return np.asarray(self.points.max(0))


def rotation(angle: float, axis: str = "z") -> Array:
    """Return the matrix that turns columns about an axis."""
    c, s = math.cos(angle), math.sin(angle)
    i, j = {"x": (1, 2), "y": (2, 0), "z": (0, 1)}[axis]
    matrix = np.eye(3)
    matrix[[i, i, j, j], [i, j, i, j]] = c, -s, s, c
    return matrix


def joined(meshes: Iterable[Mesh]) -> Mesh:
    """Return one mesh of many."""
    parts = list(meshes)
    starts = np.cumsum([0, *(len(part.points) for part in parts[:-1])])
    return Mesh(
        np.concatenate([part.points for part in parts]),
        np.concatenate([part.normals for part in parts]),
        np.concatenate([part.uv for part in parts]),
        np.concatenate([part.faces + start for part, start in zip(parts, starts, strict=True)]),
    )


def _cross(a: Array, b: Array) -> Array:
    """`np.cross` of two vectors, to the bit; that spends its time on axes, which a room asks for sixty times."""
    (ax, ay, az), (bx, by, bz) = a, b
    return np.array([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx])


def panel(corner: Sequence[float], along: Sequence[float], up: Sequence[float], unit: bool = False) -> Mesh:
    """Return the parallelogram from `corner` along two edges, facing along x up.

    Args:
        unit: texture coordinates from 0 to 1 instead of in metres.
    """
    o, a, b = (np.asarray(v, dtype=float) for v in (corner, along, up))
    normal = _cross(a, b)
    size = (1.0, 1.0) if unit else (float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    return Mesh(
        np.stack([o, o + a, o + a + b, o + b]),
        np.tile(normal / np.linalg.norm(normal), (4, 1)),
        np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * size,
        np.array([[0, 1, 2], [0, 2, 3]]),
    )


def box(low: Sequence[float], high: Sequence[float], edge: float = 0.008, bulge: float = 0.0) -> Mesh:
    """Return an upright box between two corners with rounded edges.

    Args:
        edge: radius of its edges; no more than half of the shortest side.
        bulge: how far its sides swell in their middles, as cushions do.
    """
    low_, high_ = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
    half = (high_ - low_) / 2
    radius = min(edge, float(half.min()))
    grid, faces = _cube(5 if bulge or radius > 0.02 else 2)
    # Along each axis the middle of a cube's side spans the inner box; what lies beyond turns the normal by the edge.
    inner = np.clip(grid / _RING, -1, 1) * (half - radius)
    out = np.sign(grid) * np.maximum(0, (np.abs(grid) - _RING) / (1 - _RING))
    normals = out / np.linalg.norm(out, axis=1, keepdims=True)
    points = inner + radius * normals
    if bulge:
        points, normals = _swollen(points, normals, half, bulge)
    world = points + (low_ + high_) / 2
    return Mesh(world, normals, _box_uv(world, normals), faces)


def _swollen(points: Array, normals: Array, half: Array, bulge: float) -> tuple[Array, Array]:
    """Lift a side's points by bulge (1 - u^2)(1 - v^2), and tilt their normals accordingly."""
    rows, axis = np.arange(len(points)), np.abs(normals).argmax(1)
    relative = np.clip(points / half, -1, 1)
    fall = 1 - relative**2
    fall[rows, axis] = 1
    lift = bulge * fall.prod(1)
    tilt = 2 * relative / half * lift[:, None] / np.maximum(fall, 0.05)
    tilt[rows, axis] = 0
    lifted = points.copy()
    lifted[rows, axis] += lift * np.sign(normals[rows, axis])
    tilted = normals + tilt
    return lifted, tilted / np.linalg.norm(tilted, axis=1, keepdims=True)


_RING = 0.8  # of a cube's side, from its middle; what lies beyond belongs to the rounded edge


@lru_cache(maxsize=8)
def _cube(cells: int) -> tuple[Array, NDArray[np.int64]]:
    """The surface of [-1, 1]^3: six grids whose outermost cells become the rounded edges."""
    ring = np.linspace(_RING, 1, 3 if cells > 2 else 2)[1:]
    line = np.concatenate([-ring[::-1], np.linspace(-_RING, _RING, cells), ring])
    n = len(line)
    u, v = (a.ravel() for a in np.meshgrid(line, line, indexing="ij"))
    one = np.ones_like(u)
    index = np.arange(n * n).reshape(n, n)
    quads = np.stack([index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]], -1).reshape(-1, 4)
    points: list[Array] = []
    faces: list[NDArray[np.int64]] = []
    for axis in range(3):
        for side in (1, -1):
            columns = np.empty((n * n, 3))
            columns[:, axis], columns[:, (axis + 1) % 3], columns[:, (axis + 2) % 3] = side * one, u, v
            turned = quads if side > 0 else quads[:, ::-1]
            points.append(columns)
            faces.append(np.concatenate([turned[:, [0, 1, 2]], turned[:, [0, 2, 3]]]) + n * n * len(faces))
    return np.concatenate(points), np.concatenate(faces)


def _box_uv(points: Array, normals: Array) -> Array:
    """Coordinates in metres on the side that a normal points out of."""
    axis = np.abs(normals).argmax(1)
    rows = np.arange(len(points))
    return np.stack([points[rows, (axis + 1) % 3], points[rows, (axis + 2) % 3]], 1)


def lathe(profile: Sequence[tuple[float, float]], sides: int = 24, smooth: bool = True) -> Mesh:
    """Return the surface of revolution of (radius, height) pairs, from below to above, about the z axis."""
    pairs = np.asarray(profile, dtype=float)
    if not smooth:  # every edge twice, so that each ring keeps its own normals
        pairs = np.repeat(pairs, 2, axis=0)[1:-1]
    angle = np.linspace(0, 2 * math.pi, sides + 1)
    ring = np.stack([np.cos(angle), np.sin(angle)], 1)
    points = np.concatenate([pairs[:, None, :1] * ring[None], np.repeat(pairs[:, None, 1:], sides + 1, 1)], 2).reshape(
        -1, 3
    )
    slope = _slopes(pairs, smooth)
    normals = np.concatenate([slope[:, None, :1] * ring[None], np.repeat(slope[:, None, 1:], sides + 1, 1)], 2)
    return Mesh(points, normals.reshape(-1, 3), points[:, :2] + points[:, 2:], _strips(len(pairs), sides, smooth))


def _slopes(pairs: Array, smooth: bool) -> Array:
    """Outward normals (radial, z) of a profile's points."""
    steps = np.diff(pairs, axis=0)
    if smooth:
        steps = np.concatenate([steps[:1], (steps[:-1] + steps[1:]) / 2, steps[-1:]])
    else:
        steps = np.repeat(steps[::2], 2, axis=0)
    normals = np.stack([steps[:, 1], -steps[:, 0]], 1)
    return np.asarray(normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12))


@lru_cache(maxsize=64)
def _strips(rings: int, sides: int, smooth: bool) -> NDArray[np.int64]:
    index = np.arange(rings * (sides + 1)).reshape(rings, sides + 1)
    below, above = (index[:-1], index[1:]) if smooth else (index[::2], index[1::2])
    a, b, c, d = below[:, :-1], below[:, 1:], above[:, 1:], above[:, :-1]
    return np.concatenate([np.stack([a, b, c], -1).reshape(-1, 3), np.stack([a, c, d], -1).reshape(-1, 3)])


def rod(start: Sequence[float], end: Sequence[float], radius: float, taper: float = 1.0, sides: int = 12) -> Mesh:
    """Return a cylinder or cone with flat ends between two points; `taper` times as thick at its end."""
    a, b = np.asarray(start, dtype=float), np.asarray(end, dtype=float)
    length = float(np.linalg.norm(b - a))
    raw = lathe([(1e-6, 0), (radius, 0), (radius * taper, length), (1e-6, length)], sides, smooth=False)
    matrix = _frame((b - a) / length)
    return Mesh(raw.points @ matrix + a, raw.normals @ matrix, raw.uv, raw.faces)


def _frame(axis: Array) -> Array:
    """Rows: a right-handed frame whose third vector is `axis`."""
    helper = np.array([1.0, 0, 0]) if abs(axis[0]) < 0.9 else np.array([0, 1.0, 0])
    first = _cross(helper, axis)
    first /= np.linalg.norm(first)
    return np.stack([first, _cross(axis, first), axis])


def ball(centre: Sequence[float], radius: float, flat: float = 1.0, sides: int = 16) -> Mesh:
    """Return a sphere, its height `flat` times its width."""
    turns = np.linspace(-math.pi / 2, math.pi / 2, sides // 2 + 1)
    raw = lathe([(max(1e-6, radius * math.cos(t)), radius * flat * math.sin(t)) for t in turns], sides)
    return raw.moved(*map(float, centre))


def wave(width: float, height: float, folds: int, depth: float) -> Mesh:
    """Return a hanging cloth with folds: along x from 0 to `width`, up z, facing y."""
    n = folds * 8 + 1
    x = np.linspace(0, width, n)
    phase = np.linspace(0, 2 * math.pi * folds, n)
    y, slope = depth * np.sin(phase), depth * np.cos(phase) * 2 * math.pi * folds / width
    normal = np.stack([-slope, np.ones(n), np.zeros(n)], 1) / np.sqrt(1 + slope**2)[:, None]
    rows = [np.stack([x, y, np.full(n, z)], 1) for z in (0.0, height)]
    index = np.arange(2 * n).reshape(2, n)
    a, b, c, d = index[0, :-1], index[0, 1:], index[1, 1:], index[1, :-1]
    faces = np.concatenate([np.stack([a, c, b], 1), np.stack([a, d, c], 1)])
    points = np.concatenate(rows)
    return Mesh(points, np.tile(normal, (2, 1)), points[:, [0, 2]], faces)
