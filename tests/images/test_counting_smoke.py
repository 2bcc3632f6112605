"""The whole chain in small: render, train briefly, compose, classify, record, report; every part is the real one."""

from __future__ import annotations

import numpy as np
import pytest

from polyscore.experiments.store import Store
from polyscore.images.export import scheduler
from polyscore.images.real import Real
from polyscore.images.stage import Stage
from polyscore.paper.images import specs
from polyscore.paper.images.reading import rows
from polyscore.paper.images.report import write_image_report
from polyscore.rooms import Look, render

CLASSES = ("empty", "couch", "painting", "couch+painting")


def pixel_baseline(images, masses):
    """Return the loss of the best guess of v that knows each pixel's mean and variance in a condition, no structure.

    Of x_0 with variance s^2 the best guess from x_t leaves s^2 sigma^2 / (alpha^2 s^2 + sigma^2), and the error of v is
    that of x_0 over sigma: s^2 / (alpha^2 s^2 + sigma^2), averaged over pixels and timesteps.
    """
    x = {name: found / 127.5 - 1 for name, found in images.items()}
    mean = sum(mass * x[name].mean(0) for name, mass in masses.items())
    variance = sum(mass * ((x[name] - mean) ** 2).mean(0) for name, mass in masses.items())[..., None]
    signal = scheduler().alphas_cumprod.numpy().astype(np.float64)
    return float((variance / (signal * variance + 1 - signal)).mean())


@pytest.mark.slow
def test_a_small_version_of_everything(tmp_path):
    """About 90 s on two cores."""
    dataset = render(tmp_path / "rooms", 50, classes=CLASSES, look=Look(32, 8, 0.0), progress=False)
    blocks = specs.narrowed(specs.stage("smoke"), recipe={"steps": 120}, lessons={"images": 12_000})
    (experiment,) = specs.experiments(blocks, dataset)
    work = Stage(Store(tmp_path / "store"), dataset, tmp_path / "models", "cpu")
    outcome = work.run([experiment])
    assert (outcome.computed, outcome.missing) == (2, 0)

    found = rows(Store(tmp_path / "store"))
    real = Real(dataset, 32)
    for name, masses in experiment.mixtures.conditions.items():
        baseline = pixel_baseline(real.images, dict(zip(experiment.mixtures.classes, masses, strict=True)))
        assert found[0].results[f"loss {name}"] < 0.7 * baseline  # a third is structure that was learned
    assert [row.particles for row in found] == [1, 4] and all(row.total == 16 for row in found)
    assert found[1].results["ancestors"] > 1

    (yardstick,) = work.yardsticks.values()
    images, truths = real.part(held_out=True)
    logits = yardstick.classifier.logits(images)[:, :-1]
    assert (logits.argmax(1).numpy() == truths).mean() >= 0.6  # a quarter by chance: 20 rooms, once in 2000
    noise = np.random.default_rng(0).integers(0, 256, images.shape).astype(np.uint8)
    assert (yardstick.classifier.verdicts(noise) == len(CLASSES)).mean() > 0.9
    assert len(write_image_report(work.store, tmp_path / "report").files) == 5
