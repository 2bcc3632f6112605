"""Draw what docs/cure.md shows: exact, vanilla corrected, default fit, side by side, out of distribution.

    OMP_NUM_THREADS=1 python benchmarks/pictures.py

The vanilla network is small here (3 x 128, 6000 steps), as in `specs/shapes.yaml`.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import matplotlib
import torch
from torch import Tensor

import polyscore as ps
from polyscore.paper.settings import setting

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "specs"))
import cases  # noqa: E402

SMALL = {"kind": "vanilla", "steps": 6000, "width": 128, "depth": 3, "learning_rate": 1e-3, "ema": 0.999}


def panels(family: ps.Family) -> dict[str, Tensor]:
    """Points to draw by title: sources, exact, and what models make of their product."""
    data = {name: member.sample(10_000, seed=k) for k, (name, member) in enumerate(family.members.items())}
    reference = ps.exact(ps.base_composition(family)).sample(5000, seed=1)
    vanilla = ps.base_composition(ps.fit(data, seed=0, progress=False, **SMALL))
    default = ps.base_composition(ps.fit(data, seed=0, progress=False))
    drawn = {"vanilla, scores added": ps.Denoise().sample(vanilla, 5000, progress=False).samples,
             "vanilla, corrected (K = 16)": ps.FeynmanKac(16).sample(vanilla, 5000, progress=False).samples,
             "ps.fit and ps.auto": ps.auto(default).sample(default, 5000, progress=False).samples}  # fmt: skip
    far = {title: ps.sliced_wasserstein(points, reference) for title, points in drawn.items()}
    sources = torch.cat([points[:1500] for points in data.values()])
    return {"the data, all sources": sources, "exact": reference} | {
        f"{title}\nSW2 {far[title]:.2f}": points for title, points in drawn.items()
    }


def draw(family: ps.Family, path: Path) -> None:
    shown = panels(family)
    wide = torch.cat(list(shown.values())[:2])
    low, high = torch.quantile(wide, 0.001, 0) - 1.5, torch.quantile(wide, 0.999, 0) + 1.5
    figure, axes = plt.subplots(1, len(shown), figsize=(3 * len(shown), 3.2), sharex=True, sharey=True)
    for axis, (title, points) in zip(axes, shown.items(), strict=True):
        axis.scatter(*points[:2500].T, s=2, alpha=0.35, linewidths=0, color="0.55" if "data" in title else "C0")
        axis.set_title(title, fontsize=9)
        axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    figure.tight_layout()
    figure.savefig(path, dpi=90, bbox_inches="tight")


def main() -> None:
    warnings.simplefilter("ignore", ps.errors.PolyscoreWarning)
    places = HERE.parent / "docs" / "pictures"
    draw(setting("mixture-ood"), places / "cure-mixture.png")
    draw(cases.bananas(), places / "cure-bananas.png")


if __name__ == "__main__":
    main()
