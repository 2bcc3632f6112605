"""Appendix B: interventions with disjoint targets compose, P_AB = P_A P_B / P_0, whatever the mixing.

Each side is computed by itself: the double by setting its mechanisms, the composition from single interventions. With
disjoint targets the composition is normalised as it stands, log Z = 0. Two shifts a and b of one target of noise
variance v compose to their sum, with log Z = a b / v: evidence tells what overlaps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyscore.algebra import Composition, base_composition
from polyscore.causal import Additive, Intervention, Linear, Mixing, Model
from polyscore.distributions import Mixture
from polyscore.paper.theory.statement import Statement, compare, numbers, state
from polyscore.rng import derive, generator
from polyscore.samplers import FeynmanKac

_MIXING = [[1.0, 0.4, 0.0, -0.3], [0.2, 1.0, -0.5, 0.0], [0.0, 0.3, 1.0, 0.4], [-0.4, 0.0, 0.2, 1.0]]


def doubled(n: int, steps: int, seed: int) -> Statement:
    """Corrected samples of P_A P_B / P_0 have the covariance of the model in which both are done."""
    model, a, b = linear_example()
    run = FeynmanKac(particles=16, steps=steps).sample(base_composition(model.family({"A": a, "B": b})), n, seed)
    predicted = torch.as_tensor(model.distribution(a, b).cov)  # type: ignore[union-attr]
    meaning = "disjoint targets, linear, mixed: A B / control has the covariance of the double"
    return compare("Appendix B, linear", meaning, predicted, run.samples, steps)


def reweighted(n: int, seed: int) -> Statement:
    """Draws under A, weighted by P_B / P_0, have the mean of draws under A and B: nonlinear in every part."""
    model, a, b = nonlinear_example()
    double, single = (model.distribution(*done).sample(25 * n, derive(seed, name), torch.float64)
                      for done, name in (((a, b), "double"), ((a,), "single")))  # fmt: skip
    ratio = (model.distribution(b).log_prob(single) - model.distribution().log_prob(single)).exp()
    weighted = ratio[:, None] * single
    spread = ((double.var(0) + weighted.var(0)) / len(double)).sqrt()
    error = ((weighted.mean(0) - double.mean(0)).abs() / spread).max().item()
    return state(
        "Appendix B, nonlinear", "disjoint targets, nonlinear, mixed: A weighted by B / control has the double's mean",
        numbers(double.mean(0)), numbers(weighted.mean(0)), "largest gap in standard errors", error, 5.0,
    )  # fmt: skip


def overlapping(n: int, steps: int, seed: int) -> Statement:
    """log Z is 0 for disjoint targets, and a b / v where both shift one, by a and by b."""
    first, second, variance = 0.9, 0.6, 0.5
    model = Model.linear([[0, 0, 0], [0.8, 0, 0], [0.5, -0.7, 0]], variance=[1.0, variance, 0.4])
    a, b = ({"z2": Linear({"z1": 0.8}, shift, variance)} for shift in (first, second))
    third = {"z3": Linear({"z1": 0.2, "z2": -0.3}, shift=0.5, variance=0.4)}
    products = [base_composition(model.family({"A": a, "B": other})) for other in (third, b | third)]
    found = [FeynmanKac(particles=16, steps=steps).sample(q, n, seed) for q in products]
    predicted, simulated = [0.0, first * second / variance], [run.total_log_evidence for run in found]
    gaps = [abs(x - y) for x, y in zip(predicted, simulated, strict=True)]
    tolerance = 5 * max(run.log_evidence_error for run in found) + 10 / steps
    return state(
        "Appendix B, overlapping", "log Z of A B / control is 0 for disjoint targets, a b / v where both shift one",
        predicted, simulated, "larger gap", max(gaps), tolerance,
    )  # fmt: skip


def disconnected(seed: int = 0) -> Statement:
    """Interventions on groups without an edge between them are factorized conditionals: their residual is 0."""
    largest, control = largest_residual(_groups(0.0), seed), largest_residual(_groups(0.8), seed)
    return state(
        "Appendix B, disconnected", "targets in groups without an edge between them have residual 0",
        0.0, largest, "max |g| over that with one edge between the groups", largest / control, 1e-9,
    )  # fmt: skip


def linear_example() -> tuple[Model, Intervention, Intervention]:
    """Four variables seen through a matrix; A changes the second, B the third and the fourth."""
    b = [[0, 0, 0, 0], [0.8, 0, 0, 0], [-0.5, 0.6, 0, 0], [0, 0.7, -0.4, 0]]
    model = Model.linear(b, shift=[0.5, 0, -1, 0.2], variance=[1.0, 0.6, 0.9, 0.5], mixing=_MIXING)
    second = {"z3": Linear({"z1": -0.5, "z2": 0.2}, shift=-0.4, variance=0.7), "z4": Linear(shift=-1.0, variance=0.4)}
    return model, {"z2": Linear({"z1": 0.3}, shift=1.0, variance=0.5)}, second


def nonlinear_example() -> tuple[Model, Intervention, Intervention]:
    """Five variables, two of them with noise in two lumps, seen through a bent map; A changes v, B changes w and z."""
    lumps = Mixture([[-0.8], [0.9]], cov=0.4, weights=[0.6, 0.4])
    model = Model(
        {
            "u": Additive(0.3, noise=Mixture([[-1.2], [1.2]], cov=0.4)),
            "v": Additive(lambda p: torch.tanh(2 * p[..., 0]), ["u"], noise=0.5),
            "w": Additive(lambda p: torch.sin(p[..., 0]) + 0.5 * p[..., 1], ["u", "v"], noise=lumps),
            "y": Additive(lambda p: 2 * p[..., 0] / (1 + p[..., 1] ** 2), ["v", "w"], noise=0.4),
            "z": Additive(lambda p: torch.tanh(p[..., 0]), ["y"], noise=0.8),
        },
        mixing=Mixing(_bend, _straighten, lambda z: 1.2 * torch.tanh(z[..., 0])),
    )
    a = {"v": Additive(lambda p: 0.5 - torch.cos(p[..., 0]), ["u"], noise=0.4)}
    bent = Additive(lambda p: torch.sin(p[..., 0]) + 0.2 * p[..., 1] + 0.3, ["u", "v"], noise=0.3)
    return model, a, {"w": bent, "z": Linear(shift=0.5, variance=0.5)}


def _bend(z: Tensor) -> Tensor:
    """The first two as they are; the other three stretched by the first and moved by the square of the second."""
    head, tail = z[..., :2], z[..., 2:]
    stretch = torch.exp(0.4 * torch.tanh(head[..., :1]))
    return torch.cat([head, tail * stretch + 0.5 * head[..., 1:] ** 2], -1)


def _straighten(x: Tensor) -> Tensor:
    head, tail = x[..., :2], x[..., 2:]
    stretch = torch.exp(0.4 * torch.tanh(head[..., :1]))
    return torch.cat([head, (tail - 0.5 * head[..., 1:] ** 2) / stretch], -1)


def _groups(between: float) -> Composition:
    """Two pairs of variables, in an orthogonal basis; `between` is an edge from the first pair to the second."""
    b = [[0, 0, 0, 0], [0.8, 0, 0, 0], [0, 0, 0, 0], [0, between, -0.6, 0]]
    basis = torch.linalg.qr(torch.tensor(_MIXING, dtype=torch.float64)).Q
    model = Model.linear(b, shift=0.3, variance=[1.0, 0.5, 0.8, 0.4], mixing=basis)
    a = {"z2": Linear({"z1": -0.4}, shift=1.0, variance=0.3)}
    c = {"z3": Linear(shift=-1.0, variance=0.5), "z4": Linear({"z3": 0.5}, shift=0.7, variance=0.6)}
    return base_composition(model.family({"A": a, "B": c}))


def largest_residual(q: Composition, seed: int) -> float:
    """Return max |g| over points of R^4 and times."""
    x = 2 * torch.randn(256, 4, generator=generator(seed, "points"), dtype=torch.float64)
    return max(q.residual(x, t).abs().max().item() for t in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9))
