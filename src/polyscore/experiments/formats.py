"""Tables as text: Markdown, LaTeX (booktabs alone) and CSV. A cell that is not stored is a dash."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from polyscore.experiments.experiment import Column, Row
from polyscore.experiments.tables import Entry, ResultTable, symbol
from polyscore.files.atomic import printable

DASH = "–"
_MARKDOWN = {**{c: f"\\{c}" for c in "\\`*[]|$"}, "<": "&lt;", ">": "&gt;"}
_SPECIAL = {
    **{c: rf"\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "²": r"\textsuperscript{2}",
}
_LABEL = re.compile(r"[^A-Za-z0-9.:-]")
CSV_HEADER = ["experiment", "family", "expression", "model", "train_size", "sampler", "particles", "metric", "mean",
              "std", "runs"]  # fmt: skip


def shown(entry: Entry) -> str:
    """Return mean ± std and the runs behind it."""
    if entry.mean is None or entry.std is None:
        return DASH
    return f"{entry.mean:.4g} ± {_spread(entry.std) if entry.runs > 1 else DASH} ({entry.runs})"


def _spread(std: float) -> str:
    """A deviation with two digits; of a large one no exponent. One run has none."""
    return f"{std:.2g}" if std < 100 else f"{std:.0f}"


def heading(column: Column, table: ResultTable[Any]) -> str:
    """Return a column's heading: its train size, and the kind of model where there are several."""
    kinds = {other.models for other in table.columns if other.size}
    size = f"N = {column.size}" if column.size else column.models
    return f"{column.models}, {size}" if column.size and len(kinds) > 1 else size


def stub(row: Row, table: ResultTable[Any]) -> str:
    """Return a row's name: K, or the sampler's or condition's."""
    return f"K = {row}" if table.has_samplers and isinstance(row, int) else str(row)


def corner(table: ResultTable[Any]) -> str:
    """Return what stands above the rows' names."""
    if table.alone:
        return "condition"
    return "sampler" if table.has_samplers else "K"


def caption(table: ResultTable[Any]) -> str:
    """Return a table's title with its metric."""
    return f"{table.title}: {symbol(table.metric)}"


def markdown(table: ResultTable[Entry]) -> str:
    """Return a table with one line a row."""
    heads = [heading(column, table) for column in table.columns]
    lines = [line([corner(table), *map(plain, heads)]), line(["---", *["---:"] * len(heads)])]
    lines += [line([plain(stub(row, table)), *map(shown, entries)]) for row, entries in table.rows.items()]
    return "\n".join([f"### {plain(caption(table))}", "", *lines, ""])


def plain(text: str) -> str:
    """Return a name from somebody's spec as Markdown text: one line, no markup, no HTML."""
    return "".join(_MARKDOWN.get(character, character) for character in printable(text, 1000))


def line(texts: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(texts) + " |"


def latex(table: ResultTable[Entry]) -> str:
    """Return a `table` environment; needs the package booktabs."""
    heads = [corner(table), *(heading(column, table) for column in table.columns)]
    rows = [[escape(stub(row, table)), *map(_latex_entry, entries)] for row, entries in table.rows.items()]
    what = f"{escape(caption(table))}, mean $\\pm$ standard deviation over {table.runs} runs."
    return latex_table(table.name, what, "l" + "c" * len(table.columns), [[*map(escape, heads)]], rows)


def latex_table(name: str, what: str, layout: str, heads: list[list[str]], rows: list[list[str]]) -> str:
    """Return a `table` environment of texts that are LaTeX already."""
    body = [" & ".join(cells) + r" \\" for cells in rows]
    head = [" & ".join(cells) + r" \\" for cells in heads]
    return "\n".join([
        r"\begin{table}[htbp]", r"\centering", r"\small", rf"\caption{{{what}}}", latex_label(name),
        rf"\begin{{tabular}}{{{layout}}}", r"\toprule", *head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}",
        r"\end{table}", "",
    ])  # fmt: skip


def latex_label(name: str) -> str:
    """Return a label that LaTeX takes, whatever the name."""
    return rf"\label{{tab:{_LABEL.sub('-', name[:200])}}}"


def _latex_entry(entry: Entry) -> str:
    if entry.std is None:
        return "--"
    spread = f"{_spread(entry.std)}$" if entry.runs > 1 else "$ --"
    return rf"${entry.mean:.4g} \pm {spread}"


def escape(text: str) -> str:
    """Return a name from somebody's spec as LaTeX text."""
    return "".join(_SPECIAL.get(character, character) for character in printable(text))


def latex_document(blocks: Sequence[str]) -> str:
    """Return a document that holds the blocks and compiles by itself."""
    head = [r"\documentclass{article}", r"\usepackage[a4paper,margin=1.2cm]{geometry}", r"\usepackage{booktabs}"]
    return "\n".join([*head, r"\begin{document}", *blocks, r"\end{document}", ""])


def csv_lines(rows: Sequence[Sequence[Any]]) -> str:
    """Return rows as CSV; what is missing is empty."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def csv_text(tables: Sequence[ResultTable[Entry]]) -> str:
    """Return all cells, one a line."""
    return csv_lines([CSV_HEADER, *(_csv_row(table, entry) for table in tables for entry in table.entries)])


def _csv_row(table: ResultTable[Entry], entry: Entry) -> list[Any]:
    where = [table.experiment, table.family, *_csv_place(table, entry), table.metric]
    std = entry.std if entry.runs > 1 else None
    return [*map(spreadsheet, map(str, where)), *map(digits, (entry.mean, std, entry.runs))]


def _csv_place(table: ResultTable[Entry], entry: Entry) -> list[Any]:
    """Expression, model, train size, sampler and K of a cell; a condition alone is an expression by itself."""
    columns, row = [entry.column.models, entry.column.size or ""], entry.row
    if table.alone:
        return [row, *columns, "", 1]
    if isinstance(row, str):
        return [table.expression, *columns, row, table.particles[row]]
    return [table.expression, *columns, "", row]


def digits(value: float | None) -> str:
    """Return a number as CSV has it."""
    return "" if value is None else f"{value:.6g}"


def spreadsheet(text: str) -> str:
    """Return a name as a spreadsheet shows it: one that begins like a formula would be computed."""
    text = printable(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
