"""`polyscore theory`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyscore.cli import show
from polyscore.errors import visible

if TYPE_CHECKING:
    from polyscore.paper.theory import EpsilonRow, Statement

_EPSILONS = [10 ** (-k / 4) for k in range(16, -1, -1)]


def command(
    out: Annotated[Path | None, typer.Option(help="Directory for theory.json and epsilon.png.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulations.")] = 0,
    n: Annotated[int, typer.Option("-n", help="Samples behind each covariance, at least 100.")] = 4000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Check the paper's **Theorems 1 to 3**, the law of the naive SDE, and appendix B: predicted and simulated.

    Exits with code 1 if a statement does not hold.

    Example: `polyscore theory --out runs/theory`
    """
    with show.clean(), show.progress("loading", quiet=as_json) as report:
        from polyscore.errors import require
        from polyscore.files.atomic import check_directory
        from polyscore.limits import require_memory
        from polyscore.paper.theory import epsilon_example

        require(n >= 100, "n", "be at least 100", n, "A covariance from fewer samples tests nothing.")
        # 16 particles a sample in four dimensions, a position and a move of each
        require_memory(512 * n, f"{n} samples of 16 particles each", "Lower -n.")
        if out is not None:
            check_directory(out)
        found, rows = _compute(n, seed, report), epsilon_example(_EPSILONS)
        result = _result(found, rows)
        files = _write(out, result, rows) if out is not None else []
    if as_json:
        show.write_json(result | {"files": [str(path) for path in files]})
    else:
        _show(found, rows, files)
    if not result["holds"]:
        raise typer.Exit(1)


def _compute(n: int, seed: int, report: show.Tell) -> list[Statement]:
    from polyscore.paper.theory import statements

    found: list[Statement] = []
    for statement in statements(n=n, seed=seed):
        found.append(statement)
        report(len(found), 13, statement.name)
    return found


def _result(found: list[Statement], rows: list[EpsilonRow]) -> dict[str, Any]:
    return {
        "holds": all(statement.holds for statement in found),
        "statements": [statement.to_dict() for statement in found],
        "epsilon": [row._asdict() for row in rows],
    }


def _write(out: Path, result: dict[str, Any], rows: list[EpsilonRow]) -> list[Path]:
    import json

    from polyscore.files.atomic import write_text
    from polyscore.paper import pictures

    pictures.epsilon(out / "epsilon.png", rows)
    return [write_text(out / "theory.json", json.dumps(result, indent=2) + "\n"), out / "epsilon.png"]


def _show(found: list[Statement], rows: list[EpsilonRow], files: list[Path]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = show.stdout()
    table = Table(show_lines=True)
    for name in ("statement", "predicted", "simulated", "error", "holds"):
        table.add_column(name, justify="left" if name == "statement" else "right", no_wrap=name != "statement")
    for s in found:
        verdict = Text("yes", style="green") if s.holds else Text("NO", style="bold red")
        error = Text.assemble(f"{s.error:.1e}\n", (f"≤ {s.tolerance:.1e}", "dim"))
        statement = Text.assemble(f"{s.name}\n", (s.meaning, "dim"))
        table.add_row(statement, _text(s.predicted), _text(s.simulated), error, verdict)
    console.print(table)
    ends = [row for row in rows if row.epsilon in (min(_EPSILONS), 0.01, 0.1)]
    for row in ends:
        console.print(f"ε = {row.epsilon:g}: naive / exact variance {row.ode:.4g} by the ODE (the paper's law "
                      f"{row.ode_law:.4g}), {row.sde:.4g} by the SDE", soft_wrap=True)  # fmt: skip
    if files:
        console.print("wrote " + ", ".join(visible(str(path)) for path in files), soft_wrap=True)


def _text(value: Any) -> str:
    """A value in at most two columns of numbers, so that a terminal of 80 has room for the words."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        if len(value) > 2:
            return "diagonal\n" + _text([row[i] for i, row in enumerate(value)])
        return "\n".join(_text(row) for row in value)
    if isinstance(value, list):
        return (" " if len(value) <= 2 else "\n").join(f"{number:.3f}" for number in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
