"""Tables as text: Markdown, LaTeX (booktabs alone) and CSV. A cell that is not stored is a dash."""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Sequence
from typing import Any

from polyscore.experiments.tables import METRICS, SYMBOLS, Combined, Entry, Table
from polyscore.files.atomic import printable
from polyscore.paper.agreement import Agreement, Pair, claims
from polyscore.paper.published import RUNS

DASH = "–"
_MARKDOWN = {**{c: f"\\{c}" for c in "\\`*[]|$"}, "<": "&lt;", ">": "&gt;"}
_SPECIAL = {
    **{c: rf"\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}
_LABEL = re.compile(r"[^A-Za-z0-9.:-]")
_LATEX = {"sw2": r"$\mathrm{SW}_2$", "mmd2": r"$\mathrm{MMD}^2$"}


def number(mean: float | None, std: float | None = None) -> str:
    """Return "mean ± std" with four digits, or a dash."""
    if mean is None:
        return DASH
    return f"{mean:.4f}" if std is None else f"{mean:.4f} ± {std:.4f}"


def ours(entry: Entry) -> str:
    """Return our mean ± std and the runs behind it."""
    return f"{number(entry.mean, entry.std)} ({entry.runs})" if entry.runs else DASH


def theirs(entry: Entry) -> str:
    """Return the published mean ± std."""
    return number(*entry.published) if entry.published else DASH


def z_text(z: float | None, mark: str = "**") -> str:
    """Return a z-score; one beyond 3 between marks."""
    if z is None:
        return DASH
    text = f"{z:+.1f}"
    return f"{mark}{text}{mark}" if abs(z) > 3 else text


def column(size: int) -> str:
    """Return a column's heading."""
    return f"N = {size}" if size else "analytic"


def markdown(table: Table) -> str:
    """Return a table with three lines a K: ours (runs), published, z."""
    lines = [_line(["K", "", *map(column, table.columns)]), _line(["---:", "---", *["---:"] * len(table.columns)])]
    for k, row in table.rows.items():
        lines.append(_line([str(k), "ours", *map(ours, row)]))
        lines.append(_line(["", "published", *map(theirs, row)]))
        lines.append(_line(["", "z", *(z_text(entry.z) for entry in row)]))
    heading = f"### {_plain(table.title)}, {_plain(table.models)} models: {SYMBOLS[table.metric]}"
    return "\n".join([heading, "", *lines, ""])


def markdown_combined(table: Combined) -> str:
    """Return the paper's combined table: our means, the published ones in brackets."""
    parts = [f"## {table.title}", "", "SW2, mean over the runs: ours (published), bold where |z| > 3.", ""]
    for part in table.parts:
        head = [_line(["K", *map(column, part.columns)]), _line(["---:"] * (1 + len(part.columns)))]
        rows = [_line([str(k), *map(_both, row)]) for k, row in part.rows.items()]
        parts += [f"### {_plain(part.title)} ({part.runs} runs)", "", *head, *rows, ""]
    return "\n".join(parts)


def _both(entry: Entry, mark: str = "**{}**") -> str:
    text = f"{number(entry.mean)} ({number(entry.published.mean if entry.published else None)})"
    return mark.format(text) if entry.beyond else text


def markdown_pairs(pairs: Sequence[Pair]) -> str:
    """Return conditions by themselves and compositions, conditional beside separate models."""
    head = ["setting", "target", "K", "conditional (runs)", "separate (runs)", "z of the difference"]
    lines = ["## Conditions by themselves, and composed", ""]
    for metric in METRICS:
        group = [pair for pair in pairs if pair.metric == metric]
        lines += [f"### {SYMBOLS[metric]}", "", *(f"- {claim}" for claim in claims(group)), ""]
        lines += [_line(head), _line(["---", "---", "---:", "---:", "---:", "---:"])]
        lines += [_line([*map(_plain, pair_row(pair)[:2]), *pair_row(pair)[2:]]) for pair in group]
        lines.append("")
    return "\n".join(lines)


def pair_row(pair: Pair, mark: str = "**") -> list[str]:
    """Return setting, target, K, both values and z."""
    entries = [ours(Entry(pair.particles, 0, v, None)) for v in (pair.conditional, pair.separate)]
    return [_named(pair.setting, pair.label), pair.target, str(pair.particles), *entries, z_text(pair.z, mark)]


def markdown_agreement(found: Sequence[Agreement]) -> str:
    """Return the sentences and the list of cells beyond 3."""
    lines = ["## Agreement", "", *(f"- {item.sentence()}" for item in found), ""]
    beyond = [(table, entry) for item in found for table, entry in item.beyond]
    if beyond:
        lines += [_line(["cell", "ours (runs)", "published", "z"]), _line(["---"] * 4)]
        lines += [_line([_plain(cell_name(t, e)), ours(e), theirs(e), z_text(e.z)]) for t, e in beyond]
    runaways = [_plain(text) for text in runaway_sentences(found)]
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


def cell_name(table: Table, entry: Entry) -> str:
    """Return where a cell is."""
    where = f"{_named(table.setting, table.label)}, {table.models}, {column(entry.train_size)}, K = {entry.particles}"
    return f"{SYMBOLS[table.metric]}: {where}"


def _named(setting: str, label: str) -> str:
    return f"{setting} ({label})" if label else setting


def _plain(text: str) -> str:
    """A name from somebody's spec as Markdown text: one line, no markup, no HTML."""
    return "".join(_MARKDOWN.get(character, character) for character in printable(text, 1000))


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def latex(table: Table) -> str:
    """Return a `table` environment; needs the package booktabs."""
    heads = " & ".join(["$K$", "", *(f"$N={size}$" if size else "analytic" for size in table.columns)])
    body = "\n\\addlinespace\n".join("\n".join(_latex_row(k, row)) for k, row in table.rows.items())
    name = f"{_escape(table.title)}, {_escape(table.models)} models"
    what = f"{name}: {_LATEX[table.metric]}, mean $\\pm$ standard deviation"
    return "\n".join([
        r"\begin{table}[htbp]", r"\centering", r"\small",
        rf"\caption{{{what}; ours over {table.runs} runs, published over {RUNS}. "
        r"$z$: difference in combined standard errors; bold beyond 3.}",
        rf"\label{{tab:{_LABEL.sub('-', table.name[:200])}}}", rf"\begin{{tabular}}{{rl{'c' * len(table.columns)}}}",
        r"\toprule", rf"{heads} \\", r"\midrule", body, r"\bottomrule", r"\end{tabular}", r"\end{table}", "",
    ])  # fmt: skip


def _escape(text: str) -> str:
    """A name from somebody's spec as LaTeX text."""
    return "".join(_SPECIAL.get(character, character) for character in printable(text))


def _latex_row(k: int, row: list[Entry]) -> list[str]:
    lines = (
        [str(k), "ours", *(_latex_number(e.mean, e.std) for e in row)],
        ["", "published", *(_latex_number(*(e.published or (None, None))) for e in row)],
        ["", "$z$", *(_latex_z(e) for e in row)],
    )
    return [" & ".join(line) + r" \\" for line in lines]


def _latex_number(mean: float | None, std: float | None) -> str:
    return "--" if mean is None or std is None else rf"${mean:.4f} \pm {std:.4f}$"


def _latex_z(entry: Entry) -> str:
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


def _latex_part(part: Table) -> str:
    heads = " & ".join(["$K$", *(f"$N={size}$" if size else "analytic" for size in part.columns)])
    rows = [
        " & ".join([str(k), *(_both(e, "{}*").replace(DASH, "--") for e in row)]) + r" \\"
        for k, row in part.rows.items()
    ]
    return "\n".join([
        r"\begin{minipage}[t]{0.49\textwidth}", r"\centering",
        rf"\textbf{{{_escape(part.title)}}} ({part.runs} runs)\\[2pt]",
        rf"\begin{{tabular}}{{@{{}}r{'c' * len(part.columns)}@{{}}}}", r"\toprule", rf"{heads} \\", r"\midrule", *rows,
        r"\bottomrule", r"\end{tabular}", r"\end{minipage}",
    ])  # fmt: skip


def latex_document(blocks: Sequence[str]) -> str:
    """Return a document that holds the blocks and compiles by itself."""
    head = [r"\documentclass{article}", r"\usepackage[a4paper,margin=1.2cm]{geometry}", r"\usepackage{booktabs}"]
    return "\n".join([*head, r"\begin{document}", *blocks, r"\end{document}", ""])


CSV_HEADER = ["setting", "models", "metric", "particles", "train_size", "mean", "std", "runs", "published_mean",
              "published_std", "z", "experiment"]  # fmt: skip


def csv_text(tables: Sequence[Table]) -> str:
    """Return all cells, one a line; what is missing is empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    writer.writerows(_csv_row(table, entry) for table in tables for entry in table.entries)
    return buffer.getvalue()


def _csv_row(table: Table, entry: Entry) -> list[Any]:
    where = [_cell(table.setting), _cell(table.models), table.metric, entry.particles, entry.train_size or "analytic"]
    numbers = [entry.mean, entry.std, entry.runs, *(entry.published or (None, None)), entry.z]
    return [*where, *("" if value is None else f"{value:.6g}" for value in numbers), _cell(table.experiment)]


def _cell(text: str) -> str:
    """A name as a spreadsheet shows it: one that begins like a formula would be computed."""
    text = printable(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
