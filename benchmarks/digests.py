"""Digests of samples, trainings, targets and evidence on a CPU, one thread: did a change of the code change a result?

    python benchmarks/digests.py            # compare with results/digests.json, case by case
    python benchmarks/digests.py --write    # compute them anew, with the commit that makes the difference

Bytes depend on the CPU's instructions and on torch, so the file says what it was computed with; elsewhere, write one at
the commit before the change and compare after it. Only public names are used, so that the script outlives the rooms.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from typer.testing import CliRunner

import polyscore as ps

FILE = Path(__file__).parent / "results" / "digests.json"
FIELDS = ("samples", "particles", "log_weights", "log_evidence", "ancestors", "lowest_ess", "mean_ess", "step_losses")


def digest(*values: object) -> str:
    """A hash of tensors by their bytes, of anything else by its text."""
    total = hashlib.sha256()
    for value in values:
        plain = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if isinstance(
            value, torch.Tensor) else repr(value).encode()  # fmt: skip
        total.update(plain)
    return total.hexdigest()[:16]


def of_run(run: ps.Run) -> str:
    return digest(*(getattr(run, name) for name in FIELDS), run.ancestry, run.clipped_fraction)


def gaussians(schedule: ps.Schedule | None = None) -> ps.Family:
    full = [[2.0, 0.3, 0.1], [0.3, 1.0, -0.2], [0.1, -0.2, 0.7]]
    members = {
        "a": ps.Gaussian([1, 0, -1], full),
        "b": ps.Gaussian([0, 2, 0], [1, 2, 3]),
        "base": ps.Gaussian(cov=4.0, dim=3),
    }
    return ps.Family(members, schedule)


def mixtures(shared: bool = True) -> ps.Family:
    covs = 1.0 if shared else [1.0, [0.5, 2.0]]
    a, b = ps.Mixture([[-6, 1.5], [9, 0]], covs), ps.Mixture([[0, -9], [-1.5, 6]], covs, [0.3, 0.7])
    return ps.Family({"a1": a, "a2": b, "base": ps.Mixture([[-6, 1.5], [9, 0], [0, -9], [-1.5, 6]], 1.2)})


def diagonals() -> ps.Family:
    return ps.Family({"a1": ps.Gaussian(cov=[10, 1]), "a2": ps.Gaussian(cov=[1, 10]), "base": ps.Gaussian(cov=1.0)})


def in_units() -> ps.Family:
    shift, scale = torch.tensor([5.0, -3.0], dtype=torch.float64), torch.tensor([2.0, 0.5], dtype=torch.float64)
    return ps.Family(dict(diagonals().members), units=(shift, scale), variables=["u", "v"])


def functions() -> ps.Family:
    vp = ps.VP()
    known = diagonals()
    return ps.Family({
        name: ps.Learned(lambda x, t, m=member: m.score(x, vp.alpha(t), vp.sigma(t)), (2,), vp, "score")
        for name, member in known.members.items()
    })  # fmt: skip


def points() -> dict[str, torch.Tensor]:
    return {name: member.sample(200, seed) for seed, (name, member) in enumerate(diagonals().members.items())}


def trained(**options: object) -> ps.Family:
    options = {"kind": "vanilla", **options}
    return ps.fit(points(), seed=3, steps=60, width=32, depth=3, batch=60, device="cpu", progress=False, **options)


SAMPLERS: dict[str, ps.Denoise | ps.FeynmanKac] = {
    "default": ps.FeynmanKac(8, steps=40),
    "published": ps.FeynmanKac.published(4, steps=60),
    "of 0.2.0": ps.FeynmanKac(4, 50, grid="equal", integrator="euler", quadrature="trapezoid", start="noise"),
    "clip, threshold, residual": ps.FeynmanKac(8, 30, clip=5.0, threshold=0.5, resampling="residual", ancestry=True),
    "window, frozen": ps.FeynmanKac(4, 30, window=(0.2, 0.8), resampling="multinomial", integrator="frozen"),
    "stratified, churn": ps.FeynmanKac(4, 30, churn=0.5, resampling="stratified", start="noise"),
    "SDE": ps.Denoise(30), "ODE": ps.Denoise(30, churn=0.0), "Heun": ps.Denoise(30, churn=0.0, order=2),
}  # fmt: skip
FAMILIES: dict[str, Callable[[], ps.Family]] = {
    "gaussians": gaussians, "mixtures": mixtures, "unlike mixtures": lambda: mixtures(False), "diagonals": diagonals,
    "units": in_units, "functions": functions,
}  # fmt: skip
SCHEDULES = {
    "DDPM": ps.DDPM(), "zero SNR": ps.DDPM(zero_snr=True), "cosine": ps.Cosine(), "flow": ps.LinearFlow(),
}  # fmt: skip
TRAININGS: dict[str, dict[str, object]] = {
    "conditional": {}, "separate": {"model": "separate"}, "ensemble": {"members": 2},
    "average, plain, tanh": {"ema": 0.9, "standardise": False, "activation": "tanh"},
}  # fmt: skip


def composed(family: ps.Family) -> dict[str, ps.Composition]:
    a, b, base = family
    whole = ps.base_composition(family)
    return {"W = 1": whole, "W = 1.5": family[a] ** 1.25 * family[b] ** 0.75 / family[base] ** 0.5, "alone": family[a]}


def sampled() -> Iterator[tuple[str, str]]:
    for name, make in FAMILIES.items():
        for form, q in composed(make()).items():
            for kind, sampler in SAMPLERS.items():
                yield f"{name}, {form}, {kind}", of_run(sampler.sample(q, 40, seed=7, progress=False))
    for name, schedule in SCHEDULES.items():
        for form, q in composed(gaussians(schedule)).items():
            run = ps.FeynmanKac(4, 30).sample(q, 40, seed=5, progress=False)
            yield f"gaussians, {form}, {name}", of_run(run)
    chunks = ps.FeynmanKac(4, 30).sample(
        ps.base_composition(mixtures()), 300, seed=1, max_particles=200, progress=False
    )
    yield "mixtures in chunks", of_run(chunks)
    double = ps.FeynmanKac(4, 30).sample(ps.base_composition(mixtures()), 40, dtype=torch.float64, progress=False)
    yield "mixtures in float64", of_run(double)


def learned() -> Iterator[tuple[str, str]]:
    for name, options in TRAININGS.items():
        family = trained(**options)
        with tempfile.TemporaryDirectory() as folder:
            again = ps.load(family.save(Path(folder) / "m"))
        x = torch.linspace(-2, 2, 24).reshape(12, 2)
        for which, made in (("fit", family), ("loaded", again)):
            q = ps.base_composition(made)
            yield (
                f"{name}, {which}: scores",
                digest(q.scores(x, 0.3), q.score(x, torch.linspace(0.1, 0.9, 12)), q.residual(x, 0.5)),
            )
            yield f"{name}, {which}: run", of_run(ps.FeynmanKac(4, 30).sample(q, 40, seed=2, progress=False))
        yield f"{name}: Denoise", of_run(ps.Denoise(20).sample(ps.base_composition(family), 40, seed=2, progress=False))
    family = trained().to(precision="table")
    yield "by table", of_run(ps.FeynmanKac(64, 4).sample(ps.base_composition(family), 4200, seed=2, progress=False))


def targets() -> Iterator[tuple[str, str]]:
    for name, make in FAMILIES.items():
        q = ps.base_composition(make())
        if name == "functions":
            continue
        for method in (None, "importance", "product importance"):
            target = ps.exact(q, method)
            x = target.sample(50, seed=4)
            yield f"exact {name}, {method}", digest(x, target.log_evidence, target.log_prob(x.double()))
    shared = ps.Family({"a": ps.Mixture([[0, 0], [3, 0]], 0.36), "b": ps.Mixture([[0, 0], [3, 0], [0, 3]], 0.36)})
    target = ps.exact(shared["a"] ** 2 / shared["b"], "rejection")
    yield "exact, rejection", digest(target.sample(50, seed=4), target.log_evidence)
    for name, make in FAMILIES.items():
        for form, q in composed(make()).items():
            found = [q.validity(t) for t in (0.0, 0.3, 1.0)]
            yield f"validity, {name}, {form}", digest([(v.proper, v.direction, v.reason) for v in found])
    x, y = shared["a"].family.members["a"].sample(300, 1), shared["b"].family.members["b"].sample(200, 2)
    yield "metrics", digest(ps.sliced_wasserstein(x, y, 100, 3), ps.mmd2(x, y))


def cells() -> Iterator[tuple[str, str]]:
    """Keys and results of a few cells of the command line's runner."""
    from polyscore.cli import app

    for name in ("gaussian-factorized-ood-conditional", "gaussian-nonfactorized-id-separate", "mixture-id-conditional",
                 "mixture-ood-separate"):  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "s"
            options = ["--quick", "--runs", "1", "--particles", "1,4", "--device", "cpu", "--workers", "1"]
            result = CliRunner().invoke(app, ["paper", "run", name, *options, "--store", str(store)])
            assert result.exit_code == 0, result.output
            lines = [line for file in sorted(Path(f"{store}-quick", "records").iterdir()) for line in file.open()]
            records = sorted((json.loads(line)["record"] for line in lines), key=lambda record: record["key"])
            yield f"cells of {name}", digest([(r["key"], r["cell"], r["results"]) for r in records])


def compute() -> dict[str, str]:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dict(pair for part in (sampled, learned, targets, cells) for pair in part())


def origin() -> dict[str, str]:
    return {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    wanted, found = parser.parse_args(), compute()
    if wanted.write:
        FILE.write_text(json.dumps({"origin": origin(), "digests": found}, indent=1) + "\n")
        print(f"{len(found)} digests written to {FILE}")
        return
    stored = json.loads(FILE.read_text())
    differing = [name for name, value in stored["digests"].items() if found.get(name) != value]
    print(f"computed with {origin()}, stored with {stored['origin']}")
    print("\n".join(f"  differs: {name}" for name in differing))
    print(f"{len(stored['digests']) - len(differing)} of {len(stored['digests'])} digests are the same")
    raise SystemExit(bool(differing))


if __name__ == "__main__":
    main()
