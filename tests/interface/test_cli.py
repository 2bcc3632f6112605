"""The command line: right answers, clean refusals, nothing half-written."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from polyscore import __version__
from polyscore.cli import app, show
from polyscore.errors import ArgumentError, OutputError
from polyscore.paper.demo import run_demo

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "family.yaml")
SMALL = ["-n", "64", "-K", "4", "--steps", "20"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def sample(tmp_path: Path, expression: str, *options: str, out: str = "out.npz") -> Result:
    return run("sample", EXAMPLE, expression, "--out", str(tmp_path / out), *SMALL, *options)


def test_help_and_version_work_as_a_program() -> None:
    program = Path(sys.executable).parent / "polyscore"
    shown = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0 and "Traceback" not in shown.stderr
    for word in ("demo", "sample", "theory", "Examples", "a1 * a2 / base"):
        assert word in shown.stdout
    assert run("--version").stdout.strip() == f"polyscore {__version__}"


def test_starting_imports_nothing_heavy() -> None:
    code = "import sys, polyscore.cli; sys.exit(bool({'torch', 'matplotlib', 'numpy', 'yaml'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("command", ["demo", "fit", "sample", "example", "theory"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    shown = run(command, "--help")
    assert shown.exit_code == 0 and "Example" in shown.stdout


def test_one_particle_has_no_figures_of_a_swarm(tmp_path: Path) -> None:
    """An ESS of 1 in 1 and one ancestor of one read like a finding, and say nothing."""
    shown = run("sample", EXAMPLE, "a1 * a2 / base", "-n", "20", "--naive", "--out", str(tmp_path / "out.csv")).stdout
    assert "decays in every direction" in shown and not re.search("lowest ESS|unique ancestors|clipped rates", shown)


def test_sample_writes_npz_plot_and_summary(tmp_path: Path) -> None:
    result = sample(tmp_path, "a1 * a2 / base", "--plot", str(tmp_path / "out.png"))
    assert result.exit_code == 0, result.output
    for word in ("lowest ESS", "unique ancestors", "log evidence", "exact -0.5513", "decays in every direction"):
        assert word in result.stdout
    with np.load(tmp_path / "out.npz") as data:
        assert data["samples"].shape == (64, 2) and data["log_evidence"].shape == (64,)
        assert json.loads(str(data["about"]))["exponents"] == {"a1": 1.0, "a2": 1.0, "base": -1.0}
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npz", "out.png"]


def test_sample_json_is_pure_and_repeatable(tmp_path: Path) -> None:
    first, second = (sample(tmp_path, "a1 * a2 / base", "--json", "--steps", "60", out=f"{k}.csv") for k in (1, 2))
    summary = json.loads(first.stdout)
    assert first.stderr == ""
    assert summary["particles"] == 4 and summary["total"] == 1 and summary["seed"] == 0
    assert json.loads(second.stdout)["mean"] == summary["mean"]
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()
    with (tmp_path / "1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 64 and np.mean([float(row["x1"]) for row in rows]) == pytest.approx(
        summary["mean"][0], abs=1e-5
    )


def test_sample_writes_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    assert sample(tmp_path, "a1 * a2 / base", out="out.parquet").exit_code == 0
    assert pandas.read_parquet(tmp_path / "out.parquet").shape == (64, 2)


def test_missing_parquet_writer_is_told_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = sample(tmp_path, "a1", out="out.parquet")
    assert result.exit_code == 2 and "pip install 'polyscore[tables]'" in result.stderr


def test_naive_and_published_are_those_samplers(tmp_path: Path) -> None:
    small = ["--steps", "20", "-n", "64", "--json", "--force", "--out", str(tmp_path / "x.npz")]
    naive = json.loads(run("sample", EXAMPLE, "a1 * a2 / base", "--naive", "--churn", "0", *small).stdout)
    assert naive["sampler"].startswith("Denoise(steps=20, churn=0.0") and naive["log_evidence"] is None
    published = json.loads(run("sample", EXAMPLE, "a1 * a2 / base", "--published", "-K", "4", *small).stdout)
    assert "clip=15.0" in published["sampler"] and "Flipped" in published["sampler"]


FAR = """conditions:
  a: {kind: mixture, means: [[-12, 0, 0], [12, 0, 0]], cov: 0.3}
  b: {kind: mixture, means: [[0, -12, 0], [0, 12, 0]], cov: 0.3}
  base: {kind: mixture, means: [[-12, 0, 0], [12, 0, 0], [0, -12, 0]], cov: [0.4, 0.5, 0.6]}
"""


def test_a_reference_of_few_draws_is_called_a_guess(tmp_path: Path) -> None:
    (tmp_path / "far.yaml").write_text(FAR)
    outputs = ["--out", str(tmp_path / "far.npz"), "--force"]
    guessed = run("sample", str(tmp_path / "far.yaml"), "a^3 * b^3 / base^5", *SMALL, *outputs)
    assert guessed.exit_code == 0 and "effective draws: " in guessed.stdout and "(exact" not in guessed.stdout
    told = json.loads(run("sample", str(tmp_path / "far.yaml"), "a * b / base", *SMALL, *outputs, "--json").stdout)
    assert told["exact_ess"] > 500 and told["exact_log_evidence"] == pytest.approx(-115.9, abs=0.5)


def test_evidence_under_a_clip_is_called_biased(tmp_path: Path) -> None:
    clipped = sample(tmp_path, "a1 * a2 / base", "--clip", "0.01")
    assert (
        clipped.exit_code == 0 and "biased by the clip (exact -0.5513)" in clipped.stdout and "±" not in clipped.stdout
    )
    assert "biased" not in sample(tmp_path, "a1 * a2 / base", "--clip", "1e6", "--force").stdout
    told = json.loads(sample(tmp_path, "a1 * a2 / base", "--clip", "0.01", "--force", "--json").stdout)
    assert told["clipped_fraction"] > 0.01 and told["log_evidence_error"] is None
    assert json.loads(sample(tmp_path, "a1", "--json", "--force").stdout)["exact_ess"] is None


def test_outputs_are_pooled_where_that_is_asked_for(tmp_path: Path) -> None:
    found = sample(tmp_path, "a1 * a2 / base", "-K", "2", "--pooled", "--json")
    assert "pooled=True" in json.loads(found.stdout)["sampler"]


def test_one_dimension_is_plotted_too(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("conditions: {a: {kind: gaussian, dim: 1}}")
    outputs = ["--out", str(tmp_path / "one.npz"), "--plot", str(tmp_path / "one.png")]
    result = run("sample", str(tmp_path / "one.yaml"), "a", *SMALL, *outputs)
    assert result.exit_code == 0 and (tmp_path / "one.png").exists()


@pytest.mark.parametrize(
    ("expression", "options", "parts"),
    [
        ("a1 * a2 / bse", [], ["must be one of", "'bse'", "Did you mean 'base'?", "  a1 * a2 / bse\n            ^"]),
        ("a1 * (a2 / base", [], ["parenthesis must be closed", "^"]),
        ("a1 * * a2", [], ["expected a condition", "'*'", "^"]),
        ("", [], ["expected a condition"]),
        ("a1 * a2 / base", ["-K", "0"], ["particles must", "at least 1", "got 0"]),
        ("a1 * a2 / base", ["-n", "0"], ["n must", "got 0"]),
        ("a1 * a2 / base", ["--steps", "0"], ["steps must", "got 0"]),
        ("a1 * a2 / base", ["--churn", "-1"], ["churn must be a number of at least 0", "-1"]),
        ("a1 * a2 / base", ["--resampling", "magic"], ["resampling", "magic", "systematic"]),
        ("a1 * a2 / base", ["--threshold", "2"], ["threshold", "2.0", "[0, 1]"]),
        ("a1 / a2", [], ["W, the sum of the exponents,", "positive", "got 0", "raise the positive exponents"]),
        ("a1 * a2 / base^1.5", [], ["must be normalisable", "grows along", "wider base"]),
        ("a1", ["--naive", "--published"], ["must not be given together"]),
        ("a1", ["--published", "--churn", "0"], ["--published must go with", "--churn"]),
        ("a1", ["--naive", "--pooled"], ["--naive must go with", "--pooled"]),
        ("a1", ["--device", "abacus"], ["--device must name a device", "'abacus'", "cpu"]),
    ],
)
def test_bad_input_is_refused_cleanly(tmp_path: Path, expression: str, options: list[str], parts: list[str]) -> None:
    result = sample(tmp_path, expression, *options, "--json")
    assert result.exit_code == 2 and result.stdout == ""
    for part in parts:
        assert part in result.stderr, result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "rule"),
    [
        ("file.txt/out.npz", "must be writable"),
        ("out.xlsx", "must end in .npz, .csv, .parquet"),
        ("folder.npz", "must not be a directory"),
    ],
)
def test_bad_outputs_are_refused_before_the_work(tmp_path: Path, out: str, rule: str) -> None:
    (tmp_path / "file.txt").write_text("")
    (tmp_path / "folder.npz").mkdir()
    result = run("sample", EXAMPLE, "a1", "-n", "1000000", "--out", str(tmp_path / out))
    assert result.exit_code == 2 and rule in result.stderr and f"got '{tmp_path}" in result.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file.txt", "folder.npz"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (
            ["theory", "-n", str(10**12)],
            "1000000000000 samples of 16 particles each must fit into memory; got 512 TB needed",
        ),
        (["theory", "-n", "99"], "n must be at least 100; got 99"),
        (["theory", "-n", "nan"], "integer"),
        (["theory", "--out", "/dev/null"], "must be writable"),
        (["demo", "--device", ""], "--device must name a device"),
        (["demo", "--seed", "1.5"], "integer"),
    ],
)
def test_options_of_every_command_are_refused_cleanly(arguments: list[str], part: str) -> None:
    result = run(*arguments, "--json")
    assert result.exit_code == 2 and result.stdout == "" and "Traceback" not in result.stderr
    assert part in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize("late", [["--import", "mine"], ["--import=mine"]])
def test_an_import_behind_the_command_is_told_where_it_belongs(late: list[str]) -> None:
    with pytest.raises(ArgumentError, match=r"--import must stand before the command.*polyscore --import my_module"):
        show.check_options(["--import", "first", "sample", "family.yaml", "a1", *late])
    show.check_options(["--import", "first", "--import=second", "sample", "family.yaml", "a1", "-n", "3"])
    show.check_options(["--import", "first"])


@pytest.mark.parametrize(("name", "meant"), [("mymodule.py", "mymodule"), ("./folder/mymodule.py", "folder.mymodule")])
def test_a_file_to_import_is_told_its_module(name: str, meant: str) -> None:
    told = run("--import", name, "example")
    assert told.exit_code == 2 and f"Did you mean {meant}?" in told.stderr


def test_a_table_is_no_family(tmp_path: Path) -> None:
    (tmp_path / "cells.csv").write_text("condition,x\ncontrol,1\n")
    told = run("sample", str(tmp_path / "cells.csv"), "control")
    assert told.exit_code == 2 and "the table" in told.stderr and "polyscore fit" in told.stderr


def test_bad_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("conditions:\n  a: {kind: gaussian\n  b: 3\n")
    result = run("sample", str(tmp_path / "bad.yaml"), "a", "--out", str(tmp_path / "out.npz"))
    assert result.exit_code == 2 and "line 3" in result.stderr and "valid YAML" in result.stderr
    assert run("sample", str(tmp_path / "none.yaml"), "a").exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.yaml"]


def test_an_unwritable_place_is_refused_by_every_command(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for command in ("demo", "theory"):
        result = run(command, "--out", str(tmp_path / "file" / "below"))
        assert result.exit_code == 2 and "must be writable" in result.stderr
    with pytest.raises(OutputError, match="must be writable"):
        run_demo(tmp_path / "file")


def test_demo_writes_its_table_and_figures(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    found = run_demo(
        tmp_path / "demo",
        tiny=True,
        parts=("analytic",),
        progress=lambda done, total, what: steps.append((done, total)),
    )
    demo = found.analytic
    assert demo is not None and found.learned is None
    names = sorted(path.name for path in (tmp_path / "demo").iterdir())
    ours = {"diversity.png", "repaired.png", "table.csv", "table.md"}
    assert names == sorted(ours | {"report.html", "store", "figures", "tables.csv", "tables.md", "tables.tex"})
    assert demo.files[0].name == demo.scene.path.name == "repaired.png"
    assert demo.scene.sentence == demo.distances.sentence()
    assert [(row.setting, row.particles) for row in demo.rows[:2]] == [
        ("gaussian-factorized-id", 1),
        ("gaussian-factorized-id", 4),
    ]
    assert demo.rows[0].published == (0.0354, 0.0056)
    assert steps[-1][0] == steps[-1][1] and [done for done, _ in steps] == sorted(done for done, _ in steps)
    with (tmp_path / "demo" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and float(rows[0]["ours"]) == pytest.approx(demo.rows[0].ours)
    # what the figure is about: without noise the different positions are the surviving ancestors, with it more
    ode, sde = demo.diversity["ODE"], demo.diversity["SDE"]
    assert ode["final"] == ode["final_ancestors"]
    assert ode["positions"] == sorted(ode["positions"], reverse=True)
    assert sde["final"][-1] > 1.5 * ode["final"][-1]


def test_theory_has_room_for_its_words_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyscore.paper.theory.interventions import disconnected, doubled

    wide, zero = doubled(100, 20, seed=0), disconnected()
    monkeypatch.setattr("polyscore.paper.theory.statements", lambda **_: iter((wide, zero)))
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("theory", "-n", "100").stdout
    words = " ".join(shown.replace("│", " ").split())
    assert "Appendix B, linear" in words and "diagonal" in words and "residual 0" in words
    assert max(map(len, shown.splitlines()[:10])) <= 80 and "…" not in shown


def test_demo_and_theory_print_pure_json(tmp_path: Path) -> None:
    demo = run("demo", "--analytic", "--quick", "--json", "--out", str(tmp_path / "analytic"))
    assert demo.stderr == "" and len(json.loads(demo.stdout)["rows"]) == 8
    both = run("demo", "--quick", "--json", "--out", str(tmp_path / "demo"))
    parts = json.loads(both.stdout)
    assert both.stderr == "" and (len(parts["analytic"]["rows"]), len(parts["learned"]["rows"])) == (8, 9)
    theory = run("theory", "--json", "-n", "400", "--out", str(tmp_path / "theory"))
    result = json.loads(theory.stdout)
    assert theory.exit_code == 0 and result["holds"] and len(result["statements"]) == 13
    assert json.loads((tmp_path / "theory" / "theory.json").read_text())["epsilon"] == result["epsilon"]
