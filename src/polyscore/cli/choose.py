"""Which experiments a command is about, and where their results live."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyscore.experiments.cells import Experiment
    from polyscore.experiments.store import Store


def known(spec: Path | None) -> dict[str, Experiment]:
    """Return the experiments of a spec file, or the paper's."""
    if spec is not None:
        from polyscore.experiments.spec import load_spec

        return load_spec(spec)
    from polyscore import paper as papers

    return {name: papers.load(name) for name in papers.names()}


def chosen(
    names: list[str], everything: bool, spec: Path | None, runs: int | None, particles: str | None, quick: bool
) -> list[Experiment]:
    """Return the experiments that the command line asks for, with its changes."""
    from polyscore.errors import require
    from polyscore.experiments import cells
    from polyscore.experiments.spec import check_size

    experiments = known(spec)
    require(bool(names) != everything, "what to run", "be NAMEs or --all", "both" if names else "neither")
    found = list(experiments.values()) if everything else [e for name in names for e in _named(name, experiments)]
    require(runs is None or runs >= 1, "--runs", "be at least 1", runs)
    changes: dict[str, Any] = {} if runs is None else {"runs": runs}
    if particles is not None:
        changes["particles"] = _counts(particles)
    found = [cells.quick(experiment) for experiment in found] if quick else found
    found = [dataclasses.replace(experiment, **changes) for experiment in found]
    for experiment in found if changes else ():
        check_size(experiment)
    return found


def _counts(text: str) -> tuple[int, ...]:
    """The particle counts of `1,4,16`, each once, the smallest first."""
    from polyscore.errors import ArgumentError, require, shorten

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.removeprefix("-").isdecimal() and len(part) < 20 for part in parts):
        raise ArgumentError(
            f"--particles must be whole numbers such as 1,4,16; got {shorten(text)}. Separate them by commas."
        )
    found = tuple(sorted({int(part) for part in parts}))
    require(found[0] >= 1, "--particles", "be at least 1", text)
    return found


def _named(name: str, experiments: dict[str, Experiment]) -> list[Experiment]:
    """An experiment by name, or both of a setting."""
    from polyscore.errors import ArgumentError, nearest, shorten

    found = [experiments[name]] if name in experiments else [e for e in experiments.values() if e.setting == name]
    if not found:
        names = dict.fromkeys([*experiments, *(e.setting for e in experiments.values())])
        raise ArgumentError(
            f"an experiment must be one of {', '.join(experiments)}; got {shorten(name)}.{nearest(name, names)}"
        )
    return found


def place(store: Path, quick: bool) -> Path:
    """Return the store's folder: quick results stay apart."""
    named = store if store.name else store.resolve()
    return named.with_name(named.name + "-quick") if quick else store


def stored(store: Path, quick: bool) -> Store:
    """Return the store to read, which must be there."""
    from polyscore.experiments.store import Store, StoreError

    folder = place(store, quick)
    if not (folder / "store.json").exists():
        raise StoreError(
            f"a store must be there to be read; {folder} is none. Fill it with `polyscore paper run`, or read the "
            "repository's own with --store results/paper."
        )
    return Store(folder)


def exceeds(chosen: list[Experiment], own: list[Experiment]) -> tuple[bool, bool]:
    """Whether runs, and particle counts, are more than the experiments' own: a report must then be asked for them."""
    both = list(zip(chosen, own, strict=True))
    return any(c.runs > o.runs for c, o in both), any(not set(c.particles) <= set(o.particles) for c, o in both)


def shows_nothing(experiments: list[Experiment], store: Store) -> bool:
    """Whether a store has no composition of the experiments: a table of them would be empty."""
    from polyscore.experiments.cells import COMPOSITION

    cells = ((cell, e) for e in experiments for cell in e.cells() if cell.target == COMPOSITION)
    return not any(cell.key(e.protocol) in store for cell, e in cells)


def left_out(experiments: list[Experiment], store: Store) -> int:
    """Return how many records of a store do not belong to the experiments as they were chosen."""
    shown = {cell.key(e.protocol) for e in experiments for cell in e.cells()}
    return len(store.records.keys() - shown)
