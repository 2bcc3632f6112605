"""What things are made of: colours, textures and how they shine, as plain values."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Colour = tuple[float, float, float]
Texture = NDArray[np.float32]


@dataclass(frozen=True)
class Material:
    """A surface.

    Attributes:
        colour: reflectance, or radiance of what glows; linear RGB.
        texture: (H, W, 3) instead of the colour, linear; it repeats.
        size: metres that one repetition covers, (along u, along v).
        gloss: share of light that a coat reflects, from 0 (matt) to 1 (metal).
        rough: roughness of that coat.
        glows: whether it is a lamp.
    """

    colour: Colour = (0.5, 0.5, 0.5)
    texture: Texture | None = field(default=None, repr=False, compare=False)
    size: tuple[float, float] = (1.0, 1.0)
    gloss: float = 0.0
    rough: float = 0.3
    glows: bool = False


def linear(colour: Sequence[float] | NDArray[np.floating]) -> NDArray[np.float64]:
    """Return sRGB values in [0, 1] as linear ones."""
    c = np.asarray(colour, dtype=float)
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def as_colour(values: Sequence[float] | NDArray[np.floating]) -> Colour:
    """Return three numbers as a colour."""
    r, g, b = (float(v) for v in values)
    return r, g, b


def hsv(hue: float, saturation: float, value: float) -> Colour:
    """Return a colour, linear, by hue (turns), saturation and value as a screen shows them."""
    return as_colour(linear(colorsys.hsv_to_rgb(hue % 1.0, saturation, value)))


def lamp(colour: Colour, power: float) -> Material:
    """Return a surface that glows."""
    return Material(as_colour([power * c for c in colour]), glows=True)


def wood(r: np.random.Generator) -> Colour:
    """Draw a wood's colour: from birch over oak to wenge."""
    light = r.uniform(0.25, 0.85)
    return hsv(r.uniform(0.05, 0.105), np.interp(light, (0.25, 0.85), (0.55, 0.33)) + r.normal(0, 0.05), light)


def furniture_wood(r: np.random.Generator) -> Material:
    """Draw wood with a varnish."""
    return Material(wood(r), gloss=r.uniform(0.02, 0.06), rough=r.uniform(0.2, 0.4))


def metal(r: np.random.Generator) -> Material:
    """Draw black iron, steel or brass."""
    colours = [hsv(0.6, 0.05, 0.2), hsv(0.6, 0.03, 0.75), hsv(0.115, 0.45, 0.8)]
    return Material(colours[r.integers(3)], gloss=0.5, rough=r.uniform(0.2, 0.35))


def fabric(r: np.random.Generator) -> Colour:
    """Draw the colour of an upholstery: greys and beiges as often as strong colours."""
    if r.random() < 0.4:
        return hsv(r.uniform(0.05, 0.13) if r.random() < 0.6 else 0.6, r.uniform(0.03, 0.25), r.uniform(0.25, 0.85))
    return hsv(r.random(), r.uniform(0.25, 0.65), r.uniform(0.3, 0.75))


def bright(r: np.random.Generator) -> Colour:
    """Draw the colour of small things: pillows, vases, books."""
    return hsv(r.random(), r.uniform(0.15, 0.7), r.uniform(0.35, 0.9))


def wall(r: np.random.Generator) -> Colour:
    """Draw a wall's colour: whites and pastels, sometimes a dark accent."""
    kind = r.random()
    if kind < 0.16:
        return hsv(r.random(), r.uniform(0.2, 0.5), r.uniform(0.35, 0.62))
    if kind < 0.6:
        return hsv(r.uniform(0.07, 0.15), r.uniform(0.01, 0.13), r.uniform(0.82, 0.95))
    return hsv(r.random(), r.uniform(0.05, 0.22), r.uniform(0.7, 0.92))
