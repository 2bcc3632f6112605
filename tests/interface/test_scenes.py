"""The demonstration's sentences claim what their numbers show, and nothing else."""

from __future__ import annotations

import pytest

from polyscore.experiments.compute import sampler_of
from polyscore.paper.demo import Distances
from polyscore.paper.demo.experiments import analytic_experiments, learned_experiment
from polyscore.paper.demo.learned import explain
from polyscore.paper.tables import is_papers
from polyscore.samplers import FeynmanKac


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ((0.64, 0.09, 0.08), "Adding scores fails here, and correction repairs it"),
        ((0.64, 0.40, 0.08), "Adding scores fails here, and correction repairs a part of it"),
        ((0.64, 0.60, 0.08), "Adding scores fails here, and correction changes little"),
        ((0.11, 0.10, 0.10), "Adding scores does not fail here, and correction changes little"),
        ((0.48, 1.38, 0.24), "Correction fails here: it makes things worse"),
        ((0.10, 0.13, 0.10), "Adding scores does not fail here, and correction changes little"),
    ],
)
def test_a_verdict_follows_from_the_numbers(numbers: tuple[float, float, float], verdict: str) -> None:
    found = Distances(*numbers, particles=16)
    assert found.verdict == verdict
    for number in numbers:
        assert f"{number:.2f}" in found.sentence()


def test_the_networks_are_blamed_only_where_exact_scores_do_well() -> None:
    harmed, well, missed = (Distances(*n, particles=16) for n in ((0.5, 1.4, 0.2), (0.2, 0.2, 0.2), (0.9, 0.9, 0.2)))
    assert "the networks' error" in explain(harmed, well, 10_000)
    assert "the networks' error" not in explain(harmed, missed, 10_000)
    assert "the networks' error" not in explain(well, well, 10_000)


def test_both_parts_sample_with_the_defaults_and_the_first_also_to_the_letter() -> None:
    assert sampler_of(16, learned_experiment().protocol) == FeynmanKac(16)
    for letter, ours in analytic_experiments().values():
        assert sampler_of(16, ours.protocol) == FeynmanKac(16)
        assert sampler_of(16, letter.protocol) == FeynmanKac.published(16) and is_papers(letter.protocol)
