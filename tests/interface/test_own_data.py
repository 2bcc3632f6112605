"""Own data, the plain way: fit a table, sample what it learned, and replace nothing that was not asked for."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import polyscore as ps
from polyscore.cli import app
from polyscore.errors import OutputError
from polyscore.nn import NETWORKS

ROOT = Path(__file__).parents[2]
SMALL = ["--steps", "30", "--width", "8", "--depth", "1", "--batch", "16", "--device", "cpu"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def table(path: Path, seed: int = 0, rows: int = 40) -> Path:
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["cell", "condition", "CD4", "CD8 count"])
        for k in range(3 * rows):
            writer.writerow([f"c{k}", ["control", "drugA", "drugB"][k % 3], *(100 + 5 * rng.normal(size=2) + k % 3)])
    return path


def fit(tmp_path: Path, *options: object, name: str = "RUN", seed: int = 0) -> Result:
    cells = table(tmp_path / "cells.csv", seed)
    return run("fit", cells, "--condition-column", "condition", "--out", tmp_path / name, *SMALL, *options)


def fitted(tmp_path: Path) -> Path:
    result = fit(tmp_path)
    assert result.exit_code == 0, result.output
    return tmp_path / "RUN"


def draw(source: Path, out: Path, *options: object) -> Result:
    small = ["-n", 16, "-K", 2, "--steps", 5]
    return run("sample", source, "drugA * drugB / control", "-o", out, *small, *options)


def test_a_table_becomes_samples_in_its_own_columns(tmp_path: Path) -> None:
    result = fit(tmp_path)
    assert result.exit_code == 0, result.output
    for word in ("control (40 rows)", "CD4, CD8 count", "left out", "cell", "polyscore sample"):
        assert word in result.stdout
    assert sorted(p.name for p in (tmp_path / "RUN").iterdir()) == [
        "model.json", "model.safetensors", "training.safetensors",
    ]  # fmt: skip
    about = json.loads((tmp_path / "RUN" / "model.json").read_text())["training"]
    assert about["variables"] == ["CD4", "CD8 count"] and about["recipe"]["steps"] == 30
    assert about["source"] == {"read": "cells.csv", "rows": dict.fromkeys(["control", "drugA", "drugB"], 40),
                               "left_out": ["cell"]}  # fmt: skip
    result = draw(tmp_path / "RUN", tmp_path / "out.csv")
    assert result.exit_code == 0, result.output
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16 and list(rows[0]) == ["CD4", "CD8 count"]
    p = ps.load(tmp_path / "RUN")
    drawn = ps.FeynmanKac(particles=2, steps=5).sample(ps.parse("drugA * drugB / control", p), 16).samples
    np.testing.assert_array_equal([float(row["CD4"]) for row in rows], drawn[:, 0].double().numpy())
    for source in ("RUN/model.safetensors", "RUN/model.json", "RUN/model"):
        again = draw(tmp_path / source, tmp_path / "again.csv", "--force")
        assert again.exit_code == 0, again.output
        assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "out.csv").read_bytes()
    assert ps.load(tmp_path / "RUN").variables == ("CD4", "CD8 count")


def test_the_command_is_ps_fit(tmp_path: Path) -> None:
    path = fitted(tmp_path)
    p = ps.fit(tmp_path / "cells.csv", condition_column="condition", steps=30, width=8, depth=1, batch=16, device="cpu")
    x = torch.full((3, 2), 101.0)
    assert torch.equal(ps.load(path)["drugA"].score(x, 0.3), p["drugA"].score(x, 0.3))


def test_options_reach_the_recipe(tmp_path: Path) -> None:
    options = ["--model", "separate", "--members", 2, "--seed", 3, "--columns", "CD8 count", "--ema", 0.9, "--json"]
    result = fit(tmp_path, *options, "--learning-rate", 1e-3)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert result.stderr == "" and told["variables"] == ["CD8 count"] and told["left_out"] == ["cell", "CD4"]
    p = ps.load(tmp_path / "RUN")
    recipe = p.training["recipe"]
    assert (recipe["model"], recipe["ema"], recipe["learning_rate"]) == ("separate", 0.9, 1e-3)
    assert (p.training["members"], p.training["seed"]) == (2, 3) and isinstance(p.members["drugA"], ps.Ensemble)
    plain = fit(tmp_path, "--not-standardised", name="PLAIN")
    assert "standardise=True" in plain.stderr and ps.load(tmp_path / "PLAIN").units is None
    assert told["coordinates"] == "standardised" and recipe["bend"] == "auto"
    straight = fit(tmp_path, "--no-bend", name="STRAIGHT")
    assert straight.exit_code == 0 and "bend" not in ps.load(tmp_path / "STRAIGHT").training["recipe"]


def test_columns_with_commas_in_their_names_can_be_chosen(tmp_path: Path) -> None:
    rows = ['condition,CD4+,"size, µm",depth', *(f"{name},{k},{k * k},{k % 3}" for name in "ab" for k in range(30))]
    (tmp_path / "odd.csv").write_text("\n".join(rows), encoding="utf-8")
    asked = ["-c", "condition", "--kind", "mixture", "--columns", 'CD4+, "size, µm"', "--json"]
    result = run("fit", tmp_path / "odd.csv", "-o", tmp_path / "RUN", *asked)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["variables"] == ["CD4+", "size, µm"]
    shown = run("fit", tmp_path / "odd.csv", "-o", tmp_path / "RUN", *asked[:-1]).stdout
    assert 'CD4+, "size, µm"' in shown


def test_a_run_says_how_far_its_rows_go_and_which_sampler_drew_the_picture(tmp_path: Path, monkeypatch) -> None:
    noise = torch.randn(3, 40, 2, generator=torch.Generator().manual_seed(0))
    points = {name: noise[k] + k for k, name in enumerate(["control", "A", "B"])}
    ps.fit(points, kind="mixture").save(tmp_path / "few")
    drawn: list[str] = []
    monkeypatch.setattr("polyscore.plots.scatter", lambda shown, **options: drawn.extend(shown))
    asked = ["sample", tmp_path / "few", "A * B / control", "-n", 50, "--plot", tmp_path / "out.png"]
    told = json.loads(run(*asked, "-o", tmp_path / "one.csv", "--json").stdout)
    assert 0.1 < told["moved"] < 2 and list(told["outside"]) == ["control"]
    shown = " ".join(run(*asked, "-o", tmp_path / "two.csv", "--force").stdout.split())
    assert f"as many other rows would move its mean or width by {told['moved']:.2g} deviations" in shown
    assert len(drawn) == 2 and drawn[0].endswith(", 50 samples") and "Auto" not in drawn[0]


def test_the_command_line_draws_the_variables_it_is_asked_for(tmp_path: Path, monkeypatch) -> None:
    noise = np.random.default_rng(0).normal(size=(60, 3))
    rows = ['condition,CD4,"size, µm",depth', *(f"{'ab'[k % 2]},{u},{v},{w}" for k, (u, v, w) in enumerate(noise))]
    (tmp_path / "odd.csv").write_text("\n".join(rows), encoding="utf-8")
    p = ps.fit(tmp_path / "odd.csv", condition_column="condition", kind="mixture")
    p.save(tmp_path / "three")
    assert '"size, µm", depth' in repr(p)
    drawn: list[object] = []
    monkeypatch.setattr("polyscore.plots.scatter", lambda shown, **options: drawn.append(options["variables"]))
    asked = ["sample", tmp_path / "three", "a", "-n", 5, "--naive", "-o", tmp_path / "x.csv", "--force"]
    plot = ["--plot", tmp_path / "x.png"]
    assert run(*asked, *plot, "--variables", 'depth, "size, µm"').exit_code == 0 and drawn == [["depth", "size, µm"]]
    refused = run(*asked, *plot, "--variables", "width")
    assert refused.exit_code == 2 and "a variable must be one of" in refused.stderr
    assert "--plot" in run(*asked, "--variables", "depth").stderr and len(drawn) == 1


def test_the_same_command_goes_on(tmp_path: Path) -> None:
    path = fitted(tmp_path)
    whole = (path / "model.safetensors").read_bytes()
    assert fit(tmp_path).exit_code == 0 and (path / "model.safetensors").read_bytes() == whole
    stopped = fit(tmp_path, "--seconds", 0, name="SLOW")
    assert stopped.exit_code == 0 and "1 of 30 steps; the same command goes on" in stopped.stdout
    assert ps.load(tmp_path / "SLOW").training["steps"] == 1
    assert fit(tmp_path, name="SLOW").exit_code == 0
    assert (tmp_path / "SLOW" / "model.safetensors").read_bytes() == whole
    assert fit(tmp_path, "--steps", 50, name="SLOW").exit_code == 0
    assert ps.load(tmp_path / "SLOW").training["steps"] == 50


def test_another_training_is_not_replaced_unasked(tmp_path: Path) -> None:
    path = fitted(tmp_path)
    before = {p.name: p.read_bytes() for p in path.iterdir()}
    for change in (["--seed", 1], ["--width", 16], ["--steps", 10]):
        refused = fit(tmp_path, *change)
        assert refused.exit_code == 2 and "--force" in refused.stderr
    assert fit(tmp_path, seed=9).exit_code == 2  # other data
    assert {p.name: p.read_bytes() for p in path.iterdir()} == before
    assert fit(tmp_path, "--seed", 1, "--force").exit_code == 0
    assert ps.load(path).training["seed"] == 1
    (path / "training.safetensors").write_bytes(b"damaged")
    assert fit(tmp_path).exit_code == 2 and fit(tmp_path, "--force").exit_code == 0
    (tmp_path / "OWN").mkdir()
    (tmp_path / "OWN" / "model.json").write_text("{}")
    refused = fit(tmp_path, name="OWN")
    assert refused.exit_code == 2 and "model.json" in refused.stderr
    assert [p.name for p in (tmp_path / "OWN").iterdir()] == ["model.json"]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--columns", "CD4,depth"], "'depth'"), (["--model", "foo"], "foo"), (["--steps", 0], "steps"),
        (["--device", "abacus"], "--device"), (["--ensemble", 0], "ensemble"), (["--seconds", -1], "seconds"),
        (["--columns", ""], "column"), (["--condition-column", "drug"], "'drug'"),
        (["--condition-column", "cell"], "few conditions"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_fits_are_refused_before_anything_is_written(tmp_path: Path, options: list[object], word: str) -> None:
    result = fit(tmp_path, *options)
    assert result.exit_code == 2 and word in result.stderr and "Traceback" not in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["cells.csv"]


def test_a_run_is_a_folder(tmp_path: Path) -> None:
    cells = table(tmp_path / "cells.csv")
    before = cells.read_bytes()
    result = run("fit", cells, "-c", "condition", "--out", cells, *SMALL)
    assert result.exit_code == 2 and "RUN must be a folder" in result.stderr and cells.read_bytes() == before
    (tmp_path / "empty").mkdir()
    result = draw(tmp_path / "empty", tmp_path / "out.csv")
    assert result.exit_code == 2 and "model.safetensors" in result.stderr


def test_a_folder_of_another_kind_of_model_is_told_by_what_reads_it(tmp_path: Path) -> None:
    for file, reader in (("network-0001-of-0001.safetensors", "images.load"), ("model_index.json", "from_diffusers")):
        (folder := tmp_path / reader).mkdir()
        (folder / file).write_bytes(b"")
        result = draw(folder, tmp_path / "out.csv")
        assert result.exit_code == 2 and f"ps.{reader}" in result.stderr


NETWORK = """
from dataclasses import dataclass
from torch import nn
from polyscore.nn import NETWORKS, Stack, uniform_start
from polyscore.schema import Checked, count, setting

@NETWORKS.register("line")
class Line(Stack):
    @dataclass(frozen=True)
    class Options(Checked):
        features: int = setting(4, count())

    def __init__(self, architecture, seeds):
        super().__init__(architecture, seeds)
        a, f = architecture, architecture.options.features
        self.first = nn.Parameter(uniform_start(seeds, (1, a.dim, f), a.dim, "first"))
        self.last = nn.Parameter(uniform_start(seeds, (1, f, a.dim), f, "last"))

    def predict(self, x, at):
        return (x @ self.first) @ self.last
"""


def test_a_network_of_ones_own_is_fitted_and_sampled_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_networks.py").write_text(NETWORK)
    table(tmp_path / "cells.csv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    model = ["--model", "separate", "--kind", "line", "--options"]
    fit = ["fit", "cells.csv", "-c", "condition", "-o", "RUN", *SMALL, *model]
    own = ["--import", "my_networks"]

    def program(*arguments: object) -> Result:
        """What one command has registered, the next does not know."""
        with monkeypatch.context() as patch:
            patch.setattr(NETWORKS, "_entries", dict(NETWORKS))
            sys.modules.pop("my_networks", None)
            return run(*arguments)

    done = program(*own, *fit, "{features: 3}")
    assert done.exit_code == 0 and "polyscore --import my_networks sample RUN" in " ".join(done.stdout.split())
    draw = ["sample", "RUN", "drugA * drugB / control", "-n", 16, "-K", 2, "--steps", 5, "-o", "out.csv"]
    assert program(*own, *draw).exit_code == 0 and (tmp_path / "out.csv").exists()
    for arguments, words in (
        ([*draw, "--force"], ["'line'", "register"]),
        ([*fit, "{}"], ["kind must be one of", "'line'"]),
        ([*own, *fit, "{features: 5}"], ["--force"]),
        ([*own, *fit, "{featurs: 5}"], ["Did you mean 'features'?"]),
        ([*own, *fit, "[3]"], ["options must be a mapping"]),
        ([*own, *fit, "{features"], ["--options: ", "valid YAML"]),
    ):
        told = program(*arguments)
        assert told.exit_code == 2 and all(word in told.stderr for word in words), told.output
    assert program(*own, *fit, "{features: 5}", "--force").exit_code == 0


def test_an_interrupt_leaves_a_training_that_goes_on(tmp_path: Path) -> None:
    cells, path = table(tmp_path / "cells.csv"), tmp_path / "RUN"
    start = "import sys, torch; torch.set_num_threads(1); from polyscore.cli import app; app(sys.argv[1:])"
    arguments = ["fit", cells, "-c", "condition", "--out", path, *SMALL, "--steps", 10**7]
    process = subprocess.Popen([sys.executable, "-c", start, *map(str, arguments)], stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (path / "training.safetensors").exists():
        time.sleep(0.05)  # the first checkpoint comes after a thousand steps
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130 and "the same command goes on" in told and "Traceback" not in told
    result = draw(path, tmp_path / "out.csv")
    assert result.exit_code == 2 and "goes on" in result.stderr


# ---- Nothing is replaced unasked -----------------------------------------------------------------------------------


def family(tmp_path: Path) -> Path:
    path = tmp_path / "g.csv"  # a YAML file may be called anything
    path.write_text("conditions: {drugA: {kind: gaussian}, drugB: {kind: gaussian}, control: {kind: gaussian}}")
    return path


def test_pictures_come_only_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "f.png").write_bytes(b"mine")
    assert draw(family(tmp_path), tmp_path / "f.npz").exit_code == 0
    assert (tmp_path / "f.png").read_bytes() == b"mine"
    refused = draw(family(tmp_path), tmp_path / "h.npz", "--plot", tmp_path / "f.png")
    assert refused.exit_code == 2 and not (tmp_path / "h.npz").exists()
    assert (tmp_path / "f.png").read_bytes() == b"mine"
    assert draw(family(tmp_path), tmp_path / "h.npz", "--plot", tmp_path / "f.png", "--force").exit_code == 0
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_an_existing_output_is_an_error_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("mine")
    result = draw(family(tmp_path), tmp_path / "out.csv", "-n", 10**6, "--steps", 10**4)
    assert result.exit_code == 2 and "--force" in result.stderr
    assert (tmp_path / "out.csv").read_text() == "mine"
    (tmp_path / "dangling.csv").symlink_to(tmp_path / "nowhere.csv")
    assert draw(family(tmp_path), tmp_path / "dangling.csv").exit_code == 2
    assert draw(family(tmp_path), tmp_path / "out.csv", "--force").exit_code == 0
    assert (tmp_path / "out.csv").read_text().startswith("x1,x2")


def test_what_is_read_is_never_written(tmp_path: Path) -> None:
    source = family(tmp_path)
    before = source.read_bytes()
    (tmp_path / "link.csv").symlink_to(source)
    os.link(source, tmp_path / "hard.csv")
    (tmp_path / "sub").mkdir()
    names = ["g.csv", "./g.csv", "sub/../g.csv", "link.csv", "hard.csv"]
    for out in names:
        result = draw(source, f"{tmp_path}/{out}", "--force")  # type: ignore[arg-type]
        assert result.exit_code == 2 and "must not be what is read" in result.stderr, out
    for name in ("link.csv", "hard.csv"):  # and the other way round
        assert draw(tmp_path / name, source, "--force").exit_code == 2
    assert source.read_bytes() == before


def test_a_run_saves_itself(tmp_path: Path) -> None:
    p = ps.Family({"a": ps.Gaussian(dim=3)}, variables=["u", "v", "w"])
    result = ps.FeynmanKac(particles=2, steps=20).sample(p["a"], 7)
    path = result.save(tmp_path / "x.csv")
    lines = path.read_text().splitlines()
    assert lines[0] == "u,v,w" and len(lines) == 8
    np.testing.assert_array_equal(np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.float32), result.samples.numpy())
    with pytest.raises(OutputError, match=r"must not replace a file unasked.*x\.csv"):
        result.save(path)
    result.save(path, force=True)
    with np.load(result.save(str(tmp_path / "x.npz"), about={"note": 1})) as data:
        assert set(data) == {"samples", "log_evidence", "lowest_ess", "unique_ancestors", "about"}
        assert json.loads(str(data["about"])) == {"note": 1, "variables": ["u", "v", "w"]}
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(result.save(tmp_path / "x.parquet"))
    assert list(frame) == ["u", "v", "w"] and len(frame) == 7
    with pytest.raises(OutputError, match=r"\.npz, \.csv, \.parquet"):
        result.save(tmp_path / "x.xlsx")


def test_a_model_does_not_replace_what_is_not_one(tmp_path: Path) -> None:
    p = ps.fit({"a": np.random.default_rng(0).normal(size=(50, 2))}, steps=2, width=8, depth=1, device="cpu")
    p.save(tmp_path / "model")
    p.save(tmp_path / "model")  # one's own may be renewed
    for name in ("config.json", "config.safetensors"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(OutputError, match=name):
            p.save(tmp_path / "config")
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    assert not list(tmp_path.glob("config*"))


# ---- What the package ships ----------------------------------------------------------------------------------------


def test_the_example_is_shipped_and_works(tmp_path: Path) -> None:
    shown = run("example")
    assert shown.exit_code == 0 and shown.stdout == (ROOT / "examples" / "family.yaml").read_text()
    (tmp_path / "family.yaml").write_text(shown.stdout)
    result = run("sample", tmp_path / "family.yaml", "a1 * a2 / base", "-n", 8, "--steps", 20, "-o", tmp_path / "s.csv")
    assert result.exit_code == 0, result.output
    for command in ([], ["sample"], ["fit"]):
        assert "examples/" not in run(*command, "--help").stdout  # a file that an installed package does not have


def test_types_are_shipped() -> None:
    from importlib.resources import files

    assert (files("polyscore") / "py.typed").is_file()


def test_a_composition_of_few_points_is_shown_as_it_was_sampled(tmp_path):
    """N(0, 10) N(0, 1) / N(0, 1) of 60 points, improper by chance: moved, said, and valid as it is shown."""
    draw = np.random.default_rng(1)
    with (tmp_path / "few.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["condition", "x"])
        for name, width in (("A", 10.0), ("B", 1.0), ("control", 0.9)):
            writer.writerows([name, value] for value in draw.normal(size=60) * width**0.5)
    fitted = run("fit", tmp_path / "few.csv", "-c", "condition", "--out", tmp_path / "RUN", "--kind", "mixture")
    assert fitted.exit_code == 0, fitted.output
    options = ("-n", 50, "--steps", 20, "-o", tmp_path / "s.csv", "--json")
    shown = json.loads(run("sample", tmp_path / "RUN", "A * B / control", *options).stdout)
    assert shown["validity"] == "it decays in every direction"
    assert any("proper beyond doubt" in finding for finding in shown["findings"]) and shown["reason"]


def test_a_mixture_has_no_steps_and_draws_no_rows_again(tmp_path: Path) -> None:
    cells = table(tmp_path / "cells.csv", rows=12)
    run_of = ("fit", cells, "-c", "condition", "--kind", "mixture", "--out", tmp_path / "RUN")
    shown = json.loads(run(*run_of, "--json").stdout)
    assert (shown["steps"], shown["of_steps"], shown["closed_form"]) == (0, 0, True)
    assert ps.load(tmp_path / "RUN").training["steps"] == 0
    again = run(*run_of)
    assert "a Gaussian mixture a condition, and no network" in again.stdout and "20000" not in again.stdout
    assert any("Of so few a mixture is little more" in warning for warning in shown["warnings"])
    assert not any("Networks will draw" in warning for warning in shown["warnings"])
