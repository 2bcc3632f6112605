"""Output that reaches something else than a friendly terminal: other encodings, full disks, closed pipes, odd names."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import Result
from rich.table import Table
from typer.testing import CliRunner

from polyscore import plots
from polyscore.cli import app, show
from polyscore.errors import ArgumentError
from polyscore.paper import pictures

PROGRAM = Path(sys.executable).parent / "polyscore"
ODD = ["[/]", "[bold]x", "$x^$", "$\\frac{$", ":smile:", "_x", "\\", "薬剤", "a'b", "x" * 200]


def started(
    *arguments: str, env: dict[str, str] | None = None, stdout: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the program as a shell does."""
    environment = {**os.environ, "PYTHONUTF8": "0", **(env or {})}
    with open(stdout or os.devnull, "w") as file:
        return subprocess.run([PROGRAM, *arguments], stdout=file if stdout else subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, errors="replace", timeout=120, env=environment)  # fmt: skip


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_every_encoding_shows_help_and_errors(encoding: str) -> None:
    shown = started("demo", "--help", env={"PYTHONIOENCODING": encoding})
    assert shown.returncode == 0 and shown.stderr == "" and "Feynman-Kac" in shown.stdout
    refused = started("sample", "größe–\udcff.yaml", "a", env={"PYTHONIOENCODING": encoding})
    assert refused.returncode == 2 and "must be readable" in refused.stderr and "Traceback" not in refused.stderr


def test_what_cannot_be_encoded_is_spelled_out() -> None:
    show.codecs.register_error("polyscore", show._spelled_out)
    assert "ε ≤ 1 ± 2 – 薬\udcff".encode("ascii", "polyscore") == rb"eps <= 1 +/- 2 - \u85ac\udcff"
    assert "1 ± 2 ≤ ε".encode("latin-1", "polyscore") == "1 ± 2 <= eps".encode("latin-1")


def test_tables_survive_an_ascii_terminal_and_a_narrow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("name", "second", "third")
    table.add_row("Größe", "薬剤", "≤ 1")
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "20")
    with show.streams():
        show.stdout().print(table)
    written = stream.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert r"Gr\xf6\xdfe" in written and r"\u85ac" in written and "<= 1" in written and "third" in written


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
@pytest.mark.parametrize("arguments", [["--help"], ["paper", "list", "--json"]])
def test_a_full_output_is_told_in_words(arguments: list[str]) -> None:
    done = started(*arguments, stdout="/dev/full")
    assert done.returncode == 2
    assert done.stderr == "error: the output must be writable; No space left on device.\n"


def test_a_closed_pipe_is_left_in_silence() -> None:
    with subprocess.Popen(
        [PROGRAM, "paper", "list", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(60) == 1


@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_shown_as_they_are(tmp_path: Path, name: str) -> None:
    (tmp_path / "f.yaml").write_text(json.dumps({"conditions": {name: {"kind": "gaussian"}}}), encoding="utf-8")
    out = tmp_path / ("odd [/] $x^$ :smile:.csv" if len(name) < 100 else "long.csv")
    options = ["-n", 8, "-K", 2, "--steps", 5, "--out", out, "--plot", out.with_suffix(".png")]
    done = run("sample", tmp_path / "f.yaml", f'"{name}"', *options)
    assert done.exit_code == 0, done.output
    joined = "".join(line.strip() for line in done.stdout.splitlines())
    assert f'"{name}"' in joined and out.name in joined
    assert out.exists() and out.with_suffix(".png").exists()
    wrong = run("sample", tmp_path / "f.yaml", "nobody")
    assert wrong.exit_code == 2 and (repr(name)[1:-1] in wrong.stderr.replace("\n", "") or len(name) > 50)


def test_nothing_unprintable_reaches_the_terminal(tmp_path: Path) -> None:
    escape = "\x1b]0;owned\x07\x1b[31m"
    folder = tmp_path / f"a{escape}b\nc"
    folder.mkdir()
    (folder / "f.yaml").write_text("conditions: {a: {kind: gaussian}}")
    small = ["-n", 4, "-K", 2, "--steps", 3, "--out", folder / "x.csv"]
    for done in (
        run("sample", folder / "f.yaml", f"a {escape}", *small),
        run("sample", folder / "f.yaml", "a\x1c* a", *small),
        run("sample", folder / "none.yaml", "a", *small),
        run("paper", "status", "--store", folder),
        run("paper", "list", "--spec", folder),
        run("store", "merge", folder, "--into", folder / "y"),
        run("theory", "--out", folder / "f.yaml" / "z"),
    ):
        assert done.exit_code in (0, 2) and not {"\x1b", "\x07", "\x1c"} & set(done.output), repr(done.output)
    with pytest.raises(ArgumentError, match=r"an option must be printable; got '--\\x1b\[31m'"):
        show.check_options(["run", "--\x1b[31m=3"])


@pytest.mark.parametrize("name", [*ODD, "a\nb", "x" * 5000, "\x1b[31m"])
def test_pictures_take_every_name(tmp_path: Path, name: str) -> None:
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    plots.scatter({name: x}, title=name, path=tmp_path / "a.svg")
    pictures.composition(tmp_path / "b.svg", {name: x, "b": x}, {name: x}, 1.0, title=name)
    assert (tmp_path / "a.svg").exists() and (tmp_path / "b.svg").exists()


@pytest.mark.parametrize("path", ["x" * 5000, "x/" * 3000])
def test_a_path_that_no_system_takes_is_told_in_words(tmp_path: Path, path: str) -> None:
    for done in (
        run("sample", path, "a"), run("sample", path, "a", "--out", f"{path}x.csv"), run("theory", "--out", path),
        run("demo", "--quick", "--out", path), run("paper", "list", "--spec", path),
        run("paper", "status", "--store", path),
        run("paper", "report", "--store", path, "--out", path), run("store", "merge", path, "--into", tmp_path / "all"),
        run("paper", "run", "--all", "--store", path, "--device", "cpu"),
    ):  # fmt: skip
        assert done.exit_code == 2 and "File name too long" in done.stderr and len(done.stderr) < 12_000
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1000 bytes.")

    monkeypatch.setattr("polyscore.paper.theory.epsilon_example", failing)
    monkeypatch.setattr("polyscore.paper.theory.statements", lambda **_: iter(()))
    done = run("theory", "-n", "100")
    assert done.exit_code == 2 and "must fit into memory" in done.stderr
