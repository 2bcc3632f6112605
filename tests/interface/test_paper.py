"""`polyscore paper`, `polyscore store` and the learned demonstration, as a person uses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from polyscore.cli import app
from polyscore.errors import ScoreError
from polyscore.experiments.store import Store
from polyscore.paper.demo import run_demo
from small import experiment, filled, spec_text


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "spec.yaml").write_text(spec_text({"one": experiment(), "many": experiment("separate")}))
    return tmp_path / "spec.yaml"


def test_list_names_the_twelve() -> None:
    shown = run("paper", "list")
    assert shown.exit_code == 0 and shown.stdout.count("690") == 12
    assert "mixture-ood-separate" in json.loads(run("paper", "list", "--json").stdout)["experiments"]


def test_run_status_and_report_from_a_spec(tmp_path: Path, spec: Path) -> None:
    common = ["--spec", spec, "--store", tmp_path / "store"]
    first = run("paper", "run", "one", *common, "--runs", "1", "--device", "cpu", "--json")
    assert first.exit_code == 0 and first.stderr == ""
    assert json.loads(first.stdout)["computed"] == 9
    second = run("paper", "run", "--all", *common, "--device", "cpu")
    assert second.exit_code == 0 and "23 cells" in second.stdout.replace("\n", " ")
    status = json.loads(run("paper", "status", *common, "--json").stdout)["experiments"]
    assert [(row["cells"], row["stored"]) for row in status] == [(18, 18), (18, 18)]
    assert status[0]["runs"] == {"1": 2, "4": 2}
    assert "18" in run("paper", "status", *common).stdout
    report = run("paper", "report", *common, "--out", tmp_path / "out", "--json")
    assert report.exit_code == 0 and (tmp_path / "out" / "report.html").exists()
    assert json.loads(report.stdout)["agreement"][0]["compared"] == 0


def test_runs_and_particles_of_the_command_line_are_shown_too(tmp_path: Path, spec: Path) -> None:
    common = ["--spec", spec, "--store", tmp_path / "store"]
    more = ["--runs", "3", "--particles", "1,2"]
    done = run("paper", "run", "one", *common, *more, "--device", "cpu")
    assert f"--spec {spec} --runs 3 --particles 1,2`" in done.stdout.replace("\n", "")
    fewer = run("paper", "run", "one", *common, "--runs", "1", "--particles", "1", "--device", "cpu")
    assert "--runs" not in fewer.stdout and "--particles" not in fewer.stdout
    rows = json.loads(run("paper", "status", *common, *more, "--json").stdout)
    assert rows["experiments"][0]["runs"] == {"1": 3, "2": 3} and rows["other_records"] == 0
    shown = run("paper", "report", *common, "--out", tmp_path / "out")
    assert shown.exit_code == 0 and "more records of the store are not shown" in shown.stderr
    assert run("paper", "report", *common, *more, "--out", tmp_path / "out").stderr.strip() == ""
    table = (tmp_path / "out" / "tables.csv").read_text()
    assert [line.split(",")[3:5] + line.split(",")[7:8] for line in table.splitlines()[4:6]] == [
        ["2", "20", "3"],
        ["2", "50", "3"],
    ]


def test_a_store_must_be_there_and_hold_what_is_asked_for(tmp_path: Path, spec: Path) -> None:
    for command in (["status"], ["report", "--out", tmp_path / "out"]):
        result = run("paper", *command, "--store", tmp_path / "nowhere")
        assert result.exit_code == 2 and "a store must be there to be read" in result.stderr
    (tmp_path / "file").touch()
    result = run("paper", "run", "one", "--spec", spec, "--store", tmp_path / "file", "--device", "cpu")
    assert result.exit_code == 2 and "a store must be a folder" in result.stderr
    filled(tmp_path / "store")
    result = run("paper", "report", "--store", tmp_path / "store", "--out", tmp_path / "out")
    assert result.exit_code == 2 and "18 other records. Give the --spec or --particles" in result.stderr
    known = run(
        "paper", "report", "--spec", spec, "--store", tmp_path / "store", "--particles", "7", "--out", tmp_path / "out"
    )
    assert known.exit_code == 2 and "a report must have a cell to show" in known.stderr
    assert not (tmp_path / "out").exists()


def test_cells_that_cannot_be_computed_are_an_exit_code(
    tmp_path: Path, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise ScoreError("every score must be finite.")

    monkeypatch.setattr("polyscore.experiments.worker.compute", failing)
    result = run("paper", "run", "one", "--spec", spec, "--store", tmp_path / "store", "--device", "cpu")
    assert result.exit_code == 1 and "18 missing" in result.stdout.replace("\n", " ")


def test_quick_results_stay_apart(tmp_path: Path) -> None:
    Store(tmp_path / "paper-quick")._create()
    shown = run("paper", "status", "--quick", "--store", tmp_path / "paper", "--json")
    assert json.loads(shown.stdout)["store"] == str(tmp_path / "paper-quick")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run", "mixture-odd"], ["an experiment must be one of", "Did you mean 'mixture-ood'?"]),
        (["run"], ["NAMEs or --all", "neither"]),
        (["run", "mixture-ood", "--all"], ["NAMEs or --all", "both"]),
        (["run", "mixture-ood", "--particles", "1,x"], ["--particles must be whole numbers", "'1,x'"]),
        (["run", "mixture-ood", "--particles", "0"], ["--particles must be at least 1"]),
        (["run", "mixture-ood", "--runs", "0"], ["--runs must be at least 1"]),
        (["run", "mixture-ood", "--seconds", "0"], ["--seconds must be positive"]),
        (["run", "mixture-ood", "--seconds", "nan"], ["--seconds must be positive and finite"]),
        (
            ["run", "mixture-ood", "--runs", str(10**18)],
            ["at most 1000000 cells; got 23000000000000000000", "Lower its runs"],
        ),
        (
            ["run", "mixture-ood", "--particles", str(10**12)],
            ["a swarm of K = 1000000000000 particles", "64 TB needed"],
        ),
        (["run", "mixture-ood", "--particles", "9" * 5000], ["--particles must be whole numbers"]),
        (["run", "mixture-ood", "--particles", "\u0663"], ["--particles must be whole numbers"]),
        (["run", "mixture-ood", "--particles", ""], ["--particles must be whole numbers"]),
        (["run", "mixture-ood", "--workers", "100000"], ["--workers must be at most 256 on one machine"]),
        (["run", "mixture-ood", "--engine", "submitit", "--gpus", "inf"], ["--gpus must be a finite number"]),
        (["run", "mixture-ood", "--device", "meta"], ["--device must name a device"]),
        (["run", "[/]\x1b[31m" * 1000], ["an experiment must be one of", r"got '[/]\x1b[31m"]),
        (["run", "mixture-ood", "--engine", "dask"], ["local, ray, submitit", "'dask'"]),
        (["run", "mixture-ood", "--workers", "0"], ["workers must be at least 1"]),
        (["run", "mixture-ood", "--device", "abacus"], ["--device must name a device"]),
        (["run", "mixture-ood", "--engine", "ray", "--address", "127.0.0.1:9"], ["does not answer"]),
        (["run", "mixture-ood", "--address", "127.0.0.1:9"], ["--address must go with", "--engine local"]),
        (["run", "mixture-ood", "--spec", "none.yaml"], ["readable YAML file"]),
    ],
)
def test_bad_input_is_refused_cleanly(tmp_path: Path, arguments: list[str], parts: list[str]) -> None:
    if "ray" in arguments:
        pytest.importorskip("ray")
    result = run("paper", *arguments, "--store", tmp_path / "store")
    assert result.exit_code == 2 and result.stdout == ""
    for part in parts:
        assert part in result.stderr, result.stderr
    assert "Traceback" not in result.stderr


def test_a_foreign_store_is_refused_by_every_command(tmp_path: Path, spec: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "store.json").write_text('{"format": "polyscore-store", "version": 99}')
    for command in (["run", "one"], ["status"], ["report", "--out", tmp_path / "out"]):
        result = run("paper", *command, "--spec", spec, "--store", tmp_path / "store")
        assert result.exit_code == 2 and "version 99" in result.stderr


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("polyscore.experiments.worker.Worker.compute", interrupted)
    result = run("paper", "run", "one", "--spec", spec, "--store", tmp_path / "store", "--device", "cpu")
    assert result.exit_code == 130 and "The same command goes on from there" in result.stderr


def test_store_merge_joins(tmp_path: Path) -> None:
    one = filled(tmp_path / "one")
    two = filled(tmp_path / "two", experiment("separate"))
    shared = len({*one.records} & {*two.records})
    result = run("store", "merge", one.path, two.path, "--into", tmp_path / "all")
    assert result.exit_code == 0, result.output
    assert f"holds {len(one.records) + len(two.records) - shared} records" in result.stdout.replace("\n", " ")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "store.json").write_text('{"format": "polyscore-store", "version": 99}')
    assert run("store", "merge", tmp_path / "foreign", "--into", tmp_path / "new").exit_code == 2
    assert not (tmp_path / "new").exists()
    missing = run("store", "merge", tmp_path / "none", "--into", tmp_path / "all")
    assert missing.exit_code == 2 and "must be a store" in missing.stderr


def test_the_learned_demonstration_has_table_figure_and_report(tmp_path: Path) -> None:
    found = run_demo(tmp_path, tiny=True, parts=("learned",))
    demo = found.learned
    assert demo is not None and found.analytic is None
    assert [name for name, _ in demo.lines()] == ["naive (K = 1)", "Feynman–Kac (K = 4)", "Feynman–Kac (K = 16)"]
    assert set(demo.ratios()) == {100, 10000, 0} and 0 < demo.floor < 2
    assert all(path.exists() for path in (*demo.files, *found.report))
    again = run_demo(tmp_path, tiny=True, parts=("learned",)).learned
    assert again is not None and again.table == demo.table
    assert f"{demo.floor:.2f} apart" in demo.scene.sentence
    shown = run("demo", "--quick", "--out", tmp_path)
    assert shown.exit_code == 0
    # what repairs comes first, in the terminal and in the report, and what fails second
    page = (tmp_path / "report.html").read_text()
    for text in (shown.stdout, page):
        assert 0 <= text.index("1. With exact scores") < text.index("2. With learned scores") < text.index("analytic")
    assert page.index("<img") < page.index("What the letters mean")
