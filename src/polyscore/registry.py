"""Names that stand for things a user can add: distributions, networks, schedules, samplers, metrics.

    KINDS = Registry[type[Shape]]("a shape", {"circle": Circle})

    @KINDS.register("square")            # from anywhere, before the name is used
    class Square(Shape): ...

A name that files, specs and the command line may hold is looked up here and nowhere else; one that is not known is told
apart from one that is misspelt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from polyscore.errors import ArgumentError, listed, require_known, shorten

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """A mapping from name to entry that grows; looking up what it does not hold says what it does.

    Args:
        what: one of its entries in a message, such as "a schedule's kind".
        entries: those that are there from the beginning.
        hint: what to do about a name that is not known, where none is near.
    """

    def __init__(self, what: str, entries: Mapping[str, T] | None = None, hint: str = "Choose one of these.") -> None:
        self.what, self.hint = what, hint
        self._entries: dict[str, T] = dict(entries or {})

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that adds what it decorates; the same thing may be added twice, another may not."""
        if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 100:
            raise ArgumentError(f"{self.what} must be a short printable name; got {shorten(name)}. Choose another.")

        def add(entry: T) -> T:
            known = self._entries.get(name, entry)
            # A module that is imported again, by a notebook or a worker, defines the same class anew.
            if known is not entry and _origin(known) != _origin(entry):
                raise ArgumentError(f"{self.what} must have a name of its own; got {name!r} again. Choose another.")
            self._entries[name] = entry
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        require_known(name, self._entries, self.what, self.hint)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"{self.what}: {listed(self._entries, 30, str)}"


def _origin(entry: object) -> tuple[object, object]:
    """Where an entry was defined; a lambda or closure has only itself, since many are defined in one place."""
    name = getattr(entry, "__qualname__", entry)
    many = not isinstance(entry, type) and ("<lambda>" in str(name) or "<locals>" in str(name))
    return getattr(entry, "__module__", entry), entry if many else name
