"""A network of one's own in `ps.Learned`: the plain loop and this library in one run, and what the shortcuts change.

    python benchmarks/learned_module.py --device cuda     # 4 x 512, K = 16 and 256, 500 steps: two minutes
    python benchmarks/learned_module.py --device cpu      # six networks, K = 1 to 64, in turns: ten minutes

The network is the usual one: four hidden layers of 512, SiLU, told time and an embedding of the condition, trained
briefly here; on a CPU others beside it (`KINDS`), small ones, ReLUs, one untrained. The plain loop (`plain.py`) asks it
condition by condition in eager float32; on a GPU at K = 64 and more it makes a tenth of the steps, scaled. On a CPU it
is timed twice: in turns with the others, where it profits from the memory that the library has the process keep
(`limits.keep_freed_pages`), and in a process of its own. SW2 is paired: the same seeds with and without a shortcut,
against one exact reference.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import plain
import torch
from torch import Tensor, nn

import polyscore as ps

SOURCES = {"a1": ps.Gaussian(cov=[10, 1]), "a2": ps.Gaussian(cov=[1, 10]), "base": ps.Gaussian(cov=1.0)}


class Kind(NamedTuple):
    """A network, how long it is trained, and steps of a run on a CPU that take seconds."""

    width: int = 512
    depth: int = 4
    activation: str = "silu"
    training: int = 300
    steps: int = 40

    def __str__(self) -> str:
        return f"{self.depth} x {self.width} {self.activation}{'' if self.training else ', untrained'}"


KINDS = [Kind(steps=6), Kind(256, 3, "relu", steps=10), Kind(200, 4, "tanh", 0, steps=10), Kind(128, 3),
         Kind(128, 3, "relu"), Kind(64, 2)]  # fmt: skip
ACTIVATIONS = {"silu": nn.SiLU, "relu": nn.ReLU, "tanh": nn.Tanh}


class Net(nn.Module):
    """Noise of a point in the plane: a perceptron of time, point and an embedding of the condition."""

    def __init__(self, width: int = 512, depth: int = 4, activation: str = "silu") -> None:
        super().__init__()
        sizes, act = [1 + 2 + 16, *[width] * depth], ACTIVATIONS[activation]
        self.conditions = nn.Embedding(len(SOURCES), 16)
        hidden = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), act())]
        self.body = nn.Sequential(*hidden, nn.Linear(width, 2))

    def forward(self, x: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        return self.body(torch.cat([t[:, None], x, self.conditions(condition)], -1))


def trained(kind: Kind, device: str) -> Net:
    """The network after some steps on 2000 points a condition, in float32."""
    torch.manual_seed(0)
    net, vp = Net(kind.width, kind.depth, kind.activation).to(device), ps.VP()
    points = torch.cat([source.sample(2000, seed=i) for i, source in enumerate(SOURCES.values())]).to(device)
    told = torch.arange(len(SOURCES), device=device).repeat_interleave(2000)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(kind.training):
        rows = torch.randint(len(points), (512,), device=device)
        t, noise = torch.rand(512, device=device), torch.randn(512, 2, device=device)
        noisy = vp.alpha(t)[:, None] * points[rows] + vp.sigma(t)[:, None] * noise
        loss = (net(noisy, t, told[rows]) - noise).square().sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval().requires_grad_(False)


def composition(net: Net) -> ps.Composition:
    vp = ps.VP()
    p = ps.Family({name: ps.Learned(net, (2,), vp, condition=c) for c, name in enumerate(SOURCES)})
    return p["a1"] * p["a2"] / p["base"]


def plain_scores(net: Net) -> plain.Scores:
    def scores(x: Tensor, t: float) -> list[Tensor]:
        flat, sigma = x.reshape(-1, 2), math.sqrt(1 - plain.alpha(t) ** 2)
        times = torch.full_like(flat[:, 0], t)
        told = [torch.full_like(times, c, dtype=torch.long) for c in range(len(SOURCES))]
        return [-net(flat, times, c).view_as(x) / sigma for c in told]

    return scores


@torch.no_grad()
def plain_loop(net: Net, swarms: int, particles: int, steps: int, device: str) -> Tensor:
    return plain.sample(plain_scores(net), [1, 1, -1], swarms, particles, steps=steps, device=device)


def timed(work: Callable[[], object], device: str) -> tuple[float, object]:
    """Seconds, the device's work included, and what came of it."""
    start = _now(device)
    result = work()
    return _now(device) - start, result


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return CLOCK[0]()


CLOCK = [time.perf_counter]


class Way(NamedTuple):
    """A way to evaluate the network: what `Family.to` is told."""

    precision: str
    compile: bool = False

    def __str__(self) -> str:
        return self.precision + (", compiled" if self.compile else "")


class Bench(NamedTuple):
    """One network and the exact composition."""

    q: ps.Composition
    net: Net
    device: str
    reference: Tensor
    kind: Kind

    def run(self, way: Way, particles: int, swarms: int, steps: int, seed: int) -> tuple[float, ps.Run]:
        """Seconds and result of one cell."""
        self.q.family.to(precision=way.precision, compile=way.compile)
        sampler = ps.FeynmanKac.published(particles, steps=steps)
        work = partial(sampler.sample, self.q, swarms, seed=seed, device=self.device, progress=False)
        return timed(work, self.device)  # type: ignore[return-value]

    def distance(self, run: ps.Run) -> float:
        return ps.sliced_wasserstein(run.samples, self.reference, seed=1)


def prepare(device: str, kind: Kind) -> Bench:
    net = trained(kind, device)
    exact = ps.exact(ps.base_composition(ps.Family(SOURCES)))
    return Bench(composition(net), net, device, exact.sample(10_000, seed=9).to(device), kind)


def on_gpu(bench: Bench, swarms: int, steps: int, counts: list[int], seeds: int) -> list[str]:
    """Rows of seconds at every K, and of paired distances.

    float32 itself is as slow as the plain loop: at large K, TF32 stands for it, which at small K is compared with it.
    """
    rows, pairs = [], []
    for particles in counts:
        large = particles >= 64
        shorter = 10 if large and steps >= 100 else 1
        plain_loop(bench.net, swarms, particles, 2, bench.device)
        base, _ = timed(partial(plain_loop, bench.net, swarms, particles, steps // shorter, bench.device), bench.device)
        rows.append(row(f"K = {particles}, plain loop" + (", scaled" if large else ""), base * shorter))
        ways = [Way("tf32", True), Way("bf16", True), Way("auto")]
        distances = dict[Way, list[float]]()
        for way in ways if large else [Way("float32"), *ways]:
            bench.run(way, particles, swarms, 2, 0)  # compiles
            results = [bench.run(way, particles, swarms, steps, seed) for seed in range(seeds)]
            seconds, run = min(results, key=lambda pair: pair[0])
            rows.append(row(f"K = {particles}, {way}: {run.arithmetic}", seconds, base * shorter / seconds))
            distances[way] = [bench.distance(run) for _, run in results]
        pairs += paired(distances, particles)
    return [*rows, "", *HEAD, *pairs]


def on_cpu(bench: Bench, swarms: int, steps: int, counts: list[int], rounds: int, alone: list[float]) -> list[str]:
    """Rows of seconds at every K, by turns in one run: cores that others use slow all of them.

    Args:
        alone: seconds of the plain loop in a process of its own, for every K.
    """
    kind = bench.kind
    fitted = ps.fit({name: source.sample(2000, seed=i) for i, (name, source) in enumerate(SOURCES.items())},
                    kind="vanilla", steps=max(1, kind.training // 2), width=kind.width, depth=kind.depth,
                    activation=kind.activation, device="cpu", progress=False)  # fmt: skip
    own = ps.base_composition(fitted)
    rows = []
    for particles, by_itself in zip(counts, alone, strict=True):
        sampler = ps.FeynmanKac.published(particles, steps=steps)
        works = {
            "plain loop": lambda: plain_loop(bench.net, swarms, particles, steps, "cpu"),  # noqa: B023
            "module in ps.Learned": lambda: bench.run(Way("auto"), particles, swarms, steps, 1)[1],  # noqa: B023
            "network of ps.fit": lambda: sampler.sample(own, swarms, seed=1, progress=False),  # noqa: B023
        }
        taken: dict[str, list[float]] = {name: [] for name in works}
        said = dict[str, str]()
        for _ in range(rounds):
            for name, work in works.items():
                seconds, result = timed(work, "cpu")
                taken[name].append(seconds)
                said[name] = getattr(result, "arithmetic", "float32")
        for name in works:
            ratios = [a / b for a, b in zip(taken["plain loop"], taken[name], strict=True)]
            least, what = min(taken[name]), f"{kind}, {steps} steps, K = {particles}, {name}: {said[name]}"
            rows.append(f"| {what} | {least:.3f} | {statistics.median(ratios):.2f} | {by_itself / least:.2f} |")
    return rows


def plain_alone(kind: Kind, swarms: int, steps: int, counts: list[int], rounds: int) -> list[float]:
    """Seconds of the plain loop at every K, the least of some rounds, in a process that has done nothing else."""
    torch.set_num_threads(1)
    net = trained(kind, "cpu")
    works = [partial(plain_loop, net, swarms, particles, steps, "cpu") for particles in counts]
    CLOCK[0] = time.process_time
    return [min(timed(work, "cpu")[0] for _ in range(rounds)) for work in works]


def alone(*told: Any) -> list[float]:
    """`plain_alone` in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(plain_alone, *told).result()


def paired_on_cpu(bench: Bench, swarms: int, particles: int, steps: int, seeds: int) -> list[str]:
    """Rows of paired distances: by table and without, the same seeds."""
    ways = Way("float32"), Way("auto")
    runs = {way: [bench.run(way, particles, swarms, steps, seed)[1] for seed in range(seeds)] for way in ways}
    distances = {way: [bench.distance(run) for run in found] for way, found in runs.items()}
    return [*HEAD, *paired(distances, particles)]


HEAD = ["| paired | SW2 | and without the shortcut | difference | its standard error |", "|---|---|---|---|---|"]


def paired(distances: dict[Way, list[float]], particles: int) -> list[str]:
    """Rows of SW2 with each way against that of the first with the same seeds."""
    (reference, base), *others = distances.items()
    rows = []
    for way, found in others:
        differences = [a - b for a, b in zip(found, base, strict=True)]
        spread = statistics.stdev(differences) / math.sqrt(len(base)) if len(base) > 1 else math.nan
        mean, size = statistics.mean(differences), statistics.mean(base)
        rows.append(f"| K = {particles}, {way} | {statistics.mean(found):.4f} | {size:.4f} ({reference}) "
                    f"| {100 * mean / size:+.2f} % | {100 * spread / size:.2f} % |")  # fmt: skip
    return rows


def row(what: str, seconds: float, ratio: float | None = None) -> str:
    return f"| {what} | {seconds:.3f} | {'' if ratio is None else f'{ratio:.1f}'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=512, help="on a GPU")
    parser.add_argument("--swarms", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--particles", type=int, nargs="+")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each way")
    parser.add_argument("--training", type=int)
    parser.add_argument("--kinds", type=int, nargs="+", default=range(len(KINDS)), help="of `KINDS`, on a CPU")
    parser.add_argument("--out", type=Path, help="write the table here")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", ps.errors.PolyscoreWarning)
    torch.set_float32_matmul_precision("highest")
    start = time.perf_counter()
    text = "\n".join(main_gpu(asked) if asked.device == "cuda" else main_cpu(asked))
    print(text, f"\n{time.perf_counter() - start:.0f} s in all", flush=True)
    if asked.out:
        asked.out.write_text(text + "\n")


def main_gpu(asked: argparse.Namespace) -> list[str]:
    swarms, steps = asked.swarms or 5000, asked.steps or 500
    bench = prepare("cuda", Kind(asked.width, training=asked.training or 3000))
    rows = on_gpu(bench, swarms, steps, asked.particles or [16, 256], asked.seeds)
    head = (
        f"{time.strftime('%Y-%m-%d')}, {torch.cuda.get_device_name()}, torch {torch.__version__}, 4 x {asked.width}, "
    )
    return [f"{head}N = {swarms}, {steps} steps", "", "| what | seconds | times faster |", "|---|---|---|", *rows]


def main_cpu(asked: argparse.Namespace) -> list[str]:
    """Seconds of this process, one thread: others may use the cores too."""
    torch.set_num_threads(1)
    CLOCK[0] = time.process_time
    swarms, counts = asked.swarms or 500, asked.particles or [1, 4, 16, 64]
    head = f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, 1 thread, torch {torch.__version__}, N = {swarms}, "
    timed_rows, pairs = list[str](), list[str]()
    for kind in (KINDS[k] for k in asked.kinds):
        steps, few = asked.steps or kind.steps, [k for k in counts if k * kind.width < 10_000]
        by_itself = alone(kind, swarms, steps, few, asked.seeds)
        bench = prepare("cpu", kind)
        timed_rows += on_cpu(bench, swarms, steps, few, asked.seeds, by_itself)
        if kind.width < 512:
            pairs += [
                f"| {kind}, {row[2:]}" for row in paired_on_cpu(bench, swarms, 16, max(steps, 20), asked.seeds)[2:]
            ]
        print(*timed_rows[-3 * len(few) :], *pairs[-1:], sep="\n", flush=True)
    columns = ["| what | seconds | times faster | than the plain loop in its own process |", "|---|---|---|---|"]
    said = "seconds of the process, the least of some runs; ratios in turns"
    return [head + said, "", *columns, *timed_rows, "", *HEAD, *pairs]


if __name__ == "__main__":
    main()
