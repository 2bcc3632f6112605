"""Drifts that take the fluctuations out of log-weights, and need no Jacobian of a score.

Whatever is added to a move is paid for exactly: dx = (b + c) dtau has the log-weight rate g + div c + <c, S>. Here

    c(x) = A y(x) + a + sum_m psi_m(x) e_m,

affine in y, which is x - centre inside of an ellipsoid and its projection onto it outside, with pushes e_m that belong
to bumps psi_m = softmax_m(-|x - mu_m|^2 / 2 l^2). All of it is bounded, so that no stray is thrown away; its divergence
has a closed form; and g + div c + <c, S> is linear in (A, a, e): making its variance over a swarm least is a
regression.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from polyscore.mixtures.centres import spread

_RIDGE = 1e-4  # of the features' variance
_BEYOND = 3.0  # deviations past sqrt(d) at which the affine part is held
_WIDTH = 1.5  # of a bump, in mean distances to the nearest one


class Frame(NamedTuple):
    """Where a control lives: `centre` and `scale` (1 / deviation), `(d,)`, bumps `(M, d)` of one `width` `(1,)`."""

    centre: Tensor
    scale: Tensor
    bumps: Tensor
    width: Tensor

    @property
    def radius(self) -> float:
        """Of the ellipsoid, in deviations."""
        return math.sqrt(self.centre.shape[-1]) + _BEYOND

    def held(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return y `(..., d)`, its factor w `(..., 1)` and the gradient of w `(..., d)`: y = w (x - centre)."""
        away = x - self.centre
        scaled = away * self.scale
        far2 = scaled.square().sum(-1, keepdim=True)
        w = (self.radius * far2.clamp_min(1e-30).rsqrt()).clamp_max(1.0)
        slope = torch.where(w < 1, -w / far2.clamp_min(1e-30), torch.zeros_like(w))
        return w * away, w, slope * scaled * self.scale

    def shares(self, x: Tensor) -> Tensor:
        """Return psi, `(..., d) -> (..., M)`."""
        near = x @ self.bumps.mT - 0.5 * self.bumps.square().sum(-1)
        return torch.softmax(near / self.width**2, -1)


class Control(NamedTuple):
    """A drift.

    `matrix` is `(d, d)`, a diagonal `(d,)`, or a number `(1,)`; `shift` `(d,)`; `pushes` `(M, d)`.
    """

    centre: Tensor
    scale: Tensor
    bumps: Tensor
    width: Tensor
    matrix: Tensor
    shift: Tensor
    pushes: Tensor

    @property
    def frame(self) -> Frame:
        """Where it lives."""
        return Frame(self.centre, self.scale, self.bumps, self.width)

    def drift(self, x: Tensor) -> Tensor:
        """Return c, like x `(..., d)`."""
        pushed = self.frame.shares(x) @ self.pushes if len(self.bumps) else 0.0
        return self._turned(self.frame.held(x)[0]) + self.shift + pushed

    def rate(self, x: Tensor, score: Tensor) -> Tensor:
        """Return div c + <c, S>, `(..., d) -> (...)`."""
        y, w, slope = self.frame.held(x)
        turned, dim = self._turned(y), x.shape[-1]
        trace = self.matrix.trace() if self.matrix.ndim == 2 else self.matrix.sum() * (dim // len(self.matrix))
        # div A y = w tr A + <grad w, A (x - centre)>, and A y = w A (x - centre)
        divergence = (trace * w + (slope * turned).sum(-1, keepdim=True) / w).squeeze(-1)
        drift = turned + self.shift
        if len(self.bumps):
            shares = self.frame.shares(x)
            pushed, middle = shares @ self.pushes, shares @ self.bumps
            # grad psi_m = psi_m (mu_m - sum psi mu) / l^2
            along = shares @ (self.bumps * self.pushes).sum(-1) - (middle * pushed).sum(-1)
            drift, divergence = drift + pushed, divergence + along / self.width.square()
        return divergence + (drift * score).sum(-1)

    def _turned(self, y: Tensor) -> Tensor:
        return y @ self.matrix.mT if self.matrix.ndim == 2 else y * self.matrix

    def scaled(self, factor: float | Tensor) -> Control:
        """Return a multiple of the drift."""
        return self._replace(matrix=factor * self.matrix, shift=factor * self.shift, pushes=factor * self.pushes)


def frame_of(x: Tensor, weights: Tensor, bumps: int, source: torch.Generator) -> Frame:
    """Return the frame of weighted points `(n, d)`: their mean and deviations, and bumps spread among them."""
    centre = weights @ x
    deviation = (weights @ (x - centre).square()).sqrt().clamp_min(1e-12)
    if not bumps:
        return Frame(centre, 1 / deviation, x[:0], x.new_ones(1))
    first = int(torch.multinomial(weights, 1, generator=source))
    chosen, far = spread(x, first, bumps, source, weights)
    chosen += chosen[-1:] * (bumps - len(chosen))
    width = _WIDTH * (weights @ far).sqrt().clamp_min(1e-6 * deviation.mean())
    return Frame(centre, 1 / deviation, x[chosen], width.reshape(1))


def solved(frame: Frame, x: Tensor, score: Tensor, rate: Tensor, weights: Tensor, kind: str) -> Control:
    """Return the control in `frame` that makes the variance of rate + div c + <c, S> least.

    Args:
        x, score: `(n, d)`; rate, weights: `(n,)`, the weights summing to 1.
        kind: of A: "affine" (full), "diagonal" or "scalar".
    """
    dim, bumps = x.shape[1], len(frame.bumps)
    columns = torch.cat([score, _linear(frame, x, score, kind), _pushing(frame, x, score)], 1)
    theta = least_variance(columns, rate, weights)
    theta = theta if bool(theta.isfinite().all()) else torch.zeros_like(theta)
    shift, matrix, pushes = theta.split([dim, columns.shape[1] - dim - bumps * dim, bumps * dim])
    return Control(*frame, matrix.view(dim, dim) if kind == "affine" else matrix, shift, pushes.view(bumps, dim))


def _linear(frame: Frame, x: Tensor, score: Tensor, kind: str) -> Tensor:
    """div c + <c, S> of c = y_k e_j for all (j, k), for j = k, or of their sum."""
    y, w, slope = frame.held(x)
    away = y / w
    if kind == "affine":
        every = score[:, :, None] * y[:, None] + slope[:, :, None] * away[:, None]
        return (every + w[..., None] * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)).flatten(1)
    diagonal = score * y + slope * away + w
    return diagonal if kind == "diagonal" else diagonal.sum(-1, keepdim=True)


def _pushing(frame: Frame, x: Tensor, score: Tensor) -> Tensor:
    """div c + <c, S> of c = psi_m e_j for all (m, j)."""
    shares = frame.shares(x) if len(frame.bumps) else x[:, :0]
    slopes = (frame.bumps - (shares @ frame.bumps)[:, None]) / frame.width.square()
    return (shares[..., None] * (score[:, None] + slopes)).flatten(1)


def least_variance(columns: Tensor, rate: Tensor, weights: Tensor) -> Tensor:
    """Return theta for which the weighted variance of rate + columns theta is least: regression, with a small ridge."""
    centred = columns - weights @ columns
    scale = (weights @ centred.square()).sqrt().clamp_min(1e-150)
    centred, away = centred / scale, rate - weights @ rate
    gram = centred.T @ (weights[:, None] * centred)
    gram = gram + _RIDGE * torch.eye(len(scale), dtype=gram.dtype, device=gram.device)
    return -torch.linalg.solve(gram, centred.T @ (weights * away)) / scale
