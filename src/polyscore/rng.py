"""Random numbers that belong to things, not to the order in which they happen to be computed.

Every draw comes from a generator seeded by (seed, purpose, ...); none from the global state. Samplers draw for *blocks*
of swarms whose size depends on the problem alone, so splitting N swarms into other chunks, or asking for fewer of them,
changes no number that a swarm sees.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral

import torch
from torch import Tensor

from polyscore.errors import ArgumentError, shorten

# One block draws about this many numbers a step: large enough to amortise the call, small enough to waste little.
_BLOCK_NUMBERS = 1 << 15
_BUFFER_NUMBERS = 1 << 17


def as_seed(seed: object) -> int:
    """Return a seed as Python's whole number; NumPy's are too, 1.7, True and "1" are not: two would share one run."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or int(seed).bit_length() > 4096:
        raise ArgumentError(f"seed must be a whole number of at most 4096 bits; got {shorten(seed)}. Use 0, 1, 2, ...")
    return int(seed)


def derive(seed: int, *purpose: object) -> int:
    """Return a 63-bit seed that is a pure function of `seed` and `purpose`.

    SHA-256 of their text, so neighbouring seeds and purposes share nothing.
    """
    text = repr((as_seed(seed), *map(str, purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: object, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a fresh generator for (seed, purpose) on `device`."""
    return torch.Generator(device=device).manual_seed(derive(seed, *purpose))


@contextmanager
def weights_drawn(seed: int, *purpose: object) -> Iterator[None]:
    """Let a module that is made on the CPU have weights that (seed, purpose) decide, and leave global states alone.

    Layers draw from the CPU's own generator and take no other. `torch.manual_seed` would seed those of GPUs as well,
    which nothing gives back.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, *purpose))
        yield


def some_rows(x: Tensor, enough: int, seed: int = 0) -> Tensor:
    """Return all rows of x `(n, ...)`, or `enough` of them where there are twice as many.

    Those are taken by chance and left in their order: every n-th would miss what comes in a pattern.
    """
    if len(x) < 2 * enough:
        return x
    return x[torch.randperm(len(x), generator=generator(seed, "some"))[:enough].sort().values]


def block_size(numbers_per_swarm: int) -> int:
    """Return how many swarms share a generator: a power of two from 1 to 256, by the size of one swarm."""
    size = 256
    while size > 1 and size * numbers_per_swarm > _BLOCK_NUMBERS:
        size //= 2
    return size


class Stream:
    """Per-step random numbers of a fixed shape for each swarm of a range, the same in whatever chunk it is drawn.

    Args:
        seed: the run's seed.
        purpose: what the numbers are for; streams of different purpose are independent.
        shape: the numbers one swarm needs in one step.
        start, stop: the swarms, `start` a multiple of `block`.
        normal: standard normal if true, else uniform on [0, 1).
        block: swarms per generator; `block_size` of the run.
        steps: how many will be asked for, where that is known: numbers of later ones need not be drawn.
    """

    def __init__(
        self,
        seed: int,
        purpose: str,
        shape: tuple[int, ...],
        start: int,
        stop: int,
        *,
        block: int,
        normal: bool,
        dtype: torch.dtype,
        device: torch.device,
        steps: int | None = None,
    ) -> None:
        self.seed, self.purpose, self.shape = seed, purpose, shape
        self.start, self.count, self.block = start, stop - start, block
        self.normal, self.dtype, self.device = normal, dtype, device
        numbers = block * max(1, torch.Size(shape).numel())
        # The buffer's length is part of which number lands where: it depends on the block alone, never on the chunk.
        self.length = max(1, min(64, _BUFFER_NUMBERS // numbers))
        self._generator = torch.Generator(device=device)
        self._page, self._steps = -1, steps
        rows = self._drawn(0)
        # Both are allocated once: fresh pages for every refill would cost more than the numbers themselves.
        self._scratch = torch.empty(rows, block, *shape, dtype=dtype, device=device)
        self._buffer = torch.empty(rows, self.count, *shape, dtype=dtype, device=device)

    def __call__(self, step: int) -> Tensor:
        """Return the numbers of `step`, `(swarms, *shape)`; valid until the next page is drawn."""
        self.load(step)
        return self._buffer[step % self.length]

    def load(self, step: int) -> None:
        """Make sure that the page of `step` is in the buffer."""
        if self._steps is not None and step >= self._steps:
            raise ArgumentError(
                f"step must be below {self._steps}, for which the stream was made; got {step}. Give it more steps."
            )
        if step // self.length != self._page:
            self._page = step // self.length
            self._fill(self._page)

    def on_device(self, index: Tensor) -> Tensor:
        """Return the numbers of the step held by a device index `(1,)`, its page having been loaded."""
        return self._buffer.index_select(0, index % self.length)[0]

    def _drawn(self, page: int) -> int:
        """How many steps of a page are drawn: those that are asked for, where their numbers are then the same.

        A CPU draws one uniform after the other, and normals in groups of 16; a GPU by the size of the whole.
        """
        if self._steps is None or torch.device(self.device).type != "cpu":
            return self.length
        rows = min(self.length, self._steps - page * self.length)
        grouped = not self.normal or self.block * torch.Size(self.shape).numel() % 16 == 0
        return rows if grouped else self.length

    def _fill(self, page: int) -> None:
        rows = self._drawn(page)
        scratch = self._scratch[:rows]
        for first in range(0, self.count, self.block):
            self._generator.manual_seed(derive(self.seed, self.purpose, (self.start + first) // self.block, page))
            draw = scratch.normal_ if self.normal else scratch.uniform_
            draw(generator=self._generator)
            part = self._buffer[:rows, first : first + self.block]
            part.copy_(scratch[:, : part.shape[1]])
