"""Large draws in bounded memory: the points that one call would give, a part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.distributions import Gaussian, Mixture
from polyscore.errors import is_count, require
from polyscore.limits import require_memory
from polyscore.notices import warn
from polyscore.rng import generator

LOW_ESS = 500
_CHUNK_NUMBERS = 1 << 21  # of an array over points, components and coordinates: 16 MB
_BLOCK = 16  # torch fills normals by blocks of 16: parts of whole blocks continue the one stream


def check_count(n: int, numbers: int) -> None:
    """Check a request for `n` draws, for each of which `numbers` float64 are held, before anything is drawn."""
    require(is_count(n), "n", "be at least 1" if isinstance(n, Integral) else "be a whole number of at least 1", n,
            "Pass n=1 or more.")  # fmt: skip
    require_memory(8 * int(n) * numbers, f"{n} draws", "Draw fewer, or a part at a time with a seed each.")


def parts(source: Gaussian | Mixture, count: int, seed: int, q: Composition) -> Iterator[Tensor]:
    """Yield `source.sample(count, seed)` in float64, in parts that leave room for both densities."""
    components = source.components
    kinds, normals = generator(seed, "component"), generator(seed, "gaussian")
    for size in _sizes(count, _rows(source, q)):
        which = torch.zeros(size, dtype=torch.long)
        if not isinstance(source, Gaussian):
            which = torch.multinomial(components.weights, size, replacement=True, generator=kinds)
        yield components.draw(which, torch.randn(size, source.dim, generator=normals, dtype=torch.float64))


def log_ratios(q: Composition, source: Gaussian | Mixture, count: int, seed: int) -> Tensor:
    """Return log q(x) - log source(x) at `count` draws of the source, `(count,)`."""
    return torch.cat([q.log_density(x) - source.log_prob(x) for x in parts(source, count, seed, q)])


def log_mean(log_weights: Tensor) -> float:
    """Return the log of the mean weight."""
    return (torch.logsumexp(log_weights, 0) - torch.tensor(len(log_weights), dtype=torch.float32).log()).item()


def effective(log_weights: Tensor) -> float:
    """Return the effective sample size of one set of weights."""
    return 1 / torch.softmax(log_weights, 0).square().sum().item()


def warn_of_low(ess: float, subject: str, remedy: str) -> None:
    """Warn where so few draws carry all the weight that nothing should rest on them."""
    if not ess >= LOW_ESS:
        warn(f"{subject} rests on an effective sample size of {ess:.0f} (below {LOW_ESS}). {remedy}")


def _rows(source: Gaussian | Mixture, q: Composition) -> int:
    """Points per part, a multiple of the block."""
    every = [source.components, *q.require_mixtures("what is drawn")]
    width = max(part.count * part.dim for part in every)
    width = max(width, *(part.dim**2 for part in every if part.bases is not None), 1)
    return max(_BLOCK, _CHUNK_NUMBERS // width // _BLOCK * _BLOCK)


def _sizes(count: int, rows: int) -> Iterator[int]:
    """Split a count; what is left over and too short to be a block of its own joins the last part."""
    while count >= rows + _BLOCK:
        yield rows
        count -= rows
    yield count
