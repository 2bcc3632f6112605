"""Two versions of the source in one run, in turns: is the new one as fast as the old?

    python benchmarks/versions.py OLD/src NEW/src               # on a CPU: analytic cells, small networks
    python benchmarks/versions.py OLD/src NEW/src --device cuda # the full sizes of benchmarks/learned.py

A process for each version holds everything ready; the driver lets them work one after the other, five times each case,
so that a machine that slows down slows both. Public names only. The ratio is the median of the new over the old.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

Work = Callable[[int], object]


def cases(device: str) -> dict[str, Work]:
    """What is timed, by name; each takes a seed. Called in a version's own process."""
    import torch

    import polyscore as ps

    def gaussians(base: float) -> ps.Family:
        members = {"a1": ps.Gaussian(cov=[10, 1]), "a2": ps.Gaussian(cov=[1, 10]), "base": ps.Gaussian(cov=base)}
        return ps.Family(members)

    far = [[-6.0, 1.5], [9.0, 0.0], [0.0, -9.0], [-1.5, 6.0]]
    mixtures = ps.Family({"a1": ps.Mixture(far[:2], 1.0), "a2": ps.Mixture(far[2:], 1.0), "base": ps.Mixture(far, 1.0)})
    cuda = device == "cuda"
    width, models, steps = (512, 90, 300) if cuda else (64, 4, 100)
    data = {name: member.sample(1000, seed=i) for i, (name, member) in enumerate(gaussians(1.0).members.items())}
    learned = ps.fit(data, kind="vanilla", steps=200, width=width, device=device, progress=False)
    q = {"gaussian": ps.base_composition(gaussians(1.1)), "mixture": ps.base_composition(mixtures),
         "learned": ps.base_composition(learned)}  # fmt: skip

    def sampled(which: str, particles: int, swarms: int = 5000, precision: str = "auto", plain: bool = True) -> Work:
        sampler = ps.FeynmanKac.published(particles) if plain else ps.FeynmanKac(particles)

        def work(seed: int) -> object:
            learned.to(precision=precision)
            return sampler.sample(q[which], swarms, seed=seed, device=device, progress=False)

        return work

    def trained(seed: int) -> object:
        return ps.fit_many(
            [data] * models, range(models), kind="vanilla", steps=steps, width=width, device=device, progress=False
        )

    found = {
        "analytic cell, Gaussians, K = 16": sampled("gaussian", 16),
        "analytic cell, mixtures, K = 16": sampled("mixture", 16),
        "defaults, Gaussians, K = 16": sampled("gaussian", 16, plain=False),
        "defaults, 10 swarms": sampled("gaussian", 4, 10, plain=False),
        f"train {models} models of width {width}, {steps} steps": trained,
    }  # fmt: skip
    if cuda:
        found |= {"learned, K = 1": sampled("learned", 1), "learned, K = 16": sampled("learned", 16),
                  "learned, K = 256, by table": sampled("learned", 256),
                  "learned, K = 256, by network": sampled("learned", 256, precision="fp16")}  # fmt: skip
    else:
        found |= {"learned, K = 4, 500 swarms": sampled("learned", 4, 500)}
    torch.set_float32_matmul_precision("highest")
    return found


def serve(device: str) -> None:
    """A version's process: a line names a case and a seed, a line answers with its seconds."""
    import warnings

    import torch

    warnings.simplefilter("ignore")
    ready = cases(device)
    print("ready", *ready, sep="\t", flush=True)
    for line in sys.stdin:
        name, seed = line.rstrip("\n").split("\t")
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        ready[name](int(seed))
        if device == "cuda":
            torch.cuda.synchronize()
        print(time.perf_counter() - start, flush=True)


class Version:
    """A source tree in a process of its own."""

    def __init__(self, source: Path, device: str) -> None:
        path = os.pathsep.join([str(source.resolve()), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, __file__, "--serve", device]
        self.process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.names = self._read().split("\t")[1:]

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a version's process ended; its error is above")
        return line.rstrip("\n")

    def seconds(self, name: str, seed: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name}\t{seed}\n")
        self.process.stdin.flush()
        return float(self._read())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, nargs="?")
    parser.add_argument("new", type=Path, nargs="?")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.serve:
        serve(wanted.serve)
        return
    old, new = (Version(source, wanted.device) for source in (wanted.old, wanted.new))
    print("| what | old, s | new, s | new / old |\n|---|---|---|---|", flush=True)
    for name in old.names:
        for version in (old, new):
            version.seconds(name, 0)  # compiles and warms
        pairs = [(old.seconds(name, r), new.seconds(name, r)) for r in range(1, wanted.repeats + 1)]
        before, after = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"| {name} | {before:.4f} | {after:.4f} | {after / before:.3f} |", flush=True)


if __name__ == "__main__":
    main()
