"""Datasets and shards that somebody forged or damaged: refused in words, and nothing is written outside or left."""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from polyscore.errors import PolyscoreError
from polyscore.rooms import Dataset, pack, pictures, unpack
from polyscore.rooms.dataset import write_about, write_lines
from rooms.by_hand import line, write_rooms

SIDE = 16
CLASSES = ("empty", "couch")


def picture(index: int) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return write_rooms(tmp_path / "rooms", dict.fromkeys(CLASSES, 3), picture)


class Shard:
    """The only shard of a dataset, to be written again with other members."""

    def __init__(self, dataset: Dataset, folder: Path) -> None:
        (self.path,) = pack(dataset, folder)
        with zipfile.ZipFile(self.path) as shard:
            self.members = [(info.filename, shard.read(info)) for info in shard.infolist()]
        self.lines = [json.loads(text) for text in dict(self.members)["rooms.jsonl"].splitlines()]
        self.about = json.loads(dict(self.members)["dataset.json"])

    def forge(self, members=(), lines=None, about=None, without=(), method=zipfile.ZIP_STORED) -> None:
        told = {
            "rooms.jsonl": "".join(json.dumps(one) + "\n" for one in lines or self.lines).encode(),
            "dataset.json": json.dumps(about or self.about).encode(),
        }
        kept = [(name, told.get(name, content)) for name, content in self.members if name not in without]
        with zipfile.ZipFile(self.path, "w", method) as shard:
            for name, content in [*kept, *members]:
                shard.writestr(zipfile.ZipInfo(name), content, method)


@pytest.fixture
def shard(dataset: Dataset, tmp_path: Path) -> Shard:
    return Shard(dataset, tmp_path / "shards")


def refused(shard: Shard, tmp_path: Path, message: str) -> None:
    before = {place for place in tmp_path.rglob("*") if shard.path.parent not in place.parents}
    with pytest.raises(PolyscoreError, match=message):
        unpack(shard.path.parent, tmp_path / "out")
    assert {place for place in tmp_path.rglob("*") if shard.path.parent not in place.parents} == before


@pytest.mark.parametrize(
    "name", ["", "/", ".", "..", "../out-2", "<script>", "$HOME", "a b", "[a]", "\x1b[31m", "x" * 200, "labels.jsonl"]
)
def test_a_shard_names_classes_of_its_dataset_and_no_other_place(shard: Shard, tmp_path: Path, name: str) -> None:
    file = "900009.jpg"
    root = Path("/") / file
    assert not root.exists()
    content = dict(shard.members)["couch/000000.jpg"]
    try:
        shard.forge([(f"{name}/{file}", content)], [*shard.lines, line(name, 900009) | {"file": file}])
        refused(shard, tmp_path, "must hold pictures and records only")
        assert not root.exists()
    finally:
        root.unlink(missing_ok=True)  # where it did


def test_a_class_that_the_dataset_does_not_name_is_refused(shard: Shard, tmp_path: Path) -> None:
    content = dict(shard.members)["couch/000000.jpg"]
    shard.forge([("sofa/000000.jpg", content)], [*shard.lines, line("sofa", 0) | {"file": "000000.jpg"}])
    refused(shard, tmp_path, "must hold pictures and records only")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_every_picture_has_one_record_and_every_record_one_picture(shard: Shard, tmp_path: Path) -> None:
    content = dict(shard.members)["couch/000000.jpg"]
    shard.forge([("couch/000000.jpg", content)])
    refused(shard, tmp_path, "one record a picture")
    shard.forge(lines=[*shard.lines, shard.lines[0]])
    refused(shard, tmp_path, "one record a picture")
    shard.forge(lines=shard.lines[:-1])
    refused(shard, tmp_path, "one record a picture")
    shard.forge(without=["couch/000000.jpg"])
    refused(shard, tmp_path, "one record a picture")
    shard.forge(lines=shard.lines[:-1], without=["couch/000002.jpg"])
    refused(shard, tmp_path, "3 of couch; got 2")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("index", "x"), ("index", None), ("index", -1), ("index", 1.5), ("index", 10**20), ("index", float("nan")),
        ("index", 1), ("objects", []), ("objects", {"couch": {"box": [0, 0, 1], "share": 0.1}}),
        ("objects", {"couch": {"box": [0, 0, 1, float("nan")], "share": 0.1}}), ("flaw", 3), ("shows", None),
        ("class", None), ("class", ["couch"]), ("file", 5), ("file", "../000000.jpg"),
    ],
)  # fmt: skip
def test_a_record_that_is_none_is_refused(shard: Shard, tmp_path: Path, key: str, value: object) -> None:
    shard.forge(lines=[shard.lines[0] | {key: value}, *shard.lines[1:]])
    refused(shard, tmp_path, "a shard must|a line of|every picture once")


@pytest.mark.parametrize("text", [b"[]\n", b"null\n", b"1\n", b"{}\n", b"[" * 100_000, b"\xff\xfe"])
def test_lines_that_are_no_records_are_refused(shard: Shard, tmp_path: Path, text: bytes) -> None:
    shard.members = [(name, text if name == "rooms.jsonl" else content) for name, content in shard.members]
    with zipfile.ZipFile(shard.path, "w") as written:
        for name, content in shard.members:
            written.writestr(name, content)
    refused(shard, tmp_path, "a shard must|a line of")


def test_a_shard_that_swells_is_refused_before_it_is_unpacked(shard: Shard, tmp_path: Path) -> None:
    shard.forge([("couch/000003.jpg", bytes(30 * 2**20))], method=zipfile.ZIP_DEFLATED)
    assert shard.path.stat().st_size < 10**5
    refused(shard, tmp_path, "pictures and records only")


def test_records_that_swell_are_refused_before_they_are_read(shard: Shard, tmp_path: Path) -> None:
    swollen = [shard.lines[0] | {"flaw": {"kind": [[]] * 2**18}}, *shard.lines[1:]]
    for told in ({"lines": swollen}, {"about": shard.about | {"source": "x" * 2**21}}):
        shard.forge(**told, method=zipfile.ZIP_DEFLATED)
        assert shard.path.stat().st_size < 10**5
        refused(shard, tmp_path, "pictures and records only")


def test_a_damaged_member_an_encrypted_one_and_a_strange_method_are_no_crash(shard: Shard, tmp_path: Path) -> None:
    shard.forge(method=zipfile.ZIP_DEFLATED)
    content = shard.path.read_bytes()
    start = content.index(b"couch/000000.jpg") + len("couch/000000.jpg")
    noise = bytearray(content)
    noise[start : start + 40] = bytes(255 - b for b in content[start : start + 40])
    shard.path.write_bytes(noise)
    refused(shard, tmp_path, "a shard must be whole")
    shard.forge(method=zipfile.ZIP_LZMA)
    twisted = bytearray(shard.path.read_bytes())
    place = twisted.index(b"couch/000000.jpg") + len("couch/000000.jpg") + 20
    twisted[place : place + 20] = bytes(255 - b for b in twisted[place : place + 20])
    shard.path.write_bytes(twisted)
    refused(shard, tmp_path, "a shard must be whole")
    for offset, local, value in ((8, 6, 1), (10, 8, 97)):  # flags: encrypted; method: none that exists
        forged = bytearray(content)
        for mark, at in ((b"PK\x01\x02", offset), (b"PK\x03\x04", local)):
            place = forged.find(mark)
            while place >= 0:
                struct.pack_into("<H", forged, place + at, value)
                place = forged.find(mark, place + 4)
        shard.path.write_bytes(forged)
        refused(shard, tmp_path, "a shard must be whole")


def test_shards_of_two_datasets_are_not_mixed(dataset: Dataset, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pictures, "packed", lambda image, quality: (".jpg", bytes(20_000)))
    files = pack(dataset, tmp_path / "shards", largest=2**16)
    write_about(dataset.path, dict(dataset.about) | {"seed": 8})
    other = pack(Dataset(dataset.path), tmp_path / "others", largest=2**16)
    os.replace(other[1], files[1])
    with pytest.raises(PolyscoreError, match="shards must be of one dataset"):
        unpack(tmp_path / "shards", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_packing_tells_the_numbers_that_are_there(dataset: Dataset, tmp_path: Path) -> None:
    write_lines(dataset.path / "couch", [line("couch", index) for index in (0, 2)])  # somebody took one out
    pack(Dataset(dataset.path), tmp_path / "shards")
    again = unpack(tmp_path / "shards", tmp_path / "again")
    assert again.about["classes"] == {"empty": 3, "couch": 2} and len(again) == 5


def test_a_picture_that_inflates_without_end_is_not_read(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    text = zlib.compress(bytes(200 * 2**20))
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0))
    bomb += chunk(b"zTXt", b"polyscore\0\0" + text) + chunk(b"IEND", b"")
    (tmp_path / "bomb.png").write_bytes(bomb)
    assert pictures.record(tmp_path / "bomb.png") is None
    with pytest.raises(PolyscoreError, match="a picture must be readable"):
        pictures.read(tmp_path / "bomb.png", SIDE)


@pytest.mark.parametrize(
    "change",
    [
        {"index": "0"}, {"index": True}, {"index": -1}, {"index": 10**20}, {"class": "empty"},
        {"flaw": 3}, {"flaw": []},
        {"shows": None}, {"shows": 3}, {"objects": {"couch": {"box": [0, 0, 1, float("inf")], "share": 0.1}}},
        {"objects": {"couch": {"box": [0, 0, 1, 1], "share": "x"}}}, {"file": "000001.png"}, {"index": 1},
    ],
)  # fmt: skip
def test_a_line_that_says_what_cannot_be_is_refused(dataset: Dataset, change: dict) -> None:
    lines = [line("couch", 0) | change, *(line("couch", index) for index in (1, 2))]
    (dataset.path / "couch" / "rooms.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    with pytest.raises(PolyscoreError, match=r"a line of .* must be a room's record|must name every picture once"):
        Dataset(dataset.path).records("couch")


@pytest.mark.parametrize("count", [-1, "3", None, 1.5, True, [3]])
def test_a_number_of_pictures_is_one(dataset: Dataset, count: object) -> None:
    about = dict(dataset.about) | {"classes": {"couch": count}}
    (dataset.path / "dataset.json").write_text(json.dumps(about))
    with pytest.raises(PolyscoreError, match="must be of a polyscore-rooms dataset"):
        Dataset(dataset.path)


@pytest.mark.parametrize("place", ["dataset.json", "couch/rooms.jsonl", "couch/000000.png"])
def test_nobody_waits_for_a_pipe(dataset: Dataset, place: str) -> None:
    (dataset.path / place).unlink()
    os.mkfifo(dataset.path / place)
    with pytest.raises(PolyscoreError, match=r"readable.*no regular file"):
        Dataset(dataset.path).images("couch")
    assert pictures.record(dataset.path / "couch" / "000000.png") is None or place != "couch/000000.png"


def test_nobody_waits_for_a_shard_that_is_a_pipe(shard: Shard, tmp_path: Path) -> None:
    shard.path.unlink()
    os.mkfifo(shard.path)
    refused(shard, tmp_path, "a shard must be whole.*no regular file")


def test_flipped_bits_of_a_shard_are_refused_or_harmless(shard: Shard, tmp_path: Path) -> None:
    content, source = shard.path.read_bytes(), np.random.default_rng(3)
    for trial in range(60):
        flipped = bytearray(content)
        flipped[source.integers(len(content))] ^= 1 << int(source.integers(8))
        shard.path.write_bytes(flipped)
        out = tmp_path / f"out-{trial}"
        try:
            found = unpack(shard.path.parent, out)
        except PolyscoreError:
            assert not out.exists()
        else:
            assert len(found) == 6 and {one.name for one in found.records("couch")} == {"couch"}
    assert not list(tmp_path.glob(".out*"))
