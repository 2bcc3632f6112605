"""Learned doubles of a nonlinear causal model in five dimensions, against draws of the double itself.

    python benchmarks/causal.py [--steps 2000] [--size 5000] [--seeds 3]
    python benchmarks/causal.py --paths 300

Control, A and B are learned from `size` draws each; A * B / control is sampled with added scores and with correction.
Sliced W2 to 2000 draws of the double, whose mechanisms are set directly; two such draws apart are the floor, and the
nearer of A and B by itself is what one has without composing. `--paths 300` counts instead, among random linear models
of 3 to 5 variables with two soft interventions each, those whose path of noised factors is improper somewhere.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch

import polyscore as ps
from polyscore.causal import Linear, Model
from polyscore.paper.theory.interventions import nonlinear_example

SAMPLERS = {"added scores": ps.Denoise(), "K = 4": ps.FeynmanKac(4), "K = 16": ps.FeynmanKac(16)}


def distances(size: int, steps: int, seed: int) -> dict[str, float]:
    """Return sliced W2 to the double by sampler, with the floor and the nearest single beside."""
    model, a, b = nonlinear_example()
    double = model.distribution(a, b)
    reference = double.sample(2000, seed=1000 + seed)
    data = model.data({"A": a, "B": b}, size, seed=seed)
    p = ps.fit(data, kind="vanilla", seed=seed, steps=steps, width=128, learning_rate=1e-3)
    clouds = {"floor": double.sample(2000, seed=2000 + seed)}
    singles = [model.distribution(only).sample(2000, seed=3000 + seed) for only in (a, b)]
    clouds["nearest single"] = min(singles, key=lambda x: ps.sliced_wasserstein(x, reference))
    clouds |= {name: s.sample(ps.base_composition(p), 2000, seed=seed).samples for name, s in SAMPLERS.items()}
    return {name: ps.sliced_wasserstein(x, reference) for name, x in clouds.items()}


def improper(seed: int) -> bool:
    """Whether a random model's composition, proper at t = 0, is improper at some noise level."""
    rng = np.random.default_rng(seed)
    dim = int(rng.integers(3, 6))
    model = Model.linear(np.tril(rng.normal(size=(dim, dim)), -1), variance=rng.uniform(0.3, 2, dim))
    a, b = (
        {name: Linear({k: rng.normal() for k in model[name].parents}, 2 * rng.normal(), rng.uniform(0.2, 4))}
        for name in rng.choice(model.variables, 2, replace=False).tolist()
    )
    q = ps.base_composition(model.family({"A": a, "B": b}))
    assert q.validity().proper
    return not q.path_validity()[1].proper


def main() -> None:
    """Print the mean over seeds and the standard deviation of each distance, or the count of improper paths."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("steps", 2000), ("size", 5000), ("seeds", 3), ("paths", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    if options.paths:
        print(f"improper paths: {sum(map(improper, range(options.paths)))} of {options.paths}")
        return
    rows = [distances(options.size, options.steps, seed) for seed in range(options.seeds)]
    for name in rows[0]:
        found = torch.tensor([row[name] for row in rows])
        print(f"{name}: {found.mean():.3f} ± {found.std():.3f}")


if __name__ == "__main__":
    main()
