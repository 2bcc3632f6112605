"""What a report says in words: whose paper it reproduces, what its letters mean, and what its tables show."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from polyscore.experiments.formats import heading
from polyscore.experiments.tables import Entry, symbol
from polyscore.paper.agreement import Agreement
from polyscore.paper.tables import BEYOND, Compared, PaperTable

PAPER = (
    "Duncan Soiffer, Chandler Squires, Yuan Guan, Jason Hartford, Pradeep Ravikumar: "
    "Catastrophic Compositional Generation: Why Vanilla Diffusion Models Fail to Extrapolate"
)
DEFINITIONS = (
    ("composition", "a new distribution made of known ones, here always a1 · a2 / base: what both conditions add to "
     "the base, together. A diffusion model samples it by adding its scores (the slopes of log-densities), which is "
     "in general not exact at the noise levels on the way."),
    ("K", "particles a swarm: so many candidates for one sample move together, and Feynman–Kac correction keeps those "
     "that the composition prefers. K = 1 is the naive sampler, without any correction."),
    ("N", "training points a condition; \"analytic\" stands for exact scores, with nothing learned."),
    ("SW2", "sliced Wasserstein distance: how far samples must be moved to become samples of the exact composition, "
     "seen from many directions, in the data's units. Smaller is better; even two exact draws are not at 0, since "
     "they are finite."),
    ("MMD²", "squared maximum mean discrepancy: another distance, that compares how many neighbours points have. It "
     "is 0 for equal distributions, at most 2, and hardly notices how far away a stray point is."),
    ("ID", "in distribution: the composition lies where the conditions have training points."),
    ("OOD", "out of distribution: it lies where they have few or none, so that learned scores are guesses there."),
)  # fmt: skip
_GROUPS = (("exact scores", ""), ("learned scores, in distribution", "-id"),
           ("learned scores, out of distribution", "-ood"))  # fmt: skip
_LOWER, _HIGHER, _ALIKE = "lowers", "raises", "leaves"

Ends = tuple[str, Compared, Compared]


def conclusion(filled: Sequence[PaperTable], found: Sequence[Agreement]) -> list[str]:
    """Return what the tables show: correction with exact and with learned scores, and the agreement."""
    told = {name: _told(name, list(_ends(filled, suffix))) for name, suffix in _GROUPS}
    shares = [
        f"{symbol(item.metric)}: {item.compared - len(item.beyond)} of {item.compared}"
        for item in found
        if item.compared
    ]
    agree = [f"Cells that agree with the published ones (within 3 combined standard errors): {', '.join(shares)}."]
    return [text for text in told.values() if text] + (agree if shares else [])


def outcome(first: Entry, last: Entry) -> str:
    """Return what correction does between two K; a difference counts beyond three standard errors."""
    error = math.sqrt(sum(statistics.pvariance(e.values) / e.runs for e in (first, last)))
    difference = statistics.fmean(last.values) - statistics.fmean(first.values)
    if abs(difference) <= BEYOND * error:
        return _ALIKE
    return _LOWER if difference < 0 else _HIGHER


def _ends(filled: Iterable[PaperTable], suffix: str) -> Iterable[Ends]:
    """Yield (where, entry at the least K, at the largest) of every column with two runs or more at both.

    Without a suffix the analytic columns, once a setting; with one the learned columns of its settings.
    """
    seen: set[str] = set()
    for table in filled:
        if table.metric != "sw2" or not table.family.endswith(suffix):
            continue
        for index, column in enumerate(table.columns):
            entries = [row[index] for k, row in table.rows.items() if row[index].runs > 1 and isinstance(k, int)]
            name = f"{table.experiment}, {heading(column, table)}" if column.size else table.label or table.family
            if bool(column.size) == bool(suffix) and len(entries) > 1 and name not in seen:
                seen.add(name)
                yield name, entries[0], entries[-1]


def _told(group: str, ends: Sequence[Ends]) -> str:
    """A sentence on one group: how many columns correction lowers, raises or leaves, and the median ratio."""
    if not ends:
        return ""
    kinds = [outcome(first, last) for _, first, last in ends]
    counts = {kind: kinds.count(kind) for kind in (_LOWER, _HIGHER, _ALIKE)}
    ratios = [(last.mean or 0.0) / (first.mean or 1.0) for _, first, last in ends]
    rows = [entry.row for _, *both in ends for entry in both if isinstance(entry.row, int)]
    least, most = min(rows), max(rows)
    said = (
        f"lowers SW2 in {counts[_LOWER]}, raises it in {counts[_HIGHER]} and makes no clear difference in "
        f"{counts[_ALIKE]}"
    )
    where = "settings" if group == _GROUPS[0][0] else "columns (experiment and N)"
    return (
        f"With {group}, correction (K = {least} to {most}) {said} of {len(ends)} {where}; SW2 changes by a factor of "
        f"{statistics.median(ratios):.2f} in the median, {min(ratios):.2f} to {max(ratios):.2f}.{_so(group, counts)}"
    )


def _so(group: str, counts: dict[str, int]) -> str:
    """What follows for a reader, where the counts are one-sided enough to say it."""
    lower, higher = counts[_LOWER], counts[_HIGHER]
    if group == _GROUPS[0][0] and lower and not higher:
        return " Where scores are exact, correction helps or does nothing."
    if group == _GROUPS[2][0] and higher > lower:
        return " Where networks must guess, it mostly follows their errors."
    return ""
