"""What a kill at any moment leaves of a folder: the same command goes on, and takes away what was begun."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from faults.tally import Tally
from images.flat import MIXTURES, RECIPE, flat
from polyscore.errors import OutputError
from polyscore.files.atomic import begun, held, is_leftover, write_bytes
from polyscore.files.folders import new_folder
from polyscore.images import train
from polyscore.rooms import Look, making, pack, render, unpack
from polyscore.rooms.drawing import Drawn
from rooms.by_hand import write_rooms

Make = Callable[[Path], object]


def killed(work: Callable[[], object], at: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Do some work in a child that is killed as it is about to put its `at`-th file in place; False if it was not."""
    child = os.fork()
    if child == 0:
        left = [at]

        def replace(source: object, target: object, real: Callable[..., None] = os.replace) -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            real(source, target)

        monkeypatch.setattr(os, "replace", replace)
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.fixture
def makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Make]:
    """What writes a folder, in little time."""

    def drawn(seed: int, name: str, index: int, look: Look) -> Drawn:
        image = np.random.default_rng([seed, index]).integers(0, 256, (8, 8, 3)).astype(np.uint8)
        return Drawn(name, index, 0, {}, None, image)

    monkeypatch.setattr(making, "draw", drawn)
    monkeypatch.setattr(making, "require_installed", lambda: None)
    noise = np.random.default_rng(0)
    rooms = write_rooms(tmp_path / "data", {"couch": 40}, lambda k: noise.integers(0, 256, (32, 32, 3), dtype=np.uint8))
    pack(rooms, tmp_path / "shards")
    few = flat(tmp_path / "flat")
    return {
        "render": lambda out: render(out, 2, classes=["couch", "table"], look=Look(8, 1), workers=1, progress=False),
        "pack": lambda out: pack(rooms, out, quality=None, largest=2**16),
        "unpack": lambda out: unpack(tmp_path / "shards", out),
        "train": lambda out: train(few, MIXTURES, out, recipe=RECIPE, steps=4, save_every=1, device="cpu"),
    }  # fmt: skip


@pytest.mark.parametrize("kind, ats", [("render", range(1, 12)), ("pack", (1, 2)), ("unpack", (1, 9, 40, 42)),
                                       ("train", range(1, 8))])  # fmt: skip
@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_the_same_command_goes_on(
    kind: str, ats: range, there: bool, makes: dict[str, Make], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    tally: Tally,
) -> None:  # fmt: skip
    whole, out = tmp_path / "whole", tmp_path / "out"
    makes[kind](whole)
    if there:
        out.mkdir()
    kills = sum(killed(lambda: makes[kind](out), at, monkeypatch) for at in ats)
    makes[kind](out)
    assert kills >= min(len(ats), 2) and content(out) == content(whole)
    assert not [path.name for path in tmp_path.iterdir() if is_leftover(path)]
    tally.add("kills", kills)


def test_two_that_fill_one_empty_folder_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputError, match="must have an empty folder"), new_folder(tmp_path / "out") as one:
        with new_folder(tmp_path / "out") as other:  # which leaves ours alone
            (other / "theirs").mkdir()
        (one / "ours").mkdir()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["theirs"]


def test_only_what_was_begun_for_a_file_is_taken_away(tmp_path: Path) -> None:
    others = [".model-original.json", ".model-x-12345678.part.json", "model.json", ".models-12345678.part.json"]
    for name in (*others, ".model-12345678.part.json"):
        (tmp_path / name).touch()
    with held(tmp_path / "model.safetensors"):
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, ".model.safetensors.lock"])
    long = tmp_path / ("薬" * 80 + ".json")  # 240 bytes: a file may have 255
    assert write_bytes(long, b"1").read_bytes() == b"1"
    assert begun(long) != begun(tmp_path / ("薬" * 79 + "病.json"))
