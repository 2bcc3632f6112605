"""The table of counts in Markdown, CSV and LaTeX: shares in per cent with intervals beside the exact masses."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from polyscore.experiments.formats import spreadsheet
from polyscore.images.counting import NONE
from polyscore.paper.images.reading import Row

HEADS = ("setting", "models", "sampled", "K", "empty", "couch", "X", "both", "none", "TV", "TV floor", "p",
         "Fréchet (floor)", "kernel ×10³", "warp ×10³", "ancestors")  # fmt: skip


def percent(value: float) -> str:
    """Return a share in per cent with one decimal."""
    return f"{100 * value:.1f}"


def _share(row: Row, name: str) -> str:
    low, high = row.interval(name)
    return f"{percent(row.share(name))} [{percent(low)}, {percent(high)}] ({percent(row.mass(name))})"


def _floor(row: Row) -> str:
    """That of the Fréchet distance, where there were rooms enough to measure one."""
    return f"{row.results['frechet floor']:.1f}" if "frechet floor" in row.results else "–"


def _thousandths(row: Row, name: str, error: str = "") -> str:
    if name not in row.results:
        return "–"
    more = f" ± {1e3 * row.results[error]:.1f}" if error in row.results else ""
    return f"{1e3 * row.results[name]:.1f}{more}"


def cells(row: Row) -> list[str]:
    """Return a row as texts under `HEADS`: each share as `ours [interval] (exact mass)`."""
    found = row.results
    models = f"{row.models} ({row.variant})" if row.variant else row.models
    return [
        row.setting, models, row.target, str(row.particles), *(_share(row, name) for name in row.classes),
        percent(row.share(NONE)), f"{found['tv']:.3f} [{found['tv_low']:.3f}, {found['tv_high']:.3f}]",
        f"{found['tv_floor']:.3f}", f"{found['p']:.2g}" if found["p"] > 6e-4 else "< 0.001",
        f"{found['frechet']:.1f} ({_floor(row)})", _thousandths(row, "kernel"),
        _thousandths(row, "warp", "warp error"), f"{found['ancestors']:.1f}",
    ]  # fmt: skip


def title(resolution: int) -> str:
    """Return the heading of a resolution's table."""
    return f"{resolution} × {resolution} pixels"


def markdown(rows: Sequence[Row], resolution: int) -> str:
    """Return the table as Markdown."""
    chosen = [cells(row) for row in rows if row.resolution == resolution]
    lines = [f"## {title(resolution)}\n", _line(HEADS), _line(["---"] * len(HEADS)), *map(_line, chosen)]
    return "\n".join(lines) + "\n"


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def csv_text(rows: Sequence[Row]) -> str:
    """Return every number of every row."""
    names = list(dict.fromkeys(name for row in rows for name in row.results))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    heads = ["resolution", "setting", "models", "variant", "train_steps", "target", "particles"]
    writer.writerow([*heads, *map(spreadsheet, names), "device", "seconds", "train_seconds"])
    for row in rows:
        place = [row.resolution, row.setting, row.models, row.variant, row.train_steps, row.target, row.particles]
        device = spreadsheet(str(row.about.get("device", "")))
        about = [device, *(row.about.get(name, "") for name in ("seconds", "train_seconds"))]
        writer.writerow([*place, *(row.results.get(name, "") for name in names), *about])
    return buffer.getvalue()


def latex(rows: Sequence[Row], resolution: int) -> str:
    """Return a table of compositions for a paper: shares with the target's above each setting."""
    chosen = [row for row in rows if row.resolution == resolution and row.composed]
    lines = ["\\begin{table}\\centering\\small", "\\begin{tabular}{llrrrrrrrr}", "\\toprule",
             "setting & models & $K$ & empty & couch & X & both & none & TV & ancestors \\\\"]  # fmt: skip
    for setting in dict.fromkeys(row.setting for row in chosen):
        own = [row for row in chosen if row.setting == setting]
        masses = [percent(own[0].mass(name)) for name in own[0].classes]
        lines += ["\\midrule", f"{setting} & \\emph{{target}} & & {' & '.join(masses)} & 0.0 & & \\\\"]
        lines += [" & ".join(_latex(row)) + " \\\\" for row in own]
    size = f"{resolution} $\\times$ {resolution}"
    caption = f"Shares in per cent of composed images, {size}; half-widths of 95\\,\\% intervals."
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", f"\\caption{{{caption}}}", "\\end{table}"]) + "\n"


def _latex(row: Row) -> list[str]:
    halves = [(row.interval(name)[1] - row.interval(name)[0]) / 2 for name in row.classes]
    shares = [
        f"{percent(row.share(name))} $\\pm$ {percent(half)}" for name, half in zip(row.classes, halves, strict=True)
    ]
    kind = f"{row.models} {row.variant}".strip().replace("_", "\\_")
    return ["", kind, str(row.particles), *shares, percent(row.share(NONE)), f"{row.results['tv']:.3f}",
            f"{row.results['ancestors']:.1f}"]  # fmt: skip
