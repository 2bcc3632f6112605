"""Compose what no small mixture is, and Gaussians and mixtures in more dimensions: behind docs/cure.md. One run a case.

    OMP_NUM_THREADS=1 python benchmarks/shapes.py [ring crossed t3 t5 gauss3 gauss10 gauss50 mix3 control pooled]

Targets in the plane are drawn from a fine grid. Vanilla is a small network here: the paper's takes half an hour.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

import polyscore as ps
from polyscore.paper.settings import setting
from polyscore.samplers import Auto

N = 10_000
SMALL = {"steps": 6000, "width": 128, "depth": 3, "learning_rate": 1e-3, "ema": 0.999, "progress": False}
LogDensity = Callable[[Tensor], Tensor]


def normals(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gaussian(mean: list[float], variance: float, seed: int) -> tuple[Tensor, LogDensity]:
    centre = torch.tensor(mean)
    return centre + math.sqrt(variance) * normals(
        (N, 2), seed
    ), lambda x: -(x - centre).square().sum(1) / (2 * variance)


def banana(flip: bool, seed: int) -> tuple[Tensor, LogDensity]:
    """y = x^2 / 4 - 3 with x ~ N(0, 4), 0.5 wide; or the two axes swapped."""
    z = normals((N, 2), seed)
    x = 2 * z[:, 0]
    points = torch.stack([x, x**2 / 4 - 3 + 0.5 * z[:, 1]], 1)

    def log_density(at: Tensor) -> Tensor:
        x, y = (at.flip(1) if flip else at).T
        return -(x**2) / 8 - (y - x**2 / 4 + 3) ** 2 / 0.5

    return (points.flip(1) if flip else points), log_density


def ring(seed: int) -> tuple[Tensor, LogDensity]:
    draw = torch.Generator().manual_seed(seed)
    angle, radius = 2 * math.pi * torch.rand(N, generator=draw), 4 + 0.4 * torch.randn(N, generator=draw)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    return points, lambda x: -((x.norm(dim=1) - 4) ** 2) / 0.32 - x.norm(dim=1).log()


def student(nu: float, scale: list[float], mean: list[float], seed: int) -> tuple[Tensor, LogDensity]:
    draw, wide, centre = torch.Generator().manual_seed(seed), torch.tensor(scale), torch.tensor(mean)
    z, chi = torch.randn(N, 2, generator=draw), 2 * torch._standard_gamma(torch.full((N,), nu / 2), generator=draw)
    points = centre + z * wide * (nu / chi).sqrt()[:, None]
    return points, lambda x: -(nu + 2) / 2 * torch.log1p(((x - centre) / wide).square().sum(1) / nu)


def drawn(log_density: LogDensity, seed: int, box: float) -> Tensor:
    """5000 points of a density in the plane."""
    ticks = torch.linspace(-box, box, 3201, dtype=torch.float64)
    cells = torch.cartesian_prod(ticks, ticks)
    mass = torch.softmax(torch.cat([log_density(part) for part in cells.split(1 << 20)]), 0)
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.multinomial(mass.float(), 5000, replacement=True, generator=draw)
    return (cells[chosen] + (ticks[1] - ticks[0]) * (torch.rand(5000, 2, generator=draw) - 0.5)).float()


def plane(name: str) -> None:
    if name.startswith("t"):
        nu, box = float(name[1:]), 80.0
        sources = [student(nu, [2.0, 1.0], [1.0, 0.0], 1), student(nu, [1.0, 2.0], [0.0, 1.0], 2),
                   student(nu, [2.5, 2.5], [0.0, 0.0], 3)]  # fmt: skip
    elif name == "ring":
        sources, box = [ring(1), gaussian([7.0, 0.0], 6.0, 2), gaussian([0.0, 0.0], 25.0, 3)], 14.0
    else:
        sources, box = [banana(False, 1), banana(True, 2), gaussian([0.0, 0.0], 9.0, 3)], 14.0
    names = ("a1", "a2", "base")
    densities = [log_density for _, log_density in sources]

    def target(x: Tensor) -> Tensor:
        return densities[0](x) + densities[1](x) - densities[2](x)

    data = {condition: points for condition, (points, _) in zip(names, sources, strict=True)}
    compare(name, data, drawn(target, 1, box), drawn(target, 2, box), torch.asinh if name.startswith("t") else None)


def turned(dim: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(dim, dim, generator=draw, dtype=torch.float64)).Q
    return (basis * (0.5 + 2.5 * torch.rand(dim, generator=draw, dtype=torch.float64))) @ basis.T


def closed_form(name: str) -> None:
    if name == "mix3":
        means = 4 * normals((5, 3), 0)
        parts = {"a1": ps.Mixture(means[:3], [0.4 * turned(3, k) for k in (5, 6, 7)], [0.5, 0.3, 0.2]),
                 "a2": ps.Mixture(means[1:4], 0.7), "base": ps.Mixture(means, 1.5)}  # fmt: skip
    else:
        dim = int(name[5:])
        parts = {"a1": ps.Gaussian(cov=turned(dim, 1)), "a2": ps.Gaussian(cov=turned(dim, 2)),
                 "base": ps.Gaussian(cov=4.0, dim=dim)}  # fmt: skip
    exact = ps.exact(ps.base_composition(ps.Family(parts)))
    data = {condition: member.sample(N, seed=k) for k, (condition, member) in enumerate(parts.items())}
    compare(name, data, exact.sample(5000, seed=1), exact.sample(5000, seed=2), None)


def compare(name: str, data: dict[str, Tensor], reference: Tensor, other: Tensor, change: LogDensity | None) -> None:
    """Print distances of every model and sampler."""
    change = change or (lambda x: x)

    def far(samples: Tensor) -> str:
        return f"{ps.sliced_wasserstein(change(samples), change(reference), projections=500):.3f}"

    print(f"{name}: two exact draws {far(other)}", flush=True)
    for kind in ("mixture", "structured", "vanilla"):
        began = time.process_time()
        q = ps.base_composition(ps.fit(data, kind=kind, **({"progress": False} if kind == "mixture" else SMALL)))
        seconds = time.process_time() - began
        samplers = [Auto()] if kind != "vanilla" else [ps.Denoise(), ps.FeynmanKac(16), ps.FeynmanKac(16, clip=15)]
        runs = [sampler.sample(q, 5000, seed=0, progress=False) for sampler in samplers]
        said = "; ".join(f"{run.sampler} {far(run.samples)}" for run in runs)
        print(f"{name}: {kind} ({seconds:.0f} s) {said}", flush=True)


def control() -> None:
    """The far mixture with exact scores, four particles."""
    q = ps.base_composition(setting("mixture-ood"))
    exact = ps.exact(q)
    reference = exact.sample(5000, seed=1)
    samplers = [ps.FeynmanKac(4), ps.FeynmanKac(4, pooled=True), ps.Controlled(4, bumps=0),
                ps.Controlled(4, bumps=24), ps.Controlled(4), ps.Controlled(4, bumps=24, steps=400),
                ps.FeynmanKac(16), ps.FeynmanKac(16, pooled=True)]  # fmt: skip
    for sampler in samplers:
        began = time.process_time()
        run = sampler.sample(q, 5000, seed=0, progress=False)
        print(f"control: {sampler} SW2 {ps.sliced_wasserstein(run.samples, reference, projections=500):.3f}, log Z "
              f"{run.total_log_evidence:.3f} ± {run.log_evidence_error:.3f} (exact {exact.log_evidence:.3f}), "
              f"{run.unique_ancestors.float().mean():.1f} ancestors, {time.process_time() - began:.1f} s",
              flush=True)  # fmt: skip


def pooled() -> None:
    """One output a swarm, and outputs drawn from all by their evidence: exact scores, five runs."""
    for name in ("mixture-ood", "mixture-id", "gaussian-nonfactorized-ood"):
        q = ps.base_composition(setting(name))
        exact = ps.exact(q)
        references = [exact.sample(5000, seed=100 + run) for run in range(5)]

        def far(draw, references=references) -> str:
            found = [ps.sliced_wasserstein(draw(run), x, projections=500) for run, x in enumerate(references)]
            return f"{statistics.fmean(found):.3f} ± {statistics.stdev(found) / math.sqrt(5):.3f}"

        print(f"{name}: two draws {far(lambda run, exact=exact: exact.sample(5000, seed=run))}")
        for sampler in [ps.FeynmanKac(k, threshold=0.5, pooled=on) for k in (1, 2, 4, 16, 64) for on in (False, True)]:
            said = far(lambda run, q=q, s=sampler: s.sample(q, 5000, seed=run, progress=False).samples)
            print(f"  {sampler} {said}", flush=True)


def main() -> None:
    warnings.simplefilter("ignore", ps.errors.PolyscoreWarning)
    every = ["control", "pooled", "ring", "crossed", "t3", "t5", "gauss3", "gauss10", "gauss50", "mix3"]
    for name in sys.argv[1:] or every:
        if name in ("control", "pooled"):
            {"control": control, "pooled": pooled}[name]()
        elif name.startswith(("gauss", "mix")):
            closed_form(name)
        else:
            plane(name)


if __name__ == "__main__":
    main()
