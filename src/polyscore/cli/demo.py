"""`polyscore demo`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyscore.cli import show
from polyscore.errors import visible

if TYPE_CHECKING:
    from polyscore.paper.demo import Demo, LearnedDemo, Scene


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
        results = _run(parts or ["analytic", "learned"], out, seed, device, quick, report)
        seconds = round(time.perf_counter() - begin, 1)
    if as_json:
        only = next(iter(results.values())).to_dict() if len(results) == 1 else {}
        several = {name: result.to_dict() for name, result in results.items()} if len(results) > 1 else {}
        show.write_json(only | several | {"seconds": seconds, "quick": quick})
        return
    for number, result in enumerate(results.values(), 1):
        _show_scene(number, result.scene)
    for result in results.values():
        _show(result)
    if quick:
        show.stdout().print(
            "--quick: sizes far below the paper's; these distances are not its numbers.", style="yellow"
        )
    files = [visible(str(path)) for result in results.values() for path in result.files]
    show.stdout().print(f"{seconds:.0f} s; wrote " + ", ".join(files), soft_wrap=True)


def _run(
    parts: list[str], out: Path, seed: int, device: str | None, quick: bool, report: show.Report
) -> dict[str, Demo | LearnedDemo]:
    from polyscore.paper.demo import Sizes, run_demo, run_learned

    results: dict[str, Demo | LearnedDemo] = {}
    if "analytic" in parts:
        results["analytic"] = run_demo(out, seed, device, Sizes.quick() if quick else Sizes(), report)
    if "learned" in parts:
        before = [result.scene for result in results.values()]
        results["learned"] = run_learned(out, seed, device, quick, report, before)
    return results


def _show_scene(number: int, scene: Scene) -> None:
    text = f"{number}. {scene.heading}: {scene.sentence} ({visible(str(scene.path))})"
    show.stdout().print(text + "\n", soft_wrap=True, markup=False, highlight=False)


def _show(result: Demo | LearnedDemo) -> None:
    from polyscore.paper.demo import LearnedDemo

    if isinstance(result, LearnedDemo):
        _show_learned(result)
    else:
        _show_analytic(result)


def _show_learned(result: LearnedDemo) -> None:
    from rich.table import Table

    from polyscore.experiments.formats import column

    console = show.stdout()
    table = Table(title="Factorized, out of distribution: SW2 to the exact composition", title_justify="left")
    for name in ("sampler", *map(column, result.table.columns)):
        table.add_column(name, justify="left" if name == "sampler" else "right")
    for name, row in result.lines():
        table.add_row(name, *(f"{entry.mean:.2f} ± {entry.std:.2f}" for entry in row))
    table.add_section()
    table.add_row("exact", *[f"{result.floor:.2f}"] * len(result.table.columns))
    console.print(table)
    note = f"mean ± std over {result.table.runs} runs; N: training points a condition; exact: two exact draws apart. "
    ratios = ", ".join(f"{column(size)} × {ratio:.1f}" for size, ratio in result.ratios().items())
    console.print(f"{note}What correction does to the distance, K = 1 to {max(result.table.rows)}: {ratios}",
                  soft_wrap=True)  # fmt: skip


def _show_analytic(result: Demo) -> None:
    from rich.table import Table

    from polyscore.paper.demo.report import HEADER, text_row

    console = show.stdout()
    table = Table(title="Four Gaussian settings, exact scores: SW2 to the exact composition", title_justify="left")
    for name in HEADER:
        table.add_column(name, justify="left" if name == "setting" else "right")
    for before, row in zip([None, *result.rows], result.rows, strict=False):
        if before and before.setting != row.setting:
            table.add_section()
        table.add_row(*(text.removeprefix("gaussian-") for text in text_row(row)))
    console.print(table)
    console.print(f"published: mean ± std over 30 runs; the paper's: its sampler, computed here, {result.rows[0].runs} "
                  f"runs, z its difference to the published (largest {result.largest_z:.1f}); ours: FeynmanKac(K) "
                  "with its defaults", soft_wrap=True)  # fmt: skip
    for name, curve in result.diversity.items():
        most, final, ancestors = (curve[key][-1] for key in ("particles", "final", "final_ancestors"))
        console.print(
            f"{name}, K = {most:.0f} resampled: {final:.1f} different final positions, {ancestors:.1f} ancestors"
        )
