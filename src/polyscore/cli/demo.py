"""`polyscore demo`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyscore.cli import show
from polyscore.errors import visible

if TYPE_CHECKING:
    from polyscore.paper.demo import Demo, ExactPart, LearnedPart, Scene


def command(
    out: Annotated[Path, typer.Option(help="Directory for report, figures and tables.")] = Path("runs/demo"),
    analytic: Annotated[bool, typer.Option("--analytic", help="Only the part with analytic scores.")] = False,
    learned: Annotated[bool, typer.Option("--learned", help="Only the part with learned scores.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the first run.")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; the CPU by default.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: see what comes out, believe none of it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """See composition **repaired and failing**: naive, Feynman–Kac and exact side by side, in about a minute.

    First with exact scores, at the paper's own sizes: a composition that adding scores misses, repaired by correction;
    and the analytic columns of the paper's four Gaussian settings beside the published values. Then with scores learned
    on the spot, out of distribution, where correction makes things worse; with tables, figures and report.html.

    Example: `polyscore demo --out runs/demo`
    """
    parts = [name for name, wanted in (("analytic", analytic), ("learned", learned)) if wanted]
    with show.clean(), show.progress("loading", quiet=as_json) as report:
        show.require_device(device)
        begin = time.perf_counter()
        from polyscore.paper.demo import run_demo

        demo = run_demo(out, seed, device, quick, report, parts or ("analytic", "learned"))
        seconds = round(time.perf_counter() - begin, 1)
    if as_json:
        show.write_json(_summary(demo) | {"seconds": seconds, "quick": quick})
        return
    for number, part in enumerate(demo.parts.values(), 1):
        _show_scene(number, part.scene)
    if demo.analytic:
        _show_analytic(demo.analytic)
    if demo.learned:
        _show_learned(demo.learned)
    if quick:
        show.stdout().print(
            "--quick: sizes far below the paper's; these distances are not its numbers.", style="yellow"
        )
    files = [visible(str(path)) for path in (*(f for part in demo.parts.values() for f in part.files), *demo.report)]
    show.stdout().print(f"{seconds:.0f} s; wrote " + ", ".join(files), soft_wrap=True)


def _summary(demo: Demo) -> dict[str, Any]:
    """One part's description, or several by name."""
    described = {name: part.to_dict() for name, part in demo.parts.items()}
    return next(iter(described.values())) if len(described) == 1 else described


def _show_scene(number: int, scene: Scene) -> None:
    text = f"{number}. {scene.heading}: {scene.sentence} ({visible(str(scene.path))})"
    show.stdout().print(text + "\n", soft_wrap=True, markup=False, highlight=False)


def _show_learned(result: LearnedPart) -> None:
    from rich.table import Table

    from polyscore.experiments.formats import heading

    console = show.stdout()
    table = Table(title="Factorized, out of distribution: SW2 to the exact composition", title_justify="left")
    for name in ("sampler", *(heading(column, result.table) for column in result.table.columns)):
        table.add_column(name, justify="left" if name == "sampler" else "right")
    for name, row in result.lines():
        table.add_row(name, *(f"{entry.mean:.2f} ± {entry.std:.2f}" for entry in row))
    table.add_section()
    table.add_row("exact", *[f"{result.floor:.2f}"] * len(result.table.columns))
    console.print(table)
    note = f"mean ± std over {result.table.runs} runs; N: training points a condition; exact: two exact draws apart. "
    names = {size: f"N = {size}" if size else "analytic" for size in result.ratios()}
    ratios = ", ".join(f"{names[size]} × {ratio:.1f}" for size, ratio in result.ratios().items())
    console.print(f"{note}What correction does to the distance, K = 1 to {list(result.table.rows)[-1]}: {ratios}",
                  soft_wrap=True)  # fmt: skip


def _show_analytic(result: ExactPart) -> None:
    from rich.table import Table

    from polyscore.paper.demo.exact_part import HEADER

    console = show.stdout()
    table = Table(title="Four Gaussian settings, exact scores: SW2 to the exact composition", title_justify="left")
    for name in HEADER:
        table.add_column(name, justify="left" if name == "setting" else "right")
    for before, row in zip([None, *result.rows], result.rows, strict=False):
        if before and before.setting != row.setting:
            table.add_section()
        table.add_row(*(text.removeprefix("gaussian-") for text in row.texts()))
    console.print(table)
    console.print(f"published: mean ± std over 30 runs; the paper's: its sampler, computed here, {result.rows[0].runs} "
                  f"runs, z its difference to the published (largest {result.largest_z:.1f}); ours: FeynmanKac(K) "
                  "with its defaults", soft_wrap=True)  # fmt: skip
    for name, curve in result.diversity.items():
        most, final, ancestors = (curve[key][-1] for key in ("particles", "final", "final_ancestors"))
        console.print(
            f"{name}, K = {most:.0f} resampled: {final:.1f} different final positions, {ancestors:.1f} ancestors"
        )
