"""Textures by a generator: floors, walls, rugs, cloth; (H, W, 3) float32, linear, seamless where they repeat."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyscore.rooms.materials import Colour, Material, Texture, hsv, wood

_PIXELS = 256


def noise(r: np.random.Generator, height: int, width: int, rows: int, columns: int) -> NDArray[np.float64]:
    """Return smooth seamless noise (height, width) of variance about 1 from a grid of rows x columns values."""
    values = r.normal(size=(rows, columns))
    return _stretched(_stretched(values, height).T, width).T


def _stretched(values: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    place = np.arange(length) * len(values) / length
    low, share = place.astype(int), place % 1
    share = share * share * (3 - 2 * share)
    return values[low] * (1 - share)[:, None] + values[(low + 1) % len(values)] * share[:, None]


def _shaded(colour: Colour, factor: NDArray[np.float64]) -> Texture:
    return np.clip(np.asarray(colour) * factor[..., None], 0.01, 0.95).astype(np.float32)


def planks(r: np.random.Generator) -> Material:
    """Draw a wooden floor: rows of planks with staggered joints, grain, and a dark line between them."""
    rows, pixels = int(r.choice([8, 12, 16])), _PIXELS
    thick, length = pixels // rows, pixels // int(r.choice([1, 2]))
    factor = np.ones((pixels, pixels))
    grain = noise(r, pixels, pixels, 64, 4) * 0.05 + noise(r, pixels, pixels, 128, 8) * 0.03
    joint, tint = r.uniform(0.5, 0.8), r.uniform(0.05, 0.14)
    for row in range(rows):
        line = np.roll(np.repeat(r.normal(1, tint, pixels // length), length), shift := int(r.integers(pixels)))
        band = slice(row * thick, (row + 1) * thick)
        factor[band] = line
        factor[band, [(shift + k) % pixels for k in range(0, pixels, length)]] *= joint
        factor[row * thick] *= joint
    side = float(r.uniform(1.5, 2.1))
    return Material(
        (0.5,) * 3, _shaded(wood(r), factor + grain), (side, side), r.uniform(0.015, 0.05), r.uniform(0.15, 0.4)
    )


def herringbone(r: np.random.Generator) -> Material:
    """Draw a parquet in zigzag: short blocks that meet at right angles."""
    pixels, block, ratio = _PIXELS, 16, 4
    y, x = np.mgrid[0:pixels, 0:pixels]
    u, v = x // block, y // block
    phase = (u - v) % (2 * ratio)
    across = phase < ratio
    key = np.where(across, (u - phase) * 977 + v * 131, u * 977 + (v + (phase - ratio) - 2 * ratio) * 131 + 53)
    values = r.normal(1, r.uniform(0.06, 0.16), 509)
    factor = values[key.astype(int) % 509]
    edge = np.where(across, (y % block == 0) | ((phase == 0) & (x % block == 0)),
                    (x % block == 0) | ((phase == 2 * ratio - 1) & (y % block == 0)))  # fmt: skip
    factor = np.where(edge, factor * 0.72, factor) + noise(r, pixels, pixels, 64, 64) * 0.02
    return Material((0.5,) * 3, _shaded(wood(r), factor), (1.4, 1.4), r.uniform(0.015, 0.05), r.uniform(0.15, 0.4))


def tiles(r: np.random.Generator) -> Material:
    """Draw a tiled floor, sometimes as a chessboard."""
    pixels, count = _PIXELS, 4
    size = pixels // count
    tone = r.uniform(0.4, 0.9)
    first = hsv(r.uniform(0.03, 0.15), r.uniform(0.02, 0.3), tone)
    other = hsv(r.random(), r.uniform(0.02, 0.3), tone * r.uniform(0.35, 0.8)) if r.random() < 0.35 else first
    rows, columns = np.mgrid[0:pixels, 0:pixels] // size
    check = ((rows + columns) % 2)[..., None]
    tint = r.normal(1, 0.03, (count, count))[rows, columns] + noise(r, pixels, pixels, 24, 24) * 0.02
    colour = (np.asarray(first) * (1 - check) + np.asarray(other) * check) * tint[..., None]
    line = (np.arange(pixels) % size) < 2
    colour[line[:, None] | line[None, :]] = np.asarray(hsv(0.1, 0.05, r.uniform(0.45, 0.75)))
    side = float(r.uniform(1.2, 2.4))
    return Material(
        (0.5,) * 3, np.clip(colour, 0.01, 0.9).astype(np.float32), (side, side), r.uniform(0.03, 0.07), 0.15
    )


def carpet(r: np.random.Generator) -> Material:
    """Draw a fitted carpet: one colour with fine pile."""
    colour = hsv(r.random(), r.uniform(0.05, 0.35), r.uniform(0.35, 0.85))
    pile = noise(r, 128, 128, 64, 64) * 0.06 + noise(r, 128, 128, 12, 12) * 0.03
    return Material(colour, _shaded(colour, 1 + pile), (0.9, 0.9))


def concrete(r: np.random.Generator) -> Material:
    """Draw a smooth screed with clouds."""
    colour = hsv(r.uniform(0.05, 0.15), r.uniform(0, 0.08), r.uniform(0.4, 0.75))
    clouds = noise(r, 128, 128, 5, 5) * 0.05 + noise(r, 128, 128, 14, 14) * 0.03
    return Material(colour, _shaded(colour, 1 + clouds), (2.5, 2.5), 0.03, 0.25)


FLOORS = (planks, herringbone, tiles, carpet, concrete)
_SHARES = (0.42, 0.13, 0.17, 0.2, 0.08)


def floor(r: np.random.Generator) -> Material:
    """Draw a floor: planks most often."""
    return FLOORS[int(r.choice(len(FLOORS), p=_SHARES))](r)


def stripes(r: np.random.Generator, colour: Colour) -> Material:
    """Draw a wall with faint vertical stripes."""
    bars = np.repeat(1 + r.uniform(0.03, 0.1) * np.where(np.arange(2) > 0, 1.0, -1.0), 16)
    width = float(r.uniform(0.12, 0.5))
    return Material(colour, _shaded(colour, np.tile(bars, (2, 1))), (width, width))


def cloth(r: np.random.Generator, colour: Colour) -> Material:
    """Draw a woven cloth: plain, or with stripes."""
    weave = noise(r, 96, 96, 48, 48) * r.uniform(0.02, 0.09)
    if r.random() < 0.12:
        weave = weave + 0.25 * np.sign(np.sin(np.arange(96) * 2 * np.pi * int(r.integers(2, 6)) / 96))[None, :]
    return Material(colour, _shaded(colour, 1 + weave), (0.5, 0.5))


def rug(r: np.random.Generator) -> Material:
    """Draw a rug: a field, a border, and stripes, diamonds or nothing in between."""
    pixels = 128
    first, second, third = (hsv(r.random(), r.uniform(0.05, 0.5), r.uniform(0.3, 0.85)) for _ in range(3))
    y, x = (np.mgrid[0:pixels, 0:pixels] + 0.5) / pixels
    image = np.tile(np.asarray(first), (pixels, pixels, 1))
    pattern = int(r.integers(4))
    if pattern == 1:
        image[np.sin(2 * np.pi * y * int(r.integers(3, 9))) > r.uniform(-0.3, 0.6)] = second
    if pattern == 2:
        n = int(r.integers(2, 6))
        image[np.abs((x * n) % 1 - 0.5) + np.abs((y * n) % 1 - 0.5) < r.uniform(0.15, 0.4)] = second
    if r.random() < 0.55:
        edge = np.minimum(np.minimum(x, 1 - x), np.minimum(y, 1 - y))
        image[edge < r.uniform(0.03, 0.09)] = third
    pile = 1 + noise(r, pixels, pixels, 64, 64) * 0.07
    return Material(first, np.clip(image * pile[..., None], 0.01, 0.9).astype(np.float32))
