"""Stages: cells in a store, one training for all K, limits, packing; on toy rooms whose scores are exact."""

from __future__ import annotations

import dataclasses
import json
import shutil
import zipfile

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from images.toys import CLASSES, dataset, draw, family
from polyscore.cli import app
from polyscore.errors import PolyscoreError, PolyscoreWarning
from polyscore.experiments.cells import COMPOSITION
from polyscore.experiments.lock import StoreError
from polyscore.experiments.store import Store
from polyscore.features import frechet
from polyscore.images import composing, measuring, parcels, sheets
from polyscore.images.classifier import Lessons
from polyscore.images.experiment import ImageExperiment
from polyscore.images.measuring import Yardstick
from polyscore.images.real import Real, opened
from polyscore.images.stage import Learnt, Stage
from polyscore.paper.images import specs
from polyscore.paper.images.settings import setting
from polyscore.rooms import Dataset, pictures
from polyscore.rooms import pack as pack_rooms
from polyscore.rooms.dataset import write_about, write_lines
from rooms.by_hand import write_rooms

SIDE, LESSONS = 16, Lessons(images=6000, width=8, batch=64, fine=False)


@pytest.fixture(scope="module")
def rooms(tmp_path_factory):
    return dataset(tmp_path_factory.mktemp("rooms"), 80, SIDE)


def experiment(rooms, name="ood-painting", **fields):
    chosen, real = setting(name), Real(rooms, SIDE)
    given = {"particles": (1, 4), "swarms": 24, "steps": 30, "reference": 64, "resolution": SIDE,
             "recipe": {"steps": 1}, "lessons": LESSONS}  # fmt: skip
    return ImageExperiment(
        setting=name, mixtures=chosen.mixtures, exponents=chosen.exponents, rooms=real.digest, train_size=real.size,
        **{**given, **fields},
    )  # fmt: skip


def plain_features(images):
    """Means over quarters: enough to tell templates apart."""
    return images.reshape(len(images), 4, SIDE // 4, 4, SIDE // 4, 3).mean((2, 4)).reshape(len(images), -1) / 64


@pytest.fixture
def exactly(monkeypatch):
    """Sampling by the library's own steps; the toy's schedule has no timesteps."""
    import polyscore as ps

    defaults = composing.compose.__kwdefaults__
    monkeypatch.setitem(defaults, "sampler", lambda k, n: ps.FeynmanKac(particles=k, steps=n))


def stage(rooms, folder, **fields):
    asked = []

    def learn(experiment, stage, seconds):
        asked.append(experiment.name)
        return Learnt(family(experiment.mixtures, SIDE), {"base": 0.5}, 0.1)

    given = {"learn": learn, "embed": plain_features, "device": "cpu"}
    made = Stage(Store(folder / "store"), rooms, folder / "models", **{**given, **fields})
    return made, asked


@pytest.mark.usefixtures("exactly")
def test_a_stage_records_every_cell_once(rooms, tmp_path):
    work, asked = stage(rooms, tmp_path)
    one = experiment(rooms)
    outcome = work.run([one])
    assert (outcome.computed, outcome.missing, asked) == (5, 0, [one.name])
    store = Store(tmp_path / "store")
    cells = list(one.cells())
    assert [c.particles for c in cells] == [1, 1, 1, 1, 4] and {c.target for c in cells} == {
        COMPOSITION, "base", "couch", "painting"}  # fmt: skip
    for cell in cells:
        found = store.get(cell, one.protocol_of(cell)).results
        assert sum(found[f"count {name}"] for name in (*CLASSES, "none")) == 24
        assert 0 <= found["tv_low"] <= found["tv"] <= found["tv_high"] <= 1 and found["accuracy"] > 0.9
        assert found["ancestors"] <= cell.particles and found["loss base"] == 0.5
        assert found["mass couch"] == pytest.approx(one.masses(cell.target)["couch"], rel=1e-5)
        assert found["tv"] < 0.45  # exact scores; 24 images of four classes
    pages = sheets.sheets(store)
    assert set(pages) == {one.key(cell) for cell in cells}
    sheet = pages[one.key(cells[0])]
    assert sheet.images.shape == (24, SIDE, SIDE, 3) and set(sheet.verdicts) <= {*CLASSES, "none"}
    again, asked = stage(rooms, tmp_path)
    assert again.run([one]).computed == 0 and asked == []  # nothing is trained for cells that are there
    more = dataclasses.replace(one, particles=(1, 2, 4))
    assert again.run([more]).computed == 1  # only the new K; the others kept their keys


@pytest.mark.usefixtures("exactly")
def test_a_stage_stops_in_time_and_goes_on(rooms, tmp_path):
    one, other = experiment(rooms, conditions_alone=False), experiment(rooms, "id-painting", conditions_alone=False)
    work, asked = stage(rooms, tmp_path, seconds=1e-3)
    outcome = work.run([one, other])
    assert outcome.computed == 0 and outcome.missing == 4 and len(asked) == 0
    cut, _ = stage(rooms, tmp_path, learn=lambda experiment, stage, seconds: None)
    with pytest.warns(PolyscoreWarning, match="must fit into the time limit and was cut"):
        assert cut.run([one]).computed == 0
    packed = []
    work, asked = stage(rooms, tmp_path, after=lambda: packed.append(1))
    assert work.run([one, other]).missing == 0 and len(asked) == 2 and packed == [1, 1]
    assert len(list((tmp_path / "models").glob("classifier-*"))) == 1  # trained once


@pytest.mark.usefixtures("exactly")
def test_a_cell_alone_has_the_numbers_of_the_sweep(rooms, tmp_path):
    whole, part = experiment(rooms), experiment(rooms, particles=(4,), conditions_alone=False)
    stage(rooms, tmp_path / "a")[0].run([whole])
    stage(rooms, tmp_path / "b")[0].run([part])
    (cell,) = part.cells()
    first, second = (Store(tmp_path / n / "store").get(cell, part.protocol_of(cell)) for n in "ab")
    assert first.key == second.key == whole.key(cell) and first.results == second.results


@pytest.mark.usefixtures("exactly")
def test_packed_stores_travel_and_forged_ones_do_not(rooms, tmp_path):
    one = experiment(rooms, conditions_alone=False)
    work, _ = stage(rooms, tmp_path)
    work.run([one])
    file = parcels.pack(work.store, tmp_path / "store.zip")
    target = Store(tmp_path / "target")
    assert parcels.adopt(file, target) == 2 and parcels.adopt(file, target) == 0
    assert set(Store(tmp_path / "target").records) == set(work.store.records)
    assert set(sheets.sheets(target)) == set(sheets.sheets(work.store))
    for name in ("../out.json", "records/../../x.jsonl", "records/.hidden.jsonl", "notes.txt"):
        with zipfile.ZipFile(tmp_path / "bad.zip", "w") as bad:
            bad.writestr(name, "x")
        with pytest.raises(StoreError, match="must hold records, protocols and sheets only"):
            parcels.adopt(tmp_path / "bad.zip", target)
    (tmp_path / "bad.zip").write_bytes(file.read_bytes()[:100])
    with pytest.raises(StoreError, match="must be a whole zip file"):
        parcels.adopt(tmp_path / "bad.zip", target)
    with pytest.raises(PolyscoreError, match="hold results before it is packed"):
        parcels.pack(Store(tmp_path / "empty"), tmp_path / "x.zip")


def test_damaged_sheets_cost_a_picture_and_nothing_else(rooms, tmp_path):
    store, one = Store(tmp_path), experiment(rooms)
    cells, images = list(one.cells()), draw("couch", 70, SIDE)
    with store.writing():
        for cell in cells[:2]:
            sheets.keep(store, cell, one.key(cell), images, ["couch"] * 70)
    (file,) = store.files("sheets", ".jsonl")
    first, second = file.read_text().splitlines()
    body = json.loads(second)
    file.write_text(
        "\n".join([first, second.replace('"side":16', '"side":17'), first[:50], json.dumps(body | {"side": 9}), "[]"])
    )
    found = sheets.sheets(Store(tmp_path))
    assert list(found) == [one.key(cells[0])] and len(found[one.key(cells[0])].images) == 64
    kept = found[one.key(cells[0])].images.astype(int)
    assert np.abs(kept - images[:64]).mean() < 12  # JPEG of noise
    assert sheets.tiled(images[:9]).shape == (2 * SIDE, 8 * SIDE, 3)


def test_shards_of_the_same_names_and_sizes_are_two_datasets(tmp_path):
    """Shards were known by names and sizes: others in their place were answered with the rooms from before."""
    sizes, shades = set(), []
    for shade in (40, 80):
        plain = np.full((8, 8, 3), shade, np.uint8)
        pack_rooms(
            write_rooms(tmp_path / f"rooms-{shade}", {"couch": 2}, lambda _, p=plain: p), tmp_path / "new", quality=None
        )
        shutil.rmtree(tmp_path / "shards", ignore_errors=True)
        (tmp_path / "new").rename(tmp_path / "shards")
        sizes |= {file.stat().st_size for file in (tmp_path / "shards").iterdir()}
        shades.append(int(opened(tmp_path / "shards", tmp_path / "cache").images("couch")[0, 0, 0, 0]))
    assert len(sizes) == 1 and shades == [40, 80]


def test_a_sheet_whose_last_row_is_not_full_is_read_again(rooms, tmp_path):
    store, one = Store(tmp_path), experiment(rooms)
    cell, words = next(iter(one.cells())), ["couch", "none"] * 5
    with store.writing():
        sheets.keep(store, cell, one.key(cell), draw("couch", 10, SIDE), words)
    (found,) = sheets.sheets(Store(tmp_path)).values()
    assert found.images.shape == (10, SIDE, SIDE, 3) and found.verdicts == tuple(words)


def test_rooms_are_read_from_shards_and_shrunk(rooms, tmp_path):
    pack_rooms(rooms, tmp_path / "shards", quality=None)
    found = opened(tmp_path / "shards", tmp_path / "cache")
    assert found.about == rooms.about and opened(tmp_path / "shards", tmp_path / "cache").path == found.path
    assert found.images("couch") is found.images("couch")  # decoded once
    assert (found.images("couch", [3, 1]) == rooms.images("couch", [3, 1])).all()
    (found.path / "dataset.json").unlink()  # cut while unpacking
    assert opened(tmp_path / "shards", tmp_path / "cache").about == rooms.about
    image = rooms.images("couch", [0])
    box = np.asarray(Image.fromarray(image[0]).resize((8, 8), Image.Resampling.BOX)).astype(int)
    assert np.abs(pictures.shrunk(image, 8)[0].astype(int) - box).max() <= 1  # another library's box filter
    with pytest.raises(PolyscoreError, match="a resolution must divide that of the rooms; got 7 of 16"):
        pictures.shrunk(image, 7)
    real = Real(rooms, 8)
    (x, y), (held, _) = real.part(False), real.part(True)
    assert len(x) == 4 * 72 and len(held) == 4 * 8 and np.bincount(y).tolist() == [72] * 4


def test_rooms_are_told_apart_by_their_pixels(rooms, tmp_path):
    """What is said of rooms and what files hold them decides nothing; pixels, indices and classes do."""
    digest = Real(rooms, SIDE).digest
    assert Real(rooms, 8).digest == digest  # of the dataset, at whatever resolution it is looked at
    assert Real(pack_and_open(rooms, tmp_path / "whole", quality=None), SIDE).digest == digest
    assert Real(pack_and_open(rooms, tmp_path / "lossy", quality=50), SIDE).digest != digest
    copy = copied(rooms, tmp_path / "said")
    write_about(copy, {**rooms.about, "seed": 1})
    assert Real(Dataset(copy), SIDE).digest == digest
    copy = copied(rooms, tmp_path / "swapped")
    one, other = copy / "couch" / "000003.png", copy / "couch" / "000009.png"  # the second one is held out
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
    assert Real(Dataset(copy), SIDE).digest != digest
    copy = copied(rooms, tmp_path / "indices")
    lines = [line.to_dict() for line in rooms.records("couch")]
    write_lines(copy / "couch", [line | {"index": line["index"] + 1} for line in lines])  # others are held out
    assert Real(Dataset(copy), SIDE).digest != digest
    copy = copied(rooms, tmp_path / "order")
    write_about(copy, {**rooms.about, "classes": dict(reversed(rooms.about["classes"].items()))})
    assert Real(Dataset(copy), SIDE).digest != digest


def pack_and_open(rooms, folder, **how):
    pack_rooms(rooms, folder, **how)
    return opened(folder, folder.parent / "cache")


def copied(rooms, folder):
    return shutil.copytree(rooms.path, folder)


def test_distances_see_wrong_counts_and_spoiled_images(rooms, tmp_path):
    """Rooms drawn by the masses are as near as other real ones; other masses and noise are farther."""
    work, _ = stage(rooms, tmp_path)
    real = Real(rooms, SIDE)
    yardstick = Yardstick(real, work._classifier(real, LESSONS), plain_features, reference=60)
    masses = {"empty": 0.25, "couch": 0.5, "painting": 0.0, "couch+painting": 0.25}
    right = np.concatenate([draw(n, int(64 * m), SIDE, seed=9) for n, m in masses.items() if m])
    wrong = np.concatenate([draw("painting", 32, SIDE, seed=9), draw("empty", 32, SIDE, seed=9)])
    noisy = np.random.default_rng(0).integers(0, 256, right.shape).astype(np.uint8)
    found = [yardstick.measure(x, masses, seed=1)[0] for x in (right, wrong, noisy)]
    assert found[0]["tv"] < 0.1 and found[0]["p"] > 1e-3 and found[0]["frechet"] < 3 * found[0]["frechet floor"]
    assert found[1]["tv"] > 0.4 and found[1]["frechet"] > 5 * found[0]["frechet"] and found[1]["p"] < 0.01
    assert found[2]["kernel"] > 5 * abs(found[0]["kernel"]) and found[2]["count none"] == 64
    assert "kernel couch" in found[0] and "kernel painting" not in found[0]  # too few for a distance of their own
    assert abs(found[0]["warp"]) < 4 * found[0]["warp error"] + 1e-3 and "warp" not in found[2]  # none is of a class
    off = np.clip(right.astype(int) + 40, 0, 255).astype(np.uint8)
    warped = yardstick._warp(plain_features(off), ["couch"] * 64, masses, 1)
    assert warped["warp"] == warped["kernel couch"] > found[0]["warp"] + 4 * warped["warp error"]
    assert yardstick.measure(right, masses, seed=1)[0] == found[0]


def test_a_floor_shares_no_room_with_its_reference(rooms):
    """Of 80 rooms a class 32 and 40 can be drawn, and 32 and 64 cannot: the same rooms would be on both sides."""
    masses, images = {"empty": 0.02, "couch+painting": 0.98}, draw("couch+painting", 32, SIDE, seed=9)
    found = {}
    for size in (40, 64):
        yardstick = Yardstick(Real(rooms, SIDE), None, plain_features, reference=size)
        found[size] = yardstick._distances(images, np.ones(32, int), masses, seed=1)
        sides = yardstick.rooms(measuring._drawn(masses, 32 + size, 1), 1)
        others, reference = sides[:32], sides[32:]
        shared = {row.tobytes() for row in others} & {row.tobytes() for row in reference}
        assert bool(shared) == (size == 64)
        assert found[size].get("frechet floor") == (yardstick._far(frechet, others, reference) if size == 40 else None)
        assert found[size]["frechet"] == yardstick._far(frechet, plain_features(images), reference)
    assert "kernel floor" not in found[64]
    assert list(found[40])[:4] == ["frechet", "frechet floor", "kernel", "kernel floor"]


def test_an_interrupted_stage_says_so_and_packs(rooms, tmp_path, monkeypatch):
    packed = []

    def run(self, experiments):
        self.store.records["a"] = object()
        raise KeyboardInterrupt

    monkeypatch.setattr(Stage, "run", run)
    monkeypatch.setattr(parcels, "pack", lambda store, path: packed.append(path))
    asked = ["images", "stage", "smoke", "--data", str(rooms.path), "--store", str(tmp_path / "s"), "--device", "cpu"]
    done = CliRunner().invoke(app, [*asked, "--pack", str(tmp_path / "s.zip")])
    assert done.exit_code == 130 and "the same command goes on" in " ".join(done.stderr.split())
    assert packed == [tmp_path / "s.zip"]


def test_experiments_refuse_what_cannot_be_counted(rooms):
    for fields, rule in (
        ({"exponents": {"sofa": 1.0}}, "exponents must name conditions"),
        ({"models": "joint"}, "models must be one of"),
        ({"swarms": 1}, "swarms must be a whole number"), ({"particles": ()}, "particles must hold at least 1"),
        ({"setting": "a/b"}, "setting must be of letters"), ({"variant": "x y"}, "variant must be empty or a name"),
    ):  # fmt: skip
        with pytest.raises(PolyscoreError, match=rule):
            dataclasses.replace(experiment(rooms), **fields)


def test_the_papers_stages_are_the_table(rooms):
    big = Real(rooms, SIDE)
    table = [one for block in specs.stage("32") for one in block.experiments(big)]
    assert len(table) == 12 and len({one.key(c) for one in table for c in one.cells()}) == 12 * 6
    assert {(one.setting, one.models) for one in table} == {
        (f"{kind}-{x}", m) for kind in ("id", "ood", "ood-both") for x in ("painting", "table")
        for m in ("conditional", "separate")}  # fmt: skip
    assert all(one.particles == (1, 4, 16) and one.swarms == 256 and one.resolution == 32 for one in table)
    study = [one for block in specs.stage("study") for one in block.experiments(big)]
    plain = table[1]
    assert len({one.folder for one in [*study, plain]}) == 6 and all(
        one.kind.startswith("conditional-") for one in study
    )
    assert study[0].recipe["steps"] * 2 == plain.recipe["steps"] == study[1].recipe["steps"] / 2
    assert study[3].masses()["couch+painting"] < plain.masses()["couch+painting"] < study[4].masses()["couch+painting"]
    few = specs.narrowed(specs.stage("32"), settings=["id-table"], models=["separate"], recipe={"steps": 9}, swarms=8)
    (only,) = [one for block in few for one in block.experiments(big)]
    assert (only.setting, only.models, only.recipe["steps"], only.swarms) == ("id-table", "separate", 9, 8)
    assert json.loads(json.dumps(only.recipe)) == only.recipe


@pytest.mark.parametrize(
    "text, rule",
    [
        ("stages: {}", "a file of stages must hold"), ("stages: {a: [{setings: [x]}]}", "Did you mean 'settings'"),
        ("stages: {a: [{settings: [id-sofa]}]}", "settings must hold"), ("stages: {a: 3}", "must be a list of blocks"),
        ("stages: {a: [{times: 2}]}", "variant must name a block with times"),
        ("stages: {a: [{rare: 2, variant: x, settings: [id-table]}]}", "rare must go with ood-painting"),
        ("stages: {a: [{preset: '33'}]}", "preset must be one of"),
    ],
)  # fmt: skip
def test_bad_stages_are_refused(tmp_path, text, rule):
    (tmp_path / "stages.yaml").write_text(text)
    with pytest.raises(PolyscoreError, match=rule):
        specs.stage("a", tmp_path / "stages.yaml")
    with pytest.raises(PolyscoreError, match="a stage must be one of 32"):
        specs.stage("33")
