"""The analytic K = 16 cell (5000 swarms, 500 steps) against the plain loop, in one run on the CPU.

    python benchmarks/analytic_cell.py [repeats]

Both sides draw the same number of normals (80 million) and resample by the same scheme; runs alternate, so that a busy
machine slows both. The last output, with date and versions, is in benchmarks/results/.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable

import plain
import torch

import polyscore as ps
from polyscore.paper.settings import setting

GAUSSIAN = [torch.diag(torch.tensor([10.0, 1.0])), torch.diag(torch.tensor([1.0, 10.0])), 1.1 * torch.eye(2)]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(name: str, scores: plain.Scores, repeats: int) -> str:
    family = setting(name)
    q, sampler = ps.base_composition(family), ps.FeynmanKac.published(16)
    pairs = []
    for seed in range(repeats):
        slow = seconds(lambda: plain.sample(scores, [1, 1, -1], 5000, 16))
        fast = seconds(lambda seed=seed: sampler.sample(q, 5000, seed=seed))
        pairs.append((slow, fast))
    slow, fast = (statistics.median(column) for column in zip(*pairs))
    ratio = statistics.median(a / b for a, b in pairs)
    return f"| {name} | {slow:.2f} | {fast:.2f} | {ratio:.2f} |"


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    far = setting("mixture-ood")
    means = [far.members[name].means.float() for name in ("a1", "a2", "base")]
    print(f"{time.strftime('%Y-%m-%d')}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
          f"Python {platform.python_version()}, median of {repeats} runs\n")  # fmt: skip
    print("| setting | plain loop, s | polyscore, s | times faster |\n|---|---|---|---|")
    print(compare("gaussian-nonfactorized-ood", plain.gaussian_scores(GAUSSIAN), repeats), flush=True)
    print(compare("mixture-ood", plain.mixture_scores(means, 1.0), repeats))


if __name__ == "__main__":
    main()
