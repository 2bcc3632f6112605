"""Datasets and shards as files: read, refused, packed; made by hand, no renderer needed."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polyscore.errors import OutputError, PolyscoreError, PolyscoreWarning
from polyscore.rooms import Dataset, contact_sheet, pack, pictures, unpack
from polyscore.rooms.dataset import write_lines
from polyscore.rooms.labels import Labels, Picture
from rooms.by_hand import write_rooms

SIDE = 16


def picture(seed: int) -> np.ndarray:
    """A smooth picture with a little noise, as rooms are."""
    r = np.random.default_rng(seed)
    slope = np.linspace(60, 180, SIDE)[:, None, None] + r.uniform(-40, 40, 3)
    return np.clip(slope + r.normal(0, 2, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)


def line(name: str, index: int) -> dict:
    objects = {} if name == "empty" else {"couch": {"box": [0.25, 0.5, 0.75, 1.0], "share": 0.125}}
    flaw = {"kind": "noise", "object": None, "strength": 0.1, "why": "noise"} if index == 1 else None
    return {"file": f"{index:06}.png", "class": name, "index": index, "shows": name, "objects": objects, "flaw": flaw}


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return write_rooms(tmp_path / "rooms", {"empty": 5, "couch": 5}, picture, line)


def test_a_dataset_is_read_as_arrays(dataset: Dataset) -> None:
    images, labels = dataset.arrays()
    assert (
        dataset.classes == ("empty", "couch") and len(dataset) == 10 and repr(dataset).endswith("10 rooms of 16 x 16)")
    )
    assert images.shape == (10, SIDE, SIDE, 3) and images.dtype == np.uint8
    np.testing.assert_array_equal(labels, [0] * 5 + [1] * 5)
    np.testing.assert_array_equal(images[7], picture(2))
    np.testing.assert_array_equal(dataset.images("couch", [3])[0], picture(3))
    boxes = dataset.boxes("couch")
    assert boxes.shape == (5, 3, 4) and np.isnan(boxes[:, 1:]).all()
    np.testing.assert_array_equal(boxes[:, 0], [[0.25, 0.5, 0.75, 1.0]] * 5)
    assert dataset.flaws("couch") == [None, "noise", None, None, None]


def test_a_picture_carries_its_record(dataset: Dataset) -> None:
    assert pictures.record(dataset.path / "couch" / "000001.png") == line("couch", 1)
    content = (dataset.path / "couch" / "000001.png").read_bytes()
    for cut in range(8, len(content), 7):  # the record comes before the pixels
        (dataset.path / "cut.png").write_bytes(content[:cut])
        assert pictures.record(dataset.path / "cut.png") is None
    assert pictures.record(dataset.path / "couch" / "rooms.jsonl") is None
    assert pictures.record(dataset.path / "nowhere.png") is None


def test_a_contact_sheet_has_a_row_a_class(dataset: Dataset) -> None:
    sheet = np.asarray(contact_sheet(dataset, columns=3, least=32))
    assert sheet.shape == (2 * (32 + 14 + 2) - 2, 3 * 34 - 2, 3)
    np.testing.assert_array_equal(sheet[14:46:2, 0:32:2], picture(0))
    red = (sheet == (220, 40, 40)).all(-1)
    assert red[14:46, 34:66].sum() == 2 * 4 * 30 and red.sum() == 2 * 240  # the second of each class is flawed
    with pytest.raises(PolyscoreError, match="columns must be at least 1"):
        contact_sheet(dataset, columns=0)


def damage(dataset: Dataset, what: str) -> None:
    couch = dataset.path / "couch"
    if what == "size":
        Image.fromarray(picture(0)).resize((8, 8)).save(couch / "000000.png")
    if what == "mode":
        Image.fromarray(picture(0)).convert("L").save(couch / "000000.png")
    if what == "cut":
        (couch / "000000.png").write_bytes((couch / "000000.png").read_bytes()[:300])
    if what == "gone":
        (couch / "000000.png").unlink()
    if what == "empty":
        (couch / "rooms.jsonl").write_text("")
    if what == "sidecar":
        (couch / "rooms.jsonl").unlink()
    if what == "json":
        (couch / "rooms.jsonl").write_text('{"file": ')
    if what == "record":
        (couch / "rooms.jsonl").write_text('{"file": "000000.png"}\n')
    if what == "outside":
        (couch / "rooms.jsonl").write_text(json.dumps(line("couch", 0) | {"file": "../empty/000000.png"}) + "\n")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("size", r"must have 16 x 16 pixels in RGB; .* has 8 x 8 in RGB\. Convert"),
        ("mode", r"has 16 x 16 in L\. Convert"),
        ("cut", "a picture must be readable"),
        ("gone", "a picture must be readable.*No such file"),
        ("empty", "class couch must hold a room; got none"),
        ("sidecar", "a class must have its rooms.jsonl"),
        ("json", "rooms.jsonl must be readable"),
        ("record", "a line of .* must be a room's record"),
        ("outside", "must be a plain name that ends in"),
    ],
)
def test_what_is_wrong_with_a_class_is_said(dataset: Dataset, what: str, message: str) -> None:
    damage(dataset, what)
    with pytest.raises(PolyscoreError, match=message):
        Dataset(dataset.path).images("couch")


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ("{", "must be readable JSON"),
        ("[]", "must be of a polyscore-rooms dataset"),
        ('{"format": "polyscore-rooms", "version": 1, "resolution": 16, "classes": {"../..": 3}}', "must be of a"),
        (
            '{"format": "polyscore-rooms", "version": 9, "resolution": 16, "classes": {"empty": 3}}',
            "version must be 1; got 9",
        ),
        ('{"format": "polyscore-rooms", "version": 1, "resolution": 16, "classes": {}}', "must be of a"),
        ('{"format": "polyscore-rooms", "version": 1, "resolution": 0, "classes": {"empty": 3}}', "must be of a"),
    ],
)
def test_a_bad_dataset_file_is_refused(tmp_path: Path, about: str, message: str) -> None:
    (tmp_path / "dataset.json").write_text(about)
    with pytest.raises(PolyscoreError, match=message):
        Dataset(tmp_path)


def test_no_dataset_and_no_class(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(PolyscoreError, match="must hold dataset"):
        Dataset(tmp_path / "nowhere")
    with pytest.raises(PolyscoreError, match=r"one of empty, couch; got 'cuoch'\. Did you mean 'couch'"):
        dataset.images("cuoch")


@pytest.mark.parametrize("quality", [None, 90])
def test_packing_and_unpacking_gives_it_back(dataset: Dataset, tmp_path: Path, quality: int | None) -> None:
    files = pack(dataset, tmp_path / "shards", quality=quality)
    again = unpack(tmp_path / "shards", tmp_path / "again")
    assert [file.name for file in files] == ["shard-0000-of-0001.zip"]
    assert again.about == dataset.about
    for name in dataset.classes:
        before, after = dataset.images(name).astype(float), again.images(name).astype(float)
        error = np.abs(before - after)
        assert error.max() == 0 if quality is None else 0 < error.mean() < 5
        np.testing.assert_array_equal(dataset.boxes(name), again.boxes(name))
        assert [one.flaw for one in dataset.records(name)] == [one.flaw for one in again.records(name)]
    assert files[0].read_bytes() == pack(dataset, tmp_path / "twice", quality=quality)[0].read_bytes()


def test_packing_says_that_labels_stay_behind(dataset: Dataset, tmp_path: Path) -> None:
    """Shards hold pictures and records alone, under other file names."""
    Labels(dataset.path).add(Picture("couch", dataset.records("couch")[0].file), True)
    with pytest.warns(PolyscoreWarning, match=r"labels\.jsonl is not packed"):
        pack(dataset, tmp_path / "shards")
    assert not (unpack(tmp_path / "shards", tmp_path / "again").path / "labels.jsonl").exists()


@pytest.mark.parametrize("known", [{"attempt": 2}, {"prompt": "a (couch)1.4"}, {"attempt": 0, "prompt": ""}, {}])
def test_what_one_source_knows_of_a_picture_travels(dataset: Dataset, tmp_path: Path, known: dict) -> None:
    """Rendered rooms have an attempt, generated ones a prompt; a record without them says nothing of them."""
    write_lines(dataset.path / "couch", [line("couch", index) | known for index in range(5)])
    pack(Dataset(dataset.path), tmp_path / "shards")
    found = unpack(tmp_path / "shards", tmp_path / "again").records("couch")
    assert [one.to_dict() for one in found] == [
        line("couch", index) | known | {"file": f"{index:06}.jpg"} for index in range(5)
    ]


@pytest.mark.parametrize("known", [{"attempt": -1}, {"attempt": "1"}, {"attempt": True}, {"prompt": 3}])
def test_what_is_known_of_a_picture_is_checked(dataset: Dataset, known: dict) -> None:
    write_lines(dataset.path / "couch", [line("couch", 0) | known])
    with pytest.raises(PolyscoreError, match=r"a line of .* must be a room's record"):
        Dataset(dataset.path).records("couch")


def test_shards_keep_below_their_limit(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "packed", lambda image, quality: (".jpg", bytes(20_000)))
    files = pack(dataset, tmp_path / "shards", largest=2**16)
    assert len(files) == 5 and max(file.stat().st_size for file in files) <= 2**16
    files[3].unlink()
    with pytest.raises(PolyscoreError, match="all there; 3 of 5 are missing"):
        unpack(tmp_path / "shards", tmp_path / "again")


def test_bad_shards_are_refused_and_leave_no_dataset(dataset: Dataset, tmp_path: Path) -> None:
    (whole,) = pack(dataset, tmp_path / "shards")
    content = whole.read_bytes()
    for cut in (0, 10, len(content) // 2, len(content) - 5):
        whole.write_bytes(content[:cut])
        with pytest.raises(PolyscoreError, match="a shard must be whole"):
            unpack(tmp_path / "shards", tmp_path / f"cut-{cut}")
        assert not (tmp_path / f"cut-{cut}" / "dataset.json").exists()
    for name in ("../../evil.webp", "/etc/000000.webp", "couch/evil.py", "couch\\..\\000001.webp"):
        with zipfile.ZipFile(whole, "w") as shard:
            shard.writestr(name, b"x")
        with pytest.raises(PolyscoreError, match="must hold pictures and records only"):
            unpack(tmp_path / "shards", tmp_path / "evil")
    for about, message in (("[]", "must be of a polyscore-rooms"), ("{", "cannot be read"), ("null", "must be of a")):
        with zipfile.ZipFile(whole, "w") as shard:
            shard.writestr("dataset.json", about)
            shard.writestr("rooms.jsonl", "")
        with pytest.raises(PolyscoreError, match=message):
            unpack(tmp_path / "shards", tmp_path / "none")
        assert not (tmp_path / "none" / "dataset.json").exists()
    with pytest.raises(PolyscoreError, match="or shards shard-0000"):
        unpack(tmp_path / "nowhere", tmp_path / "again")
    with pytest.raises(PolyscoreError, match=r"shards must be packed; got a dataset as it is in .* Use it"):
        unpack(dataset.path, tmp_path / "again")


def test_nothing_is_packed_over_other_files(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="must have an empty folder"):
        pack(dataset, dataset.path)
    with pytest.raises(PolyscoreError, match="quality must be a whole number from 0 to 100, or None"):
        pack(dataset, tmp_path / "shards", quality=101)


@pytest.mark.parametrize("options", [{"quality": 88.0}, {"quality": "88"}, {"quality": True}, {"largest": "99999"},
                                     {"largest": None}])  # fmt: skip
def test_numbers_of_a_pack_that_are_none_are_refused(dataset: Dataset, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(PolyscoreError, match=r"(quality|largest) must be"):
        pack(dataset, tmp_path / "shards", **options)
    assert not (tmp_path / "shards").exists()
