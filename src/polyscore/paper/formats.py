"""The paper's tables as text, ours beside the published: Markdown, LaTeX and CSV."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from polyscore.experiments.cells import ANALYTIC
from polyscore.experiments.experiment import Column, Row
from polyscore.experiments.formats import (
    DASH,
    corner,
    csv_lines,
    digits,
    escape,
    heading,
    latex_label,
    line,
    plain,
    spreadsheet,
    stub,
)
from polyscore.experiments.tables import symbol
from polyscore.paper.agreement import Agreement, Pair, claims
from polyscore.paper.published import RUNS
from polyscore.paper.tables import Combined, Compared, PaperTable, title_of

_LATEX = {"sw2": r"$\mathrm{SW}_2$", "mmd2": r"$\mathrm{MMD}^2$"}


def number(mean: float | None, std: float | None = None) -> str:
    """Return "mean ± std" with four digits, or a dash."""
    if mean is None:
        return DASH
    return f"{mean:.4f}" if std is None else f"{mean:.4f} ± {std:.4f}"


def ours(entry: Compared) -> str:
    """Return our mean ± std and the runs behind it."""
    return f"{number(entry.mean, entry.std)} ({entry.runs})" if entry.runs else DASH


def theirs(entry: Compared) -> str:
    """Return the published mean ± std."""
    return number(*entry.published) if entry.published else DASH


def z_text(z: float | None, mark: str = "**") -> str:
    """Return a z-score; one beyond 3 between marks."""
    if z is None:
        return DASH
    text = f"{z:+.1f}"
    return f"{mark}{text}{mark}" if abs(z) > 3 else text


def markdown(table: PaperTable) -> str:
    """Return a table with three lines a K: ours (runs), published, z."""
    heads = [heading(column, table) for column in table.columns]
    lines = [line([corner(table), "", *heads]), line(["---:", "---", *["---:"] * len(heads)])]
    for k, row in table.rows.items():
        lines.append(line([plain(stub(k, table)), "ours", *map(ours, row)]))
        lines.append(line(["", "published", *map(theirs, row)]))
        lines.append(line(["", "z", *(z_text(entry.z) for entry in row)]))
    title = f"### {plain(title_of(table))}, {plain(table.models)} models: {symbol(table.metric)}"
    return "\n".join([title, "", *lines, ""])


def markdown_combined(table: Combined) -> str:
    """Return the paper's combined table: our means, the published ones in brackets."""
    parts = [f"## {table.title}", "", "SW2, mean over the runs: ours (published), bold where |z| > 3.", ""]
    for part in table.parts:
        head = [line(["K", *(heading(c, part) for c in part.columns)]), line(["---:"] * (1 + len(part.columns)))]
        rows = [line([str(k), *map(_both, row)]) for k, row in part.rows.items()]
        parts += [f"### {plain(title_of(part))} ({part.runs} runs)", "", *head, *rows, ""]
    return "\n".join(parts)


def _both(entry: Compared, mark: str = "**{}**") -> str:
    text = f"{number(entry.mean)} ({number(entry.published.mean if entry.published else None)})"
    return mark.format(text) if entry.beyond else text


def markdown_pairs(pairs: Sequence[Pair]) -> str:
    """Return conditions by themselves and compositions, conditional beside separate models."""
    head = ["setting", "target", "K", "conditional (runs)", "separate (runs)", "z of the difference"]
    lines = ["## Conditions by themselves, and composed", ""]
    for metric in dict.fromkeys(pair.metric for pair in pairs):
        group = [pair for pair in pairs if pair.metric == metric]
        lines += [f"### {symbol(metric)}", "", *(f"- {claim}" for claim in claims(group)), ""]
        lines += [line(head), line(["---", "---", "---:", "---:", "---:", "---:"])]
        lines += [line([*map(plain, pair_row(pair)[:2]), *pair_row(pair)[2:]]) for pair in group]
        lines.append("")
    return "\n".join(lines)


def pair_row(pair: Pair, mark: str = "**") -> list[str]:
    """Return setting, target, K, both values and z."""
    entries = [ours(Compared(pair.particles, Column(""), v)) for v in (pair.conditional, pair.separate)]
    return [_named(pair.setting, pair.label), pair.target, str(pair.particles), *entries, z_text(pair.z, mark)]


def markdown_agreement(found: Sequence[Agreement]) -> str:
    """Return the sentences and the list of cells beyond 3."""
    lines = ["## Agreement", "", *(f"- {item.sentence()}" for item in found), ""]
    beyond = [(table, entry) for item in found for table, entry in item.beyond]
    if beyond:
        lines += [line(["cell", "ours (runs)", "published", "z"]), line(["---"] * 4)]
        lines += [line([plain(cell_name(t, e)), ours(e), theirs(e), z_text(e.z)]) for t, e in beyond]
    runaways = [plain(text) for text in runaway_sentences(found)]
    if runaways:
        lines += ["", *(f"- {text}" for text in runaways)]
    return "\n".join([*lines, ""])


def runaway_sentences(found: Sequence[Agreement]) -> list[str]:
    """Say of which cells a single run decides the mean."""
    return [
        f"{cell_name(table, entry)}: one run of {entry.runs} is {number(entry.runaway)}, the median "
        f"{number(statistics.median(entry.values))}; samples ran away, and mean, deviation and z say little"
        for item in found
        for table, entry in item.runaways
    ]


def cell_name(table: PaperTable, entry: Compared) -> str:
    """Return where a cell is."""
    where = f"{_named(table.family, table.label)}, {table.models}, {heading(entry.column, table)}, {_row(entry)}"
    return f"{symbol(table.metric)}: {where}"


def _row(entry: Compared) -> str:
    return f"K = {entry.row}" if isinstance(entry.row, int) else entry.row


def _named(setting: str, label: str) -> str:
    return f"{setting} ({label})" if label else setting


def latex(table: PaperTable) -> str:
    """Return a `table` environment; needs the package booktabs."""
    heads = " & ".join(["$K$", "", *map(_latex_heading, table.columns)])
    body = "\n\\addlinespace\n".join("\n".join(_latex_row(k, row)) for k, row in table.rows.items())
    name = f"{escape(title_of(table))}, {escape(table.models)} models"
    what = f"{name}: {_LATEX.get(table.metric, escape(table.metric))}, mean $\\pm$ standard deviation"
    return "\n".join([
        r"\begin{table}[htbp]", r"\centering", r"\small",
        rf"\caption{{{what}; ours over {table.runs} runs, published over {RUNS}. "
        r"$z$: difference in combined standard errors; bold beyond 3.}",
        latex_label(table.name), rf"\begin{{tabular}}{{rl{'c' * len(table.columns)}}}",
        r"\toprule", rf"{heads} \\", r"\midrule", body, r"\bottomrule", r"\end{tabular}", r"\end{table}", "",
    ])  # fmt: skip


def _latex_row(k: Row, row: list[Compared]) -> list[str]:
    lines = (
        [escape(str(k)), "ours", *(_latex_number(e.mean, e.std) for e in row)],
        ["", "published", *(_latex_number(*(e.published or (None, None))) for e in row)],
        ["", "$z$", *(_latex_z(e) for e in row)],
    )
    return [" & ".join(line) + r" \\" for line in lines]


def _latex_heading(column: Column) -> str:
    return f"$N={column.size}$" if column.size else column.models


def _latex_number(mean: float | None, std: float | None) -> str:
    return "--" if mean is None or std is None else rf"${mean:.4f} \pm {std:.4f}$"


def _latex_z(entry: Compared) -> str:
    if entry.z is None:
        return "--"
    return rf"$\mathbf{{{entry.z:+.1f}}}$" if entry.beyond else f"${entry.z:+.1f}$"


def latex_combined(table: Combined) -> str:
    """Return a combined table of means, two settings side by side."""
    parts = [
        _latex_part(part) + ("\\hfill" if i % 2 == 0 else "\n\n\\vspace{1em}") for i, part in enumerate(table.parts)
    ]
    what = rf"$\mathrm{{SW}}_2$, ours with the published value (over {RUNS} runs) in brackets, * beyond $|z| = 3$"
    number, _, subject = table.title.partition(": ")  # LaTeX numbers tables by itself
    caption = rf"\caption{{{subject} (the paper's {number}): {what}.}}"
    lines = [
        r"\begin{table*}[htbp]",
        r"\centering",
        r"\scriptsize",
        r"\setlength{\tabcolsep}{1.5pt}",
        caption,
        rf"\label{{tab:{table.name}}}",
    ]
    return "\n".join([*lines, *parts, r"\end{table*}", ""])


def _latex_part(part: PaperTable) -> str:
    heads = " & ".join(["$K$", *map(_latex_heading, part.columns)])
    rows = [
        " & ".join([str(k), *(_both(e, "{}*").replace(DASH, "--") for e in row)]) + r" \\"
        for k, row in part.rows.items()
    ]
    return "\n".join([
        r"\begin{minipage}[t]{0.49\textwidth}", r"\centering",
        rf"\textbf{{{escape(title_of(part))}}} ({part.runs} runs)\\[2pt]",
        rf"\begin{{tabular}}{{@{{}}r{'c' * len(part.columns)}@{{}}}}", r"\toprule", rf"{heads} \\", r"\midrule", *rows,
        r"\bottomrule", r"\end{tabular}", r"\end{minipage}",
    ])  # fmt: skip


CSV_HEADER = ["setting", "models", "metric", "particles", "train_size", "mean", "std", "runs", "published_mean",
              "published_std", "z", "experiment"]  # fmt: skip


def csv_text(tables: Sequence[PaperTable]) -> str:
    """Return all cells, one a line; what is missing is empty."""
    return csv_lines([CSV_HEADER, *(_csv_row(table, entry) for table in tables for entry in table.entries)])


def _csv_row(table: PaperTable, entry: Compared) -> list[Any]:
    where = [table.family, table.models, table.metric, entry.row, entry.column.size or ANALYTIC]
    numbers = [entry.mean, entry.std, entry.runs, *(entry.published or (None, None)), entry.z]
    return [*map(spreadsheet, map(str, where)), *map(digits, numbers), spreadsheet(table.experiment)]
