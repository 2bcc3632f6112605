"""An experiment from outside: families by file and by function, an own metric, samplers by kind, two kinds of model."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import polyscore as ps
from polyscore.cli import app
from polyscore.errors import DegeneracyWarning, PolyscoreError
from polyscore.experiments.cells import Cell
from polyscore.experiments.checks import ExperimentError
from polyscore.experiments.driver import run as drive
from polyscore.experiments.functions import Function
from polyscore.experiments.jobs import pack, unpack
from polyscore.experiments.protocol import digest
from polyscore.experiments.records import Record
from polyscore.experiments.sources import Called
from polyscore.experiments.spec import load_spec, parse_spec
from polyscore.experiments.store import Store

# --- the extension
FAMILY = """
conditions:
  drug A: {kind: gaussian, cov: [4, 1]}
  drug B: {kind: gaussian, cov: [1, 4]}
  none: {kind: gaussian, cov: 5}
"""
MODULE = """
import polyscore as ps

def make_family():
    return ps.Family({"left": ps.Gaussian([-1.0, 0.0]), "right": ps.Gaussian([1.0, 0.0])})

def far(samples, reference, options):
    "Share of the samples further than 3 from 0."
    return (samples.norm(dim=-1) > 3).double().mean().item()
"""
SPEC = """
families: {drugs: family.yaml, pair: outside_module:make_family}
samplers: {naive: {kind: denoise, steps: 8}, corrected: {kind: feynman-kac, particles: 4, steps: 8}}
protocol: {swarms: 64, projections: 16, train_steps: 10, width: 8, depth: 1}
experiments:
  double:
    {family: drugs, expression: '"drug A" * "drug B" / none', samplers: [naive, corrected], runs: 2, train_sizes: [20],
     models: [analytic, conditional], metrics: [sw2, "outside_module:far"]}
  middle:
    {family: pair, expression: (left * right)^0.5, particles: [1, 2], samplers: [naive], runs: 1, metrics: [mmd2],
     models: [analytic, separate], train_sizes: [20], conditions_alone: true}
"""
# --- end
CELLS = 2 * 2 * 2 + (3 * 2 + 2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("family.yaml", FAMILY), ("outside_module.py", MODULE), ("my-spec.yaml", SPEC)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "outside_module", raising=False)
    return tmp_path


def polyscore(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def results(path: Path | str) -> dict[str, Any]:
    return {key: record.results for key, record in Store(path).records.items()}


def test_it_runs_stops_goes_on_and_is_reported_under_its_own_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = polyscore("list", "my-spec.yaml")
    assert shown.exit_code == 0 and "double" in shown.stdout and "naive, corrected" in shown.stdout
    assert "K = 1, K = 2, naive" in shown.stdout
    stopped = {"left": 3}
    whole = Store.add

    def interrupted(self: Store, *arguments: Any) -> Any:
        if not stopped["left"]:
            raise KeyboardInterrupt
        stopped["left"] -= 1
        return whole(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "add", interrupted)
        first = polyscore("run", "my-spec.yaml", "--device", "cpu")
    assert first.exit_code == 130 and "The same command goes on" in first.stderr
    assert len(results("runs/my-spec")) == 3
    second = polyscore("run", "my-spec.yaml", "--device", "cpu")
    assert second.exit_code == 0, second.output
    assert f"{CELLS - 3} cells" in second.stdout and "see `polyscore report my-spec.yaml" in second.stdout
    status = json.loads(polyscore("status", "my-spec.yaml", "--json").stdout)
    assert [(e["name"], e["stored"]) for e in status["experiments"]] == [("double", 8), ("middle", 8)]
    assert status["experiments"][0]["runs"] == {"naive": 2, "corrected": 2}
    report = polyscore("report", "my-spec.yaml", "--out", "out")
    assert report.exit_code == 0, report.output
    page, markdown, latex = ((folder / "out" / name).read_text() for name in ("report.html", "tables.md", "tables.tex"))
    for text in (page, markdown, latex):
        for word in ("double", "naive", "corrected", "far", "N = 20", "analytic", "K = 2"):
            assert word in text
        assert "published" not in text
    assert "<dt>far</dt><dd>Share of the samples further than 3 from 0.</dd>" in page
    for words in ("sampler naive", "sampler corrected", "samplers by name", "Denoise(steps=8"):
        assert words in page
    assert "drug A" in page and "(left * right)^0.5" in page and "SW2" in page
    with (folder / "out" / "tables.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 2 + 3 * 2 + 2 and {row["metric"] for row in rows} == {"sw2", "far", "mmd2"}
    assert {(row["sampler"], row["particles"]) for row in rows if row["experiment"] == "middle"} == {
        ("", "1"),
        ("", "2"),
        ("naive", "1"),
    }
    assert {row["particles"] for row in rows if row["sampler"] == "corrected"} == {"4"}
    assert {row["std"] for row in rows if row["runs"] == "1"} == {""}
    alone = [row for row in rows if row["expression"] in ("left", "right")]
    assert {(row["model"], row["metric"], row["train_size"]) for row in alone} == {("separate", "mmd2", "20")}
    for text, head in ((page, "condition</th>"), (markdown, "| condition |"), (latex, "condition &")):
        assert "middle: each condition alone" in text and head in text
    assert " ± – (1)" in markdown and " ± 0 (1)" not in markdown and "$ --" in latex
    assert {path.name for path in (folder / "out" / "figures").iterdir()} >= {"double-sw2.png", "double-samples.png"}


@pytest.mark.slow
def test_a_pool_of_processes_gives_the_same_numbers(folder: Path) -> None:
    """Workers import the user's module from the job that the driver made."""
    assert polyscore("run", "my-spec.yaml", "--device", "cpu", "--store", "one").exit_code == 0
    pool = polyscore("run", "my-spec.yaml", "--device", "cpu", "--store", "many", "--workers", 2)
    assert pool.exit_code == 0, pool.output
    one, many = results("one"), results("many")
    assert one.keys() == many.keys() and len(one) == CELLS
    for key, values in one.items():
        assert many[key] == pytest.approx(values, rel=1e-3, abs=1e-4)


def test_the_key_holds_everything_that_changes_a_result(folder: Path) -> None:
    def keys(name: str = "double") -> set[str]:
        sys.modules.pop("outside_module", None)
        found = load_spec("my-spec.yaml")[name]
        return {found.key(cell) for cell in found.cells()}

    before = keys()
    changes = {
        "family.yaml": ("cov: 5", "cov: 6"),
        "outside_module.py": ("> 3", "> 4"),
        "my-spec.yaml": ("/ none", "/ none^0.5"),
    }
    seen = [before]
    for name, (old, new) in changes.items():
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace(old, new))
        seen.append(keys())
        (folder / name).write_text(text)
    (folder / "my-spec.yaml").write_text(SPEC.replace("steps: 8}, corrected", "steps: 9}, corrected"))
    changed = keys()
    assert len(changed & before) == len(before) / 2  # the other sampler's cells keep theirs
    for other in seen[1:]:
        assert not other & before
    (folder / "my-spec.yaml").write_text(SPEC.replace('[sw2, "outside_module:far"]', "[sw2]"))
    assert not keys() & before
    (folder / "my-spec.yaml").write_text("# a comment, and another layout\n" + SPEC.replace("runs: 2", "runs:   2"))
    assert keys() == before


def test_what_is_not_trained_has_no_train_sizes(folder: Path) -> None:
    (folder / "plain.yaml").write_text("families: {f: family.yaml}\nexperiments: {mine: {family: f, expression: none}}")
    shown = polyscore("list", "plain.yaml")
    assert shown.exit_code == 0 and "1000" not in shown.stdout and "1, 4, 16" in shown.stdout


def test_sampling_takes_a_function_and_a_sampler_by_kind(folder: Path) -> None:
    given = ["--sampler", "{kind: denoise, steps: 5}", "-n", "8", "--json", "-o", "s.npz"]
    done = polyscore("sample", "outside_module:make_family", "(left * right)^0.5", *given)
    assert done.exit_code == 0 and json.loads(done.stdout)["sampler"].startswith("Denoise(steps=5")
    for more, words in (
        (["-K", "4"], "--sampler must choose the sampler alone; got -K"),
        (["--sampler", "denoize"], "Did you mean 'denoise'?"),
        (["--sampler", "{kind: denoise, stps: 5}"], "Did you mean 'steps'?"),
    ):
        told = polyscore("sample", "outside_module:make_family", "left", *given, "--force", *more)
        assert told.exit_code == 2 and words in " ".join(told.stderr.split())
    told = polyscore("sample", "outside_module:nothing", "left", "-o", "t.npz")
    assert told.exit_code == 2 and "outside_module must have a function nothing" in " ".join(told.stderr.split())


@pytest.mark.parametrize(
    ("head", "body", "told"),
    [
        ("make_family():", "raise ValueError('no data today')", "it raised ValueError: no data today."),
        ("make_family(size):", "return size", "missing 1 required positional argument: 'size'."),
        ("make_family():", "raise SystemExit(3)", "it raised SystemExit: 3."),
        ("make_family():", "return ps.Gaussian([0.0], -1.0)", "it raised"),
        ("make_family():", "return 3", "must return a Family; got int"),
    ],
)
@pytest.mark.parametrize("command", [["run", "my-spec.yaml"], ["list", "my-spec.yaml"], ["sample", "{}", "left"]])
def test_a_function_that_fails_is_told_as_such(
    folder: Path, command: list[str], head: str, body: str, told: str
) -> None:
    (folder / "outside_module.py").write_text(f"import polyscore as ps\ndef {head}\n    {body}\n")
    (folder / "my-spec.yaml").write_text(SPEC.replace(', "outside_module:far"', ""))
    done = polyscore(*(word.format("outside_module:make_family") for word in command))
    shown = " ".join(done.stderr.split())
    assert done.exit_code == 2 and "outside_module:make_family must return a Family; " in shown and told in shown
    assert not (folder / "runs").exists()


def test_an_interrupt_in_a_function_passes_through(folder: Path) -> None:
    (folder / "outside_module.py").write_text("def make_family():\n    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        Called(Function.find("outside_module:make_family", str(folder))).build()


def test_a_module_that_registers_is_imported_by_name(folder: Path) -> None:
    (folder / "registering.py").write_text(
        "from polyscore.metrics import METRICS\n"
        "METRICS.register('largest')(lambda samples, reference=None, options=None: samples.abs().max().item())\n"
    )
    text = SPEC.replace("metrics: [mmd2]", "metrics: [largest]")
    (folder / "my-spec.yaml").write_text(text)
    without = polyscore("run", "my-spec.yaml", "middle", "--device", "cpu")
    assert without.exit_code == 2 and "a metric must be one of" in without.stderr
    done = polyscore("--import", "registering", "run", "my-spec.yaml", "middle", "--device", "cpu", "--workers", "1")
    assert done.exit_code == 0, done.output
    assert all("largest" in values for values in results("runs/my-spec").values())
    missing = polyscore("--import", "no_such_module", "list", "my-spec.yaml")
    assert missing.exit_code == 2 and "a module must be importable; no_such_module is not" in missing.stderr


def forged(cell: Cell, content: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A record whose protocol names a module, with the right key and checksum."""
    described = {"results_version": 1, "swarms": 64, "content": content}
    protocol = digest(described)
    record = Record(cell.key_under(protocol), protocol, cell, {"sw2": 1.0, "mmd2": 0.0}, {})
    return record.line(), {protocol: described}


def test_records_parcels_and_merged_stores_import_nothing(folder: Path) -> None:
    (folder / "evil_module.py").write_text("raise SystemExit('imported')\n")
    sys.path.append(str(folder))
    function = {"function": "evil_module:make", "source": "0" * 16}
    content = {"family": function, "metrics": {"far": function}, "sampler": {"kind": "evil_module:Sampler"}}
    line, protocols = forged(Cell("evil_module", "analytic", 0, 0, 1), content)
    source = Store(folder / "source")
    source.add_records([Record.parse(line)], protocols)
    target = Store(folder / "target")
    assert target.merge(Store(source.path)) == 1 and target.protocols() == protocols
    assert unpack(pack(target), Store(folder / "third")) == 1
    drive([load_spec("my-spec.yaml")["middle"]], target, device="cpu")
    merged = polyscore("store", "merge", "target", "--into", "all")
    assert merged.exit_code == 0, merged.output
    report = polyscore("report", "my-spec.yaml", "middle", "--store", "all", "--out", "out")
    assert report.exit_code == 0, report.output
    assert "evil_module" not in sys.modules


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("family.yaml", "../family.yaml", "must lie beside the spec or below"),
        ("family.yaml", "/etc/passwd", "must lie beside the spec or below"),
        ("family.yaml", "none.yaml", "family drugs: a family file must be readable"),
        ("outside_module:make_family", "no_module:make", "family pair: a module must be importable"),
        ("outside_module:make_family", "outside_module:nothing", "must have a function nothing"),
        ("{drugs:", "{../x:", "the name of a family must be of a-z"),
        ("{naive:", "{na/ive:", "the name of a sampler must be of a-z"),
        ("  double:", "  ../double:", "the name of an experiment must be of a-z"),
        ("family: drugs", "family: druks", "Did you mean 'drugs'?"),
        ("[naive, corrected]", "[naive, corected]", "Did you mean 'corrected'?"),
        ("kind: denoise", "kind: denoize", "Did you mean 'denoise'?"),
        ("steps: 8}, corrected", "stps: 8}, corrected", "Did you mean 'steps'?"),
        ("/ none", "/ control", "'control'"),
        ("metrics: [mmd2]", "metrics: [mmd]", "Did you mean 'mmd2'?"),
        ("metrics: [mmd2]", "metrics: [mmd2, mmd2]", "metrics must hold different names"),
        ("analytic, separate", "analytic, separat", "Did you mean 'separate'?"),
        ("analytic, separate", "{model: separate, wdth: 3}", "Did you mean 'width'?"),
        ("runs: 1", "runs: 1000000000", "must have at most 1000000 cells"),
        ("samplers: [naive]", "samplers: [naive], reference: ../x.npz", "must lie beside the spec or below"),
        ("samplers: [naive]", "samplers: [naive], reference: x.npz", "a reference must be a readable .npz"),
        ("protocol: {", "protocol: {content: {}, ", "a key of protocol must be one of"),
    ],
)
def test_hostile_and_mistaken_specs_are_refused_before_the_work(folder: Path, old: str, new: str, words: str) -> None:
    assert old in SPEC
    (folder / "my-spec.yaml").write_text(SPEC.replace(old, new))
    told = polyscore("run", "my-spec.yaml", "--device", "cpu")
    assert told.exit_code == 2 and words in " ".join(told.stderr.split()), told.stderr
    assert not (folder / "runs").exists()


def test_a_metric_that_returns_nan_leaves_its_cells_missing_and_says_so(folder: Path) -> None:
    (folder / "outside_module.py").write_text(MODULE.replace(".item()", ".item() * float('nan')"))
    told = polyscore("run", "my-spec.yaml", "--device", "cpu")
    assert told.exit_code == 1 and "'far': nan" in told.stderr.replace("\n", " ")
    assert len(results("runs/my-spec")) == 8  # those of the other experiment


def test_a_family_without_a_known_answer_needs_a_reference(folder: Path) -> None:
    """Scores alone: nothing to learn from or to compare with; refused before the work, and possible with points."""
    (folder / "outside_module.py").write_text(
        "import polyscore as ps\n"
        "def make_family():\n"
        "    return ps.Family({'s': ps.Learned(lambda x, t: -x, (2,), ps.VP(), 'score')})\n"
    )
    spec = "families: {mine: outside_module:make_family}\nprotocol: {swarms: 32, steps: 5}\nexperiments:\n"
    mine = "  mine: {family: mine, expression: s, runs: 1, particles: [1]%s}\n"
    with pytest.raises(ExperimentError, match=r"must have something to compare with.*reference: points\.npz"):
        drive(parse_spec(spec + mine % "", folder=folder).values(), Store(folder / "a"), device="cpu")
    with pytest.raises(ExperimentError, match="must have points to learn from; condition 's'"):
        trained = ", models: [conditional]"
        drive(parse_spec(spec + mine % trained, folder=folder).values(), Store(folder / "a"), device="cpu")
    assert not (folder / "a").exists()
    (folder / "points.csv").write_text("x1,x2\n" + "".join(f"{k % 3},{k % 5}\n" for k in range(32)))
    chosen = parse_spec(spec + mine % ", reference: points.csv, metrics: [sw2]", folder=folder)
    outcome = drive(list(chosen.values()), Store(folder / "b"), device="cpu")
    assert outcome.missing == 0 and all(values["sw2"] > 0 for values in results(folder / "b").values())
    (folder / "points.csv").write_text("x1\n1\n2\n")
    with pytest.raises(PolyscoreError, match=r"have points of shape \(2,\)"):
        drive(list(parse_spec(spec + mine % ", reference: points.csv", folder=folder).values()), Store(folder / "c"))


@pytest.mark.slow
def test_workers_import_what_the_command_line_imports(folder: Path) -> None:
    (folder / "widening.py").write_text(
        "from polyscore.metrics import METRICS\n"
        "METRICS.register('widest')(lambda samples, reference=None, options=None: samples.std().item())\n"
    )
    (folder / "my-spec.yaml").write_text(SPEC.replace("metrics: [mmd2]", "metrics: [widest]"))
    done = polyscore("--import", "widening", "run", "my-spec.yaml", "middle", "--device", "cpu", "--workers", 2)
    assert done.exit_code == 0, done.output
    assert len(results("runs/my-spec")) == 8


def test_a_model_on_disk_is_a_family_too(folder: Path) -> None:
    """By the hash of its weights, beside a reference of one's own; another file by its name is another family."""
    points = {"a": torch.randn(50, 2, generator=torch.Generator().manual_seed(0))}
    for name, seed in (("one", 1), ("two", 2)):
        ps.fit(points, seed=seed, steps=5, width=8, depth=1, device="cpu", progress=False).save(folder / name)
    (folder / "points.csv").write_text("x1,x2\n" + "".join(f"{k % 3},{k % 5}\n" for k in range(32)))
    text = "families: {mine: one.safetensors}\nprotocol: {swarms: 32, steps: 5}\nexperiments:\n"
    text += "  mine: {family: mine, expression: a, runs: 1, particles: [1], reference: points.csv, metrics: [sw2]}\n"
    first, second = (parse_spec(text.replace("one", name), folder=folder)["mine"] for name in ("one", "two"))
    assert drive([first], Store(folder / "store"), device="cpu").computed == 1
    cell = next(first.cells())
    assert first.key(cell) in Store(folder / "store") and second.key(cell) not in Store(folder / "store")
    (folder / "one.safetensors").write_bytes((folder / "two.safetensors").read_bytes())
    with pytest.raises(PolyscoreError, match="must hold the same weights wherever it is read"):
        first.source.build()


ALONE = """
families: {pair: outside_module:make_family}
protocol: {swarms: 16, steps: 3, projections: 4}
experiments:
  middle: {family: pair, expression: (left * right)^0.5, particles: [1], models: [analytic], metrics: METRICS}
"""


def measured(folder: Path, source: str, metrics: str) -> dict[str, Any]:
    """Return the results of one cell measured by functions of a user's."""
    (folder / "outside_module.py").write_text(MODULE + "\nimport math, sys, torch\n" + source)
    (folder / "alone.yaml").write_text(ALONE.replace("METRICS", metrics))
    store = Store(folder / "alone")
    drive(list(load_spec(folder / "alone.yaml").values()), store, device="cpu")
    return next(iter(store.records.values())).results if store.records else {}


def test_a_metric_that_works_in_place_changes_no_other(folder: Path) -> None:
    source = """
def first(x, y, o):
    return x.mul_(0).sum() + y.add_(9).sum() * 0 + 1

def last(x, y, o):
    return x.var() + y.mean()
"""
    found = measured(folder, source, '["outside_module:first", "outside_module:last", sw2]')
    (folder / "alone").rename(folder / "before")
    alone = measured(folder, source, '["outside_module:last", sw2]')
    assert {name: found[name] for name in alone} == alone and found["first"] == 1


@pytest.mark.parametrize(
    "body, why",
    [
        ("return ps.FeynmanKac(steps=0)", "ArgumentError"),
        ("sys.exit(3)", "SystemExit"),
        ("return '3.5'", "'3.5' is no number"),
        ("return True", "True is no number"),
        ("return torch.tensor(True)", "is no number"),
        ("return 1j", "1j is no number"),
        ("return x", "must return a number"),
    ],
)
def test_a_metric_that_gives_no_number_is_named(body: str, why: str, folder: Path) -> None:
    with pytest.raises(PolyscoreError, match=rf"odd did not .*{why}|{why}; odd did not"):
        measured(folder, f"def odd(x, y, o):\n    {body}", '["outside_module:odd"]')


def test_a_metric_that_is_not_finite_is_blamed_itself(folder: Path) -> None:
    with pytest.warns(DegeneracyWarning, match=r"must be finite.*Correct the metric odd\.") as told:
        assert measured(folder, "def odd(x, y, o):\n    return math.nan", '["outside_module:odd", sw2]') == {}
    assert "Use more steps" not in str(told[0].message)


def test_a_metric_without_a_signature_is_given_a_reference(folder: Path) -> None:
    with pytest.raises(PolyscoreError, match=r"a metric must return a number; max did not"):
        measured(folder, "", '["builtins:max"]')
