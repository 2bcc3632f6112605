"""What statistics allows: the exact composition of the most likely fit in the true family, on the paper's settings.

    python benchmarks/likeliest.py [--runs 10] [--out results/remedies/likeliest.csv]

Gaussians have a free mean and covariance; mixtures as many parts as they truly have, with free weights, means and one
variance, by EM from the truth. Runs have the data of `remedies.yaml`. A fit whose composition cannot be normalised is
counted and has no distance. What the file holds is not computed again.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import warnings
from pathlib import Path

import torch
from torch import Tensor

import polyscore as ps
from polyscore.distributions import Gaussian, Mixture
from polyscore.errors import PolyscoreError
from polyscore.experiments.compute import training_data
from polyscore.experiments.experiment import Experiment
from polyscore.mixtures import SHAPES, Fit
from polyscore.mixtures.em import Prior, improved
from polyscore.paper.settings import SETTINGS, Setting

SIZES = (100, 1000, 10_000)
ONE_VARIANCE = next(shape for shape in SHAPES if shape.name == "one spherical")


def likeliest(x: Tensor, truth: Gaussian | Mixture) -> Gaussian | Mixture:
    """The most likely member of the truth's family."""
    if isinstance(truth, Gaussian):
        return Gaussian(x.mean(0), torch.cov(x.T, correction=0))
    own = truth.components
    start = Fit(own.weights, own.means, torch.diag_embed(own.variances), ONE_VARIANCE, len(x))
    none = Prior(torch.ones(2, dtype=x.dtype), 0.0, torch.full((2,), 1e-9, dtype=x.dtype))
    fit = improved(x, start, none, 500, 1e-3)
    return Mixture(fit.means, fit.covariances, fit.weights)


def distance(name: str, size: int, number: int) -> float | None:
    """SW2 of 5000 draws of the fit's composition to 5000 of the true one; None where it is improper."""
    family = SETTINGS[name]()
    data = training_data((name, "mixture", size, number), Experiment(name, Setting(name)))
    fits = {condition: likeliest(data[condition].double(), truth) for condition, truth in family.members.items()}
    composition = ps.base_composition(ps.Family(fits, family.schedule))
    if composition.validity().proper is not True:
        return None
    try:
        found = ps.exact(composition).sample(5000, seed=number)
    except PolyscoreError:
        return None
    reference = ps.exact(ps.base_composition(family)).sample(5000, seed=10_000 + number)
    return ps.sliced_wasserstein(found, reference, projections=2000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("results/remedies/likeliest.csv"))
    options = parser.parse_args()
    warnings.simplefilter("ignore", ps.errors.PolyscoreWarning)
    there = {tuple(row[:3]) for row in csv.reader(options.out.open())} if options.out.exists() else set()
    with options.out.open("a", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        if not there:
            rows.writerow(["setting", "train_size", "run", "sw2"])
        for name, size, number in itertools.product(SETTINGS, SIZES, range(options.runs)):
            if (name, str(size), str(number)) not in there:
                found = distance(name, size, number)
                rows.writerow([name, size, number, "improper" if found is None else f"{found:.5f}"])
                file.flush()


if __name__ == "__main__":
    main()
