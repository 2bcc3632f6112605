"""What the fault suite did and what it found, said at the end of a run, under xdist too.

A test counts the attacks it made and what became of them; `lost`, `wrong` and `let_in` also fail the test:

    tally.add("kills", 3)
    tally.lost(before - after)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from typing import Any

import pytest

KINDS = ("kills", "stops", "truncations", "flips", "full disks", "two writers", "three writers", "dead locks",
         "foreign locks", "forged records", "forged files", "links", "names", "bombs")  # fmt: skip
HARMS = ("lost", "wrong", "let in")
_counts: Counter[str] = Counter()


class Tally:
    """Counts of one process."""

    def add(self, kind: str, count: int = 1) -> None:
        """Count attacks."""
        assert kind in KINDS, kind
        _counts[kind] += count

    def lost(self, found: Sized) -> None:
        """What was stored and is gone."""
        self._harm("lost", found)

    def wrong(self, found: Sized) -> None:
        """What was read as something else."""
        self._harm("wrong", found)

    def let_in(self, found: Sized) -> None:
        """What was believed, written or raised that should have been refused by name."""
        self._harm("let in", found)

    def _harm(self, kind: str, found: Sized) -> None:
        _counts[kind] += len(found)
        assert not found, f"{kind}: {list(found)[:5]}"  # type: ignore[call-overload]


def sentence(counts: Counter[str]) -> str:
    """Return what was counted, in words."""
    done = ", ".join(f"{counts[kind]:,} {kind}" for kind in KINDS if counts[kind])
    return f"{done}; " + ", ".join(f"{kind} {counts[kind]}" for kind in HARMS)


@pytest.fixture
def tally() -> Tally:
    return Tally()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    """Take over what a worker of xdist counted."""
    _counts.update(getattr(node, "workeroutput", {}).get("faults", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["faults"] = dict(_counts)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if any(_counts[kind] for kind in KINDS):
        terminalreporter.section("faults")
        terminalreporter.line(sentence(_counts))
