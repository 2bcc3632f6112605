"""Full ancestry: every step's parents, consistent with the starting ancestors."""

import pytest
import torch

import polyscore as ps


def composed():
    p = ps.Family({"a": ps.Gaussian(cov=[4.0, 1.0]), "b": ps.Gaussian(cov=[1.0, 3.0]), "c": ps.Gaussian(cov=1.5)})
    return p["a"] * p["b"] / p["c"]


@pytest.mark.parametrize(
    "options", [{}, {"threshold": 0.97}, {"window": (0.1, 0.6)}, {"resampling": "multinomial", "threshold": 0.9}]
)
@pytest.mark.parametrize("chunk", [None, 64])
def test_following_parents_back_gives_the_starting_ancestors(options, chunk):
    sampler = ps.FeynmanKac(particles=8, steps=40, ancestry=True, **options)
    run = sampler.sample(composed(), 30, seed=3, max_particles=chunk)
    assert run.ancestry.shape == (40, 30, 8)
    slots = torch.arange(8).expand(30, 8)
    for parents in reversed(run.ancestry.long()):
        slots = torch.gather(parents, 1, slots)
    assert torch.equal(slots, run.ancestors.long())
    assert (run.ancestry != torch.arange(8)).any()


def test_swarms_are_resampled_after_the_steps_that_end_inside_of_the_window():
    """After others everyone is their own parent."""
    sampler = ps.FeynmanKac(8, 20, ancestry=True, resampling="multinomial", window=(0.28, 0.62), grid="equal")
    chosen = (sampler.sample(composed(), 30, seed=3).ancestry != torch.arange(8)).flatten(1).any(1)
    ends = 1 - torch.arange(1, 21) / 20
    assert torch.equal(chosen, (ends >= 0.28) & (ends <= 0.62))


def test_asking_changes_nothing_else():
    with_it = ps.FeynmanKac(particles=8, steps=40, ancestry=True).sample(composed(), 30, seed=3)
    without = ps.FeynmanKac(particles=8, steps=40).sample(composed(), 30, seed=3)
    assert without.ancestry is None and torch.equal(with_it.samples, without.samples)
