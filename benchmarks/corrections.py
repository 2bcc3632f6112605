"""The published method as it is and mended, side by side: the numbers behind docs/findings.md that need no network.

    python benchmarks/corrections.py [evidence] [settings] [reference] [velocity]    # ten minutes of two cores for all

`settings` prints what benchmarks/specs/as-written.yaml has filled runs/as-written with. The others are no specs: they
are about evidence, about references themselves, and about models that add something else than scores.
"""

from __future__ import annotations

import statistics
import sys
import warnings

import torch
from torch import Tensor

import polyscore as ps
from polyscore.errors import DegeneracyWarning
from polyscore.experiments.store import Store
from polyscore.experiments.tables import table_of
from polyscore.paper import specs
from polyscore.paper.settings import far_mixtures
from polyscore.targets import exact

warnings.simplefilter("ignore", DegeneracyWarning)


def row(*texts: object) -> None:
    print("| " + " | ".join(map(str, texts)) + " |", flush=True)


def evidence() -> None:
    """Sign of the divergence term and start for W other than 1: log-evidence of Gaussians that do not commute."""
    family = ps.Family(
        {
            "a": ps.Gaussian([0.5, -0.3], [[2.0, 0.8], [0.8, 1.0]]),
            "b": ps.Gaussian([-0.4, 0.6], [[1.0, -0.5], [-0.5, 1.5]]),
            "c": ps.Gaussian([0.1, 0.2], [[3.0, 0.3], [0.3, 2.5]]),
        }
    )
    row("composition", "W", "exact log Z", "ours", "the paper's start, sign and right-end weights")
    row("---", "---", "---", "---", "---")
    for text in ("a * b / c", "a^0.5 * b^0.5", "a^0.3 * b^0.2", "a^2 / c^0.5", "a * b"):
        q = ps.parse(text, family)
        samplers = ps.FeynmanKac(4096), ps.FeynmanKac.published(4096, clip=None)
        ours, published = (sampler.sample(q, 4, seed=1).total_log_evidence for sampler in samplers)
        row(f"`{text}`", f"{q.total:g}", f"{exact(q).log_evidence:.2f}", f"{ours:.2f}", f"{published:.2f}")


def settings() -> None:
    """Mixtures as the text has them and as the experiments had them: SW2 of the paper's analytic column."""
    store = Store("runs/as-written")
    row("analytic scores, clip 15, three runs", "K = 1", "K = 4", "K = 16")
    row("---", "---", "---", "---")
    for name, experiment in specs.read("benchmarks/specs/as-written.yaml").items():
        row(name, *(f"{e.mean:.3f}" if e.values else "" for e in table_of(experiment, store, "sw2").entries))


def reference(draws: int = 100) -> None:
    """The importance reference of the OOD mixture: its effective sample size, and its distance to exact draws."""
    family = far_mixtures()
    q = family["a1"] * family["a2"] / family["base"]
    source, grid = exact(q, "product importance"), exact(q, "grid")
    truth = grid.sample(5000, seed=0)
    noise = [ps.sliced_wasserstein(grid.sample(5000, seed=1 + i), truth, seed=i) for i in range(10)]
    found = []
    for seed in range(draws):
        points = source.sample(5000, seed=seed)
        found.append((source.ess, ps.sliced_wasserstein(points, truth, seed=seed)))
    found.sort()
    row("draws of 5000 points", "effective sample size", "SW2 to exact draws")
    row("---", "---", "---")
    row("two exact draws apart (mean of 10)", "", f"{statistics.fmean(noise):.3f}")
    for name, (ess, distance) in (("worst", found[0]), ("second worst", found[1]), ("median", found[draws // 2])):
        row(f"importance, {name} of {draws}", f"{ess:.0f}", f"{distance:.3f}")
    better = exact(q, "importance")
    better.sample(5000, seed=0)
    row("importance from the composition's own tails (ours), one draw", f"{better.ess:.0f}", "")


def velocity() -> None:
    """Adding v-predictions is adding scores only for W = 1: variance of the naive ODE in one dimension."""
    schedule, variances = ps.VP(), torch.tensor([4.0, 1.0])
    row("exponents of N(0, 4), N(0, 1)", "W", "scores added", "v added", "closed form, scores added")
    row("---", "---", "---", "---", "---")
    family = ps.Family({"a": ps.Gaussian([0.0], 4.0), "b": ps.Gaussian([0.0], 1.0)}, schedule)
    for exponents in ((0.5, 0.5), (0.3, 0.2), (1.0, 1.0)):
        weights = torch.tensor(exponents)

        def added(x: Tensor, t: Tensor, weights: Tensor = weights) -> Tensor:
            alpha, sigma = schedule.alpha(t)[:, None], schedule.sigma(t)[:, None]
            scores = -x / (alpha**2 * variances + sigma**2)  # (B, 2)
            return (weights * -(sigma / alpha) * (x + scores)).sum(1, keepdim=True)  # v = -(sigma / alpha) (x + s)

        q = family["a"] ** exponents[0] * family["b"] ** exponents[1]
        single = ps.Family({"v": ps.Learned(added, (1,), schedule, prediction="v")})["v"]
        sampler = ps.Denoise(churn=0.0)
        spread = [sampler.sample(target, 20_000, seed=0).samples.var().item() for target in (q, single)]
        law = 4.0 ** exponents[0] / sum(exponents)
        row(exponents, f"{sum(exponents):g}", f"{spread[0]:.2f}", f"{spread[1]:.2f}", f"{law:.2f}")


def main() -> None:
    chosen = sys.argv[1:] or ["evidence", "settings", "reference", "velocity"]
    for name in chosen:
        work = globals()[name]
        print(f"\n{work.__doc__}\n")
        work()


if __name__ == "__main__":
    main()
