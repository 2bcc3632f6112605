"""How many steps are enough, before and after the sampler was mended: SW2 and log Z, closed form and learned.

    python benchmarks/steps.py [--runs 10] [--seconds 500] [--out DIR]      # six minutes of a GPU; a CPU with --quick

"old" is the sampler of 0.2.0 (equal times, Euler, trapezoid), "new" the default. "cut" is the old one at 500 steps with
no weight counted below t = 0.001. Learned models are conditional, N = 10,000, all settings trained as one program.
Prints Markdown; `--show` does so from a file. No spec: it measures log Z, which no set of points has, and a quadrature
of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import polyscore as ps
from polyscore.errors import PolyscoreError
from polyscore.experiments.compute import recipe_of, training_data
from polyscore.experiments.protocol import Protocol
from polyscore.paper import PROTOCOL, experiment
from polyscore.paper.settings import SETTINGS, setting
from polyscore.rng import derive
from polyscore.samplers.quadratures import QUADRATURES, Quadrature, trapezoid

OLD = {"grid": "equal", "integrator": "euler", "quadrature": "trapezoid", "start": "noise"}
NEW = {"grid": "snr", "integrator": "multistep", "quadrature": "noise", "start": "matched"}
STEPS = (25, 50, 100, 200, 500)
SIZE = 10_000


def cut(schedule: ps.Schedule, grid, extent) -> Quadrature:
    """The trapezoid without what is evaluated below t = 0.001."""
    left, right = trapezoid(schedule, grid, extent)
    return Quadrature(left, torch.where(grid.times[1:] < 1e-3, torch.zeros_like(right), right))


QUADRATURES.register("cut")(cut)


def targets() -> dict[str, ps.Composition]:
    """The six settings, and narrow, far and five-dimensional ones with W = 1 and W = 1.5."""
    mix = torch.Generator().manual_seed(1)

    def covariance(dim: int, floor: float) -> list[list[float]]:
        root = torch.randn(dim, dim, generator=mix, dtype=torch.float64) / math.sqrt(dim)
        return (root @ root.T + floor * torch.eye(dim)).tolist()

    narrow = ps.Family({"a": ps.Gaussian([2.0, 0, 1], [1e-4, 1, 0.5]), "b": ps.Gaussian([2.0, 0.5, 0], [2e-4, 0.3, 2]),
                        "c": ps.Gaussian([2.0, 0, 0], [5e-4, 2, 4])})  # fmt: skip
    far = ps.Family({"a": ps.Gaussian([30.0, 30], [4, 1]), "b": ps.Gaussian([31.0, 29], [1, 4]),
                     "c": ps.Gaussian([30.0, 30], 9.0)})  # fmt: skip
    wide = {"a": [1.0, 0, -1, 0.5, 2], "b": [0.0, 1, 0, 0.5, 1]}
    five = ps.Family(
        {name: ps.Gaussian(mean, covariance(5, 0.5)) for name, mean in wide.items()}
        | {"c": ps.Gaussian([0.0] * 5, 4.0)}
    )
    found = {name: ps.base_composition(setting(name)) for name in SETTINGS}
    for name, p in {"narrow, 3-D": narrow, "far, 2-D": far, "full, 5-D": five}.items():
        found[name] = p["a"] * p["b"] / p["c"]
    found["full, 5-D, W = 1.5"] = five["a"] * five["b"] / five["c"] ** 0.5
    return found


class Study:
    """Measurements by name, saved after each."""

    def __init__(self, file: Path, device: str, swarms: int, deadline: float) -> None:
        self.file, self.device, self.swarms, self.deadline = file, device, swarms, deadline
        self.values: dict[str, list[float]] = json.loads(file.read_text()) if file.exists() else {}

    def measure(
        self, key: str, run: int, sampler: ps.FeynmanKac, q: ps.Composition, exact: Callable, log_z: float
    ) -> None:
        """Sample, and note SW2 and the error of log Z of one run."""
        if time.monotonic() > self.deadline or len(self.values.get(key, [])) > 2 * run:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = sampler.sample(q, self.swarms, derive(1 + run, "steps"), device=self.device)
                distance = ps.sliced_wasserstein(result.samples, exact(run).to(result.samples), 1000)
                pair = [distance, result.total_log_evidence - log_z]
            except PolyscoreError:
                pair = [math.inf, math.nan]
        self.values.setdefault(key, []).extend(pair)

    def save(self) -> None:
        self.file.write_text(json.dumps(self.values))


def references(q: ps.Composition, swarms: int) -> tuple[Callable, float]:
    """Return run -> reference points, drawn once each, and log Z."""
    target = ps.exact(q)
    drawn: dict[int, torch.Tensor] = {}
    return lambda run: drawn.setdefault(run, target.sample(swarms, seed=1000 + run)), target.log_evidence


def closed_forms(study: Study, runs: int) -> None:
    for name, q in targets().items():
        exact, log_z = references(q, study.swarms)
        for run in range(runs):
            for steps in STEPS:
                for label, how in (("old", OLD), ("new", NEW)):
                    sampler = ps.FeynmanKac(16, steps, **how)
                    study.measure(f"closed|{name}|{label}|{steps}", run, sampler, q, exact, log_z)
        study.save()


def train_all(runs: int, device: str, protocol: Protocol) -> dict[tuple, ps.Family]:
    chosen = {name: experiment(name, protocol=protocol) for name in SETTINGS}
    models = [(name, "conditional", SIZE, run) for name in SETTINGS for run in range(runs)]
    seeds = [derive(protocol.first_seed + run, "train", name, kind, size) for name, kind, size, run in models]
    recipe = recipe_of("conditional", protocol, ps.VP())
    data = [training_data(model, chosen[model[0]]) for model in models]
    return dict(zip(models, ps.fit_many(data, seeds, recipe=recipe, device=device), strict=True))


def learned(study: Study, runs: int, families: dict) -> None:
    samplers = {f"{label}|{steps}": ps.FeynmanKac(16, steps, **how)
                for steps in STEPS for label, how in (("old", OLD), ("new", NEW))}  # fmt: skip
    samplers |= {
        "cut|500": ps.FeynmanKac(16, 500, **{**OLD, "quadrature": "cut"}),
        "one|100": ps.FeynmanKac(1, 100, **NEW), "one old|500": ps.FeynmanKac(1, 500, **OLD),
        "clip 15|100": ps.FeynmanKac(16, 100, 15.0, **NEW), "clip 15 old|500": ps.FeynmanKac(16, 500, 15.0, **OLD),
        "published|500": ps.FeynmanKac.published(16),
    }  # fmt: skip
    for name in SETTINGS:
        exact, log_z = references(ps.base_composition(setting(name)), study.swarms)
        for run in range(runs):
            q = ps.base_composition(families[name, "conditional", SIZE, run])
            for label, sampler in samplers.items():
                study.measure(f"learned|{name}|{label}", run, sampler, q, exact, log_z)
        study.save()


def show(values: dict[str, list[float]]) -> None:
    """Print the tables."""
    columns = [f"{label}|{steps}" for label in ("old", "new") for steps in STEPS]
    heading = "| SW2, error of log Z | " + " | ".join(c.replace("|", ", ") for c in columns) + " |"
    for kind in ("closed", "learned"):
        print(f"\n{kind}, K = 16, no clip\n\n{heading}\n|{'---|' * (len(columns) + 1)}")
        for name in dict.fromkeys(key.split("|")[1] for key in values if key.startswith(kind)):
            cells = [values.get(f"{kind}|{name}|{column}", []) for column in columns]
            print(f"| {name} | " + " | ".join(_pair(cell) if cell else "–" for cell in cells) + " |")
    others = [
        "one old|500",
        "one|100",
        "old|500",
        "cut|500",
        "new|100",
        "clip 15 old|500",
        "clip 15|100",
        "published|500",
    ]
    print("\nlearned, SW2 ± standard error; last column: new at 100 steps less cut, paired\n")
    print(
        "| setting | "
        + " | ".join(c.replace("|", ", ") for c in others)
        + " | new − cut |\n|"
        + "---|" * (len(others) + 2)
    )
    for name in dict.fromkeys(key.split("|")[1] for key in values if key.startswith("learned")):
        cells = [values.get(f"learned|{name}|{column}", [])[::2] for column in others]
        gaps = [a - b for a, b in zip(cells[4], cells[3], strict=False)]
        print(f"| {name} | " + " | ".join(map(_mean, [*cells, gaps])) + " |")


def _pair(cell: list[float]) -> str:
    return f"{statistics.fmean(cell[::2]):.3f}, {statistics.fmean(cell[1::2]):+.3f}"


def _mean(values: list[float]) -> str:
    if len(values) < 2:
        return "–"
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values) / math.sqrt(len(values)):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--closed-runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=500.0, help="begin no measurement after this")
    parser.add_argument("--out", type=Path, default=Path("runs/steps"))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--show", action="store_true", help="only print what is there")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    deadline = time.monotonic() + arguments.seconds
    study = Study(arguments.out / "steps.json", device, 200 if arguments.quick else 5000, deadline)
    if not arguments.show:
        protocol = dataclasses.replace(PROTOCOL, train_steps=50, width=32) if arguments.quick else PROTOCOL
        families = train_all(arguments.runs, device, protocol)
        print(f"trained {len(families)} models, {deadline - time.monotonic():.0f} s left", flush=True)
        learned(study, arguments.runs, families)
        print(f"learned done, {deadline - time.monotonic():.0f} s left", flush=True)
        closed_forms(study, arguments.closed_runs)
    show(study.values)


if __name__ == "__main__":
    main()
