"""Rooms as pictures: the same bytes whoever renders them, whole after a kill or a full disk, labelled as seen."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from polyscore import rooms
from polyscore.cli import app
from polyscore.errors import OutputError, PolyscoreError
from polyscore.rooms import drawing, making, tracing
from polyscore.rooms.classes import CLASSES
from polyscore.rooms.drawing import Look

QUICK = Look(resolution=16, samples=1)
rendered = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mitsuba", "pyoidn")),
    reason="the extra `render` is not installed (mitsuba, pyoidn)",
)


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def quick(out: Path, **options: object) -> rooms.Dataset:
    return rooms.render(out, **{"count": 2, "look": QUICK, "workers": 1} | options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rooms of each class, rendered in one go in one process."""
    out = tmp_path_factory.mktemp("whole")
    quick(out)
    return out


@rendered
def test_a_dataset_holds_what_was_asked_for(whole: Path) -> None:
    data = rooms.Dataset(whole)
    images, labels = data.arrays()
    assert data.classes == tuple(CLASSES) and data.about["seed"] == 0 and images.shape == (12, 16, 16, 3)
    np.testing.assert_array_equal(np.bincount(labels), [2] * 6)
    assert all(one.shows == one.name == name for name in CLASSES for one in data.records(name))
    # no picture is black, white or flat
    assert (images.mean((1, 2, 3)) > 25).all() and (images.mean((1, 2, 3)) < 240).all()
    assert (images.std((1, 2, 3)) > 4).all()


@rendered
def test_the_same_bytes_with_other_processes_in_another_order_and_in_two_goes(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "goes"
    quick(out, count=1, classes=["table", "couch"])
    quick(out, classes=[*CLASSES][::-1], workers=2)
    assert tree(out) == tree(whole)


@rendered
def test_a_kill_loses_the_room_in_flight_and_no_other(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    program = f"from polyscore import rooms; rooms.render({str(out)!r}, 2, look=rooms.Look(16, 1), workers=1)"
    child = subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    deadline = time.monotonic() + 60
    while len(list(out.rglob("[0-9]*.png"))) < 3 and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    kept = {name: content for name, content in tree(out).items() if name.endswith(".png") and "/." not in name}
    assert len(kept) >= 3 and all(tree(whole)[name] == content for name, content in kept.items())
    done: list[int] = []
    quick(out, progress=lambda n, total: done.append(n))
    assert len(done) == 12 - len(kept), "rooms that were there were rendered again"
    assert tree(out) == tree(whole)


@rendered
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_is_named_and_leaves_nothing_half(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    written, real = [], making.write_bytes

    def fill(path: Path, content: bytes) -> Path:
        if len(written) == 3:
            monkeypatch.setattr("polyscore.files.atomic.os.fsync", refuse)
        written.append(path)
        return real(path, content)

    def refuse(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as full:
        full.setattr(making, "write_bytes", fill)
        with pytest.raises(OutputError, match=f"must be written whole.*{os.strerror(code)}.*Free some space"):
            quick(tmp_path / "full", classes=["couch", "table"])
    monkeypatch.undo()
    left = tree(tmp_path / "full")
    assert {name for name in left if name.endswith(".png")} == {
        str(p.relative_to(tmp_path / "full")) for p in written[:3]
    }
    assert all(left[name] == tree(whole)[name] for name in left if name.endswith(".png"))
    quick(tmp_path / "full", classes=["couch", "table"])
    left, expected = tree(tmp_path / "full"), tree(whole)
    assert left.keys() == {name for name in expected if name.startswith(("couch/", "table/", "dataset"))}
    assert all(left[name] == expected[name] for name in left if name != "dataset.json")
    assert rooms.Dataset(tmp_path / "full").about["classes"] == {"couch": 2, "table": 2}


@rendered
def test_a_damaged_picture_is_rendered_again(whole: Path, tmp_path: Path) -> None:
    quick(tmp_path, classes=["couch"])
    (tmp_path / "couch" / "000001.png").write_bytes(b"\x89PNG nonsense")
    cut = tmp_path / "couch" / "000000.png"
    cut.write_bytes(cut.read_bytes()[:-30])  # somewhere in its last pixels
    quick(tmp_path, classes=["couch"])
    for name in ("couch/000000.png", "couch/000001.png"):
        assert tree(tmp_path)[name] == tree(whole)[name]


@rendered
@pytest.mark.parametrize("index", range(3))
def test_boxes_and_shares_are_those_of_the_geometry(index: int) -> None:
    """A painting that nothing hides: the pixels that a renderer counted against corners put through the camera."""
    made = drawing.compose(0, "painting", index, 0, None)
    found = tracing.layers(tracing.as_mitsuba(made), made.camera, 256)
    seen = drawing.seen(found.number, [part.thing for part in made.parts()])["painting"]
    placed = made.objects["painting"]
    x, z, deep = placed.thing.width / 2, placed.thing.height, placed.thing.deep
    front = made.camera.project(
        np.array([[placed.x + a, deep, placed.z + b] for a, b in ((x, 0), (-x, 0), (-x, z), (x, z))])
    )
    points = made.camera.project(np.concatenate([part.mesh.points for part in placed.parts()]))
    np.testing.assert_allclose(seen.box, [*points.min(0), *points.max(0)], atol=1.5 / 256)
    across, down = front[:, 0], front[:, 1]
    area = abs(across @ np.roll(down, 1) - down @ np.roll(across, 1)) / 2
    assert area * 0.97 < seen.share < area * 1.12  # its sides are seen too


@rendered
def test_what_is_hidden_does_not_count() -> None:
    """A couch behind a table shows fewer pixels than alone."""
    made = drawing.compose(0, "couch+table", 0, 0, None)
    without = type(made)(made.room, {"couch": made.objects["couch"]}, made.camera)
    shares = []
    for one in (made, without):
        number = tracing.layers(tracing.as_mitsuba(one), one.camera, 128).number
        shares.append(drawing.seen(number, [part.thing for part in one.parts()])["couch"].share)
    assert 0 < shares[0] < shares[1]


@rendered
def test_a_room_whose_object_is_hardly_seen_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = drawing.draw(0, "painting", 0, QUICK)
    assert first.attempt == 0
    share = first.objects["painting"].share
    assert share >= drawing.LEAST == 0.01
    monkeypatch.setattr(drawing, "LEAST", share * 1.01)
    again = drawing.draw(0, "painting", 0, QUICK)
    assert again.attempt > 0 and again.objects["painting"].share >= share * 1.01
    monkeypatch.setattr(drawing, "LEAST", 0.9)
    monkeypatch.setattr(drawing, "_ATTEMPTS", 2)
    with pytest.raises(PolyscoreError, match="a room must show its objects; painting 0 of seed 0 did not in 2"):
        drawing.draw(0, "painting", 0, QUICK)


@rendered
def test_a_process_forked_from_one_that_renders_renders_too(tmp_path: Path) -> None:
    """As `multiprocessing` does on Linux; it waited for ever."""
    quick(tmp_path / "first", count=1, classes=["couch"])
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            quick(tmp_path / "forked", count=1, classes=["couch"])
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert tree(tmp_path / "forked") == tree(tmp_path / "first")


@rendered
def test_flawed_rooms_say_what_is_wrong_and_the_others_stay_as_they_are(whole: Path, tmp_path: Path) -> None:
    look = Look(16, 1, flawed=0.5)
    data = quick(tmp_path, count=4, look=look, classes=["couch", "couch+table"])
    flawed = [one for name in data.classes for one in data.records(name) if one.flaw is not None]
    assert len(flawed) == pytest.approx(4, abs=2)
    for one in flawed:
        held = {"missing": CLASSES[one.name] - {one.flaw["object"]}, "extra": CLASSES[one.name] | {one.flaw["object"]}}
        assert one.flaw["kind"] == "cut" or one.shows == drawing.named(held.get(one.flaw["kind"], CLASSES[one.name]))
        assert one.flaw["why"]
    sound = [one for one in data.records("couch")[:2] if one.flaw is None]
    for one in sound:
        assert (tmp_path / "couch" / one.file).read_bytes() == (whole / "couch" / one.file).read_bytes()


@rendered
def test_a_cut_object_touches_the_edge() -> None:
    found = (drawing.flaw_of(0, "couch", k, 1.0) for k in range(40))
    index = next(k for k, flaw in enumerate(found) if flaw is not None and flaw.kind == "cut")
    left, _, right, _ = drawing.draw(0, "couch", index, Look(16, 1, 1.0)).objects["couch"].box
    assert left == 0 or right == 1


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "mitsuba", None)
    with pytest.raises(
        PolyscoreError, match=r"must find mitsuba; it is not installed\. pip install 'polyscore\[render\]'"
    ):
        quick(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--class", "cuoch"],
            "must be one of empty, couch, painting, table, couch+painting, couch+table; got 'cuoch'",
        ),
        (["--resolution", "0"], "resolution must be a whole number of at least 8, and at most 2048; got 0"),
        (["--count", "0"], "count must be a whole number from 1 to 1000000; got 0"),
        (["--count", str(10**20)], f"got {10**20}. Ask for fewer rooms."),
        (["--count", "1000000", "--resolution", "2048"], "must fit on the disk; got at least 12.6 TB needed"),
        (["--samples", "0"], "samples must be a whole number of at least 1"),
        (["--flawed", "1.5"], "flawed must be a number of at least 0, and at most 1; got 1.5"),
        (["--flawed", "nan"], "flawed must be a number"),
        (["--workers", "0"], "workers must be from 1 to 1024; got 0"),
        (["--seed", str(1 << 5000)], "seed must be"),
    ],
)
def test_bad_options_are_refused_before_anything_is_made(
    tmp_path: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: types.SimpleNamespace(free=10**12))
    result = CliRunner().invoke(app, ["rooms", "render", str(tmp_path / "out"), *arguments])
    assert result.exit_code == 2 and message in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_places_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    places = [tmp_path / "file", tmp_path / "file" / "below", Path("/proc/rooms")]
    for place, message in [*((place, "must be writable") for place in places), (tmp_path, "must have an empty folder")]:
        result = CliRunner().invoke(app, ["rooms", "render", str(place), "-n", "1"])
        assert result.exit_code == 2 and message in " ".join(result.output.split())
    assert (tmp_path / "file").read_text() == "mine"


@rendered
def test_a_dataset_grows_only_with_the_same_options(whole: Path) -> None:
    before = tree(whole)
    others = [({"seed": 1}, "seed"), ({"look": Look(32, 1)}, "resolution"), ({"look": Look(16, 2)}, "samples")]
    for options, what in others:
        with pytest.raises(PolyscoreError, match=f"keep its {what}; got"):
            quick(whole, **options)
    assert tree(whole) == before


@rendered
def test_the_commands(tmp_path: Path) -> None:
    out, shards, again = (str(tmp_path / name) for name in ("out", "shards", "again"))
    render = ["rooms", "render", out, "-n", "1", "--resolution", "16", "--samples", "1", "--workers", "1"]
    told = CliRunner().invoke(app, [*render, "--class", "couch", "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["classes"] == {"couch": 1} and (tmp_path / "out" / "sheet.png").is_file()
    told = CliRunner().invoke(app, ["rooms", "pack", out, shards, "--lossless"])
    assert told.exit_code == 0 and "wrote 1 shard, " in told.stdout
    told = CliRunner().invoke(app, ["rooms", "unpack", shards, again])
    assert told.exit_code == 0 and "holds 1 couch" in told.stdout
    np.testing.assert_array_equal(rooms.Dataset(out).images("couch"), rooms.Dataset(again).images("couch"))
