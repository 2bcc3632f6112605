"""Records, protocols, thumbnails and parcels made by somebody else, checksums and all: believed only for what they are.

A checksum tells damage, not intent. Nothing here may write outside the store, be found under a key it does not have,
or stop a store from being read.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from faults.stores import SETTING, body_of, cells, fake, forged, plant, tree
from faults.tally import Tally
from polyscore.cli import app
from polyscore.errors import DegeneracyWarning
from polyscore.experiments import driver, jobs, thumbnails
from polyscore.experiments.cells import Cell
from polyscore.experiments.driver import run as run_jobs
from polyscore.experiments.engines.local import Local
from polyscore.experiments.jobs import Job, Parcel, adopt, left_behind, unpack, work
from polyscore.experiments.lock import HeldError, StoreError
from polyscore.experiments.protocol import Protocol, digest
from polyscore.experiments.records import Record
from polyscore.experiments.store import Store
from polyscore.paper.report import write_paper_report as write_report
from small import PROTOCOL, experiment, results

OUT = ("../../evil", "../evil", "/tmp/evil", "a/b", "..", ".hidden", "", "a\0b", "a\nb", "\x1b[2J", "x" * 101, "é",
       "<script>", "con|rm", "$(id)", "a b", 7, None, ["x"], {"a": 1}, True)  # fmt: skip
GOOD = next(cells())


def wrong_cells() -> dict[str, list[Any]]:
    place = [GOOD.family, GOOD.models, 0, 9, 1, "composition"]
    found = {f"{field} {value!r:.20}": [*place] for field in ("setting", "models", "target") for value in OUT}
    for (name, changed), (field, value) in zip(
        found.items(), ((f, v) for f in (0, 1, 5) for v in OUT), strict=True
    ):  # fmt: skip
        changed[field] = value
        found[name] = changed
    for field in (2, 3, 4):
        for value in (-1, 1.0, True, "1", None, [1], float("nan")):
            changed = [*place]
            changed[field] = value
            found[f"{field} {value!r}"] = changed
    names = [*(value for value in OUT if value != ""), ["x", "y"]]
    found |= {f"sampler {value!r:.20}": [*place, value, []] for value in names}
    found |= {f"metric {value!r:.20}": [*place, "", [value]] for value in OUT}
    found |= {f"metrics {value!r:.20}": [*place, "mine", value] for value in (None, 3, "sw2", {"sw2": 1}, ["missing"])}
    return found | {
        "seven": [*place, "mine"],
        "nine": [*place, "mine", [], 1],
        "short": place[:3],
        "long": [*place, 1],
        "none": None,
        "text": "cell",
        "mapping": {"setting": "x"},
    }


def wrong_bodies() -> dict[str, Any]:
    """Bodies that carry the checksum and, where they can, the key that belongs to them."""
    good = body_of(Cell(SETTING, "analytic", 0, 9, 1))
    found: dict[str, Any] = {}
    for name, place in wrong_cells().items():
        key = digest([PROTOCOL.key, *place]) if isinstance(place, list) else good["key"]
        found[name] = {**good, "cell": place, "key": key}
    sw2 = [float("nan"), float("inf"), "1", None, True, [1], {"a": 1}, 10**200, -1e200, 1e308, 10**400]
    found |= {f"sw2 {value!r:.20}": {**good, "results": {**good["results"], "sw2": value}} for value in sw2}
    many = {f"k{i}": "x" for i in range(1000)}
    for value in (None, [], "x", 1, {}, {"sw2": 1.0}, {"mmd2": 1.0}, {**good["results"], **many}):
        found[f"results {value!r:.20}"] = {**good, "results": value}
    for value in (None, [], "x", {"seconds": "1"}, {"seconds": float("nan")}, {"seconds": -1}, {"train_seconds": []},
                  {"device": ["x"]}, {"device": {}}, {"version": 3}, {"device": "\x1b[31m"}, {"device": "x" * 10**4},
                  {"device": "\ud800"}, {"seconds": True}):  # fmt: skip
        found[f"about {value!r:.20}"] = {**good, "about": value}
    for key in ("", "../x", good["key"][:-1], good["key"].upper(), None, 7, digest("another")):
        found[f"key {key!r}"] = {**good, "key": key}
    for protocol in ("../../x", "", None, 3, "z" * 16, "0" * 15, [1]):
        found[f"protocol {protocol!r}"] = body_of(Cell(SETTING, "analytic", 0, 9, 1), protocol)
    found["key of another cell"] = {**good, "key": body_of(GOOD)["key"]}
    found["key under another protocol"] = {**good, "protocol": Protocol().key}
    found |= {"more": {**good, "extra": 1}, "less": {"key": good["key"]}, "list": [good], "text": "x", "null": None}
    return found


def bombs() -> dict[str, str]:
    """Lines that no checksum can be computed of, or whose parsing breaks something."""
    deep, wide = "[" * 50_000, json.dumps({f"k{i}": i for i in range(200_000)})
    good = forged(body_of(Cell(SETTING, "analytic", 0, 9, 1)))
    return {
        "deep": deep + "\n", "closed": deep + "]" * 50_000 + "\n", "objects": '{"a":' * 50_000 + "\n",
        "inside": good.replace('"about":{', f'"about":{{"x":{deep}{"]" * 50_000},'),
        "huge number": good.replace('"seconds":0.1', '"seconds":' + "9" * 6000),
        "exponent": good.replace('"sw2":1.1', '"sw2":1e999'), "nan": good.replace('"sw2":1.1', '"sw2":NaN'),
        "wide": wide + "\n", "huge": "x" * (3 << 20) + "\n", "huge record": good[:-3] + " " * (2 << 20) + "}}\n",
        "zeros": "\0" * 5000 + "\n", "bytes": "\ud800\udfff\n", "empty": "{}\n", "null": "null\n",
        "surrogate": '"\\ud800"\n', "twice": good[:-1] + good,
    }  # fmt: skip


def believed(path: Path, planted: dict[str, str]) -> list[str]:
    """Those planted lines that a store takes for records, or that stop it from being read."""
    bad = []
    for what, text in planted.items():
        shutil.rmtree(path, ignore_errors=True)
        fake(path, runs=1)
        before = results(Store(path))
        plant(path, text)
        try:
            with pytest.warns(DegeneracyWarning, match="damaged line"):
                after = results(Store(path))
            assert after == before
        except (Exception, pytest.fail.Exception) as error:
            bad.append(f"{what}: {error!r:.200}")
    return bad


def test_a_forged_record_is_passed_over(memory: Path, tally: Tally) -> None:
    planted = {what: forged(body) for what, body in wrong_bodies().items()}
    tally.add("forged records", len(planted))
    tally.let_in(believed(memory / "store", planted))


def test_a_line_that_breaks_parsers_is_passed_over(memory: Path, tally: Tally) -> None:
    tally.add("bombs", len(bombs()))
    tally.let_in(believed(memory / "store", bombs()))


def test_a_record_that_is_right_is_believed(tmp_path: Path) -> None:
    """The attacks above differ from this by one thing each."""
    plant(fake(tmp_path).path, forged(body_of(Cell(SETTING, "analytic", 0, 9, 1))))
    assert Store(tmp_path).get(Cell(SETTING, "analytic", 0, 9, 1), PROTOCOL) is not None


def test_forged_records_go_nowhere_by_merging_or_through_workers(tmp_path: Path, tally: Tally) -> None:
    planted = [forged(body) for body in wrong_bodies().values()]
    (tmp_path / "outside").mkdir()
    fake(tmp_path / "in" / "one", runs=1)
    plant(tmp_path / "in" / "one", "".join(planted))
    fake(tmp_path / "in" / "two" / "workers" / "left", runs=2)
    plant(tmp_path / "in" / "two" / "workers" / "left", "".join(planted))
    Store(tmp_path / "in" / "target")._create()
    target = Store(tmp_path / "in" / "target")
    (tmp_path / "in" / "two" / "store.json").write_text((target.path / "store.json").read_text())
    with pytest.warns(DegeneracyWarning, match="damaged line"), Store(tmp_path / "in" / "two").writing():
        assert adopt(Store(tmp_path / "in" / "two")) == 8
    with pytest.warns(DegeneracyWarning, match="damaged line"):
        assert target.merge(Store(tmp_path / "in" / "one")) == 4
    tally.add("forged records", 2 * len(planted))
    names = {path.name for path in (tmp_path / "in").rglob("*.jsonl")}
    tally.let_in(names - {f"{SETTING}-analytic.jsonl", f"{SETTING}-conditional.jsonl"})
    tally.let_in([*tmp_path.rglob("*evil*"), *Path("/tmp").glob("evil*")])


@pytest.mark.parametrize("setting", ["../../evil", "/tmp/evil", "a/b", "", "\x1b"])
def test_our_own_hands_write_no_such_record_either(tmp_path: Path, setting: str, tally: Tally) -> None:
    store = fake(tmp_path / "deep" / "store", runs=1)
    before = tree(tmp_path)
    tally.add("names")
    with pytest.raises(StoreError, match="a record must be a result of its cell"):
        store.add(Cell(setting, "analytic", 0, 0, 1), PROTOCOL, {"sw2": 1.0, "mmd2": 0.0}, {})
    assert tree(tmp_path) == before


def test_a_protocol_that_is_not_what_its_hash_says_is_not_taken_over(tmp_path: Path, tally: Tally) -> None:
    store, target = fake(tmp_path / "one", runs=1), Store(tmp_path / "in" / "target")
    wrong = {
        PROTOCOL.key: Protocol(swarms=7).to_dict(), "../../evil": PROTOCOL.to_dict(), "/tmp/evil": {}, "x": {},
        Protocol().key: {"deep": 1}, "": {}, "0" * 16: None, "1" * 16: [1],
        "2" * 16: {**Protocol().to_dict(), "clip": 10**400},
    }  # fmt: skip
    target.add_records(store.records.values(), wrong)  # type: ignore[arg-type]
    tally.add("forged files", len(wrong))
    tally.let_in(list((tmp_path / "in" / "target").rglob("protocols/*")) + list(tmp_path.rglob("*evil*")))
    file = tmp_path / "one" / "protocols" / f"{PROTOCOL.key}.json"
    texts = ("[" * 10**5, "{" + '"a":{' * 10**5, json.dumps(Protocol(swarms=7).to_dict()), "9" * 10**5, " " * (2 << 20))
    for text in texts:
        file.write_text(text)
        assert Store(tmp_path / "one").protocols() == {}
        assert Store(tmp_path / "one").records.keys() == store.records.keys()
    tally.add("forged files", len(texts))


def test_a_protocol_of_another_version_is_kept_and_not_interpreted(tmp_path: Path) -> None:
    """Its records are under keys of their own and go along in a merge."""
    described = {**PROTOCOL.to_dict(), "temperature": 2.0}
    with pytest.raises(ValueError, match="another version"):
        Protocol.from_dict(described)
    with pytest.raises(ValueError, match="another version"):
        Protocol.from_dict({**PROTOCOL.to_dict(), "results_version": 99})
    assert Protocol.from_dict(PROTOCOL.to_dict()) == PROTOCOL
    older = {name: value for name, value in Protocol().to_dict().items() if name != "precision"}
    assert Protocol.from_dict(older) == Protocol()
    key = digest(described)
    record = Record.parse(forged(body_of(GOOD, key)))
    one, two = Store(tmp_path / "one"), Store(tmp_path / "two")
    one.add_records([record], {key: described})
    assert two.merge(Store(one.path)) == 1 and two.protocols() == {key: described}
    assert two.get(GOOD, PROTOCOL) is None


DEEP = {"store.json": "[" * 10**5, "objects": '{"format":' * 10**5, "long": " " * (2 << 20), "bytes": "\xff\xfe\x00",
        "number": "9" * 10**5, "text": '"polyscore-store"', "list": '[{"format": "polyscore-store"}]',
        "format": json.dumps({"format": "\x1b[2J" * 10**4, "version": [1] * 10**4})}  # fmt: skip


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_a_forged_marker_is_an_error_of_ours(tmp_path: Path, text: str, tally: Tally) -> None:
    store = fake(tmp_path, runs=1)
    (tmp_path / "store.json").write_text(text, encoding="latin-1")
    tally.add("forged files")
    with pytest.raises(StoreError) as told:
        Store(tmp_path)
    assert len(str(told.value)) < 800 and "\x1b" not in str(told.value)
    assert store.records


def test_pipes_and_folders_in_place_of_files_do_not_hang(tmp_path: Path, tally: Tally) -> None:
    store = fake(tmp_path / "store")
    points = np.zeros((5, 2), "<f2")
    body = {"key": GOOD.key(PROTOCOL), "shape": [5, 2], "points": base64.b64encode(points.tobytes()).decode()}
    store.append("samples", f"{SETTING}-analytic", json.dumps({"sum": digest(body), **body}) + "\n")
    before = results(store)
    for place in ("records/pipe.jsonl", "protocols/0123456789abcdef.json", "samples/pipe.jsonl", "workers"):
        os.mkfifo(store.path / place)
    (store.path / "records" / "folder.jsonl").mkdir()
    again = Store(store.path)
    assert results(again) == before and len(again.protocols()) == 1 and left_behind(again) == []
    assert thumbnails.points_of(again, GOOD, PROTOCOL) is not None
    tally.add("forged files", 5)
    (store.path / "store.json").unlink()
    os.mkfifo(store.path / "store.json")
    with pytest.raises(StoreError, match="must be readable JSON"):
        Store(store.path)
    shutil.copy(tmp_path / "store" / "protocols" / f"{PROTOCOL.key}.json", tmp_path / "kept")
    other = fake(tmp_path / "other", runs=1)
    (other.path / ".lock").unlink()
    os.mkfifo(other.path / ".lock")
    with pytest.raises(StoreError, match="must be writable"), other.writing():
        pass


@pytest.mark.parametrize("place", ["records", "samples", "protocols", "workers"])
def test_a_linked_folder_is_followed_neither_to_read_nor_to_write(tmp_path: Path, place: str, tally: Tally) -> None:
    store = fake(tmp_path / "store", runs=1)
    elsewhere = tmp_path / "elsewhere"
    fake(elsewhere / "left", runs=2)
    (elsewhere / "thesis.txt").write_text("years of work")
    if (store.path / place).exists():
        (store.path / place).rename(tmp_path / "kept")
    (store.path / place).symlink_to(elsewhere)
    before = tree(elsewhere)
    again = Store(store.path)
    tally.add("links")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        left_behind(again), again.records, again.protocols()
        assert any("is a link" in str(w.message) for w in told) or place == "samples"
        with pytest.raises(StoreError, match="is a link"):
            if place == "samples":
                again.append("samples", "x", "line\n")
            else:
                run_jobs([experiment(runs=1)], again, Local(), device="cpu", task=work)
    tally.let_in([] if tree(elsewhere) == before else ["written through a link"])


@pytest.mark.parametrize("place", ["records/{}-analytic.jsonl", ".lock", "store.json", "protocols/{}.json"])
def test_a_linked_file_is_not_written_through(tmp_path: Path, place: str, tally: Tally) -> None:
    store, victim = fake(tmp_path / "store", runs=1), tmp_path / "victim"
    victim.write_text("root:x:0:0\n")
    link = store.path / place.format(SETTING if "records" in place else PROTOCOL.key)
    link.unlink()
    link.symlink_to(victim)
    tally.add("links")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            again = Store(store.path)
            with again.writing():
                again.add(Cell(SETTING, "analytic", 0, 77, 1), PROTOCOL, {"sw2": 1.0, "mmd2": 0.0}, {})
        except StoreError:
            pass
    tally.let_in([] if victim.read_text() == "root:x:0:0\n" else [place])


def test_a_link_to_the_store_itself_is_fine(tmp_path: Path) -> None:
    store = fake(tmp_path / "store", runs=1)
    (tmp_path / "link").symlink_to(store.path)
    assert results(Store(tmp_path / "link")) == results(store)
    with Store(tmp_path / "link").writing():
        pass


def test_forged_thumbnails_cost_a_picture_at_most(tmp_path: Path, tally: Tally) -> None:
    store = fake(tmp_path / "store")
    good = {"key": GOOD.key(PROTOCOL), "shape": [2, 2], "points": base64.b64encode(bytes(8)).decode()}
    wrong = [
        {**good, "shape": [2, 3]}, {**good, "shape": [10**12, 10**12]}, {**good, "shape": [-1, 2]},
        {**good, "shape": 4}, {**good, "shape": [2]},
        {**good, "shape": ["2", None]}, {**good, "points": "%%%"}, {**good, "points": 7},
        {**good, "points": base64.b64encode(np.full((2, 2), np.nan, "<f2").tobytes()).decode()}, {**good, "key": 3},
        {**good, "key": "../../x"}, {"key": good["key"]}, [good], None, 7,
    ]  # fmt: skip
    lines = [json.dumps({"sum": digest(body), **body} if isinstance(body, dict) else body) for body in wrong]
    (store.path / "samples").mkdir(exist_ok=True)
    file = store.path / "samples" / f"{SETTING}-analytic.jsonl"
    file.write_text("\n".join([*lines, "[" * 10**5, "x" * (2 << 20), ""]))
    tally.add("forged records", len(lines) + 2)
    tally.let_in([] if thumbnails.points_of(store, GOOD, PROTOCOL) is None else ["a picture"])
    target = fake(tmp_path / "target", runs=1)
    thumbnails.merge(target, store)
    assert not (target.path / "samples").exists()
    with open(file, "a") as handle:
        handle.write(json.dumps({"sum": digest(good), **good}) + "\n")
    points = thumbnails.points_of(store, GOOD, PROTOCOL)
    assert points is not None and points.shape == (2, 2)


def parcel_of(store: Store, **changes: Any) -> Parcel:
    return dataclasses.replace(jobs.pack(store), **changes)


def test_a_parcel_removes_and_writes_nothing_but_its_own(tmp_path: Path, tally: Tally) -> None:
    """Whatever folder, file or protocol it names."""
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    source = fake(tmp_path / "worker")
    good = {"key": GOOD.key(PROTOCOL), "shape": [2, 2], "points": base64.b64encode(bytes(8)).decode()}
    text = json.dumps({"sum": digest(good), **good}) + "\n"
    evil = parcel_of(
        source, folder=str(tmp_path / "thesis"),
        records=[*jobs.pack(source).records, "x", "[" * 10**5, forged(body_of(Cell("../evil", "analytic", 0, 0, 1)))],
        samples={"../../evil.jsonl": text, "/tmp/evil.jsonl": text, "..": text, "a/b.jsonl": text,
                 f"{SETTING}-analytic.jsonl": text},
        protocols={**source.protocols(), "../../evil": PROTOCOL.to_dict()},
    )  # fmt: skip

    def task(job: Job) -> Parcel:
        return evil

    store = Store(tmp_path / "deep" / "store")
    tally.add("forged records", 4)
    with pytest.warns(DegeneracyWarning, match="3 were not and are passed over"):
        run_jobs([experiment(runs=1)], store, Local(), device="cpu", task=task)
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work" and (tmp_path / "worker").exists()
    assert results(Store(store.path)) == results(source)
    assert thumbnails.points_of(store, GOOD, PROTOCOL) is not None
    tally.let_in([path for path in tmp_path.rglob("*") if "evil" in path.name] + list(Path("/tmp").glob("evil*")))
    with pytest.warns(DegeneracyWarning, match="3 were not"):
        assert unpack(evil, Store(store.path)) == 0


DAMAGE = {
    "marker": lambda folder: (folder / "store.json").write_text("{"),
    "deep marker": lambda folder: (folder / "store.json").write_text("[" * 10**5),
    "other version": lambda folder: (folder / "store.json").write_text('{"format": "polyscore-store", "version": 9}'),
    "lock": lambda folder: ((folder / ".lock").unlink(), (folder / ".lock").mkdir()),
    "records": lambda folder: (shutil.rmtree(folder / "records"), (folder / "records").symlink_to("/etc")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_worker_folder_does_not_block_the_store(tmp_path: Path, damage: Any, tally: Tally) -> None:
    """One of the very name that the next job would use, too."""
    store = fake(tmp_path / "store", runs=1)
    one = experiment(runs=1)
    folders = ["left"]
    with store.writing():
        folders += [Path(driver._job(b, store.path / "workers", driver.Way(), None).folder).name
                    for b in driver.batches([one], store, 90)]  # fmt: skip
    for name in folders:
        damage(fake(store.path / "workers" / name, runs=2).path)
    tally.add("forged files", len(folders))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        outcome = run_jobs([one], Store(store.path), Local(), device="cpu", task=work)
    assert outcome.missing == 0
    assert any("must be a whole store" in str(w.message) or "is a link" in str(w.message) for w in told)
    runner = CliRunner()
    merged = runner.invoke(app, ["store", "merge", str(store.path), "--into", str(tmp_path / "all")])
    assert merged.exit_code == 0, merged.output
    assert results(Store(tmp_path / "all")).keys() >= results(store).keys()


def test_a_worker_that_still_runs_is_named(tmp_path: Path, tally: Tally) -> None:
    store = fake(tmp_path / "store", runs=1)
    left = fake(store.path / "workers" / "left", runs=2)
    tally.add("two writers")
    with left.writing(), pytest.raises(HeldError, match=rf"held by process {os.getpid()} on"):
        run_jobs([experiment(runs=1)], store, Local(), device="cpu")
    assert results(left) == results(Store(left.path))


def temporary_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Job]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    elsewhere = tmp_path / "gone" / "workers" / "abc"
    chosen = [cell for cell in experiment(runs=1).cells() if cell.models == "analytic"]
    return tmp_path / "temporary", Job(chosen, experiment(runs=1), str(elsewhere), "cpu")


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o770])
def test_a_worker_believes_no_folder_that_others_could_prepare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, tally: Tally
) -> None:
    """Records planted in the temporary folder under the very name, with right keys and checksums."""
    place, job = temporary_place(tmp_path, monkeypatch)
    planted = place / f"polyscore-workers-{os.geteuid()}" / "abc"
    poison = Store(planted)
    for cell in job.cells:
        poison.add(cell, PROTOCOL, {"sw2": 666.0, "mmd2": 0.0}, {})
    planted.parent.chmod(mode)
    parcel = work(job)
    tally.add("forged records", len(job.cells))
    tally.let_in([line for line in parcel.records if Record.parse(line).results["sw2"] == 666.0])
    assert len(parcel.records) == len(job.cells) and not Path(parcel.folder).exists()


def test_a_worker_does_not_follow_a_planted_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tally: Tally) -> None:
    place, job = temporary_place(tmp_path, monkeypatch)
    (tmp_path / "victim").mkdir(mode=0o700)
    (place / f"polyscore-workers-{os.geteuid()}").symlink_to(tmp_path / "victim")
    parcel = work(job)
    tally.add("links")
    assert len(parcel.records) == len(job.cells)
    tally.let_in(list((tmp_path / "victim").iterdir()))


def test_a_worker_started_again_on_its_own_disk_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own records, in a folder that is nobody else's, are believed."""
    place, job = temporary_place(tmp_path, monkeypatch)
    (place / f"polyscore-workers-{os.geteuid()}").mkdir(mode=0o700)
    own = Store(place / f"polyscore-workers-{os.geteuid()}" / "abc")
    own.add(job.cells[0], PROTOCOL, {"sw2": 0.5, "mmd2": 0.0}, {})
    found = [Record.parse(line) for line in work(job).records]
    assert len(found) == len(job.cells) and found[0].results["sw2"] == 0.5
    (own.path).mkdir(parents=True)
    (own.path / "store.json").write_text("{")
    assert len(work(job).records) == len(job.cells)


def test_what_another_user_made_is_not_the_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tally: Tally
) -> None:
    """A folder of the driver's name on the worker's machine, made by somebody else."""
    place, job = temporary_place(tmp_path, monkeypatch)
    poison = Store(job.folder)
    for cell in job.cells:
        poison.add(cell, PROTOCOL, {"sw2": 666.0, "mmd2": 0.0}, {})
    us = os.geteuid()
    monkeypatch.setattr("polyscore.experiments.jobs.os.geteuid", lambda: us + 1)
    parcel = work(job)
    tally.add("forged records", len(job.cells))
    tally.let_in([line for line in parcel.records if Record.parse(line).results["sw2"] == 666.0])
    assert (place / f"polyscore-workers-{us + 1}").is_dir()


def test_a_report_of_odd_but_right_records(tmp_path: Path) -> None:
    """Zeros, ones beyond all measure, missing descriptions: numbers all the same."""
    store = Store(tmp_path / "store")
    one = dataclasses.replace(experiment(), runs=3)
    many = dataclasses.replace(experiment("separate"), runs=3)
    for e in (one, many):
        for i, cell in enumerate(dict.fromkeys(e.cells())):
            value = (0.0, 1e100, -1e100, 5, 1e-300)[i % 5] if e is many else 0.0
            store.add(cell, PROTOCOL, {"sw2": value, "mmd2": -value}, {})
    written = write_report([one, many], Store(store.path), tmp_path / "out")
    assert (tmp_path / "out" / "report.html").exists() and written.sentences()
