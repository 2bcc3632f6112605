"""Compositions of mixtures whose covariances differ, as `ps.fit(kind="mixture")` makes them, on one core of a CPU.

    python benchmarks/unlike_mixtures.py [particles ...]      # 5000 swarms, the default sampler, 100 steps

By turns in one run, seconds of the process: the members asked one by one (what a composition did before it had a field
of its own), the field, and the field's arithmetic alone: for every particle and component two products of matrices and
an exponential, on pieces that stay in the cache.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from unittest.mock import patch

import torch

import polyscore as ps
from polyscore.fields import UnlikeField, prepare

SWARMS = 5000


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def fitted() -> ps.Composition:
    """Mixtures fitted to 1500 points a condition: three, two and four parts in the plane."""
    means = {
        "a1": [[-6, 1.5], [9, 0], [2, 2]],
        "a2": [[0, -9], [-1.5, 6]],
        "base": [[-6, 1.5], [9, 0], [0, -9], [-1.5, 6]],
    }
    widths = {"a1": [1.0, 0.7, 0.3], "a2": [0.9, 0.5], "base": [1.5, 1.0, 2.0, 1.2]}
    data = {name: ps.Mixture(means[name], widths[name]).sample(1500, seed=i) for i, name in enumerate(means)}
    p = ps.fit(data, kind="mixture", progress=False)
    return p["a1"] * p["a2"] / p["base"]


def given(components: int, dim: int) -> ps.Composition:
    """Random means and full covariances, W = 1.4."""
    draw = torch.Generator().manual_seed(1)
    members = {}
    for name in ("a", "b", "c"):
        root = torch.randn(components, dim, dim, generator=draw, dtype=torch.float64)
        covs = root @ root.mT / dim + 0.2 * torch.eye(dim, dtype=torch.float64)
        members[name] = ps.Mixture(6 * torch.randn(components, dim, generator=draw, dtype=torch.float64), list(covs))
    return ps.Composition(ps.Family(members), {"a": 0.5, "b": 0.7, "c": 0.2})


def arithmetic(q: ps.Composition, particles: int, steps: int) -> float:
    """Seconds of the two products and the exponentials of a run."""
    times = torch.linspace(0.9, 0.1, 2, dtype=torch.float64)
    field = prepare(q, times, torch.empty(0))
    assert isinstance(field, UnlikeField)
    features = torch.randn(field.slopes.shape[2], field.most, dtype=torch.float64)

    def piece() -> None:
        logits = torch.addmm(field.offsets[0], field.slopes[0], features).split(field.counts)
        for table, part in zip(field.maps, logits, strict=True):
            torch.mm(table[0], torch.softmax(part, 0))

    return min(seconds(piece) for _ in range(50)) * particles * (steps + 1) / field.most


def row(name: str, q: ps.Composition, particles: int) -> str:
    sampler = ps.FeynmanKac(particles)
    work = lambda: sampler.sample(q, SWARMS, seed=0, progress=False)  # noqa: E731
    own = min(seconds(work) for _ in range(2))
    with patch.object(UnlikeField, "serves", lambda *_: False):
        asked = seconds(work)
    least = arithmetic(q, SWARMS * particles, sampler.steps)
    return f"| {name}, K = {particles} | {asked:.2f} | {own:.2f} | {asked / own:.1f} | {least:.2f} |"


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ps.errors.PolyscoreWarning)
    counts = [int(k) for k in sys.argv[1:]] or [16, 64]
    qs = {"fitted, 3 + 2 + 4 parts": fitted(), "3 x 8 parts": given(8, 2), "3 x 8 parts, 5 dimensions": given(8, 5)}
    head = f"{time.strftime('%Y-%m-%d')}, 1 thread, torch {torch.__version__}, {SWARMS} swarms, 100 steps"
    print(f"{head}, seconds of the process\n")
    print("| what | members asked, s | field, s | times faster | its arithmetic alone, s |\n|---|---|---|---|---|")
    for name, q in qs.items():
        for particles in counts if name.startswith("fitted") else counts[:1]:
            print(row(name, q, particles), flush=True)


if __name__ == "__main__":
    main()
