"""Tails of Gaussian mixtures: a composition decays along a unit direction v like

    rate(v) = sum_a w_a min_k v' P_{a,k} v        (P = cov^-1).

A direction of growth is found by descent; its absence is proved by averages of the denominators' components, since
-|w| min_k v' P_k v is at least -|w| v' (sum_k mu_k P_k) v for every mu.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from polyscore.algebra.validity.forms import (
    diagonal,
    distinct,
    fan,
    lowest,
    minimal,
    pull,
    spans,
    spectrum,
    traces,
    values_of,
)
from polyscore.distributions.components import Components

ZERO = 1e-10
_MOST_CHOICES = 4096
MOST_WORK = 1 << 26  # numbers in the matrices of all choices times their dimension


class Tails:
    """The quadratic forms v' P_{a,k} v of every condition, `(M, d, d)`, or `(M, d)` where all are diagonal."""

    def __init__(self, forms: Sequence[Tensor], exponents: Sequence[float], noise: float = 0.0) -> None:
        self.forms, self.exponents, self.noise = list(forms), list(exponents), noise
        self.diagonal, self.dim = forms[0].ndim == 2, forms[0].shape[-1]

    @property
    def mixed(self) -> bool:
        """Whether some condition has tails of more than one shape."""
        return any(len(form) > 1 for form in self.forms)

    def standardised(self) -> tuple[Tails, Tensor]:
        """Return the tails where sum_a |w_a| mean_k P_k is the identity, and the matrix that leads back from there.

        Definiteness does not depend on coordinates, but rounding does: first give every axis the scale 1, then every
        direction. `noise` is what rounding leaves of a rate of zero.
        """
        axes = sum(abs(w) * diagonal(form).mean(0) for w, form in zip(self.exponents, self.forms, strict=True))
        scale = torch.as_tensor(axes).rsqrt()
        if self.diagonal:
            return Tails([form * scale**2 for form in self.forms], self.exponents), scale
        forms = [scale[:, None] * form * scale for form in self.forms]
        total = sum(abs(w) * form.mean(0) for w, form in zip(self.exponents, forms, strict=True))
        values, basis = torch.linalg.eigh(torch.as_tensor(total))
        values = values.clamp_min(values[-1] * 1e-15)
        root = basis * values.rsqrt()
        noise = 1e-15 * self.dim * (values[-1] / values[0]).item()
        return Tails([root.T @ form @ root for form in forms], self.exponents, noise), scale[:, None] * root

    def shown(self, direction: Tensor, back: Tensor) -> tuple[float, ...]:
        """Return a direction in the data's coordinates; the steepest growth itself where there is one."""
        steepest, rate = self.slowest()
        own = back * direction if self.diagonal else back @ direction
        own = steepest if rate < 0 else own
        return tuple((own / own.norm()).tolist())

    def slowest(self) -> tuple[Tensor, float]:
        """Return the slowest decay among the eigenvectors of every choice of components, and its rate."""
        if self.diagonal:
            pairs = zip(self.exponents, self.forms, strict=True)
            rates = torch.as_tensor(sum(w * form.amin(0) for w, form in pairs))
            return torch.eye(1, self.dim, dtype=rates.dtype)[0].roll(int(rates.argmin())), rates.min().item()
        choices = self._choices(range(len(self.forms)))
        vectors = torch.linalg.eigh(self._pencils(choices)).eigenvectors
        return self._least(vectors.movedim(0, 1).flatten(1))

    def rates(self, directions: Tensor) -> Tensor:
        """Return sum_a w_a min_k v' P_k v for columns v, `(d, n) -> (n,)`."""
        pairs = zip(self.exponents, self.forms, strict=True)
        return torch.as_tensor(sum(w * values_of(form, directions).amin(0) for w, form in pairs))

    def _least(self, directions: Tensor) -> tuple[Tensor, float]:
        rates = self.rates(directions)
        return directions[:, rates.argmin()], rates.min().item()

    def _choices(self, which: Sequence[int]) -> Tensor:
        """One component for each of these conditions, `(C, len(which))`, as many choices as there is time for."""
        most = min(_MOST_CHOICES, max(16, MOST_WORK // self.dim ** (1 if self.diagonal else 3)))
        counts = [range(len(self.forms[i])) for i in which]
        return torch.tensor(list(itertools.islice(itertools.product(*counts), most)), dtype=torch.long)

    def _pencils(self, choices: Tensor) -> Tensor:
        """Lambda for every choice of component per condition, `(C, d, d)` or `(C, d)`."""
        columns = zip(self.exponents, self.forms, choices.T, strict=True)
        return torch.as_tensor(sum(w * form[chosen] for w, form, chosen in columns))

    def proved(self) -> bool:
        """Prove integrability: for every choice of numerators' components, some average of the others' decays."""
        above, below = ([i for i, w in enumerate(self.exponents) if (w > 0) is sign] for sign in (True, False))
        if math.prod(len(self.forms[i]) for i in above) > len(choices := self._choices(above)):
            return False
        fixed = torch.as_tensor(sum(self.exponents[i] * self.forms[i][chosen] for i, chosen in zip(above, choices.T)))
        if not below or len(fixed) == 0:
            return bool(below == [] and lowest(fixed).min() > self.margin)
        return self._averages_decay(fixed, below)

    @property
    def margin(self) -> float:
        """What counts as zero."""
        return max(ZERO, self.noise)

    def _averages_decay(self, fixed: Tensor, below: Sequence[int]) -> bool:
        """Raise the lowest eigenvalue of fixed - sum_b |w_b| sum_k mu_bk P_bk over mu, by mirror ascent.

        The lowest eigenvalue is smoothed: its gradient is that of a soft minimum, ever harder.
        """
        forms = [-self.exponents[i] * self.forms[i] for i in below]
        logits = [torch.zeros(len(fixed), len(form), dtype=fixed.dtype) for form in forms]
        steps = 200 if any(len(form) > 1 for form in forms) else 1
        for i in range(steps):
            shares = [torch.softmax(logit, -1) for logit in logits]
            means = [torch.tensordot(share, form, 1) for share, form in zip(shares, forms, strict=True)]
            values, vectors = spectrum(fixed - torch.stack(means).sum(0))
            undecided = values[:, 0] <= self.margin
            if not bool(undecided.any()):
                return True
            fixed, logits = fixed[undecided], [logit[undecided] for logit in logits]
            soft = torch.softmax(-values[undecided] * (10 + i), -1)
            for logit, form in zip(logits, forms, strict=True):
                logit -= 8 / math.sqrt(1 + i) * traces(form, vectors[undecided], soft)
        return False

    def search(self, direction: Tensor, rate: float) -> tuple[Tensor, float, bool]:
        """Look for growth harder: all angles in the plane, else descent from many directions."""
        if self.dim == 2:
            return self._sweep(direction, rate)
        count = max(64, min(1024, 65_536 // self.dim**2))
        found, least = self._descend(torch.cat([direction[:, None], fan(self.dim, count)], 1))
        return (found, least, False) if least < rate else (direction, rate, False)

    def _sweep(self, direction: Tensor, rate: float) -> tuple[Tensor, float, bool]:
        """Halve intervals of angles until the rate's slope leaves no room for a negative one in any."""
        ranges = [(form.diff(dim=-1).abs() if self.diagonal else spans(form)).max().item() for form in self.forms]
        slope = sum(abs(w) * span for w, span in zip(self.exponents, ranges, strict=True))
        half = math.pi / 720
        middles = (torch.arange(360, dtype=torch.float64) + 0.5) * 2 * half
        for _ in range(40):
            directions = torch.stack([middles.cos(), middles.sin()])
            rates = self.rates(directions)
            if rates.min() < rate:
                direction, rate = directions[:, rates.argmin()], rates.min().item()
            middles = middles[rates - slope * half <= self.margin]
            if rate < -self.margin or len(middles) == 0 or len(middles) > 1 << 16:
                break
            half /= 2
            middles = torch.cat([middles - half, middles + half])
        return direction, rate, len(middles) == 0

    def _descend(self, v: Tensor, steps: int = 300) -> tuple[Tensor, float]:
        """Projected gradient steps on the sphere, the minima over components softened less and less."""
        best, least = self._least(v)
        for i in range(steps):
            heat = 0.3 * (1e-4 / 0.3) ** (i / steps)
            slope = torch.zeros_like(v)
            for w, form in zip(self.exponents, self.forms, strict=True):
                shares = torch.softmax(-values_of(form, v) / heat, 0)
                slope += w * pull(form, v, shares)
            slope -= (slope * v).sum(0) * v
            v = v - min(0.5, 4 * heat) * slope / slope.norm(dim=0).clamp_min(1.0)
            v = v / v.norm(dim=0)
            found, rate = self._least(v)
            if rate < least:
                best, least = found, rate
            if least < -100 * self.margin and i % 20 == 19:
                break
        return best, least


def tails_of(mixtures: Sequence[Components], exponents: Sequence[float], alpha: Tensor, sigma: Tensor) -> Tails:
    """Return the tails of mixtures after noising by (alpha, sigma)."""
    shapes = [tail_shapes(components) for components in mixtures]
    if any(components.bases is not None for components in shapes):
        return Tails([components.precision_at(alpha, sigma) for components in shapes], exponents)
    return Tails([1 / (alpha**2 * components.variances + sigma**2) for components in shapes], exponents)


def tail_shapes(components: Components) -> Components:
    """Return the components that matter for the tails: noise does not change which are the widest."""
    forms = 1 / components.variances if components.bases is None else components.precisions
    index = torch.arange(components.count)[components.weights > 0]
    different = index[distinct(forms[index])]
    kept = different[minimal(forms[different])]
    bases = None if components.bases is None else components.bases[kept]
    return Components(components.means[kept], components.variances[kept], bases)
