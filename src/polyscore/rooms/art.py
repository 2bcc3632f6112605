"""What hangs on walls: abstract pictures by a generator, (H, W, 3) float32, linear."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from polyscore.rooms.materials import Texture, hsv
from polyscore.rooms.textures import noise

Canvas = NDArray[np.float64]
_HEIGHT = 96


def picture(r: np.random.Generator, ratio: float) -> Texture:
    """Draw a picture `ratio` times as wide as high, in one of the styles."""
    width = max(8, round(_HEIGHT * ratio))
    style = STYLES[int(r.integers(len(STYLES)))]
    brush = 1 + 0.04 * noise(r, _HEIGHT, width, 32, 32)
    return np.clip(style(r, _blank(r, width), _palette(r)) * brush[..., None], 0.005, 0.92).astype(np.float32)


def _palette(r: np.random.Generator) -> Canvas:
    """Six colours around one or two hues, (6, 3)."""
    hue, apart = r.random(), r.uniform(0.05, 0.5)
    return np.array([
        hsv(hue + apart * r.integers(0, 3) + r.normal(0, 0.02), r.uniform(0.15, 0.95), r.uniform(0.2, 0.95))
        for _ in range(6)
    ])  # fmt: skip


def _blank(r: np.random.Generator, width: int) -> Canvas:
    return np.tile(np.asarray(hsv(r.random(), r.uniform(0.02, 0.25), r.uniform(0.6, 0.95))), (_HEIGHT, width, 1))


def _axes(canvas: Canvas) -> tuple[Canvas, Canvas]:
    """Coordinates: x from 0 to the ratio, y from 0 to 1, downwards."""
    y, x = np.mgrid[0 : canvas.shape[0], 0 : canvas.shape[1]] / _HEIGHT
    return x, y


def bands(r: np.random.Generator, canvas: Canvas, palette: Canvas) -> Canvas:
    """Soft fields of colour, one above the other."""
    x, y = _axes(canvas)
    wide, edges = canvas.shape[1] / _HEIGHT, np.sort(r.uniform(0.1, 0.9, int(r.integers(1, 4))))
    starts, ends = np.concatenate([[0.04], edges + 0.02]), np.concatenate([edges - 0.02, [0.96]])
    for low, high, colour in zip(starts, ends, palette, strict=False):
        inside = np.minimum(np.minimum(y - low, high - y), np.minimum(x - 0.05, wide - 0.05 - x))
        share = np.clip(inside / 0.03, 0, 1)[..., None]
        canvas = canvas * (1 - share) + colour * share
    return canvas


def blobs(r: np.random.Generator, canvas: Canvas, palette: Canvas) -> Canvas:
    """Ellipses that overlap."""
    x, y = _axes(canvas)
    wide = canvas.shape[1] / _HEIGHT
    for colour in palette[: int(r.integers(3, 7))]:
        a, b = r.uniform(0.08, 0.4, 2)
        inside = ((x - r.uniform(0, wide)) / a) ** 2 + ((y - r.uniform(0, 1)) / b) ** 2 < 1
        canvas = np.where(inside[..., None], colour, canvas)
    return canvas


def blocks(r: np.random.Generator, canvas: Canvas, palette: Canvas) -> Canvas:
    """Rectangles between dark lines."""
    columns = np.sort(r.integers(8, canvas.shape[1] - 4, int(r.integers(1, 4))))
    rows = np.sort(r.integers(8, _HEIGHT - 4, int(r.integers(1, 4))))
    across, down = np.searchsorted(columns, np.arange(canvas.shape[1])), np.searchsorted(rows, np.arange(_HEIGHT))
    cells = palette[r.integers(0, 6, (len(rows) + 1, len(columns) + 1))]
    cells[r.random(cells.shape[:2]) < 0.4] = canvas[0, 0]
    canvas = cells[down[:, None], across[None, :]]
    for k in range(-1, 2):
        canvas[:, columns + k] = canvas[rows + k] = 0.01
    return canvas


def hills(r: np.random.Generator, canvas: Canvas, palette: Canvas) -> Canvas:
    """A landscape: a sky, perhaps a sun, and ridges that darken towards the viewer."""
    x, y = _axes(canvas)
    canvas = palette[0] * (1 - 0.6 * y[..., None]) + canvas * 0.6 * y[..., None]
    if r.random() < 0.6:
        sun = (x - r.uniform(0, canvas.shape[1] / _HEIGHT)) ** 2 + (y - r.uniform(0.15, 0.4)) ** 2 < 0.01
        canvas = np.where(sun[..., None], hsv(0.11, 0.4, 1.0), canvas)
    for k, colour in enumerate(palette[1 : int(r.integers(3, 6))]):
        ridge = 0.4 + 0.15 * k + 0.07 * noise(r, 1, canvas.shape[1], 1, 5)
        canvas = np.where((y > ridge)[..., None], colour * (0.9 - 0.15 * k), canvas)
    return canvas


def lines(r: np.random.Generator, canvas: Canvas, palette: Canvas) -> Canvas:
    """Slanted stripes or arcs of changing width."""
    x, y = _axes(canvas)
    angle, bent = r.uniform(0, np.pi), r.uniform(0, 1.5)
    along = x * np.cos(angle) + y * np.sin(angle) + bent * (x - 0.5) * (y - 0.5)
    edges = np.sort(r.uniform(along.min(), along.max(), int(r.integers(4, 12))))
    return np.asarray(palette[np.searchsorted(edges, along) % 6])


def clouds(r: np.random.Generator, canvas: Canvas, palette: Canvas) -> Canvas:
    """Colours that flow into each other."""
    field = noise(r, _HEIGHT, canvas.shape[1], 4, 4) + 0.5 * noise(r, _HEIGHT, canvas.shape[1], 9, 9)
    levels = np.clip((field + 1.8) / 3.6, 0, 0.999) * 5
    low, share = levels.astype(int), (levels % 1)[..., None]
    return np.asarray(palette[low] * (1 - share) + palette[low + 1] * share)


STYLES: tuple[Callable[[np.random.Generator, Canvas, Canvas], Canvas], ...] = (
    bands,
    blobs,
    blocks,
    hills,
    lines,
    clouds,
)
