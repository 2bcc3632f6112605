"""Learned scores: the plain algorithm of the paper and this library in one run: seconds, ratio, distance to the floor.

    python benchmarks/learned.py                 # on a GPU: the paper's sizes (about three minutes)
    python benchmarks/learned.py --small         # on a CPU: the same program, scaled down

The plain side is eager float32, one model at a time. Floors on an H200: the hidden layers' products at the 790 TFLOP/s
that a large fp16 product reaches there; for training, the same products three times over at half that rate (TF32).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar
from unittest import mock

import plain
import torch
from torch import Tensor, nn

import polyscore as ps
from polyscore.fields import evaluators
from polyscore.nn.fast import plane

GAUSSIANS = {"a1": ps.Gaussian(cov=[10, 1]), "a2": ps.Gaussian(cov=[1, 10]), "base": ps.Gaussian(cov=1.0)}


def timed(*works: Callable[[], object], repeats: int = 1) -> list[float]:
    """Median seconds of each, device work included, in turns: a machine that slows down slows all of them."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, column in zip(works, seconds, strict=True):
            _sync()
            start = time.perf_counter()
            work()
            _sync()
            column.append(time.perf_counter() - start)
    return [statistics.median(column) for column in seconds]


def _sync() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def plain_network(device: str) -> nn.Module:
    sizes = [6, 512, 512, 512, 512]
    layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.SiLU())]
    return nn.Sequential(*layers, nn.Linear(512, 2)).to(device)


def plain_training(data: dict[str, Tensor], steps: int, device: str) -> nn.Module:
    """One conditional model, 170 points per condition, eager float32."""
    net = plain_network(device)
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-4)
    pools = [points.to(device) for points in data.values()]
    onehot = torch.eye(len(pools), device=device).repeat_interleave(170, 0)
    for _ in range(steps):
        x0 = torch.cat([pool[torch.randint(len(pool), (170,), device=device)] for pool in pools])
        t = torch.rand(len(x0), 1, device=device)
        alpha = torch.exp(-0.5 * (0.1 * t + 9.95 * t * t))
        eps = torch.randn_like(x0)
        noisy = alpha * x0 + (1 - alpha * alpha).sqrt() * eps
        loss = (net(torch.cat([t, noisy, onehot], 1)) - eps).square().sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net


def plain_scores(net: nn.Module) -> plain.Scores:
    def scores(x: Tensor, t: float) -> list[Tensor]:
        sigma = math.sqrt(1 - plain.alpha(t) ** 2)
        out = []
        for a in range(3):
            hot = torch.zeros(*x.shape[:-1], 3, device=x.device)
            hot[..., a] = 1
            time_column = torch.full_like(x[..., :1], t)
            out.append(-net(torch.cat([time_column, x, hot], -1)) / sigma)
        return out

    return scores


@torch.no_grad()
def plain_cell(scores: plain.Scores, swarms: int, particles: int, steps: int, device: str) -> None:
    plain.sample(scores, [1, 1, -1], swarms, particles, steps=steps, device=device)


def training_rows(device: str, small: bool, full: bool) -> list[dict[str, object]]:
    """Seconds for 20,000 steps: one plain model, and many of ours in one program."""
    models, probe = (4, 40) if small else (90, 200)
    sizes = [100, 1000, 10_000]
    datasets = [_data(sizes[m % 3], seed=m) for m in range(models)]
    plain_training(datasets[2], 20, device)
    steps = 20_000 if full else probe
    ps.fit_many(
        datasets, range(models), kind="vanilla", device=device, steps=20
    )  # compiles kernels, which is no part of a step
    one, set_up, ours = timed(
        lambda: plain_training(datasets[2], probe, device),
        lambda: ps.fit_many(datasets, range(models), kind="vanilla", device=device, steps=20),
        lambda: ps.fit_many(datasets, range(models), kind="vanilla", device=device, steps=steps),
        repeats=3 if small else 1,
    )
    one /= probe
    ours = ours / steps if full else max(ours - set_up, 1e-9) / (steps - 20)
    parameters = 6 * 512 + 3 * 512 * 512 + 2 * 512
    floor = models * 6 * parameters * 510 / 395e12
    scale = 20_000
    return [
        _row("train 1 model, plain, 20,000 steps" + ("" if full else " (extrapolated)"), one * scale),
        _row(f"train {models} models, ours, 20,000 steps" + ("" if full else " (extrapolated)"), ours * scale,
             one * models / ours, None if small else floor * scale),
    ]  # fmt: skip


def sampling_rows(device: str, small: bool) -> list[dict[str, object]]:
    """Seconds of one cell at every K."""
    swarms, steps, counts = (500, 20, (1, 4, 16)) if small else (5000, 500, (1, 4, 16, 64, 256))
    # On a GPU long enough for a smooth network, which tables need; a CPU at this scale reads none.
    family = ps.fit(_data(10_000, 0), kind="vanilla", device=device, steps=20 if small else 3000).to(precision="fp16")
    q = family["a1"] * family["a2"] / family["base"]
    scores = plain_scores(plain_network(device))
    rows: list[dict[str, object]] = []
    for particles in counts:
        sampler = ps.FeynmanKac.published(particles, steps=steps)
        sampler.sample(q, swarms, seed=0, device=device)
        floor = 2 * 3 * swarms * particles * 3 * 512 * 512 * steps / 790e12
        # Every plain step costs the same: at large K a tenth of them suffices.
        shorter = 10 if particles >= 64 else 1
        base, ours = timed(
            partial(plain_cell, scores, swarms, particles, steps // shorter, device),
            partial(sampler.sample, q, swarms, seed=1, device=device),
            repeats=5 if small else 3 if particles < 16 else 1,
        )
        base *= shorter
        scaled = f" ({steps // shorter} of {steps} steps, scaled)" if shorter > 1 else ""
        rows.append(_row(f"sample K = {particles}, plain{scaled}", base))
        rows.append(_row(f"sample K = {particles}, ours", ours, base / ours, None if small else floor))
        if swarms * particles >= plane.WORTHWHILE:
            rows.append(table_row(q, sampler, device, base))
        if particles == 256:
            rows.append(other_work_row(particles, ours))
    return rows


def table_row(q: ps.Composition, sampler: ps.FeynmanKac, device: str, base: float) -> dict[str, object]:
    """Seconds of the same cell by table: nodes are evaluated, particles interpolated."""
    q.family.to(precision="auto")
    used = sampler.sample(q, 5000, seed=0, device=device).arithmetic
    [seconds] = timed(partial(sampler.sample, q, 5000, seed=1, device=device), repeats=3)
    q.family.to(precision="fp16")
    return _row(f"sample K = {sampler.particles}, ours, by {used}", seconds, base / seconds)


class Silent(evaluators.Evaluator):
    """Stands for the network's kernels: hands out noise that is there already, at no cost."""

    arithmetic = "fp16"
    answers: ClassVar[dict[tuple[int, ...], Tensor]] = {}

    def __init__(self, case: evaluators.Case, below: evaluators.Evaluator | None) -> None:
        self.conditions = case.network.conditions

    @staticmethod
    def serves(case: evaluators.Case) -> bool:
        return True

    def __call__(self, x: Tensor, i: int | Tensor) -> Tensor:
        if x.shape not in self.answers:
            self.answers[x.shape] = torch.randn(self.conditions, *x.shape, device=x.device)
        return self.answers[x.shape]


def other_work_row(particles: int, cell_seconds: float) -> dict[str, object]:
    """Seconds of a cell without its network: moves, residual, resampling, bookkeeping."""
    family = ps.fit(_data(100, 0), kind="vanilla", device="cuda", steps=2).to(precision="fp16")
    q = family["a1"] * family["a2"] / family["base"]
    sampler = ps.FeynmanKac.published(particles)
    with mock.patch.object(evaluators, "EVALUATORS", (Silent, evaluators.Float32)):
        sampler.sample(q, 5000, seed=0, device="cuda")
        [seconds] = timed(partial(sampler.sample, q, 5000, seed=1, device="cuda"), repeats=3)
    return _row(f"K = {particles} without its network ({100 * seconds / cell_seconds:.0f} % of the cell)", seconds)


def metric_rows(device: str) -> list[dict[str, object]]:
    x, y = torch.randn(5000, 2, device=device), torch.randn(5000, 2, device=device)
    ps.sliced_wasserstein(x, y)
    ps.mmd2(x, y)
    sw2, mmd = timed(lambda: ps.sliced_wasserstein(x, y, seed=1), lambda: ps.mmd2(x, y), repeats=5)
    return [_row("sliced W2, 5000 against 5000", sw2), _row("MMD^2, 5000 against 5000", mmd)]


def _data(size: int, seed: int) -> dict[str, Tensor]:
    return {name: d.sample(size, seed=1000 * seed + i) for i, (name, d) in enumerate(GAUSSIANS.items())}


def _row(what: str, seconds: float, ratio: float | None = None, floor: float | None = None) -> dict[str, object]:
    return {"what": what, "seconds": seconds, "ratio": ratio, "floor": floor}


def show(rows: list[dict[str, object]]) -> str:
    lines = ["| what | seconds | times faster | floor, s | times the floor |", "|---|---|---|---|---|"]
    for row in rows:
        ratio = f"{row['ratio']:.1f}" if row["ratio"] else ""
        floor = f"{row['floor']:.2f}" if row["floor"] else ""
        gap = f"{row['seconds'] / row['floor']:.2f}" if row["floor"] else ""
        lines.append(f"| {row['what']} | {row['seconds']:.4f} | {ratio} | {floor} | {gap} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="scaled down, for a CPU")
    parser.add_argument("--full-training", action="store_true", help="train all 20,000 steps instead of extrapolating")
    parser.add_argument("--out", type=Path, help="write the table (Markdown) and the rows (JSON) here")
    arguments = parser.parse_args()
    device = "cpu" if arguments.small or not torch.cuda.is_available() else "cuda"
    torch.set_float32_matmul_precision("highest")
    name = (
        torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    head = f"{time.strftime('%Y-%m-%d')}, {name}, torch {torch.__version__}, Python {platform.python_version()}"
    rows = metric_rows(device)
    print(show(rows), flush=True)
    rows += sampling_rows(device, arguments.small)
    print(show(rows), flush=True)
    rows += training_rows(device, arguments.small, arguments.full_training)
    text = f"{head}\n\n{show(rows)}\n"
    print(text)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "learned.md").write_text(text)
        (arguments.out / "learned.json").write_text(json.dumps({"about": head, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
