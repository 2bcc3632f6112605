"""What a user sees without a reference, beside what is true: the picture and the figures of docs/choosing.md.

    python benchmarks/choosing.py [--out docs/pictures/choosing.png] [--train-steps 6000]      # minutes of two cores

SW2 to the exact composition against K, and below it the three signals of a run: the share of swarms that agree on the
evidence, the share of starting particles that is left, and the lowest effective sample size. Once with exact scores and
twice with scores learned on the spot (10,000 points a condition, a small network). `--trainings` asks instead how far
two trainings are apart, with and without correction. Prints Markdown.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polyscore as ps
from polyscore import plots
from polyscore.errors import DegeneracyWarning
from polyscore.paper.settings import setting

PARTICLES = (1, 2, 4, 8, 16, 32, 64)
COUNT = 1000


class Seen(NamedTuple):
    """One run: the distance, and what it says of itself."""

    particles: int
    distance: float
    agreement: float
    ancestors: float
    ess: float
    findings: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, sample, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures/choosing.png"))
    parser.add_argument("--train-steps", type=int, default=6000)
    parser.add_argument("--trainings", action="store_true")
    options = parser.parse_args(arguments)
    if options.trainings:
        print("| setting | K | two trainings apart | to the exact answer |\n|---|---:|---:|---:|")
        for name in ("gaussian-factorized-ood", "gaussian-nonfactorized-id"):
            compare(name, options.train_steps)
        return
    cases = {
        "exact scores\nmixture-ood": (setting("mixture-ood"), "mixture-ood"),
        "learned scores\nmixture-ood": (learned("mixture-ood", options.train_steps), "mixture-ood"),
        "learned scores\ngaussian-factorized-ood": (
            learned("gaussian-factorized-ood", options.train_steps), "gaussian-factorized-ood",
        ),
    }  # fmt: skip
    found = {title: (curve(family, name), apart(name)) for title, (family, name) in cases.items()}
    for title, (seen, floor) in found.items():
        print(markdown(title, seen, floor))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    draw(options.out, found)


def learned(name: str, steps: int, seed: int = 1) -> ps.Family:
    """Return scores of a setting learned from 10,000 points a condition."""
    data = {key: member.sample(10_000, seed=seed) for key, member in setting(name).members.items()}  # type: ignore[union-attr]
    return ps.fit(
        data, kind="vanilla", steps=steps, width=128, learning_rate=1e-3, seed=seed, device="cpu", progress=False
    )


def compare(name: str, steps: int) -> None:
    """Print how far two trainings on data of their own are apart, at K = 1 and 16, and how far from the truth."""
    models = [learned(name, steps, seed) for seed in (1, 2)]
    truth = ps.exact(ps.base_composition(setting(name))).sample(COUNT, seed=9)
    for k in (1, 16):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegeneracyWarning)
            runs = [ps.FeynmanKac(k).sample(ps.base_composition(m), COUNT, seed=3 + i, progress=False)
                    for i, m in enumerate(models)]  # fmt: skip
        away = ", ".join(f"{ps.sliced_wasserstein(run.samples, truth, seed=0):.2f}" for run in runs)
        between = ps.sliced_wasserstein(runs[0].samples, runs[1].samples, seed=0)
        print(f"| {name} | {k} | {between:.2f} | {away} |", flush=True)


def curve(family: ps.Family, name: str) -> list[Seen]:
    """Return one run a K."""
    return [look(family, name, k) for k in PARTICLES]


def look(family: ps.Family, name: str, particles: int) -> Seen:
    """Sample once and note what a user sees, and the truth."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegeneracyWarning)
        run = ps.FeynmanKac(particles).sample(ps.base_composition(family), COUNT, seed=1, progress=False)
    truth = ps.exact(ps.base_composition(setting(name))).sample(COUNT, seed=2)
    return Seen(
        particles,
        ps.sliced_wasserstein(run.samples, truth, seed=0),
        run.evidence_share,
        run.unique_ancestors.float().mean().item() / particles,
        run.lowest_ess.float().median().item() / particles,
        len(run.findings),
    )


def apart(name: str) -> float:
    """Return SW2 between two exact draws."""
    target = ps.exact(ps.base_composition(setting(name)))
    return ps.sliced_wasserstein(target.sample(COUNT, seed=2), target.sample(COUNT, seed=3), seed=0)


def markdown(title: str, seen: Sequence[Seen], floor: float) -> str:
    """Return one case as a table."""
    lines = [f"{title.replace(chr(10), ', ')}; two exact draws {floor:.3f} apart", ""]
    lines += ["| K | SW2 | evidence_share | ancestors / K | lowest ESS / K | findings |", "|" + "---:|" * 6]
    lines += [f"| {s[0]} | {s[1]:.3f} | {s[2]:.3f} | {s[3]:.2f} | {s[4]:.2f} | {s[5]} |" for s in seen]
    return "\n".join([*lines, ""])


def draw(path: Path, found: dict[str, tuple[list[Seen], float]]) -> None:
    """Save the truth above, and what a user sees below."""
    with plots.Panels(path, [2.9] * 3, 5.2, rows=2, dpi=110) as (figure, axes):
        for upper, lower, (title, (seen, floor)) in zip(axes[:3], axes[3:], found.items(), strict=True):
            k = [s.particles for s in seen]
            upper.plot(k, [s.distance for s in seen], "o-", color=plots.PINK, ms=4, label="SW2 to the exact answer")
            upper.axhline(floor, color="#222222", lw=1, ls=":", label="two exact draws")
            upper.set(yscale="log", title=title, ylim=(0.03, 8))
            upper.yaxis.set_major_formatter("{x:g}")
            lower.plot(k, [s.agreement for s in seen], "o-", color=plots.BLUE, ms=4, label="evidence_share")
            lower.plot(k, [s.ancestors for s in seen], "s-", color=plots.ORANGE, ms=4, label="unique ancestors / K")
            lower.plot(k, [s.ess for s in seen], "^-", color=plots.GREEN, ms=4, label="lowest ESS / K")
            lower.axhline(0.3, color="#222222", lw=1, ls="--", label="0.3: below it, swarms disagree")
            lower.set(ylim=(0, 1.04), xlabel="K")
            for axis in (upper, lower):
                axis.set_xscale("log", base=2)
                axis.set_xticks(k, [str(value) for value in k])
        axes[0].set_ylabel("the truth, unknown to a user")
        axes[3].set_ylabel("what a run tells")
        handles = [pair for axis in (axes[0], axes[3]) for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
        figure.legend(*zip(*handles, strict=True), loc="outside lower center", ncols=3)


if __name__ == "__main__":
    main()
