"""Compose skewed columns with and without a bend, and see that nothing else is bent: behind docs/cure.md.

    OMP_NUM_THREADS=1 python benchmarks/bends.py [gamma gamma-W2 lognormal bimodal student uniform] [--n 10000]

Gammas compose column by column: the product is Gamma(sum w k - W + 1, sum w b), so Gamma(k1 + k2 - k0, b1 + b2 - b0).
Three seeds each; SW2 of 3000 outputs to 3000 exact draws.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

import polyscore as ps
from polyscore.errors import PolyscoreWarning

SHAPES = {"a1": (3.0, 4.0, 2.5), "a2": (2.0, 5.0, 4.0), "base": (2.0, 3.0, 2.0)}
RATES = {"a1": (1.0, 1.5, 0.8), "a2": (0.9, 1.0, 1.2), "base": (0.7, 0.8, 0.9)}
MEANS = {"a1": (1.0, 0.5, 0.0), "a2": (0.0, 1.0, 0.5), "base": (0.3, 0.3, 0.3)}
VARIANCES = {"a1": (0.36, 0.25, 0.5), "a2": (0.25, 0.5, 0.36), "base": (0.64, 0.6, 0.8)}
W1, W2 = {"a1": 1.0, "a2": 1.0, "base": -1.0}, {"a1": 1.0, "a2": 1.0}
OUTPUTS, SEEDS = 3000, 3
Draw = Callable[[int, np.random.Generator], np.ndarray]


def gamma(exponents: dict[str, float]) -> tuple[dict[str, Draw], Draw]:
    def of(shape: np.ndarray, rate: np.ndarray) -> Draw:
        return lambda n, rng: rng.gamma(shape, 1 / rate, (n, 3))

    shape = sum(w * np.array(SHAPES[a]) for a, w in exponents.items()) - sum(exponents.values()) + 1
    rate = sum(w * np.array(RATES[a]) for a, w in exponents.items())
    return {a: of(np.array(SHAPES[a]), np.array(RATES[a])) for a in SHAPES}, of(shape, rate)


def lognormal(exponents: dict[str, float]) -> tuple[dict[str, Draw], Draw]:
    def of(mean: np.ndarray, variance: np.ndarray) -> Draw:
        return lambda n, rng: np.exp(mean + np.sqrt(variance) * rng.standard_normal((n, 3)))

    precision = sum(w / np.array(VARIANCES[a]) for a, w in exponents.items())
    pull = sum(w * np.array(MEANS[a]) / np.array(VARIANCES[a]) for a, w in exponents.items())
    return {a: of(np.array(MEANS[a]), np.array(VARIANCES[a])) for a in MEANS}, of(pull / precision, 1 / precision)


def bimodal(n: int, rng: np.random.Generator, share: float) -> np.ndarray:
    return np.where(rng.random((n, 1)) < share, -3.0, 2.0) + 0.6 * rng.standard_normal((n, 2))


STRAIGHT: dict[str, dict[str, Draw]] = {
    "bimodal": {a: lambda n, rng, s=s: bimodal(n, rng, s) for a, s in {"a1": 0.2, "a2": 0.3, "base": 0.25}.items()},
    "student": {
        a: lambda n, rng, s=s: rng.standard_t(3, (n, 2)) * np.array(s)
        for a, s in {"a1": (2.0, 1.0), "a2": (1.0, 2.0), "base": (2.5, 2.5)}.items()
    },
    "uniform": {a: lambda n, rng, s=s: s * rng.random((n, 2)) for a, s in {"a1": 1.0, "a2": 1.5, "base": 2.0}.items()},
}


def drawn(parts: dict[str, Draw], n: int, seed: int) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return {a: torch.from_numpy(draw(n, rng)) for a, draw in parts.items()}


def powers(p: ps.Family) -> str:
    bend = getattr(p.units, "bend", None)
    return "straight" if bend is None else "bent by " + ", ".join(f"{power:.2f}" for power in bend.power.tolist())


def compare(name: str, parts: dict[str, Draw], exact: Draw, exponents: dict[str, float], n: int) -> None:
    def reference(seed: int) -> Tensor:
        return torch.from_numpy(exact(OUTPUTS, np.random.default_rng(seed))).float()

    found: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        data, target = drawn(parts, n, seed), reference(100 + seed)
        found.setdefault("two exact draws", []).append(ps.sliced_wasserstein(reference(200 + seed), target))
        for bend in (False, "auto"):
            began = time.process_time()
            p = ps.fit(data, kind="mixture", bend=bend, progress=False)
            seconds = time.process_time() - began
            q = ps.Composition(p, exponents)
            print(f"{name}: seed {seed}, bend={bend} ({seconds:.1f} s): {powers(p)}", flush=True)
            for label, sampler in (("naive", ps.Denoise()), ("K = 16", ps.FeynmanKac(16, threshold=0.5)),
                                   ("auto", ps.auto(q))):  # fmt: skip
                run = sampler.sample(q, OUTPUTS, seed=seed, progress=False)
                found.setdefault(f"bend={bend}, {label}", []).append(ps.sliced_wasserstein(run.samples, target))
                below = (run.samples < 0).any(1).double().mean().item()
                found.setdefault(f"bend={bend}, {label}, share below 0", []).append(below)
    for label, values in found.items():
        error = statistics.stdev(values) / len(values) ** 0.5
        print(f"{name}: {label}: {statistics.mean(values):.4f} ± {error:.4f}", flush=True)


def main() -> None:
    warnings.simplefilter("ignore", PolyscoreWarning)
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=["gamma", "gamma-W2", "lognormal", *STRAIGHT])
    parser.add_argument("--n", type=int, default=10_000)
    args = parser.parse_args()
    for name in args.cases:
        if name in STRAIGHT:
            for seed in range(SEEDS):
                p = ps.fit(drawn(STRAIGHT[name], args.n, seed), kind="mixture", progress=False)
                print(f"{name}: seed {seed}: {powers(p)}", flush=True)
        else:
            exponents = W2 if name.endswith("W2") else W1
            compare(name, *(lognormal if name == "lognormal" else gamma)(exponents), exponents, args.n)


if __name__ == "__main__":
    main()
