"""The store and the runner: nothing lost to a kill, nothing believed that is damaged, nothing overwritten."""

from __future__ import annotations

import builtins
import dataclasses
import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from polyscore.errors import DegeneracyWarning, ScoreError
from polyscore.experiments import compute as compute_module
from polyscore.experiments import thumbnails, worker
from polyscore.experiments.cells import Cell
from polyscore.experiments.compute import compute, model_of, train
from polyscore.experiments.driver import run
from polyscore.experiments.engines.local import Local
from polyscore.experiments.experiment import Experiment
from polyscore.experiments.jobs import work
from polyscore.experiments.lock import StoreError
from polyscore.experiments.protocol import Protocol
from polyscore.experiments.records import Record
from polyscore.experiments.store import Store
from polyscore.metrics.named import METRICS
from polyscore.paper import PROTOCOL as PAPERS
from polyscore.paper import specs
from small import PROTOCOL, experiment, filled, results, spec_text

_SLOW_RUNNER = """
import sys, time, torch
torch.set_num_threads(1)
from small import experiment
from polyscore.experiments.driver import run
from polyscore.experiments.store import Store
run([experiment()], Store(sys.argv[1]), device="cpu", listener=lambda event: time.sleep(0.2))
"""


def lines(folder: Path) -> list[str]:
    return [line for file in sorted((folder / "records").glob("*.jsonl")) for line in file.read_text().splitlines()]


def start(folder: Path, until: int) -> subprocess.Popen[bytes]:
    """Start a runner and wait until it has stored some cells."""
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen([sys.executable, "-c", _SLOW_RUNNER, str(folder)], env=environment)
    while process.poll() is None and len(lines(folder)) < until:
        time.sleep(0.02)
    assert process.poll() is None, "the runner ended before it could be disturbed"
    return process


def test_kill_in_the_middle_loses_nothing_and_a_second_runner_is_told(tmp_path: Path) -> None:
    process = start(tmp_path / "store", until=4)
    with pytest.raises(StoreError, match=rf"is held by process {process.pid} on .*polyscore store merge"):
        run([experiment()], Store(tmp_path / "store"), device="cpu")
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = lines(tmp_path / "store")
    kept = [Record.parse(line) for line in before]
    store = Store(tmp_path / "store")
    outcome = run([experiment()], store, device="cpu")
    total = len(set(experiment().cells()))
    assert 4 <= len(kept) < total and outcome.computed == total - len(kept) and outcome.missing == 0
    assert lines(tmp_path / "store")[:1] == before[:1] and set(before) <= set(lines(tmp_path / "store"))
    reference = results(filled(tmp_path / "reference"))
    for key, values in results(Store(tmp_path / "store")).items():
        assert values == pytest.approx(reference[key], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("damage", ["cut", "changed", "noise"])
def test_a_damaged_record_is_noticed_reported_and_redone(tmp_path: Path, damage: str) -> None:
    store = filled(tmp_path)
    complete = results(store)
    file = tmp_path / "records" / "gaussian-factorized-ood-analytic.jsonl"
    text = file.read_text()
    last = text.splitlines()[-1]
    harm = {"cut": last[: len(last) // 2], "changed": last.replace('"sw2":', '"sw2":1'), "noise": "\0\xff{"}
    file.write_text(text.removesuffix(last + "\n") + harm[damage])
    with pytest.warns(DegeneracyWarning, match=r"1 damaged line.*computed again"):
        hurt = Store(tmp_path)
        assert len(hurt.records) == len(complete) - 1
    assert run([experiment()], hurt, device="cpu").computed == 1
    with pytest.warns(DegeneracyWarning, match="1 damaged line"):
        assert results(Store(tmp_path)) == complete


def test_a_cell_alone_has_the_numbers_of_the_sweep(tmp_path: Path) -> None:
    store = filled(tmp_path)
    for cell in (
        Cell("gaussian-factorized-ood", "analytic", 0, 1, 4),
        Cell("gaussian-factorized-ood", "conditional", 50, 1, 4),
    ):
        found = store.get(cell, PROTOCOL)
        assert found is not None
        family = train([model_of(cell)], experiment(), "cpu")[model_of(cell)]
        alone, about = compute(cell, family, experiment(), "cpu")
        assert alone == pytest.approx(found.results, rel=1e-4, abs=1e-5)
        assert about["device"] == "cpu"
        assert compute(cell, family, experiment(), "cpu")[0] == alone


def test_a_run_less_or_a_particle_count_more_recomputes_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path)
    wider = dataclasses.replace(experiment(), particles=(1, 4, 8))
    assert run([dataclasses.replace(experiment(), runs=1)], store, device="cpu").computed == 0
    assert run([wider], store, device="cpu").computed == 2 * 3


def test_a_cell_whose_scores_overflow_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Cell("gaussian-factorized-ood", "conditional", 50, 1, 4)

    def overflowing(cell: Cell, family: Any, chosen: Experiment, *more: Any) -> Any:
        if cell == bad:
            raise ScoreError("every score must be finite.")
        return compute(cell, family, chosen, *more)

    monkeypatch.setattr(worker, "compute", overflowing)
    store = Store(tmp_path)
    with pytest.warns(DegeneracyWarning, match=r"N = 50, K = 4, run 1 stays without a result: every score"):
        outcome = run([experiment()], store, device="cpu")
    assert outcome.missing == 1
    assert outcome.computed == len(set(experiment().cells())) - 1
    assert store.missing([bad], experiment().key)


def test_a_model_that_diverges_is_named_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest trains again without it, to the same numbers: a family does not depend on its company."""
    data = compute_module.training_data

    def exploding(model: Any, chosen: Experiment) -> Any:
        found = data(model, chosen)
        return {name: 1e30 * points for name, points in found.items()} if model[2:] == (50, 1) else found

    monkeypatch.setattr(compute_module, "training_data", exploding)
    store = Store(tmp_path / "store")
    with pytest.warns(DegeneracyWarning) as told:
        outcome = run([experiment()], store, device="cpu")
    named = [str(w.message) for w in told if "stays without results" in str(w.message)]
    assert len(named) == 1 and "gaussian-factorized-ood, conditional, N = 50, run 1 stays without" in named[0]
    lost = [
        cell for cell in set(experiment().cells()) if (cell.models, cell.train_size, cell.run) == ("conditional", 50, 1)
    ]
    assert outcome.missing == len(lost) == 5 and len(store.missing(lost, experiment().key)) == 5
    monkeypatch.undo()
    whole = results(filled(tmp_path / "whole"))
    for key, values in results(store).items():
        assert values == pytest.approx(whole[key], rel=1e-3, abs=1e-4)


def test_samples_too_far_to_be_measured_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finite, but the median distance is so large that MMD's width underflows."""
    real = compute_module.sample

    def far(*arguments: Any) -> Any:
        run = real(*arguments)
        return dataclasses.replace(run, samples=run.samples * 1e22)

    monkeypatch.setattr(compute_module, "sample", far)
    with pytest.warns(DegeneracyWarning, match=r"run 0 stays without a result: samples must be near enough"):
        outcome = run([experiment(runs=1)], Store(tmp_path), device="cpu")
    assert outcome.computed == 0


def test_results_that_are_not_numbers_are_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS._entries, "mmd2", lambda *points: float("nan"))
    store = Store(tmp_path)
    with pytest.warns(DegeneracyWarning, match="'mmd2': nan"):
        run([dataclasses.replace(experiment(runs=1), train_sizes=(), particles=(1,))], store, device="cpu")
    assert not lines(tmp_path)


def test_separate_and_conditional_share_the_analytic_column(tmp_path: Path) -> None:
    store = filled(tmp_path, experiment("conditional"), experiment("separate"))
    kinds = [record.cell.models for record in store.records.values()]
    assert (kinds.count("analytic"), kinds.count("conditional"), kinds.count("separate")) == (4, 14, 14)


def test_every_result_changing_field_changes_the_key() -> None:
    cell = Cell("mixture-id", "conditional", 100, 0, 4)
    keys = {cell.key(PAPERS)}
    other: dict[type, Any] = {int: 7, float: 0.5, bool: True, type(None): 0.5}
    names = {"reference": "exact", "precision": "fp16", "grid": "snr", "integrator": "multistep", "quadrature": "noise",
             "start": "matched", "resampling": "residual", "activation": "tanh", "content": {"family": 1}}  # fmt: skip
    for field in dataclasses.fields(Protocol):
        value = names.get(field.name, other.get(type(getattr(PAPERS, field.name))))
        keys.add(cell.key(dataclasses.replace(PAPERS, **{field.name: value})))
    for field in dataclasses.fields(Cell):
        keys.add(dataclasses.replace(cell, **{field.name: (7,) if field.name == "metrics" else 7}).key(PAPERS))
    assert len(keys) == 1 + len(dataclasses.fields(Protocol)) + len(dataclasses.fields(Cell))
    assert dataclasses.replace(PAPERS, clip=15).key == PAPERS.key


def test_a_store_of_another_version_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text('{"format": "polyscore-store", "version": 99}')
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "x.jsonl").write_text("from the future\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(StoreError, match=r"version 99\. It was left untouched"):
        Store(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_folder_of_other_things_or_a_broken_marker_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "holiday.txt").write_text("")
    with pytest.raises(StoreError, match="holds other files"):
        Store(tmp_path)
    (tmp_path / "store.json").write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        Store(tmp_path)


def test_a_full_disk_keeps_what_was_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path, dataclasses.replace(experiment(), runs=1))
    before = lines(tmp_path)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("polyscore.experiments.store.os.fsync", full)
        with pytest.raises(StoreError, match=r"No space left on device.*stored before is safe"):
            run([experiment()], store, device="cpu")
    assert set(before) <= set(lines(tmp_path))
    assert run([experiment()], Store(tmp_path), device="cpu").missing == 0


def test_a_full_disk_does_not_break_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder's name is lost; the first record says that the disk is full."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = Store(tmp_path)
    store._create()
    monkeypatch.setattr("polyscore.experiments.store.os.write", full)
    with store.writing(), pytest.raises(StoreError, match="held by another process"), Store(tmp_path).writing():
        pass


def test_what_another_runner_has_just_written_is_seen(tmp_path: Path) -> None:
    waiting = Store(tmp_path)
    assert not waiting.records
    filled(tmp_path)
    assert run([experiment()], waiting, device="cpu").computed == 0


def test_a_full_disk_at_opening_is_a_store_error_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    original = builtins.open

    def full(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if mode == "ab+":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(file, mode, *rest, **options)

    monkeypatch.setattr(builtins, "open", full)
    with pytest.raises(StoreError, match="No space left"):
        run([experiment()], store, device="cpu")


def test_merging_joins_records_and_samples_and_repeats_nothing(tmp_path: Path) -> None:
    one = filled(tmp_path / "one", dataclasses.replace(experiment(), runs=1))
    two = filled(tmp_path / "two")
    target = Store(tmp_path / "all")
    assert target.merge(one) == len(one.records)
    assert target.merge(two) == len(two.records) - len(one.records)
    assert target.merge(two) == 0
    for other in (one, two, two):
        thumbnails.merge(target, other)
    assert results(Store(tmp_path / "all")).keys() == results(two).keys()
    assert Store(tmp_path / "all").protocols() == {PROTOCOL.key: PROTOCOL.to_dict()}
    kept = [json.loads(line)["key"] for f in (tmp_path / "all" / "samples").iterdir() for line in f.open()]
    assert len(kept) == len(set(kept)) == len(one.records)


def test_samples_of_run_0_are_kept_in_half_precision(tmp_path: Path) -> None:
    store = filled(tmp_path)
    cell = Cell("gaussian-factorized-ood", "conditional", 50, 0, 4)
    points = thumbnails.points_of(store, cell, PROTOCOL)
    assert points is not None and points.shape == (64, 2) and points.isfinite().all()
    assert thumbnails.points_of(store, dataclasses.replace(cell, run=1), PROTOCOL) is None
    file = tmp_path / "samples" / "gaussian-factorized-ood-conditional.jsonl"
    file.write_text(file.read_text().replace("points", "ponits"))
    assert thumbnails.points_of(store, cell, PROTOCOL) is None


def test_experiments_travel_unchanged() -> None:
    """As workers get them: pickled, and as a spec that says everything."""
    chosen = experiment("separate")
    chosen.built, chosen.targets, chosen.key(next(chosen.cells()))  # what is kept does not travel
    assert pickle.loads(pickle.dumps(chosen)) == chosen
    assert specs.parse(spec_text({chosen.name: chosen})) == {chosen.name: chosen}
    assert json.loads(json.dumps(chosen.to_dict()))["models"] == ["separate", "analytic"]


def test_a_kill_before_the_marker_is_written_leaves_a_store_that_opens(tmp_path: Path) -> None:
    """A temporary file beside store.json is all that is there; the same in a worker's folder."""
    (tmp_path / ".store-x1.json").write_text("{")
    store = filled(tmp_path)
    left = tmp_path / "workers" / "abc"
    left.mkdir(parents=True)
    (left / ".store-x2.json").write_text("{")
    assert run([experiment()], Store(tmp_path), Local(), device="cpu", task=work).missing == 0
    assert results(Store(tmp_path)) == results(store)


@pytest.mark.parametrize("content", ["", "[1]", '{"swarms": 6'])
def test_a_damaged_protocol_is_restored_by_the_next_writer(tmp_path: Path, content: str) -> None:
    store = filled(tmp_path / "store")
    whole = store.protocols()
    file = tmp_path / "store" / "protocols" / f"{PROTOCOL.key}.json"
    file.write_text(content)
    assert Store(tmp_path / "store").protocols() == {}
    assert Store(tmp_path / "other").merge(Store(tmp_path / "store")) == len(store.records)
    run([experiment(runs=3)], Store(tmp_path / "store"), device="cpu")
    assert Store(tmp_path / "store").protocols() == whole


def test_a_marker_or_a_picture_of_another_kind(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    file = next((tmp_path / "store" / "samples").glob("*.jsonl"))
    file.write_text("[1]\n" + file.read_text())
    (tmp_path / "store" / "records" / "folder.jsonl").mkdir()
    assert results(Store(tmp_path / "store")) == results(store)
    assert (
        thumbnails.points_of(Store(tmp_path / "store"), Cell("gaussian-factorized-ood", "analytic", 0, 0, 1), PROTOCOL)
        is not None
    )
    (tmp_path / "store" / "store.json").write_text("[]")
    with pytest.raises(StoreError, match="a store must be of polyscore-store version"):
        Store(tmp_path / "store")


def test_a_store_that_cannot_be_locked_says_so(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    (tmp_path / "store" / ".lock").unlink()
    (tmp_path / "store" / ".lock").mkdir()
    with pytest.raises(StoreError, match="must be writable"), store.writing():
        pass


def test_cells_that_two_stores_have_differently_are_counted(tmp_path: Path) -> None:
    one, two = filled(tmp_path / "one"), Store(tmp_path / "two")
    changed = [dataclasses.replace(r, results={**r.results, "sw2": r.results["sw2"] + (i < 3)})
               for i, r in enumerate(one.records.values())]  # fmt: skip
    two.add_records(changed, one.protocols())
    assert (one.conflicts(two), two.conflicts(one), one.conflicts(one)) == (3, 3, 0)
    before = results(one)
    assert one.merge(two) == 0 and results(one) == before


def test_a_record_says_what_was_chosen(tmp_path: Path) -> None:
    """Of samplers that choose, and of no other."""
    text = """
samplers: {chosen: {kind: auto}, naive: {kind: denoise}}
protocol: {reference: exact, swarms: 40, projections: 16}
experiments:
  one: {setting: gaussian-nonfactorized-id, models: analytic, samplers: [chosen, naive], runs: 1,
        conditions_alone: false}
"""
    store = Store(tmp_path / "a")
    run(list(specs.parse(text).values()), store, device="cpu")
    told = {record.cell.sampler: record.about.get("chosen") for record in store.records.values()}
    assert told["naive"] is None and told["chosen"].startswith("Controlled(particles=4")
