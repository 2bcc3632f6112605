"""Flaws on purpose: rooms that somebody who sorts pictures should reject, and why.

A room keeps the class that was asked for; what it shows is another matter, as with pictures by a generator.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from polyscore.rooms.camera import Camera
from polyscore.rooms.classes import OBJECTS
from polyscore.rooms.scene import Placed, Scene
from polyscore.rooms.tracing import Image

KINDS = ("missing", "extra", "cut", "noise")
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Flaw:
    """What is wrong with a room.

    Attributes:
        kind: one of KINDS.
        object: the one that is missing, extra or cut; None for noise.
        strength: the share of a cut object's width that is outside, or the noise's deviation; 0 for the others.
    """

    kind: str
    object: str | None = None
    strength: float = 0.0

    @property
    def why(self) -> str:
        """The reason in words."""
        return {
            "missing": f"the {self.object} is missing",
            "extra": f"there is a {self.object} that does not belong here",
            "cut": f"the {self.object} is cut by the edge",
            "noise": f"the picture is covered with noise of deviation {self.strength:.2f}",
        }[self.kind]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return asdict(self) | {"why": self.why}


def is_flawed(start: float, index: int, share: float) -> bool:
    """Whether a room is one of the flawed: in golden steps from `start`, so any n rooms in a row hold n * share."""
    return (start + index * _GOLDEN) % 1.0 < share


def draw(r: np.random.Generator, objects: frozenset[str]) -> Flaw:
    """Draw a flaw that a room with these objects can have."""
    others = sorted(set(OBJECTS) - objects)
    kinds = [kind for kind in KINDS if (objects or kind in ("extra", "noise")) and (others or kind != "extra")]
    kind = str(r.choice(kinds))
    if kind == "noise":
        return Flaw(kind, None, float(r.uniform(0.08, 0.22)))
    chosen = str(r.choice(others if kind == "extra" else sorted(objects)))
    return Flaw(kind, chosen, float(r.uniform(0.35, 0.65)) if kind == "cut" else 0.0)


def contents(objects: frozenset[str], flaw: Flaw | None) -> frozenset[str]:
    """Return the objects that a room with this flaw holds."""
    if flaw is None or flaw.object is None or flaw.kind == "cut":
        return objects
    return objects - {flaw.object} if flaw.kind == "missing" else objects | {flaw.object}


def cut(scene: Scene, flaw: Flaw, left: bool) -> Scene:
    """Return the scene seen by a camera turned so far that an edge of the picture cuts the object."""
    placed = scene.objects[str(flaw.object)]
    return replace(scene, camera=_turned(scene.camera, placed, flaw.strength, left))


def _turned(camera: Camera, placed: Placed, outside: float, left: bool) -> Camera:
    """Put the point that has `outside` of the object's width beyond it on the picture's left or right edge."""
    points = np.concatenate([part.mesh.points for part in placed.parts()])
    low, high = points[:, 0].min(), points[:, 0].max()
    # A larger x is further to the left in the picture.
    x = high - outside * (high - low) if left else low + outside * (high - low)
    towards = math.atan2(x - camera.x, camera.y - float(points[:, 1].mean()))
    return replace(camera, yaw=towards - camera.fov / 2 if left else towards + camera.fov / 2)


def noisy(image: Image, deviation: float, r: np.random.Generator) -> Image:
    """Return a picture with noise of this deviation (1 is white) in every pixel and colour."""
    return np.asarray(np.clip(image + 255 * deviation * r.normal(size=image.shape), 0, 255), dtype=np.uint8)
