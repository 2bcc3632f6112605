"""Whether the noised composition can be normalised all the way from data to noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from polyscore.algebra.validity.answer import Validity
from polyscore.algebra.validity.forms import fan
from polyscore.algebra.validity.mixtures import mixture_validity
from polyscore.algebra.validity.tails import MOST_WORK, tail_shapes
from polyscore.distributions.components import Components
from polyscore.schedules import Schedule


def path_validity(
    mixtures: Sequence[Components], exponents: Sequence[float], schedule: Schedule
) -> tuple[float, Validity]:
    """Return the time t at which the noised composition decays slowest for its scale, and its validity there.

    Noising by (alpha, sigma) is, up to a change of units, adding s = sigma^2 / alpha^2 to every covariance: all that
    happens lies between far below the narrowest and far above the widest component, and changes with log s.
    """
    kept = [tail_shapes(components) for components in mixtures]
    noise = _noise_levels(kept, schedule)
    least = _relative_rates(kept, exponents, noise)
    for _ in range(3):  # each round looks several times closer around the deepest minima
        finer = _between(noise, least)
        noise, order = torch.cat([noise, finer]).sort()
        least = torch.cat([least, _relative_rates(kept, exponents, finer)])[order]
    answers = [(s, mixture_validity(mixtures, exponents, *_scales(s))) for s in noise[_minima(least)[:3]]]
    s, answer = next((pair for pair in answers if pair[1].proper is False), answers[0])
    return schedule.time_at(0.5 * s.log()).item(), answer


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
    chosen = itertools.islice(counts, max(1, min(64, MOST_WORK // (len(noise) * shapes[0].dim ** 3))))
    lambdas = [sum(w * form[:, k] for (w, form), k in zip(pairs, choice, strict=True)) for choice in chosen]
    directions = [torch.linalg.eigh(torch.as_tensor(each)).eigenvectors for each in lambdas]
    if any(components.count > 1 for components in shapes):
        directions.append(fan(shapes[0].dim).expand(len(noise), -1, -1))
    v = torch.cat(directions, -1).unsqueeze(1)
    values = [((form @ v) * v).sum(-2).amin(1) for form in forms]
    rate = sum(w * value for w, value in zip(exponents, values, strict=True))
    scale = sum(abs(w) * value for w, value in zip(exponents, values, strict=True))
    return (torch.as_tensor(rate) / torch.as_tensor(scale)).amin(-1)
