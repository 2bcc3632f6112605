"""How much memory and disk there is, asked before anything large is made; and whether what is freed is kept."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

from polyscore.errors import require

# Bytes that any machine has, which need not be asked for them: to read what it says takes as long as a small step.
_ALWAYS = 1 << 20

# Just below the size from which glibc never keeps a block.
_LARGEST_KEPT = (32 << 20) - (64 << 10)


def require_memory(numbers_bytes: int, subject: str, remedy: str) -> None:
    """Raise `ArgumentError` where `numbers_bytes` cannot fit into the memory that is available now.

    Args:
        numbers_bytes: what would be held at once; an estimate from below, since the refusal is final.
        subject: what would be held, `10 draws in 3 dimensions`.
        remedy: what to do instead, a sentence.
    """
    if numbers_bytes <= _ALWAYS:
        return
    free = available_memory()
    require(free is None or numbers_bytes <= free, subject, "fit into memory",
            f"{show_bytes(numbers_bytes)} needed, {show_bytes(free or 0)} available", remedy)  # fmt: skip


def require_space(out: Path, needed: int, subject: str, remedy: str) -> None:
    """Raise `ArgumentError` where so many bytes do not fit onto the disk of a folder, which need not be there yet."""
    free = shutil.disk_usage(next(folder for folder in (out, *out.parents) if folder.exists())).free
    require(needed <= free, subject, "fit on the disk",
            f"at least {show_bytes(needed)} needed, {show_bytes(free)} free", remedy)  # fmt: skip


def available_memory() -> int | None:
    """Return the bytes that can still be allocated on this machine, or None where it does not say."""
    told = [_meminfo(), _cgroup()]
    known = [value for value in told if value is not None]
    if known:
        return min(known)
    return _pages("SC_AVPHYS_PAGES") or _pages("SC_PHYS_PAGES")


def physical_memory() -> int:
    """Return the bytes of this machine's memory in all, or more than any has where it does not say."""
    return _pages("SC_PHYS_PAGES") or 1 << 62


@cache
def keep_freed_pages() -> None:
    """Let the C library keep what loops free, up to 64 MB, instead of asking the system for fresh pages at every step.

    glibc hands freed blocks back above a threshold, which grows with the largest block that was freed, up to 32 MB:
    this one is never touched, so it takes no memory, and once is enough. Other libraries take no notice.
    """
    bytes(_LARGEST_KEPT)


def show_bytes(count: int) -> str:
    """Return a size in words: `3.2 GB`."""
    units = ["bytes", "kB", "MB", "GB", "TB", "PB", "EB"]
    scaled, power = float(min(int(count), 10**300)), 0
    while scaled >= 1000 and power < len(units) - 1:
        scaled, power = scaled / 1000, power + 1
    return f"{scaled:.3g} {units[power]}"


def _meminfo() -> int | None:
    """`MemAvailable` counts caches that the kernel would drop; free pages alone do not."""
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup() -> int | None:
    """What a container may still take: its limit less what it holds, caches apart."""
    limit, used = _lines("/sys/fs/cgroup/memory.max"), _lines("/sys/fs/cgroup/memory.current")
    if not limit or not used or not limit[0].strip().isdigit():
        return None
    caches = [line.split()[1] for line in _lines("/sys/fs/cgroup/memory.stat") if line.startswith("file ")]
    return max(0, int(limit[0]) - int(used[0]) + sum(map(int, caches)))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _pages(name: str) -> int | None:
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
