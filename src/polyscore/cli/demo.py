"""`polyscore demo`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyscore.cli import show

if TYPE_CHECKING:
    from polyscore.demo import Demo


def command(
    out: Annotated[Path, typer.Option(help="Directory for figures and tables.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the first run.")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; the CPU by default.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: see what comes out, believe none of it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Recompute the paper's **Figure 1** and analytic columns, beside the published values.

    Four Gaussian settings, K = 1, 4 and 16 particles, about a minute on two cores. Writes figure1.png, diversity.png,
    table.md and table.csv.

    Example: `polyscore demo --out runs/demo`
    """
    with show.clean(), show.progress("loading", quiet=as_json) as report:
        from polyscore.demo import Sizes, run_demo

        show.require_device(device)
        begin = time.perf_counter()
        result = run_demo(out, seed, device, Sizes.quick() if quick else Sizes(), report)
        seconds = time.perf_counter() - begin
    if as_json:
        show.write_json(result.to_dict() | {"seconds": round(seconds, 1), "quick": quick})
    else:
        _show(result, seconds, quick)


def _show(result: Demo, seconds: float, quick: bool) -> None:
    from rich.table import Table

    from polyscore.demo.report import HEADER, text_row

    console = show.stdout()
    table = Table(title="Gaussian settings, analytic scores: sliced W2 to the exact composition", title_justify="left")
    for name in HEADER:
        table.add_column(name, justify="left" if name == "setting" else "right")
    for before, row in zip([None, *result.rows], result.rows, strict=False):
        if before and before.setting != row.setting:
            table.add_section()
        table.add_row(*(text.removeprefix("gaussian-") for text in text_row(row)))
    console.print(table)
    console.print(f"published: mean ± std over 30 runs; ours: the paper's sampler, {result.rows[0].runs} runs; "
                  f"largest |z| {result.largest_z:.1f}; corrected: no clip", soft_wrap=True)  # fmt: skip
    for name, curve in result.diversity.items():
        most, final, ancestors = (curve[key][-1] for key in ("particles", "final", "final_ancestors"))
        console.print(
            f"{name}, K = {most:.0f} resampled: {final:.1f} different final positions, {ancestors:.1f} ancestors"
        )
    if quick:
        console.print("[yellow]--quick: sizes far below the paper's; these distances are not its numbers.[/]")
    console.print(f"{seconds:.0f} s; wrote " + ", ".join(str(path) for path in result.files), soft_wrap=True)
