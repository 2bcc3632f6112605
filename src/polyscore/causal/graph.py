"""The graph of a causal model: names, parents, and an order in which every parent comes first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from polyscore.errors import NAME_LENGTH, ArgumentError, listed, nearest, require, shorten


def check_names(names: Iterable[object], subject: str = "a variable") -> None:
    """Check that names can be those of variables: printable, not too long, each once."""
    seen: set[object] = set()
    for name in names:
        good = isinstance(name, str) and name.strip() and name.isprintable() and '"' not in name
        require(good and len(str(name)) <= NAME_LENGTH, subject,
                f"be a non-empty string without quotes, printable and at most {NAME_LENGTH} characters long",
                shorten(name, 60), "Rename it.")  # fmt: skip
        require(name not in seen, subject, "be named once", shorten(name, 60), "Remove the second.")
        seen.add(name)


def check_known(names: Iterable[object], variables: Mapping[str, object], subject: str) -> None:
    """Check that names are among the variables."""
    unknown = next((name for name in names if name not in variables), None)
    if unknown is not None:
        require(False, subject, f"be one of the variables {listed(variables)}", shorten(unknown, 60),
                nearest(unknown, variables).strip() or "Add it to the model.")  # fmt: skip


def causal_order(parents: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the variables, parents before children; or say which of them stand in a circle."""
    try:
        return tuple(TopologicalSorter(parents).static_order())
    except CycleError as error:
        circle = " -> ".join(shorten(name, 60) for name in error.args[1])
        raise ArgumentError(
            f"the graph of a causal model must be acyclic; got the circle {circle}. Remove one of these edges."
        ) from None
