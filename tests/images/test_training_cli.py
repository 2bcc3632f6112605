"""`polyscore images train` and `export`, from the command line."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from images.flat import MIXTURES, RECIPE, flat
from polyscore.cli import app
from polyscore.errors import PolyscoreWarning
from polyscore.files.tensors import FileError, read_tensors
from polyscore.images import export, train
from polyscore.images.extract import extract

SMALL = ["--preset", "tiny", "--steps", "2", "--batch", "3", "--device", "cpu"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    flat(folder / "data", 3, 32)
    mixtures = {"classes": ["red", "green"], "conditions": {"base": {"red": 1}, "a": {"red": 0.25, "green": 0.75}}}
    (folder / "mine.yaml").write_text(json.dumps(mixtures))
    return folder


def run(*arguments):
    return CliRunner().invoke(app, ["images", *map(str, arguments)])


def test_train_then_export(files, tmp_path):
    done = run("train", files / "data", tmp_path / "out", "--setting", files / "mine.yaml", *SMALL, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["complete"]
    assert told["steps"] == 2
    assert 0 < told["held_out"]["a"] < 3
    again = run("train", files / "data", tmp_path / "out", "--setting", files / "mine.yaml", *SMALL)
    assert "2 of 2 steps" in again.stdout
    copied = run("export", tmp_path / "out", tmp_path / "small")
    assert copied.exit_code == 0, copied.output
    assert "with base, a, " in copied.stdout and "of step 2" in copied.stdout
    assert [one["conditions"] for one in export.about(tmp_path / "small")["networks"].values()] == [["base", "a"]]
    assert export.networks(tmp_path / "small", "cpu")


def test_export_of_a_training_that_is_not_complete(files, tmp_path):
    done = run("train", files / "data", tmp_path / "out", "--setting", files / "mine.yaml", *SMALL,
               "--model", "separate")  # fmt: skip
    assert done.exit_code == 0, done.output
    whole = export.networks(tmp_path / "out", "cpu")
    (tmp_path / "out" / "export" / "model.json").unlink()
    copied = run("export", tmp_path / "out", tmp_path / "small")
    assert copied.exit_code == 0, copied.output
    found = export.networks(tmp_path / "small", "cpu")
    assert sorted(found) == sorted(whole)
    for names, network in found.items():
        ours, own = network.state_dict(), whole[names].state_dict()
        assert all((ours[key] == own[key]).all() for key in own)


def test_an_export_says_which_conditions_it_has(data, tmp_path):
    """Separate networks are trained one after the other: those that were not begun are not in it."""
    recipe = dataclasses.replace(RECIPE, model="separate")
    train(data, MIXTURES, tmp_path / "out", recipe=recipe, device="cpu")
    shutil.rmtree(tmp_path / "out" / "export")
    shutil.rmtree(tmp_path / "out" / "checkpoints" / "a")
    assert "small with base, " in run("export", tmp_path / "out", tmp_path / "small").stdout.replace("\n", "")


def test_export_falls_back_to_an_older_checkpoint(data, tmp_path):
    """As going on with a training does; where all are damaged, it says so and writes nothing."""
    train(data, MIXTURES, tmp_path / "out", recipe=RECIPE, device="cpu", save_every=2)
    (tmp_path / "out" / "export" / "model.json").unlink()
    older, newest = sorted((tmp_path / "out" / "checkpoints" / "network").iterdir())
    content = newest.read_bytes()
    newest.write_bytes(content[: len(content) // 2])
    with pytest.warns(PolyscoreWarning, match=f"{newest.name} is not, and the one before it is used"):
        _, steps = extract(tmp_path / "out", tmp_path / "small")
    assert steps == 4 == RECIPE.steps - 2
    ((_, network),) = export.networks(tmp_path / "small", "cpu").items()
    kept, _ = read_tensors(older)
    for name, weight in network.state_dict().items():
        assert (weight == kept[f"average.{name}"].half().float()).all()
    older.write_bytes(b"")
    with (
        pytest.warns(PolyscoreWarning, match="the one before it is used"),
        pytest.raises(FileError, match="a training must have a whole checkpoint to go on from; got none in"),
    ):
        extract(tmp_path / "out", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.fixture
def data(tmp_path):
    return flat(tmp_path / "flat")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--setting", "ood-paintings"], "Did you mean 'ood-painting'"),
        (["--setting", "none.yaml"], "none.yaml"),
        (["--setting", "ood-painting"], "a class of the mixtures must be one of the dataset's"),
        (["--setting", "mine", "--preset", "33"], "a preset must be one of"),
        (["--setting", "mine", "--preset", "paper"], "resolution must be 256"),
        (["--setting", "mine", "--model", "both"], "model must be one of conditional, separate"),
    ],
)
def test_bad_input_is_refused_with_code_2(files, tmp_path, arguments, told):
    given = [str(files / "mine.yaml") if one == "mine" else one for one in arguments]
    done = run("train", files / "data", tmp_path / "out", *given)
    assert done.exit_code == 2
    assert told in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()


def test_export_of_nothing_is_refused(tmp_path):
    done = run("export", tmp_path / "missing", tmp_path / "small")
    assert done.exit_code == 2
    assert "hold checkpoints or an export" in " ".join(done.output.split())


@pytest.mark.slow
def test_the_benchmark_measures_every_loop(tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "unet.py"
    command = [sys.executable, script, "--device", "cpu", "--cases", "tiny", "--forms", "kernels", "--out",
               tmp_path / "out.json"]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "out.json").read_text())["tiny"]
    assert list(found) == ["in memory", "with loading", "kernels"]
    assert all(one["seconds"] > 0 for one in found.values())
