"""What cannot fit into memory is refused before it is allocated, in words."""

import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from polyscore import limits
from polyscore.errors import ArgumentError


def test_what_fits_passes_and_what_does_not_is_refused_with_both_sizes(monkeypatch):
    monkeypatch.setattr(limits, "available_memory", lambda: 2_000_000)
    limits.require_memory(2_000_000, "a table", "Ask for less.")
    with pytest.raises(ArgumentError, match=r"a table must fit into memory; got 2 MB needed, 2 MB available. Ask"):
        limits.require_memory(2_000_001, "a table", "Ask for less.")


def test_a_disk_is_asked_of_the_nearest_folder_that_is_there(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(limits.shutil, "disk_usage", lambda place: asked.append(place) or SimpleNamespace(free=1000))
    limits.require_space(tmp_path / "a" / "b", 1000, "rooms", "Ask for fewer.")
    with pytest.raises(ArgumentError, match=r"rooms must fit on the disk; got at least 1 kB needed, 1 kB free. Ask"):
        limits.require_space(tmp_path, 1001, "rooms", "Ask for fewer.")
    assert asked == [tmp_path, tmp_path]


def test_a_machine_that_does_not_say_refuses_nothing(monkeypatch):
    monkeypatch.setattr(limits, "available_memory", lambda: None)
    limits.require_memory(10**30, "a table", "Ask for less.")


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="other systems have other files")
def test_this_machine_says_how_much_there_is():
    """No more than there is, and where no container holds less, what the system calls free: kB are not bytes."""
    whole, free = (os.sysconf(name) * os.sysconf("SC_PAGE_SIZE") for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    assert limits.physical_memory() == whole
    assert 0 < limits.available_memory() <= whole
    assert limits._meminfo() > 0.5 * free  # free pages, but for those that the kernel keeps


@pytest.mark.parametrize(
    "meminfo, cgroup, expected",
    [
        ("MemTotal: 9 kB\nMemAvailable:  5 kB\n", None, 5 * 1024),
        ("MemAvailable: 5 kB\n", ("max", "100"), 5 * 1024),
        ("MemAvailable: 5 kB\n", ("4096", "1096"), 3000 + 24),
        ("MemAvailable: 5 kB\n", ("100", "4096"), 0),
    ],
)
def test_the_tighter_of_machine_and_container_counts(monkeypatch, meminfo, cgroup, expected):
    texts = {"/proc/meminfo": meminfo}
    if cgroup:
        texts |= {"/sys/fs/cgroup/memory.max": cgroup[0], "/sys/fs/cgroup/memory.current": cgroup[1]}
        texts["/sys/fs/cgroup/memory.stat"] = "anon 7\nfile 24\nfile_mapped 9"
    monkeypatch.setattr(limits, "_lines", lambda path: texts.get(path, "").splitlines())
    assert limits.available_memory() == expected


@pytest.mark.parametrize(
    "count, text",
    [(0, "0 bytes"), (999, "999 bytes"), (1536, "1.54 kB"), (10**12, "1 TB"), (8 * 10**20, "800 EB")],
)
def test_sizes_in_words(count, text):
    assert limits.show_bytes(count) == text


def test_no_size_is_too_large_to_be_shown():
    assert limits.show_bytes(10**5000).endswith(" EB")


_FAULTS = """
import resource, sys
from polyscore.limits import keep_freed_pages

def loop():
    for _ in range(20):
        blocks = [bytearray(1 << 20) for _ in range(8)]

if sys.argv[1] == "kept":
    keep_freed_pages()
loop()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
loop()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have rules of their own")
def test_pages_that_a_loop_frees_are_kept_for_its_next_turn():
    """Twenty turns of 8 MB are 40,960 pages where every turn takes fresh ones."""
    runs = [[sys.executable, "-c", _FAULTS, how] for how in ("as it is", "kept")]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    faults = [int(subprocess.run(run, capture_output=True, text=True, check=True, env=plain).stdout) for run in runs]
    assert faults[0] > 20_000
    assert faults[1] < 1_000
