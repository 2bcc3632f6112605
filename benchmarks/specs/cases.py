"""Families that no small mixture is, as data: densities to draw from and to compose exactly, without noised scores.

Used by `shapes.yaml` beside this file. Families of Gaussians and mixtures in more dimensions are closed forms.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import polyscore as ps
from polyscore.metrics.named import Options
from polyscore.paper.theory.interventions import nonlinear_example
from polyscore.rng import generator


class Drawn(ps.Density):
    """A density in the plane that is known at t = 0 alone, with draws of its own."""

    dim = 2

    def score(self, x: Tensor, alpha=1.0, sigma=0.0) -> Tensor:
        raise NotImplementedError("learned from draws, not asked for a score")


def plain(x: Tensor, alpha, sigma) -> Tensor:
    """The points, where no noise is asked for."""
    assert float(torch.as_tensor(sigma).max()) == 0 and float(torch.as_tensor(alpha).min()) == 1
    return x


class Ring(Drawn):
    """Radius 4, 0.4 wide, evenly around."""

    def log_prob(self, x: Tensor, alpha=1.0, sigma=0.0) -> Tensor:
        r = plain(x, alpha, sigma).norm(dim=-1).clamp_min(1e-12)
        return -((r - 4) ** 2) / 0.32 - r.log() - math.log(2 * math.pi * math.sqrt(2 * math.pi) * 0.4)

    def sample(self, n: int, seed: int = 0, dtype=torch.float32) -> Tensor:
        draw = generator(seed, "ring")
        angle = 2 * math.pi * torch.rand(n, generator=draw, dtype=torch.float64)
        radius = 4 + 0.4 * torch.randn(n, generator=draw, dtype=torch.float64)
        return torch.stack([radius * angle.cos(), radius * angle.sin()], 1).to(dtype)

    def moments(self):
        return torch.zeros(2), torch.full((2,), 8.1)


class Banana(Drawn):
    """y = x^2 / 4 - 3 with x ~ N(0, 1.5^2), 0.5 wide; or its mirror in the diagonal."""

    def __init__(self, mirrored: bool) -> None:
        self.mirrored = mirrored

    def log_prob(self, x: Tensor, alpha=1.0, sigma=0.0) -> Tensor:
        a, b = (x.flip(-1) if self.mirrored else plain(x, alpha, sigma)).unbind(-1)
        return -(a**2) / 4.5 - (b - a**2 / 4 + 3) ** 2 / 0.5 - math.log(2 * math.pi * 1.5 * 0.5)

    def sample(self, n: int, seed: int = 0, dtype=torch.float32) -> Tensor:
        z = torch.randn(n, 2, generator=generator(seed, "banana"), dtype=torch.float64)
        a = 1.5 * z[:, 0]
        points = torch.stack([a, a**2 / 4 - 3 + 0.5 * z[:, 1]], 1)
        return (points.flip(1) if self.mirrored else points).to(dtype)

    def moments(self):
        mean, variance = torch.tensor([0.0, -2.44]), torch.tensor([2.25, 0.9])
        return (mean.flip(0), variance.flip(0)) if self.mirrored else (mean, variance)


class Board(Drawn):
    """The dark fields of a board of 8 x 8 on [-4, 4]^2, edges 0.05 wide."""

    def log_prob(self, x: Tensor, alpha=1.0, sigma=0.0) -> Tensor:
        edges = torch.arange(-4, 5, dtype=x.dtype, device=x.device)
        steps = torch.special.ndtr((plain(x, alpha, sigma)[..., None] - edges) / 0.05)
        inside = steps[..., :-1] - steps[..., 1:]  # (..., 2, 8): by how much in which column, and row
        dark = ((torch.arange(8)[:, None] + torch.arange(8)) % 2 == 0).to(x)
        return ((inside[..., 0, :] @ dark) * inside[..., 1, :]).sum(-1).clamp_min(1e-300).log() - math.log(32)

    def sample(self, n: int, seed: int = 0, dtype=torch.float32) -> Tensor:
        draw = generator(seed, "board")
        row, half = (torch.randint(high, (n,), generator=draw) for high in (8, 4))
        corner = torch.stack([row, 2 * half + row % 2], 1) - 4
        within = torch.rand(n, 2, generator=draw, dtype=torch.float64)
        return (corner + within + 0.05 * torch.randn(n, 2, generator=draw, dtype=torch.float64)).to(dtype)

    def moments(self):
        return torch.zeros(2), torch.full((2,), 16 / 3)


class Student(Drawn):
    """mean + scale t_nu in the plane."""

    def __init__(self, nu: float, mean: list[float], scale: list[float]) -> None:
        self.nu = nu
        self.mean, self.scale = (torch.tensor(part, dtype=torch.float64) for part in (mean, scale))

    def log_prob(self, x: Tensor, alpha=1.0, sigma=0.0) -> Tensor:
        away = ((plain(x, alpha, sigma) - self.mean.to(x)) / self.scale.to(x)).square().sum(-1)
        return -(self.nu / 2 + 1) * torch.log1p(away / self.nu) - math.log(2 * math.pi) - self.scale.log().sum().item()

    def sample(self, n: int, seed: int = 0, dtype=torch.float32) -> Tensor:
        draw = generator(seed, "student")
        z = torch.randn(n, 2, generator=draw, dtype=torch.float64)
        chi = 2 * torch._standard_gamma(torch.full((n,), self.nu / 2, dtype=torch.float64), generator=draw)
        return (self.mean + self.scale * z * (self.nu / chi).sqrt()[:, None]).to(dtype)

    def moments(self):
        return self.mean, self.scale**2 * self.nu / (self.nu - 2)


class Observed(ps.Distribution):
    """A distribution of a causal model that is no Gaussian: draws, and nothing else."""

    def __init__(self, inner) -> None:
        self.inner, self.dim = inner, 5

    def score(self, x: Tensor, alpha=1.0, sigma=0.0) -> Tensor:
        raise NotImplementedError("learned from draws, not asked for a score")

    def sample(self, n: int, seed: int = 0, dtype=torch.float32) -> Tensor:
        return self.inner.sample(n, seed).to(dtype)


def ring() -> ps.Family:
    return ps.Family({"a1": Ring(), "a2": ps.Gaussian([7.0, 0.0], 6.0), "base": ps.Gaussian(cov=25.0, dim=2)})


def bananas() -> ps.Family:
    return ps.Family({"a1": Banana(False), "a2": Banana(True), "base": ps.Gaussian(cov=9.0, dim=2)})


def board() -> ps.Family:
    return ps.Family({"a1": Board(), "a2": ps.Gaussian([1.0, 0.0], 4.0), "base": ps.Gaussian(cov=9.0, dim=2)})


def student3() -> ps.Family:
    return student(3.0)


def student5() -> ps.Family:
    return student(5.0)


def student(nu: float) -> ps.Family:
    return ps.Family({"a1": Student(nu, [1.0, 0.0], [2.0, 1.0]), "a2": Student(nu, [0.0, 1.0], [1.0, 2.0]),
                      "base": Student(nu, [0.0, 0.0], [2.5, 2.5])})  # fmt: skip


def turned(dim: int, seed: int) -> Tensor:
    """A covariance with variances between 0.5 and 3 along axes of its own."""
    draw = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(dim, dim, generator=draw, dtype=torch.float64)).Q
    return (basis * (0.5 + 2.5 * torch.rand(dim, generator=draw, dtype=torch.float64))) @ basis.T


def gaussians(dim: int) -> ps.Family:
    return ps.Family({"a1": ps.Gaussian(cov=turned(dim, 1)), "a2": ps.Gaussian(cov=turned(dim, 2)),
                      "base": ps.Gaussian(cov=4.0, dim=dim)})  # fmt: skip


def gaussians10() -> ps.Family:
    return gaussians(10)


def gaussians50() -> ps.Family:
    return gaussians(50)


def mixtures3() -> ps.Family:
    means = 4 * torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    return ps.Family({"a1": ps.Mixture(means[:3], [0.4 * turned(3, k) for k in (5, 6, 7)], [0.5, 0.3, 0.2]),
                      "a2": ps.Mixture(means[1:4], 0.7), "base": ps.Mixture(means, 1.5)})  # fmt: skip


def causal5() -> ps.Family:
    model, a, b = nonlinear_example()
    drawn = {"a1": model.distribution(a), "a2": model.distribution(b), "base": model.distribution()}
    return ps.Family({name: Observed(inner) for name, inner in drawn.items()})


def sw2_asinh(samples: Tensor, reference: Tensor, options: Options) -> float:
    """Sliced W2 after asinh, which has a variance where plain SW2 of heavy tails has none."""
    return ps.sliced_wasserstein(samples.asinh(), reference.asinh(), options.projections, options.seed)


def sw2_double(samples: Tensor, reference: Tensor | None = None, options: Options | None = None) -> float:
    """Sliced W2 to draws of the causal model's double, whose mechanisms are set directly."""
    model, a, b = nonlinear_example()
    options = options or Options()
    drawn = model.distribution(a, b).sample(len(samples), options.seed)
    return ps.sliced_wasserstein(samples, drawn.to(samples), options.projections, options.seed)
