"""The cell with a runaway sample: `mixture-id`, separate models, N = 100, K = 256, run 6.

    python benchmarks/strays.py          # about 3 minutes of an H200
    python benchmarks/strays.py 1000     # after so many training steps: the score only, minutes on a CPU too

Networks know the plane where data was. Beyond, SiLU layers are linear, and nothing makes the slopes add up to one that
points back: where the composition points outward, a particle leaves for good. The result goes to
benchmarks/results/strays.md.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

import torch

import polyscore as ps
from polyscore.algebra import base_composition
from polyscore.experiments.cells import Cell
from polyscore.experiments.compute import model_of, reference_of, sample, train
from polyscore.paper import experiment

CELL = Cell("mixture-id", "separate", 100, 6, 256)
CHOSEN = experiment("mixture-id", "separate")


def strays(family: ps.Family) -> list[str]:
    """Samples beyond 50 in two precisions, and what they do to SW2."""
    lines = []
    for precision in ("tf32", "float32"):
        family.to(precision=precision)
        result = sample(CELL, family, CHOSEN, "cuda")
        reach = result.samples.norm(dim=-1)
        near, reference = reach < 50, reference_of(CELL, CHOSEN).to(result.samples)
        distances = [ps.sliced_wasserstein(x, reference) for x in (result.samples, result.samples[near])]
        lines.append(
            f"{precision}: {int((~near).sum())} of {len(near)} samples beyond 50, the farthest at {reach.max():.0f}; "
            f"SW2 {distances[0]:.2f}, without them {distances[1]:.3f}"
        )
    return lines


def outward(family: ps.Family, times: tuple[float, ...] = (0.5, 0.1, 0.01)) -> list[str]:
    """Share of directions in which the composed score points outward, by distance from the centre."""
    radii = (5, 10, 100, 1000)
    lines = [f"| outward | {' | '.join(f'|x| = {r}' for r in radii)} |", "|---" * (len(radii) + 1) + "|"]
    angles = torch.arange(720) * (2 * math.pi / 720)
    directions = torch.stack([angles.cos(), angles.sin()], -1).to(family.device)
    q = base_composition(family)
    for t in times:
        scores = [q.score(r * directions, torch.tensor(t, device=family.device)) for r in radii]
        shares = [((score * directions).sum(-1) > 0).float().mean().item() for score in scores]
        lines.append(f"| t = {t} | {' | '.join(f'{100 * share:.0f} %' for share in shares)} |")
    return lines


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else CHOSEN.protocol.train_steps
    device = "cuda" if torch.cuda.is_available() else "cpu"
    protocol = dataclasses.replace(CHOSEN.protocol, train_steps=steps)
    family = train([model_of(CELL)], dataclasses.replace(CHOSEN, protocol=protocol), device)[model_of(CELL)]
    whole = steps == CHOSEN.protocol.train_steps and device == "cuda"
    lines = [f"{torch.cuda.get_device_name()}", "", *strays(family), ""] if whole else []
    text = "\n".join([*lines, *outward(family)])
    print(text)
    if whole:
        Path("benchmarks/results/strays.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
