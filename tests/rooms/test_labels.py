"""Labels without a page: the order, the answers, the file that outlives kills, cuts, full disks and other writers."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from polyscore.cli import app
from polyscore.errors import OutputError, PolyscoreError, PolyscoreWarning
from polyscore.rooms import Dataset, label_server, labels
from polyscore.rooms.classes import CLASSES
from polyscore.rooms.dataset import write_about
from polyscore.rooms.label_pictures import read_picture
from polyscore.rooms.labelling import Labelling
from polyscore.rooms.labels import Labels, Picture
from polyscore.rooms.rules import rule
from rooms.by_hand import write_rooms

SIDE = 16
COUNTS = {"couch": 5, "empty": 3, "couch+table": 4}


def make(out: Path, counts: dict[str, int] = COUNTS) -> Dataset:
    return write_rooms(out, counts, lambda index: np.full((SIDE, SIDE, 3), 20 + 7 * index, np.uint8))


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make(tmp_path / "rooms")


def written(dataset: Dataset) -> list[dict]:
    return [json.loads(text) for text in (dataset.path / labels.NAME).read_text().splitlines()]


def answer(labelling: Labelling, accepted: bool) -> Picture:
    picture = labelling.current
    assert picture is not None and labelling.answer(picture, accepted)
    return picture


def test_every_picture_comes_once_class_by_class_and_always_in_the_same_order(dataset: Dataset) -> None:
    labelling, seen = Labelling(dataset), []
    while labelling.current is not None:
        assert labelling.following() != labelling.current
        seen.append(answer(labelling, len(seen) % 3 > 0))
    assert [picture.name for picture in seen] == [name for name, count in COUNTS.items() for _ in range(count)]
    assert len(set(seen)) == 12 and [p.file for p in seen[:5]] != sorted(p.file for p in seen[:5])
    assert [(p.name, p.file) for p in seen] == [(one["class"], one["file"]) for one in written(dataset)]
    for progress, (name, count) in zip(labelling.progress().values(), COUNTS.items(), strict=True):
        accepted = sum(one["accepted"] for one in written(dataset) if one["class"] == name)
        assert progress == (accepted, count - accepted, count) and progress.done == count
    (dataset.path / labels.NAME).unlink()
    again = Labelling(dataset)
    assert [answer(again, True) for _ in seen] == seen


def test_more_pictures_do_not_change_the_order_of_those_that_are_there(tmp_path: Path) -> None:
    before = Labelling(make(tmp_path / "one", {"couch": 6}))
    after = Labelling(make(tmp_path / "two", {"couch": 30}))
    old = [answer(before, True) for _ in range(6)]
    assert [p for p in (answer(after, True) for _ in range(30)) if p in old] == old


def test_a_class_ends_with_what_is_wanted_and_can_be_chosen_again(dataset: Dataset) -> None:
    labelling = Labelling(dataset, per_class=2)
    seen = [answer(labelling, True) for _ in range(6)]
    assert [p.name for p in seen] == ["couch"] * 2 + ["empty"] * 2 + ["couch+table"] * 2 and labelling.current is None
    labelling.choose("couch")
    assert answer(labelling, False).name == "couch" and labelling.progress()["couch"] == (2, 1, 2)
    only = Labelling(dataset, ["couch+table"], 3)
    assert only.classes == ("couch+table",) and answer(only, True).name == "couch+table" and only.current is None
    with pytest.raises(PolyscoreError, match=r"one of couch\+table; got couch"):
        only.choose("couch")


def test_undo_goes_back_one_by_one_also_on_another_day(dataset: Dataset) -> None:
    labelling = Labelling(dataset)
    assert labelling.undo() is None and not (dataset.path / labels.NAME).exists()
    seen = [answer(labelling, True) for _ in range(4)]
    assert labelling.undo() == seen[3] == labelling.current and labelling.labels.get(seen[3]) is None
    assert answer(labelling, False) == seen[3] and labelling.labels.get(seen[3]) is False
    again = Labelling(dataset)
    assert again.progress()["couch"] == (3, 1, 5)
    assert [again.undo() for _ in range(5)] == [*seen[::-1], None] and again.current == seen[0]
    assert again.progress()["couch"] == (0, 0, 5)
    assert [one["accepted"] for one in written(dataset)] == [True] * 4 + [None, False] + [None] * 4


def test_undo_takes_back_ones_own_label_first(dataset: Dataset) -> None:
    one, other = Labelling(dataset, ["couch"]), Labelling(dataset, ["empty"])
    mine, yours = answer(one, True), answer(other, True)
    assert one.undo() == mine and one.labels.get(yours) is True
    assert one.undo() is None, "a class that is not labelled here is left alone"


def test_nobody_labels_what_he_did_not_see(dataset: Dataset) -> None:
    labelling = Labelling(dataset)
    first = answer(labelling, True)
    assert not labelling.answer(first, False) and labelling.labels.get(first) is True
    assert not labelling.answer(Picture("couch", "999999.png"), True) and len(written(dataset)) == 1


def test_a_line_says_what_when_and_stays(dataset: Dataset) -> None:
    labelling = Labelling(dataset)
    picture = answer(labelling, False)
    (one,) = written(dataset)
    assert set(one) == {"class", "file", "accepted", "at"} and one["accepted"] is False
    assert (one["class"], one["file"]) == picture and one["at"].startswith("20") and one["at"].endswith("+00:00")


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_line_that_was_cut_is_mended_and_costs_no_other(dataset: Dataset, cut: int) -> None:
    labelling = Labelling(dataset)
    first, second = (answer(labelling, True) for _ in range(2))
    path = dataset.path / labels.NAME
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    again = Labelling(dataset)
    # only the end of the line is missing at 1: the label is whole
    assert again.labels.get(first) is True and again.labels.get(second) is (True if cut == 1 else None)
    assert path.read_bytes() == (whole if cut == 1 else whole[: whole.index(b"\n") + 1])
    third = answer(again, False)
    assert [json.loads(text)["file"] for text in path.read_text().splitlines()][-1] == third.file


@pytest.mark.parametrize("tail", [b"\0" * 300_000, b'{"class": "' + b"x" * 300_000, b"\0" * (1 << 16)])
def test_a_long_tail_that_is_no_line_costs_no_label(dataset: Dataset, tail: bytes) -> None:
    """A power cut may leave blocks of zeros behind the last line."""
    Labels(dataset.path).add(Picture("couch", "000000.png"), True)
    whole = (dataset.path / "labels.jsonl").read_bytes()
    (dataset.path / "labels.jsonl").write_bytes(whole + tail)
    Labels(dataset.path).add(Picture("couch", "000001.png"), False)
    assert (dataset.path / "labels.jsonl").read_bytes().startswith(whole)
    assert [(line["file"], line["accepted"]) for line in written(dataset)] == [
        ("000000.png", True),
        ("000001.png", False),
    ]


@pytest.mark.parametrize("tail", [
    b'{"class": "couch", "file": "000002.png", "accepted": tru}', b'[{"class": "couch", "file": "000002.png"}]',
    b"# note", b"[\n" + 9000 * b" ",
])  # fmt: skip
def test_what_somebody_else_wrote_without_an_end_is_not_taken_away(dataset: Dataset, tail: bytes) -> None:
    """A slip of the hand in an editor, or another format: labels were cut off by looking at them."""
    Labels(dataset.path).add(Picture("couch", "000000.png"), True)
    path = dataset.path / "labels.jsonl"
    path.write_bytes(path.read_bytes() + tail)
    before = path.read_bytes()
    with pytest.warns(PolyscoreWarning, match="that are none. They are passed over"):
        assert len(Labels(dataset.path)) == 1
    assert path.read_bytes() == before + b"\n"


def test_a_line_cut_while_another_labels_is_mended_before_the_next(dataset: Dataset) -> None:
    labelling = Labelling(dataset)
    answer(labelling, True)
    with (dataset.path / labels.NAME).open("ab") as file:
        file.write(b'{"class": "couch", "fi')
    answer(labelling, True)
    assert len(written(dataset)) == 2


def test_damaged_lines_are_told_and_passed_over(dataset: Dataset) -> None:
    labelling = Labelling(dataset)
    first = answer(labelling, True)
    path = dataset.path / labels.NAME
    path.write_bytes(b'\xff\xfe\n[1]\n{"class": 3, "file": "a", "accepted": true}\n' + path.read_bytes())
    with pytest.warns(PolyscoreWarning, match="holds 3 that are none"):
        assert Labels(dataset.path).items() == [(first, True)]


def test_a_label_is_a_truth_value_and_blank_lines_are_no_damage(dataset: Dataset) -> None:
    first = answer(Labelling(dataset), True)
    path = dataset.path / labels.NAME
    path.write_bytes(b"\n  \n" + path.read_bytes())
    assert Labels(dataset.path).items() == [(first, True)]
    path.write_bytes(path.read_bytes() + b'{"class": "couch", "file": "000003.png", "accepted": "yes"}\n')
    with pytest.warns(PolyscoreWarning, match="holds 1 that are none"):
        assert Labels(dataset.path).items() == [(first, True)]


def test_a_picture_that_is_labelled_again_comes_last(dataset: Dataset) -> None:
    mine, (one, two) = Labels(dataset.path), (Picture("couch", f"00000{k}.png") for k in range(2))
    for picture, accepted in ((one, True), (two, True), (one, False)):
        mine.add(picture, accepted)
    assert mine.items() == Labels(dataset.path).items() == [(two, True), (one, False)]


@pytest.mark.parametrize("how", ["shorter, in place", "longer, another file"])
def test_a_file_that_somebody_replaced_is_read_anew(dataset: Dataset, how: str) -> None:
    mine, path = Labels(dataset.path), dataset.path / labels.NAME
    for k in range(3):
        mine.add(Picture("couch", f"00000{k}.png"), True)
    line = path.read_bytes().splitlines(keepends=True)[0].replace(b"true", b"false")
    if how == "shorter, in place":
        path.write_bytes(line)
    else:
        (dataset.path / "other").write_bytes(line * 9)
        (dataset.path / "other").replace(path)
    mine.refresh()
    assert mine.items() == [(Picture("couch", "000000.png"), False)]


def test_a_label_is_written_under_a_lock_and_its_folder_is_on_the_disk(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    Labels(dataset.path).add(Picture("couch", "000000.png"), True)
    synced, append, sync = [], labels._append, os.fsync

    def appended(handle: int, line: bytes) -> None:
        with open(dataset.path / labels.NAME, "rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        append(handle, line)

    monkeypatch.setattr(labels, "_append", appended)
    monkeypatch.setattr(labels.os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_ino), sync(handle)))
    Labels(dataset.path).add(Picture("couch", "000001.png"), True)
    assert synced == [(dataset.path / labels.NAME).stat().st_ino, dataset.path.stat().st_ino]


@pytest.mark.parametrize("where", ["write", "short", "fsync"])
def test_a_full_disk_leaves_no_half_label(dataset: Dataset, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    labelling = Labelling(dataset)
    answer(labelling, True)
    before, current, real = (dataset.path / labels.NAME).read_bytes(), labelling.current, os.write

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def short(handle: int, content: bytes) -> int:
        return real(handle, content[: len(content) // 2])

    monkeypatch.setattr(labels.os, "fsync" if where == "fsync" else "write", short if where == "short" else full)
    assert current is not None
    with pytest.raises(OutputError, match=r"a label must be written at once.*(No space|full).*answer again"):
        labelling.answer(current, True)
    monkeypatch.undo()
    assert (dataset.path / labels.NAME).read_bytes() == before
    assert labelling.current == current and labelling.answer(current, False) and len(written(dataset)) == 2


_WRITER = """
import sys
from polyscore.rooms.labels import Labels, Picture
mine = Labels(sys.argv[1])
for k in range(60):
    mine.add(Picture("couch", f"{sys.argv[2]}-{k:03}-{'x' * 400}.png"), k % 2 == 0)
"""


def test_several_writers_do_not_spoil_each_others_lines(dataset: Dataset) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-c", _WRITER, str(dataset.path)]
    started = [subprocess.Popen([*program, str(k)], env=environment) for k in range(2)]
    mine, own = Labels(dataset.path), 0
    while any(process.poll() is None for process in started):
        mine.add(Picture("couch", f"own-{own}.png"), False)
        own += 1
    assert [process.returncode for process in started] == [0, 0] and own > 10
    mine.refresh()
    assert len(mine) == len(written(dataset)) == 120 + own
    assert sum(accepted for _, accepted in mine.items()) == 60


@pytest.mark.parametrize("why", [errno.EROFS, errno.EACCES])
def test_labels_that_cannot_be_written_can_be_read(dataset: Dataset, monkeypatch: pytest.MonkeyPatch, why: int) -> None:
    Labels(dataset.path).add(Picture("couch", "000001.png"), False)
    real = labels.open_regular

    def opened(file: object, flags: int) -> int:
        if flags & os.O_RDWR:
            raise OSError(why, os.strerror(why), str(file))
        return real(file, flags)

    monkeypatch.setattr(labels, "open_regular", opened)
    found = Labels(dataset.path)
    assert found.items() == [(Picture("couch", "000001.png"), False)]
    with pytest.raises(OutputError, match="a label must be written at once"):
        found.add(Picture("couch", "000002.png"), True)


def test_labels_are_no_link_to_elsewhere(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("mine")
    (dataset.path / labels.NAME).symlink_to(tmp_path / "mine.jsonl")
    with pytest.raises(PolyscoreError, match=r"labels must be in a file of the dataset's own"):
        Labelling(dataset)
    assert (tmp_path / "mine.jsonl").read_text() == "mine"


def test_a_class_that_is_not_whole_says_nothing_against_the_others(dataset: Dataset) -> None:
    (dataset.path / "empty" / "rooms.jsonl").unlink()
    assert Labelling(Dataset(dataset.path), ["couch"]).current is not None
    with pytest.raises(PolyscoreError, match=r"must have its rooms\.jsonl"):
        Labelling(Dataset(dataset.path))


def test_pictures_outside_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    outside = tmp_path / "secret.png"
    outside.write_bytes((dataset.path / "couch" / "000000.png").read_bytes())
    (dataset.path / "couch" / "link.png").symlink_to(outside)
    (dataset.path / "couch" / ".hidden.png").write_bytes(b"x")
    (dataset.path / "secret").symlink_to(tmp_path)
    os.mkfifo(dataset.path / "couch" / "pipe.png")
    write_about(dataset.path, {"source": "by hand", "resolution": SIDE, "classes": COUNTS | {"secret": 1}})
    assert read_picture(dataset.path, Picture("couch", "000001.png")).startswith(b"\x89PNG")
    for name, file in (
        ("couch", "../../secret.png"), ("couch", str(outside)), ("..", "secret.png"), ("", "secret.png"),
        ("couch", "link.png"), ("secret", "secret.png"), ("couch", "rooms.jsonl"), ("couch", ".hidden.png"),
        ("couch", "pipe.png"), ("couch", "000001.png\0.png"), ("couch", "none.png"), ("couch", ".."),
        ("table", "a.png"), (str(tmp_path), "secret.png"), ("couch/../couch", "000001.png"),
    ):  # fmt: skip
        with pytest.raises(PolyscoreError, match="a picture must"):
            read_picture(dataset.path, Picture(name, file))


@pytest.mark.parametrize("name", CLASSES)
def test_a_rule_says_what_must_and_what_must_not_be_seen(name: str) -> None:
    found = rule(name)
    words = {thing: f"one {thing}" in found.must for thing in ("couch", "painting", "table")}
    assert {thing for thing, seen in words.items() if seen} == CLASSES[name]
    assert {thing for thing in words if f"a {thing}" in found.never} == set(words) - CLASSES[name]
    assert "cut" in found.always[0] and "noise" in found.always[1] and found.must


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--class", "cuoch"], "a class must be one of couch, empty, couch+table; got 'cuoch'. Did you mean 'couch'"),
        (["--per-class", "0"], "per_class must be a whole number of at least 1; got 0"),
        (["--port", "99999"], "port must be from 0 to 65535; got 99999"),
    ],
)
def test_bad_options_are_refused_before_a_server_starts(dataset: Dataset, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["rooms", "label", str(dataset.path), *arguments])
    assert result.exit_code == 2 and message in " ".join(result.output.split())


def test_a_port_in_use_no_dataset_and_no_nicegui(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*arguments: object) -> str:
        result = CliRunner().invoke(app, ["rooms", "label", *map(str, arguments)])
        assert result.exit_code == 2
        return " ".join(result.output.split())

    with label_server.bound(0) as used:
        number = used.getsockname()[1]
        assert f"port must be free; {number} is not" in told(dataset.path, "--port", number)
    assert "a dataset must hold dataset.json" in told(tmp_path / "nowhere")
    monkeypatch.setitem(sys.modules, "nicegui", None)
    assert "must find nicegui; it is not installed. pip install 'polyscore[web]'" in told(dataset.path)
