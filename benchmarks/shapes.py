"""Few particles with exact scores, under a control and pooled: two tables of docs/cure.md.

    OMP_NUM_THREADS=1 python benchmarks/shapes.py [control pooled]

Its shapes that no small mixture is are families of `specs/cases.py`.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
import warnings

import polyscore as ps
from polyscore.paper.settings import setting


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
    for name in sys.argv[1:] or ["control", "pooled"]:
        {"control": control, "pooled": pooled}[name]()


if __name__ == "__main__":
    main()
