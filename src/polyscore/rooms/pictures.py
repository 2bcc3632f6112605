"""Picture files of a dataset; those that are rendered carry their record, so that both are written in one step."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

from polyscore.errors import ArgumentError, require
from polyscore.files.regular import open_regular

ENDINGS = (".png", ".webp", ".jpg")
_KEY = "polyscore"
_FORMATS = ("PNG", "WEBP", "JPEG")
# What Pillow raises at files that are cut, forged, or inflate without end (a ValueError).
_DAMAGED = (OSError, ValueError, SyntaxError, EOFError, struct.error, RecursionError, zlib.error,
            Image.DecompressionBombError)  # fmt: skip


def means(images: NDArray[Any], size: int) -> NDArray[np.float32]:
    """Return images (..., H, H, C) with `size` pixels a side, each the mean of a square: a box filter."""
    *others, side, _, colours = images.shape
    squares = images.reshape(*others, size, side // size, size, side // size, colours)
    return np.asarray(squares.mean((-4, -2), dtype=np.float32))


def shrunk(images: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return images (..., H, H, C) with `size` pixels a side, the means of squares, rounded."""
    side = images.shape[-2]
    require(side % size == 0, "a resolution", "divide that of the rooms", f"{size} of {side}",
            "Render rooms of that size.")  # fmt: skip
    return images if side == size else np.rint(means(images, size)).astype(np.uint8)


def png(image: NDArray[np.uint8], record: dict[str, Any]) -> bytes:
    """Return a picture (H, W, 3) with its record as a file."""
    info, buffer = PngInfo(), io.BytesIO()
    info.add_text(_KEY, json.dumps(record, sort_keys=True))
    Image.fromarray(image).save(buffer, "PNG", pnginfo=info)
    return buffer.getvalue()


def packed(image: NDArray[np.uint8], quality: int | None) -> tuple[str, bytes]:
    """Return a picture as a small file, its ending first: JPEG, or WebP without loss where `quality` is None.

    JPEG keeps every pixel's own colour here; WebP with loss has one colour for four pixels, which small pictures show:
    at 64 x 64 its error is larger at any quality than JPEG's at 90.
    """
    buffer, made = io.BytesIO(), Image.fromarray(image)
    if quality is None:
        made.save(buffer, "WEBP", lossless=True, method=6)
        return ".webp", buffer.getvalue()
    made.save(buffer, "JPEG", quality=quality, subsampling=0, optimize=True)
    return ".jpg", buffer.getvalue()


def record(path: Path, side: int | None = None) -> dict[str, Any] | None:
    """Return the record inside a PNG, or None where there is none, or no whole picture: a record comes first in it.

    Args:
        side: pixels that it must have a side, in RGB; None for any.
    """
    try:
        with open(path, "rb", opener=open_regular) as file, Image.open(file, formats=["PNG"]) as opened:
            found = json.loads(opened.info.get(_KEY, "null"))
            good = side is None or (opened.size == (side, side) and opened.mode == "RGB")
            opened.verify()
    except _DAMAGED:
        return None
    return found if isinstance(found, dict) and good else None


def read(path: Path, resolution: int) -> NDArray[np.uint8]:
    """Return a picture (resolution, resolution, 3), or say what is wrong with the file."""
    try:
        with open(path, "rb", opener=open_regular) as file, Image.open(file, formats=_FORMATS) as opened:
            if opened.size != (resolution, resolution) or opened.mode != "RGB":
                raise ArgumentError(
                    f"a picture must have {resolution} x {resolution} pixels in RGB; {str(path)!r} has "
                    f"{opened.width} x {opened.height} in {opened.mode}. Convert it, or take it out."
                )
            return np.asarray(opened, dtype=np.uint8)
    except ArgumentError:
        raise
    except _DAMAGED as error:
        why = "no picture" if isinstance(error, UnidentifiedImageError) else error
        raise ArgumentError(f"a picture must be readable; {str(path)!r} is not ({why}). Make it again.") from error
