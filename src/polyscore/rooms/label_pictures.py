"""Pictures that the label page may show: files of one dataset's classes, and no other file of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from polyscore.errors import ArgumentError, PolyscoreError, require, shorten
from polyscore.files.regular import open_regular
from polyscore.rooms import pictures
from polyscore.rooms.dataset import Dataset
from polyscore.rooms.labels import Picture

TYPES = {".png": "image/png", ".webp": "image/webp", ".jpg": "image/jpeg"}
_LARGEST = 64 << 20  # bytes of a picture


def read_picture(folder: Path, picture: Picture) -> bytes:
    """Return a picture's file, or raise `ArgumentError`: neither names nor links lead out of the dataset."""
    name, file = picture
    plain = Path(file).name == file and file.isprintable() and not file.startswith(".")
    inside = plain and name in Dataset(folder).classes and Path(file).suffix in TYPES
    require(inside, "a picture", "be one of the dataset", shorten("/".join(picture)), "Load the page again.")
    own = Path(os.path.realpath(folder)) / name / file
    require(
        os.path.realpath(own) == str(own), "a picture", "lie in the dataset itself", shorten(file), "Copy it there."
    )
    try:
        with open(own, "rb", opener=_opened) as content:
            return content.read(_LARGEST)
    except OSError as error:
        raise ArgumentError(
            f"a picture must be readable; {shorten(file)} is not ({error.strerror}). Load the page again."
        ) from error


def _opened(path: str, flags: int) -> int:
    return open_regular(path, flags | os.O_NOFOLLOW)


def problem(folder: Path, picture: Picture, resolution: int) -> str | None:
    """Return why a picture cannot be shown as it should, or None."""
    try:
        read_picture(folder, picture)
        pictures.read(folder / picture.name / picture.file, resolution)
    except PolyscoreError as error:
        return str(error)
    return None
