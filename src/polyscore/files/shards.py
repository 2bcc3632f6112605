"""Rows of things cut into files that are not too large."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def cut(things: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Yield things in their order, as many at a time as have at most so many bytes; one alone may have more."""
    part, held = list[T](), 0
    for one in things:
        more = size(one)
        if part and held + more > most:
            yield part
            part, held = [], 0
        part.append(one)
        held += more
    yield part
