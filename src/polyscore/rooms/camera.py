"""Where a room is seen from: a camera that is chosen by what it shows.

It stands at depth y before the back wall (y = 0), at height z, and is tilted and opened so that the floor is seen from
depth `floor` on and the back wall up to `top`. Furniture that stands in this part of the room is in the picture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from polyscore.rooms.meshes import Array


@dataclass(frozen=True)
class Camera:
    """A pinhole with a square picture.

    Attributes:
        x, y, z: where it stands.
        yaw: to which side it looks, radians, towards larger x; 0 looks straight at the back wall.
        pitch: how far it looks down, radians.
        fov: opening from side to side, radians.
    """

    x: float
    y: float
    z: float
    yaw: float
    pitch: float
    fov: float

    @property
    def position(self) -> Array:
        """Where it stands, (3,)."""
        return np.array([self.x, self.y, self.z])

    @property
    def axes(self) -> Array:
        """Rows: to the right of the picture, downwards, and forward, (3, 3)."""
        sy, cy, sp, cp = math.sin(self.yaw), math.cos(self.yaw), math.sin(self.pitch), math.cos(self.pitch)
        forward = np.array([sy * cp, -cy * cp, -sp])
        right = np.array([-cy, -sy, 0.0])
        return np.stack([right, np.cross(forward, right), forward])

    def project(self, points: Array) -> Array:
        """Return where points (V, 3) in front of it fall in the picture, (V, 2): (0, 0) is its upper left corner."""
        seen = (points - self.position) @ self.axes.T
        return np.asarray(0.5 + seen[:, :2] / (2 * math.tan(self.fov / 2) * seen[:, 2:]))

    def reach(self, y: float) -> tuple[float, float]:
        """Return the smallest and largest x that are in the picture at depth y."""
        ahead, half = self.y - y, self.fov / 2
        return self.x + ahead * math.tan(self.yaw - half), self.x + ahead * math.tan(self.yaw + half)

    @property
    def floor(self) -> float:
        """Depth from which on, towards the back wall, the floor is in the picture."""
        return self.y - self.z / math.tan(self.pitch + self.fov / 2)


def showing(x: float, y: float, z: float, yaw: float, floor: float, top: float) -> Camera:
    """Return a camera at (x, y, z) that sees the floor from depth `floor` on and the back wall up to `top`."""
    below, above = math.atan2(z, y - floor), math.atan2(top - z, y)
    return Camera(x, y, z, yaw, (below - above) / 2, below + above)


def draw(r: np.random.Generator, width: float) -> Camera:
    """Draw a camera for a room of this width: not far from straight, its middle not far from the wall's."""
    y, z, yaw = r.uniform(3.7, 4.9), r.uniform(1.05, 1.6), float(np.clip(r.normal(0, 0.09), -0.2, 0.2))
    aim = r.uniform(-1, 1) * max(0.0, width / 2 - 1.8)
    x = float(np.clip(aim - y * math.tan(yaw), 0.5 - width / 2, width / 2 - 0.5))
    yaw = math.atan2(aim - x, y)
    return showing(x, y, z, yaw, r.uniform(2.3, 2.6), r.uniform(2.2, 2.65))
