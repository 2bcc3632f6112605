"""Theorem 1: when a weighted composition can be normalised.

For Gaussians, exactly when Lambda = sum_a w_a cov_a^-1 is positive definite. A mixture decays along a unit direction v
like its widest component there, so a composition decays like

    rate(v) = sum_a w_a min_k v' P_{a,k} v        (P = cov^-1).

It is integrable if the rate is positive in every direction, and is not if it is negative in one (a cone around it then
diverges). A direction is found by descent; its absence is proved by averages of the denominators' components, since
-|w| min_k v' P_k v is at least -|w| v' (sum_k mu_k P_k) v for every mu. Between the two, where the least rate is zero
or could not be bounded, the honest answer is "cannot tell".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyscore.distributions.components import Components, components_of, weights_of
from polyscore.distributions.distribution import Distribution
from polyscore.errors import ImproperError
from polyscore.notices import warn
from polyscore.schedules import Schedule

_ZERO = 1e-10
_MOST_CHOICES = 4096
_MOST_WORK = 1 << 26  # numbers in the matrices of all choices times their dimension
_REMEDY = "Lower the negative exponents, raise the positive ones, or choose a wider base."


@dataclass(frozen=True)
class Validity:
    """An answer to "can it be normalised?": `proper` is True, False or None (cannot tell).

    `direction` is the slowest decay found; None where the answer needs none or, for learned scores, none was sought.
    """

    proper: bool | None
    direction: tuple[float, ...] | None
    reason: str

    def __bool__(self) -> bool:
        return self.proper is True

    def require(self, subject: str) -> None:
        """Raise `ImproperError` when the answer is no."""
        if self.proper is False:
            raise ImproperError(f"a composition must be normalisable; got {subject}, and {self.reason}. {_REMEDY}")

    def settle(self, subject: str) -> None:
        """Raise when the answer is no; warn when closed forms gave none. Learned scores are never asked."""
        self.require(subject)
        if self.proper is None and self.direction is not None:
            warn(
                f"whether {subject} can be normalised could not be told: {self.reason}. Where it cannot, samples and "
                f"evidence mean nothing. {_REMEDY}"
            )


def composition_validity(
    parts: Sequence[Distribution], exponents: Sequence[float], alpha: Tensor, sigma: Tensor
) -> Validity:
    """Return the validity of prod_a parts_a^{w_a} after noising by (alpha, sigma)."""
    if not parts:
        return Validity(False, None, "it is constant: all its exponents cancel")
    own = _tails(parts, exponents, alpha, sigma)
    tails, back = own.standardised()
    direction, rate = tails.slowest()
    proved = rate >= -tails.margin and tails.proved()
    if not proved and rate >= -tails.margin and tails.mixed:
        direction, rate, proved = tails.search(direction, rate)
    if proved:
        return Validity(True, None, "it decays in every direction")
    shown = own.shown(direction, back)
    if rate < -tails.margin:
        return Validity(False, shown, f"its density grows along {_show(shown)}")
    if rate <= _ZERO and all(components_of(part).count == 1 for part in parts):
        return Validity(False, shown, f"its density does not decay along {_show(shown)}")
    return Validity(None, shown, f"its tails could not be bounded; the slowest decay found is along {_show(shown)}")


def path_validity(
    parts: Sequence[Distribution], exponents: Sequence[float], schedule: Schedule
) -> tuple[float, Validity]:
    """Return the time t at which the noised composition decays slowest for its scale, and its validity there.

    Noising by (alpha, sigma) is, up to a change of units, adding s = sigma^2 / alpha^2 to every covariance: all that
    happens lies between far below the narrowest and far above the widest component, and changes with log s.
    """
    kept = [_shapes(part) for part in parts]
    noise = _noise_levels(kept, schedule)
    least = _relative_rates(kept, exponents, noise)
    for _ in range(3):  # each round looks several times closer around the deepest minima
        finer = _between(noise, least)
        noise, order = torch.cat([noise, finer]).sort()
        least = torch.cat([least, _relative_rates(kept, exponents, finer)])[order]
    answers = [(s, composition_validity(parts, exponents, *_scales(s))) for s in noise[_minima(least)[:3]]]
    s, answer = next((pair for pair in answers if pair[1].proper is False), answers[0])
    return schedule.time_at(0.5 * s.log()).item(), answer


class _Tails:
    """The quadratic forms v' P_{a,k} v of every condition, `(M, d, d)`, or `(M, d)` where all are diagonal."""

    def __init__(self, forms: Sequence[Tensor], exponents: Sequence[float], noise: float = 0.0) -> None:
        self.forms, self.exponents, self.noise = list(forms), list(exponents), noise
        self.diagonal, self.dim = forms[0].ndim == 2, forms[0].shape[-1]

    @property
    def mixed(self) -> bool:
        """Whether some condition has tails of more than one shape."""
        return any(len(form) > 1 for form in self.forms)

    def standardised(self) -> tuple[_Tails, Tensor]:
        """Return the tails where sum_a |w_a| mean_k P_k is the identity, and the matrix that leads back from there.

        Definiteness does not depend on coordinates, but rounding does: first give every axis the scale 1, then every
        direction. `noise` is what rounding leaves of a rate of zero.
        """
        axes = sum(abs(w) * _diagonal(form).mean(0) for w, form in zip(self.exponents, self.forms, strict=True))
        scale = torch.as_tensor(axes).rsqrt()
        if self.diagonal:
            return _Tails([form * scale**2 for form in self.forms], self.exponents), scale
        forms = [scale[:, None] * form * scale for form in self.forms]
        total = sum(abs(w) * form.mean(0) for w, form in zip(self.exponents, forms, strict=True))
        values, basis = torch.linalg.eigh(torch.as_tensor(total))
        values = values.clamp_min(values[-1] * 1e-15)
        root = basis * values.rsqrt()
        noise = 1e-15 * self.dim * (values[-1] / values[0]).item()
        return _Tails([root.T @ form @ root for form in forms], self.exponents, noise), scale[:, None] * root

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
        return torch.as_tensor(sum(w * _values(form, directions).amin(0) for w, form in pairs))

    def _least(self, directions: Tensor) -> tuple[Tensor, float]:
        rates = self.rates(directions)
        return directions[:, rates.argmin()], rates.min().item()

    def _choices(self, which: Sequence[int]) -> Tensor:
        """One component for each of these conditions, `(C, len(which))`, as many choices as there is time for."""
        most = min(_MOST_CHOICES, max(16, _MOST_WORK // self.dim ** (1 if self.diagonal else 3)))
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
            return bool(below == [] and _lowest(fixed).min() > self.margin)
        return self._averages_decay(fixed, below)

    @property
    def margin(self) -> float:
        """What counts as zero."""
        return max(_ZERO, self.noise)

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
            values, vectors = _spectrum(fixed - torch.stack(means).sum(0))
            undecided = values[:, 0] <= self.margin
            if not bool(undecided.any()):
                return True
            fixed, logits = fixed[undecided], [logit[undecided] for logit in logits]
            soft = torch.softmax(-values[undecided] * (10 + i), -1)
            for logit, form in zip(logits, forms, strict=True):
                logit -= 8 / math.sqrt(1 + i) * _traces(form, vectors[undecided], soft)
        return False

    def search(self, direction: Tensor, rate: float) -> tuple[Tensor, float, bool]:
        """Look for growth harder: all angles in the plane, else descent from many directions."""
        if self.dim == 2:
            return self._sweep(direction, rate)
        count = max(64, min(1024, 65_536 // self.dim**2))
        found, least = self._descend(torch.cat([direction[:, None], _fan(self.dim, count)], 1))
        return (found, least, False) if least < rate else (direction, rate, False)

    def _sweep(self, direction: Tensor, rate: float) -> tuple[Tensor, float, bool]:
        """Halve intervals of angles until the rate's slope leaves no room for a negative one in any."""
        spans = [(form.diff(dim=-1).abs() if self.diagonal else _spans(form)).max().item() for form in self.forms]
        slope = sum(abs(w) * span for w, span in zip(self.exponents, spans, strict=True))
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
                shares = torch.softmax(-_values(form, v) / heat, 0)
                slope += w * _pull(form, v, shares)
            slope -= (slope * v).sum(0) * v
            v = v - min(0.5, 4 * heat) * slope / slope.norm(dim=0).clamp_min(1.0)
            v = v / v.norm(dim=0)
            found, rate = self._least(v)
            if rate < least:
                best, least = found, rate
            if least < -100 * self.margin and i % 20 == 19:
                break
        return best, least


def _tails(parts: Sequence[Distribution], exponents: Sequence[float], alpha: Tensor, sigma: Tensor) -> _Tails:
    shapes = [_shapes(part) for part in parts]
    if any(components.bases is not None for components in shapes):
        return _Tails([components.precision_at(alpha, sigma) for components in shapes], exponents)
    return _Tails([1 / (alpha**2 * components.variances + sigma**2) for components in shapes], exponents)


def _distinct(forms: Tensor) -> Tensor:
    """Return the places of different forms: components of equal shape have equal tails."""
    kept: list[int] = []
    for k, form in enumerate(forms):
        if not any(torch.allclose(form, forms[j], rtol=1e-12, atol=0) for j in kept):
            kept.append(k)
    return torch.tensor(kept)


def _minimal(forms: Tensor, most: int = 64) -> Tensor:
    """Return the places of forms that are the least in some direction: what lies above another everywhere is not."""
    kept = list(range(len(forms)))
    for k in range(len(forms) if 1 < len(forms) <= most else 0):
        others = [j for j in kept if j != k]
        if others and bool((_lowest(forms[k] - forms[others]) >= 0).any()):
            kept.remove(k)
    return torch.tensor(kept)


def _diagonal(form: Tensor) -> Tensor:
    return form if form.ndim == 2 else form.diagonal(dim1=-2, dim2=-1)


def _spectrum(pencils: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues `(C, d)`, ascending, and eigenvectors of matrices `(C, d, d)`, or of diagonals `(C, d)`."""
    if pencils.ndim == 3:
        return tuple(torch.linalg.eigh(pencils))
    values, order = pencils.sort(-1)
    return values, order


def _lowest(pencils: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(pencils)[..., 0] if pencils.ndim == 3 else pencils.amin(-1)


def _spans(form: Tensor) -> Tensor:
    values = torch.linalg.eigvalsh(form)
    return values[..., -1] - values[..., 0]


def _values(form: Tensor, v: Tensor) -> Tensor:
    """v' P_k v for columns v, `(d, n) -> (M, n)`."""
    return form @ v.square() if form.ndim == 2 else ((form @ v) * v).sum(-2)


def _pull(form: Tensor, v: Tensor, shares: Tensor) -> Tensor:
    """sum_k share_k P_k v for columns v, `(d, n), (M, n) -> (d, n)`."""
    if form.ndim == 2:
        return (form.T @ shares) * v
    return (shares[:, None] * (form @ v)).sum(0)


def _traces(form: Tensor, vectors: Tensor, soft: Tensor) -> Tensor:
    """tr(P_k G) with G = sum_i soft_i v_i v_i', `(C, M)`; for diagonals `vectors` is the order of the axes."""
    if form.ndim == 2:
        return torch.zeros_like(soft).scatter(-1, vectors, soft) @ form.T
    density = (vectors * soft[:, None]) @ vectors.mT
    return torch.einsum("kde,ced->ck", form, density)


def _shapes(part: Distribution) -> Components:
    """Return the components of a part that matter for its tails: noise does not change which are the widest."""
    components = components_of(part)
    forms = 1 / components.variances if components.bases is None else components.precisions
    index = torch.arange(components.count)[weights_of(part) > 0]
    different = index[_distinct(forms[index])]
    kept = different[_minimal(forms[different])]
    bases = None if components.bases is None else components.bases[kept]
    return Components(components.means[kept], components.variances[kept], bases)


def _scales(s: Tensor) -> tuple[Tensor, Tensor]:
    """(alpha, sigma) of a variance-preserving schedule at s = sigma^2 / alpha^2."""
    return (1 / (1 + s)).sqrt(), (s / (1 + s)).sqrt()


def _noise_levels(shapes: Sequence[Components], schedule: Schedule) -> Tensor:
    """Levels s = sigma^2 / alpha^2 that a schedule passes, eight a decade around all components' variances."""
    variances = torch.cat([components.variances.flatten() for components in shapes])
    low, high = math.log10(variances.min().item()) - 3, math.log10(variances.max().item()) + 3
    levels = torch.logspace(low, high, int(8 * (high - low)) + 2, dtype=torch.float64)
    end = torch.ones((), dtype=torch.float64)
    last = (schedule.sigma(end) / schedule.alpha(end).clamp_min(1e-150)) ** 2
    return torch.cat([levels[levels < last], last.clamp_max(levels[-1])[None]])


def _minima(least: Tensor) -> Tensor:
    """Return the places of local minima, the deepest first."""
    padded = torch.nn.functional.pad(least, (1, 1), value=math.inf)
    places = ((least <= padded[:-2]) & (least <= padded[2:])).nonzero()[:, 0]
    return places[least[places].argsort()]


def _between(levels: Tensor, least: Tensor) -> Tensor:
    """Return levels around the deepest minima, eight between neighbours."""
    places, logs = _minima(least)[:4], levels.log()
    low, high = logs[(places - 1).clamp_min(0)], logs[(places + 1).clamp_max(len(logs) - 1)]
    ticks = torch.linspace(0, 1, 16, dtype=torch.float64)[1:-1]
    return (low[:, None] + (high - low)[:, None] * ticks).flatten().exp()


def _relative_rates(shapes: Sequence[Components], exponents: Sequence[float], noise: Tensor) -> Tensor:
    """Return for each level the least rate found, over sum_a |w_a| v' P v: from -1 to 1, `(T,)`."""
    diagonal = all(components.bases is None for components in shapes)
    if diagonal and all(components.count == 1 for components in shapes):
        rates = torch.stack([1 / (components.variances + noise[:, None]) for components in shapes], -1)
        weights = torch.tensor(exponents, dtype=torch.float64)
        return ((rates @ weights) / (rates @ weights.abs())).amin(-1)
    return torch.cat([_least_rates(shapes, exponents, levels) for levels in noise.split(_levels_at_once(shapes))])


def _levels_at_once(shapes: Sequence[Components]) -> int:
    numbers = sum(components.count for components in shapes) * shapes[0].dim * (256 + 16 * shapes[0].dim)
    return max(1, (1 << 22) // numbers)


def _least_rates(shapes: Sequence[Components], exponents: Sequence[float], noise: Tensor) -> Tensor:
    """The same for any components, along eigenvectors of Lambda and, where shapes are mixed, many directions."""
    forms = [components.precision_at(*_scales(noise)) for components in shapes]
    pairs = list(zip(exponents, forms, strict=True))
    counts = itertools.product(*(range(components.count) for components in shapes))
    chosen = itertools.islice(counts, max(1, min(64, _MOST_WORK // (len(noise) * shapes[0].dim ** 3))))
    lambdas = [sum(w * form[:, k] for (w, form), k in zip(pairs, choice, strict=True)) for choice in chosen]
    directions = [torch.linalg.eigh(torch.as_tensor(each)).eigenvectors for each in lambdas]
    if any(components.count > 1 for components in shapes):
        directions.append(_fan(shapes[0].dim).expand(len(noise), -1, -1))
    v = torch.cat(directions, -1).unsqueeze(1)
    values = [((form @ v) * v).sum(-2).amin(1) for form in forms]
    rate = sum(w * value for w, value in zip(exponents, values, strict=True))
    scale = sum(abs(w) * value for w, value in zip(exponents, values, strict=True))
    return (torch.as_tensor(rate) / torch.as_tensor(scale)).amin(-1)


def _fan(dim: int, count: int = 256) -> Tensor:
    """Return unit vectors as columns, `(d, n)`: all around in the plane, at random beyond."""
    if dim == 2:
        angles = torch.arange(count, dtype=torch.float64) * (math.pi / count)
        return torch.stack([angles.cos(), angles.sin()])
    seeded = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (dim, count // 4), generator=seeded).double() * 2 - 1
    normals = torch.randn(dim, count, dtype=torch.float64, generator=seeded)
    every = torch.cat([torch.ones(dim, 1, dtype=torch.float64), signs, normals], 1)
    return every / every.norm(dim=0)


def _show(direction: Sequence[float]) -> str:
    shown = ", ".join(f"{value:.3g}" for value in direction[:12])
    return f"({shown}, ...)" if len(direction) > 12 else f"({shown})"
