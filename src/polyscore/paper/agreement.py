"""How far ours and the published agree, and the appendix's claim about separate models."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from polyscore.experiments.cells import COMPOSITION
from polyscore.experiments.experiment import Column, Experiment
from polyscore.experiments.store import Store
from polyscore.experiments.tables import stored_values, symbol
from polyscore.paper.specs import KINDS
from polyscore.paper.tables import BEYOND, Compared, PaperTable

METRICS = ("sw2", "mmd2")


@dataclass(frozen=True)
class Agreement:
    """Cells of one metric that were compared, and those beyond three combined standard errors.

    Attributes:
        published: cells that the paper has in these tables.
        compared: those with at least two runs of ours by the paper's protocol.
        beyond: those beyond three.
        runaways: cells of SW2 with a run of more than 10 times the median.
    """

    metric: str
    published: int
    compared: int
    beyond: list[tuple[PaperTable, Compared]]
    runaways: list[tuple[PaperTable, Compared]]

    @property
    def share(self) -> float | None:
        """Share of the compared cells with |z| <= 3, or None without any."""
        return 1 - len(self.beyond) / self.compared if self.compared else None

    def sentence(self) -> str:
        """Return the result as a sentence."""
        if self.share is None:
            return f"{symbol(self.metric)}: none of {self.published} published cells can be compared yet"
        within = self.compared - len(self.beyond)
        doubtful = sum(entry.z is not None and not entry.beyond for _, entry in self.runaways)
        but = f" (in {doubtful} of them a single run decides mean and error)" if doubtful else ""
        return (
            f"{symbol(self.metric)}: {within} of {self.compared} compared cells ({100 * self.share:.1f} %) within 3 "
            f"combined standard errors{but}; {self.published} published"
        )


def agreement(tables: Sequence[PaperTable]) -> list[Agreement]:
    """Return the agreement of each metric over all tables."""
    return [_agreement(metric, [table for table in tables if table.metric == metric]) for metric in METRICS]


def _agreement(metric: str, tables: list[PaperTable]) -> Agreement:
    cells = [(table, entry) for table in tables for entry in table.entries if entry.published is not None]
    compared = [(table, entry) for table, entry in cells if entry.z is not None]
    beyond = sorted((pair for pair in compared if pair[1].beyond), key=lambda pair: -abs(pair[1].z or 0.0))
    # MMD² is bounded, and near zero a multiple of the median means nothing.
    runaways = [pair for pair in cells if metric == "sw2" and pair[1].runaway is not None]
    return Agreement(metric, len(cells), len(compared), beyond, runaways)


@dataclass(frozen=True)
class Pair:
    """One target sampled from conditional and from separate models: a condition by itself, or the composition at K.

    Attributes:
        conditional, separate: one value a run, of the largest train size.
        label: the conditional experiment's, where it has one of its own.
    """

    setting: str
    target: str
    particles: int
    metric: str
    conditional: tuple[float, ...]
    separate: tuple[float, ...]
    label: str = ""

    @property
    def z(self) -> float | None:
        """(separate - conditional) over its standard error; positive when separate models are worse."""
        if min(len(self.conditional), len(self.separate)) < 2:
            return None
        spread = [statistics.pvariance(v) / len(v) for v in (self.conditional, self.separate)]
        difference = statistics.fmean(self.separate) - statistics.fmean(self.conditional)
        return difference / math.sqrt(sum(spread)) if sum(spread) else None


def claims(found: Sequence[Pair]) -> list[str]:
    """Return appendix E's claim as sentences: conditions alone, then compositions in and out of distribution."""
    known = [pair for pair in found if pair.z is not None and statistics.fmean(pair.conditional) != 0]
    groups = {
        "a condition alone": [pair for pair in known if pair.target != COMPOSITION],
        "the composition, in distribution": [pair for pair in known if _is_composed(pair, "id")],
        "the composition, out of distribution": [pair for pair in known if _is_composed(pair, "ood")],
    }
    return [_claim(name, group) for name, group in groups.items() if group]


def _is_composed(pair: Pair, where: str) -> bool:
    return pair.target == COMPOSITION and pair.setting.endswith(f"-{where}")


def _claim(name: str, group: Sequence[Pair]) -> str:
    ratios = [statistics.fmean(pair.separate) / statistics.fmean(pair.conditional) for pair in group]
    worse, better = (sum(sign * (pair.z or 0.0) > BEYOND for pair in group) for sign in (1, -1))
    return (
        f"{name}: {symbol(group[0].metric)} of separate models is {statistics.median(ratios):.2f} times that of the "
        f"conditional one (median of {len(group)}); worse by more than 3 standard errors in {worse}, better in {better}"
    )


def pairs(experiments: Sequence[Experiment], store: Store, metric: str = "sw2") -> list[Pair]:
    """Return the conditions by themselves and the compositions, conditional beside separate, setting by setting.

    Only experiments of one composition and protocol are compared, at the largest train size that both have.
    """
    found = []
    for one in experiments:
        partner = next((e for e in experiments if _is_partner(one, e)), None)
        if partner is not None:
            found += _pairs(one, partner, store, metric)
    return [pair for pair in found if pair.conditional or pair.separate]


def _is_partner(one: Experiment, other: Experiment) -> bool:
    alike = all(getattr(one, name) == getattr(other, name) for name in ("family", "source", "expression", "protocol"))
    kinds = (one.kinds, other.kinds) == KINDS
    return alike and kinds and bool(set(one.train_sizes) & set(other.train_sizes))


def _pairs(one: Experiment, many: Experiment, store: Store, metric: str) -> list[Pair]:
    size = max(set(one.train_sizes) & set(many.train_sizes))
    particles = sorted({*one.particles, *many.particles})
    targets = [(name, 1) for name in one.targets] + [(COMPOSITION, k) for k in particles]
    return [_pair(one, many, store, metric, size, target, k) for target, k in targets]


def _pair(one: Experiment, many: Experiment, store: Store, metric: str, size: int, target: str, particles: int) -> Pair:
    conditional, separate = (
        stored_values(e, store, metric, particles, Column(kind, size), target) for e, kind in zip((one, many), KINDS)
    )
    return Pair(one.family, target, particles, metric, conditional, separate, one.label)
