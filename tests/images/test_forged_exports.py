"""Exports, checkpoints and packed stores that are damaged or forged: refused in words, and nothing is left of them."""

import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest
import torch

from images.flat import MIXTURES, RECIPE, flat
from polyscore.cli.image_results import beside
from polyscore.errors import PolyscoreError
from polyscore.experiments.store import Store
from polyscore.files.tensors import read_tensors, write_tensors
from polyscore.images import Recipe, export, parcels, train
from polyscore.images.extract import extract


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forged")
    train(flat(folder / "data"), MIXTURES, folder / "run", recipe=RECIPE, device="cpu")
    return folder / "run"


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def refused(run: Path, message: str) -> None:
    with pytest.raises(PolyscoreError, match=message):
        extract(run, run.parent / "out")
    assert sorted(path.name for path in run.parent.iterdir()) == ["run"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "x"), ("networks", {}), ("networks", {"network": 3}), ("recipe", 3), ("recipe", {}),
        ("steps", "x"), ("steps", None), ("shards", ["../../x.safetensors"]), ("shards", 3), ("shards", []),
        ("digest", "x"), ("conditions", []), ("conditions", 3), ("conditions", ["a"] * 50),
    ],
)  # fmt: skip
def test_a_model_that_says_what_cannot_be_is_refused(run, key, value):
    file = run / "export" / "model.json"
    told = json.loads(file.read_text())
    inner = key in ("shards", "digest", "conditions")
    (told["networks"]["network"] if inner else told)[key] = value
    file.write_text(json.dumps(told))
    refused(run, "must|be one export")


def test_a_shard_is_named_once_and_every_condition_has_its_name(run):
    file = run / "export" / "model.json"
    told = json.loads(file.read_text())
    network = dict(told["networks"]["network"])
    names = network["conditions"]
    twice = [names[0], *names[:-1]]
    for key, value in (("shards", network["shards"] * 2), ("conditions", twice), ("conditions", "x" * len(names))):
        told["networks"]["network"] = network | {key: value}
        file.write_text(json.dumps(told))
        with pytest.raises(PolyscoreError, match=r"a shard must be named once|conditions must be a list of different"):
            export.load(run)


@pytest.mark.parametrize("forge", [lambda told: told["networks"]["network"]["conditions"].reverse(),
                                   lambda told: told["networks"].update(b=dict(told["networks"]["network"])),
                                   lambda told: told.update(mixtures={"conditions": {"base": [], "b": []}})],
                         ids=["swapped", "twice", "others"])  # fmt: skip
def test_conditions_are_those_of_the_mixtures(run, forge):
    file = run / "export" / "model.json"
    told = json.loads(file.read_text())
    forge(told)
    file.write_text(json.dumps(told))
    with pytest.raises(PolyscoreError, match=r"have the conditions of its mixtures, 'base', '[ab]'"):
        export.load(run)


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.bool])
def test_weights_that_are_no_real_numbers_are_refused(run, dtype):
    file = run / "export" / "model.json"
    told = json.loads(file.read_text())
    shard = run / "export" / told["networks"]["network"]["shards"][0]
    weights = {key: value.to(dtype) for key, value in read_tensors(shard)[0].items()}
    write_tensors(shard, weights, {})
    told["networks"]["network"]["digest"] = export._digest(weights)
    file.write_text(json.dumps(told))
    refused(run, "must describe its shards; it does not fit them")


def test_a_network_larger_than_its_shards_is_refused_before_it_is_made(run, monkeypatch):
    file = run / "export" / "model.json"
    told = json.loads(file.read_text())
    unet = told["recipe"]["unet"]
    unet["channels"] = [2**14 * channels for channels in unet["channels"]]
    file.write_text(json.dumps(told))
    devices = []
    build = export.build
    monkeypatch.setattr(export, "build", lambda *a: devices.append(torch.get_default_device().type) or build(*a))
    with pytest.raises(PolyscoreError, match="must describe its shards"):
        export.load(run)
    assert devices == ["meta"]


def test_a_damaged_shard_leaves_no_export_and_other_files_stay_where_they_are(run, tmp_path):
    (run / "export" / "extra").symlink_to("/etc/hostname")
    out, steps = extract(run, tmp_path / "good")
    assert steps == 6 and not (out / "extra").exists() and list(export.networks(out, "cpu"))
    shutil.rmtree(out)
    (shard,) = (run / "export").glob("*.safetensors")
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(content)
    refused(run, "it is damaged")
    shard.unlink()
    refused(run, "must")
    os.mkfifo(shard)
    refused(run, "must")


@pytest.mark.parametrize(("key", "value"), [("mixtures", 3), ("mixtures", {}), ("recipe", 3), ("step", "x")])
def test_a_checkpoint_that_says_what_cannot_be_is_refused(run, key, value):
    shutil.rmtree(run / "export")
    newest = sorted((run / "checkpoints").rglob("*.safetensors"))[-1]
    tensors, about = read_tensors(newest)
    write_tensors(newest, tensors, about | {key: value})  # with a right sum
    refused(run, "must")
    write_tensors(newest, {name: t for name, t in tensors.items() if not name.startswith("average")}, about)
    refused(run, "must")


_MEASURED = {"step": 1, "loss": 0.5, "held_out": {"base": 0.5, "a": 0.5}}
NO_HISTORY = [5, [5], [{}], [{"step": 1}], [_MEASURED | {"step": "x"}], [_MEASURED | {"loss": "\x1b[31m"}],
              [_MEASURED | {"held_out": 5}], [_MEASURED | {"held_out": {"base": 0.5}}],
              [_MEASURED | {"held_out": {"base": None, "a": "<script>"}}]]  # fmt: skip


@pytest.mark.parametrize("history", NO_HISTORY)
def test_losses_that_cannot_be_are_refused_before_the_training_goes_on(run, trained, history):
    shutil.rmtree(run / "export")
    for file in (run / "checkpoints").rglob("*.safetensors"):
        tensors, about = read_tensors(file)
        write_tensors(file, tensors, about | {"history": history})
    with pytest.raises(PolyscoreError, match="history must hold the losses"):
        train(trained.parent / "data", MIXTURES, run, recipe=RECIPE, device="cpu")


@pytest.mark.parametrize("told", [*({"history": {"network": history}} for history in [[], *NO_HISTORY]),
                                  {"history": {}}, {"steps": "x"}, {"steps": -1}, {"steps": None}])  # fmt: skip
def test_what_a_complete_training_tells_of_itself_is_checked(run, trained, told):
    file = run / "export" / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | told))
    with pytest.raises(PolyscoreError, match="it is damaged"):
        train(trained.parent / "data", MIXTURES, run, recipe=RECIPE, device="cpu")


def test_a_complete_training_that_was_forged_is_no_crash(run, trained):
    file = run / "export" / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"history": {"network": []}}))
    data = flat(run.parent / "again")
    with pytest.raises(PolyscoreError, match="it is damaged"):
        train(data, MIXTURES, run, recipe=RECIPE, device="cpu")


def test_numbers_that_nobody_can_mean_are_refused():
    for fields in ({"steps": 10**20}, {"steps": 10**9}, {"batch": 10**9}, {"epochs": 10**20}):
        with pytest.raises(PolyscoreError, match="must be a whole number"):
            Recipe(**fields)


def parcel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return path


def test_parcels_that_are_encrypted_damaged_swollen_or_empty_are_refused(tmp_path):
    good = parcel(tmp_path / "p.zip", {"store.json": b"{}", "records/a.jsonl": bytes(range(256)) * 9})
    content = good.read_bytes()
    for place, value in ((6, 1), (8, 97), (60, 255)):  # encrypted, a strange method, noise in the first member
        forged = bytearray(content)
        for mark, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
            at = forged.find(mark)
            while at >= 0 and place < 60:
                forged[at + place + shift] = value
                at = forged.find(mark, at + 4)
        start = content.index(b"records/a.jsonl") + 15
        forged[start : start + 30] = content[start : start + 30] if place < 60 else bytes([value]) * 30
        good.write_bytes(forged)
        with pytest.raises(PolyscoreError, match="must be a whole zip file"):
            parcels.adopt(good, Store(tmp_path / "store"))
    swollen = parcel(tmp_path / "b.zip", {"store.json": b"{}", "records/a.jsonl": bytes(513 * 2**20)})
    for path in (swollen, parcel(tmp_path / "none.zip", {}), parcel(tmp_path / "half.zip", {"records/a.jsonl": b""})):
        with pytest.raises(PolyscoreError, match="must hold records, protocols and sheets only"):
            parcels.adopt(path, Store(tmp_path / "store"))
    os.mkfifo(tmp_path / "pipe.zip")
    with pytest.raises(PolyscoreError, match="must be a whole zip file"):
        parcels.adopt(tmp_path / "pipe.zip", Store(tmp_path / "store"))
    assert not Store(tmp_path / "store").records


def test_parcels_whose_names_are_no_text_or_whose_lzma_is_damaged_are_refused(tmp_path):
    members = {"store.json": b"{}", "records/abcd.jsonl": bytes(range(256)) * 9}
    unnamed = tmp_path / "names.zip"
    with zipfile.ZipFile(unnamed, "w") as packed:
        for name, content in members.items():
            packed.writestr(name.replace("abcd", "äö"), content)
    unnamed.write_bytes(unnamed.read_bytes().replace("äö".encode(), b"\xff\xfe\xff\xfe"))
    noisy = tmp_path / "noisy.zip"
    with zipfile.ZipFile(noisy, "w", zipfile.ZIP_LZMA) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    content = bytearray(noisy.read_bytes())
    start = content.index(b"records/abcd.jsonl") + 40
    content[start : start + 20] = bytes(255 - b for b in content[start : start + 20])
    noisy.write_bytes(content)
    for path in (unnamed, noisy):
        with pytest.raises(PolyscoreError, match="must be a whole zip file"):
            parcels.adopt(path, Store(tmp_path / "store"))


def test_a_place_beside_the_folder_one_stands_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert beside(Path(), "-data") == tmp_path.with_name(tmp_path.name + "-data")
    assert beside(Path("/"), "-data") == Path("/-data")
    assert beside(Path("runs/model"), "-data") == Path("runs/model-data")
