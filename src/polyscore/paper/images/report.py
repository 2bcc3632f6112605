"""The report on images: one table in three formats, figures, claims with verdicts, and one HTML file of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyscore.errors import require
from polyscore.experiments.formats import latex_document
from polyscore.experiments.pages import Picture, render
from polyscore.experiments.report import WrittenReport
from polyscore.experiments.store import Store
from polyscore.files.atomic import check_directory, write_text
from polyscore.images import sheets
from polyscore.paper.images import figures, tables
from polyscore.paper.images.claims import Finding, findings
from polyscore.paper.images.reading import Row, rows, table
from polyscore.paper.images.settings import SETTINGS

DEFINITIONS = (
    ("setting", "id: both objects are common in the sources. ood: each source is nearly one class, as published; "
     "the target is one object or the other. ood-both: objects independent, rare in the base; the target is both."),
    ("share", "images that the classifier says are of a class, corrected for its confusion, in per cent; in square "
     "brackets a 95 % interval, in round ones the exact mass of the composition."),
    ("none", "degenerate images: less like any class than 99 % of real rooms, by the classifier's own odds."),
    ("TV", "total variation distance of the shares to the exact masses, 0 to 1, with a 95 % bootstrap interval; its "
     "floor is what a perfect sampler would show at this many images."),
    ("p", "chance of counts at least as unlike the target's, were the images drawn from it."),
    ("Fréchet, kernel", "distances in EfficientNet's features to real rooms drawn by the exact masses; the floor is "
     "that of as many other real rooms, given where the classes have rooms for both (records of version 0.6 and older "
     "give one in any case, too low where they have not). The kernel distance is centred on 0 for equal "
     "distributions."),
    ("warp", "the kernel distance within each class, averaged by counts: wrong counts do not enter."),
    ("ancestors", "starting particles that survive in a swarm of K; one image of each swarm is counted."),
)  # fmt: skip


@dataclass(frozen=True)
class ImageReport(WrittenReport):
    """The files of a report and what it found."""

    findings: dict[int, list[Finding]]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready summary."""
        told = {
            str(side): [{"where": f.claim.where, "claim": f.claim.text, "rule": f.claim.rule, "verdict": f.verdict,
                         "evidence": f.evidence} for f in found]
            for side, found in self.findings.items()
        }  # fmt: skip
        return {**super().to_dict(), "claims": told}


def write_image_report(store: Store, out: Path | str) -> ImageReport:
    """Write report.html, tables.md, tables.tex, tables.csv, claims.md and figures into `out`."""
    out = Path(out)
    check_directory(out / "figures")
    found = rows(store)
    require(
        found, "a report", "have an image's record to show", "none", "Fill the store with `polyscore images stage`."
    )
    sides = sorted({row.resolution for row in found})
    judged = {side: findings(table(found, side)) for side in sides}
    files = [
        write_text(out / "tables.md", "\n".join(tables.markdown(found, side) for side in sides)),
        write_text(out / "tables.tex", latex_document([tables.latex(found, side) for side in sides])),
        write_text(out / "tables.csv", tables.csv_text(found)),
        write_text(out / "claims.md", "\n".join(_claims(side, judged[side]) for side in sides)),
    ]
    pictures = [picture for side in sides for picture in _pictures(out / "figures", found, store, side)]
    page = render(
        "polyscore.paper.images", "report.html.j2", title="Objects in a room, counted", lead=_lead(found),
        definitions=DEFINITIONS, figures=pictures, sides=sides, heads=tables.HEADS, name=tables.title,
        rows={side: [tables.cells(row) for row in found if row.resolution == side] for side in sides},
        findings=judged, cost=_costs(found), facts=_facts(found),
    )  # fmt: skip
    return ImageReport([write_text(out / "report.html", page), *files], judged)


def _lead(found: Sequence[Row]) -> str:
    versions = ", ".join(sorted({str(row.about.get("version")) for row in found}))
    images = sum(row.total for row in found)
    return f"{len(found)} cells of {images} images in all, computed by polyscore {versions}"


def _claims(side: int, judged: Sequence[Finding]) -> str:
    lines = [f"## {tables.title(side)}\n", "| where | claim | verdict | evidence | rule |", "|---|---|---|---|---|"]
    lines += [f"| {f.claim.where} | {f.claim.text} | **{f.verdict}** | {f.evidence} | {f.claim.rule} |" for f in judged]
    return "\n".join(lines) + "\n"


def _pictures(folder: Path, found: Sequence[Row], store: Store, side: int) -> list[Picture]:
    own, pages, made = table(found, side), sheets.sheets(store), []
    if not own:
        return []
    settings = list(SETTINGS)
    if figures.grid(path := folder / f"grid-{side}.png", own, pages, settings):
        what = "Composed images, the first eight of each: settings down, models and samplers across."
        made.append(Picture.read(path, f"{tables.title(side)}. {what}"))
    figures.bars(path := folder / f"counts-{side}.png", own, settings)
    made.append(Picture.read(path, f"{tables.title(side)}. Shares of empty, couch, X, both and none, from below: the "
                             "exact target, then conditional and separate models for each K."))  # fmt: skip
    return made + [_verdict(folder, row, pages[row.key]) for row in own.values() if row.key in pages and _is_shown(row)]


def _is_shown(row: Row) -> bool:
    return row.particles in (1, 16)


def _verdict(folder: Path, row: Row, sheet: sheets.Sheet) -> Picture:
    path = folder / f"verdicts-{row.setting}-{row.models}-{row.resolution}-K{row.particles}.png"
    figures.verdicts(path, sheet, row.classes)
    what = f"{row.setting}, {row.models}, K = {row.particles}: images and the classifier's verdicts."
    return Picture.read(path, f"{tables.title(row.resolution)}. {what}")


@dataclass(frozen=True)
class _Cost:
    """A line of the page's table of costs; how many cells an experiment has in all only its spec knows."""

    name: str
    stored: int
    cells: int
    training: float
    sampling: float
    whole: float | None = None


def _costs(found: Sequence[Row]) -> list[_Cost]:
    costs = []
    for name in dict.fromkeys(map(_model, found)):
        own = [row for row in found if _model(row) == name]
        trained = max(float(row.about.get("train_seconds", 0)) for row in own)
        costs.append(_Cost(name, len(own), len(own), trained, sum(float(row.about.get("seconds", 0)) for row in own)))
    return costs


def _model(row: Row) -> str:
    return " ".join(filter(None, [row.setting, row.models, row.variant, tables.title(row.resolution)]))


def _facts(found: Sequence[Row]) -> list[tuple[str, str]]:
    """What is to be known of classifier, training and cost, from the records."""
    facts = []
    for side in sorted({row.resolution for row in found}):
        own = [row for row in found if row.resolution == side]
        accuracy, alarms = (min(row.results[name] for row in own) for name in ("accuracy", "alarms"))
        told = f"right on {100 * accuracy:.2f} % of held-out rooms or more, {100 * alarms:.1f} % of them called none"
        facts.append((f"classifier, {tables.title(side)}", f"{told}; all shares are corrected for its confusion"))
        recipe = own[0].content["recipe"]
        facts.append((f"training, {tables.title(side)}", f"{recipe.get('steps')} steps of batch {recipe.get('batch')}, "
                      f"channels {recipe.get('unet', {}).get('channels')}, on {', '.join(_devices(own))}"))  # fmt: skip
    return facts


def _devices(found: Sequence[Row]) -> list[str]:
    return sorted({str(row.about.get("device")) for row in found})
