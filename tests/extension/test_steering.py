"""A sampler from outside that steers: a drift of one's own, paid for by the weights."""

import json
from dataclasses import dataclass, replace

import pytest
import torch

import polyscore as ps
from cases import closed_form, compose, gaussian_family, within_standard_errors
from polyscore import samplers
from polyscore.fields import row


# --- the extension
@samplers.SAMPLERS.register("blown")
@dataclass(frozen=True, repr=False)
class Blown(ps.FeynmanKac):
    """Feynman-Kac correction with a drift c(x) = wind - calm x, for which div c + <c, S> is paid."""

    wind: float = 1.0
    calm: float = 0.5

    def tables(self, q, times, like):
        return {"length": -times.diff().to(like)}

    def steer(self, plan, state, x, i):
        return x + row(plan.tables["length"], i) * (self.wind - self.calm * state.x)

    def steered(self, plan, before, after, i, gained):
        left, right = (self.cost(state) for state in (before, after))
        return gained + samplers.step.gain(plan, left, right, plan.coefficients(i))

    def cost(self, state):
        along = ((self.wind - self.calm * state.x) * state.score).sum(-1)
        return along - self.calm * state.x.shape[-1]


# --- end


class Unpaid(Blown):
    def steered(self, plan, before, after, i, gained):
        return gained


Q = compose(gaussian_family(3), a=1, b=0.7, base=-0.3)


@pytest.mark.filterwarnings("ignore:(K|swarms|weight) should")
def test_what_steers_is_paid_for():
    """1500 swarms of 16, W = 1.4, 200 steps: Z^ / Z is 1 and the mean, by evidence, that of the closed form within 4
    standard errors, an alarm in 10^3, besides 2 % of the time step; who does not pay is blown away by over ten."""
    mean, _, log_z = closed_form(Q)
    paid, unpaid = (kind(16, 200, threshold=0.5).sample(Q, 1500, seed=1) for kind in (Blown, Unpaid))
    ratio = (paid.log_evidence.double() - log_z).exp()
    within_standard_errors(ratio, 1.0, 4, slack=0.02)
    within_standard_errors(ratio[:, None] * (paid.samples.double() - torch.as_tensor(mean)), 0.0, 4, slack=0.02)
    away = unpaid.samples.double() - torch.as_tensor(mean)
    assert bool((away.mean(0).abs() > 10 * away.std(0) / len(away) ** 0.5).any())


@pytest.mark.filterwarnings("ignore:(K|swarms|weight) should")
def test_without_strength_it_is_the_sampler_below_and_files_hold_it():
    sampler = Blown(4, 20, wind=0.5)
    assert samplers.build_sampler(json.loads(json.dumps(samplers.describe(sampler)))) == sampler
    still, plain = (s.sample(Q, 30, seed=2) for s in (replace(sampler, wind=0.0, calm=0.0), ps.FeynmanKac(4, 20)))
    assert torch.equal(still.samples, plain.samples) and torch.equal(still.log_evidence, plain.log_evidence)
    assert not torch.equal(sampler.sample(Q, 30, seed=2).samples, plain.samples)
