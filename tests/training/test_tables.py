"""Own data: tables as people have them become points by condition, or an error that names row and column."""

import os
import signal
import subprocess
import sys
import warnings
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import polyscore as ps
from polyscore import progress
from polyscore.data.frames import split_frame
from polyscore.data.read import read_table, table_of
from polyscore.errors import DegeneracyWarning, PolyscoreError
from polyscore.training.keeper import Keeper

SMALL = {"kind": "vanilla", "width": 8, "depth": 1, "batch": 16, "steps": 3, "device": "cpu"}
PLAIN = "condition,height,weight\n" + "".join(f"{'ab'[k % 2]},{k}.5,{-k}e-1\n" for k in range(60))


def write(tmp_path, text, name="cells.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return path


def read(tmp_path, text, columns=None, **options):
    return read_table(write(tmp_path, text, **options), "condition", columns)


def test_a_plain_table(tmp_path):
    table = read(tmp_path, PLAIN)
    assert list(table) == ["a", "b"] and table.variables == ("height", "weight") and table.left_out == ()
    np.testing.assert_array_equal(table["a"], [[k + 0.5, -k / 10] for k in range(0, 60, 2)])
    np.testing.assert_array_equal(table["b"], [[k + 0.5, -k / 10] for k in range(1, 60, 2)])
    assert table.about() == {"read": "cells.csv", "rows": {"a": 30, "b": 30}, "left_out": []}


LINES = [line.split(",") for line in PLAIN.splitlines()]
DIALECTS = {
    "semicolons": ("\n".join(";".join(line) for line in LINES), {}),
    "decimal commas": ("\n".join(";".join(line).replace(".", ",") for line in LINES), {}),
    "tabs": ("\n".join("\t".join(line) for line in LINES), {"name": "cells.tsv"}),
    "windows": (PLAIN.replace("\n", "\r\n"), {}),
    "byte order mark": (PLAIN, {"encoding": "utf-8-sig"}),
    "quotes": ("\n".join(",".join(f'"{cell}"' for cell in line) for line in LINES), {}),
    "spaces": ("\n".join(" , ".join(line) for line in LINES), {}),
    "blank lines": (PLAIN.replace("\n", "\n\n"), {}),
}


@pytest.mark.parametrize(("text", "options"), DIALECTS.values(), ids=DIALECTS)
def test_every_dialect_says_the_same(tmp_path, text, options):
    table, plain = read(tmp_path, text, **options), read(tmp_path, PLAIN, name="plain.csv")
    assert table.variables == plain.variables and list(table) == list(plain)
    for name in plain:
        np.testing.assert_array_equal(table[name], plain[name])


def test_other_columns_are_left_out_and_said(tmp_path):
    text = PLAIN.replace("weight\n", 'weight,"note, long",plate\n').replace("e-1\n", 'e-1,"two\nlines, quoted",P7\n')
    table = read(tmp_path, text)
    assert table.variables == ("height", "weight") and table.left_out == ("note, long", "plate")
    assert read(tmp_path, text, columns=["weight"]).variables == ("weight",)
    swapped = read(tmp_path, PLAIN, columns=["weight", "height"])
    np.testing.assert_array_equal(swapped["a"], read(tmp_path, PLAIN)["a"][:, ::-1])
    with pytest.raises(PolyscoreError, match=r"'plate' of cells.csv must hold numbers.*'P7' in line 3"):
        read(tmp_path, text, columns=["height", "plate"])


BAD = {
    "text among numbers": (PLAIN.replace("7.5", "seven"), "column 'height'.*must hold numbers.*'seven' in line 9"),
    "missing": (PLAIN.replace("7.5", "", 1), "column 'height'.*no missing values; got '' in line 9"),
    "NA": (PLAIN.replace("a,8.5", "a,NA"), "column 'height'.*no missing values; got 'NA' in line 10"),
    "nan": (PLAIN.replace("a,8.5", "a,nan"), "no missing values; got 'nan' in line 10"),
    "infinite": (PLAIN.replace("a,8.5", "a,-inf"), "column 'height'.*finite; got infinity in line 10"),
    "underscores": (PLAIN.replace("a,8.5", "a,1_0"), "'1_0' in line 10"),
    "quoted thousands": (PLAIN.replace("a,8.5", 'a,"1,000.5"'), "'1,000.5' in line 10"),
    "two decimal signs": ("condition;x;y\n" + "a;1.5;2,5\nb;1.5;2,5\n" * 9, "one decimal sign; got '1.5'.*'2,5'"),
    "no condition": (PLAIN.replace("a,8.5", ",8.5"), "a condition in every row; got none in line 10"),
    "duplicate names": (PLAIN.replace("weight", "height"), "'height' names 2 columns"),
    "empty name": (PLAIN.replace("weight", ""), "column 3 has none"),
    "no such column": (PLAIN.replace("condition", "group"), "a column 'condition'; got group, height, weight"),
    "short row": (PLAIN.replace("a,8.5,", "a,"), "line 10, must have 3 cells.*got 2"),
    "long row": (PLAIN.replace("a,8.5,", "a,8,5,"), "line 10, must have 3 cells.*got 4"),
    "names are numbers": (PLAIN.split("\n", 1)[1].replace("a,", "1,").replace("b,", "2,"), "columns' names"),
    "no rows": ("condition,x\n", "rows below"),
    "empty": ("", "an empty file"),
    "no numbers": ("condition,x\na,u\na,v\nb,w\nb,z\n", "a column of numbers"),
    "condition is an id": ("condition,x\n" + "".join(f"cell{k},{k}\n" for k in range(50)), "holds 50 in 50 rows"),
    "open quote": (PLAIN + 'a,"8', "must be readable"),
    "nul": (PLAIN + "\0", "be text|readable"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_bad_tables_name_row_and_column(tmp_path, text, message):
    with pytest.raises(PolyscoreError, match=message):
        read(tmp_path, text)


def test_files_that_are_no_tables(tmp_path):
    for name, content in (("x.csv", b"\xff\xfea\x00b"), ("x.csv", b"condition,\xe4\na,1"), ("x.parquet", b"none")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(PolyscoreError, match=r"x\.(csv|parquet) must"):
            read_table(tmp_path / name, "condition")
    for name in ("missing.csv", "x.xlsx", "."):
        with pytest.raises(PolyscoreError, match="a table must"):
            read_table(tmp_path / name, "condition")


def test_choosing_columns(tmp_path):
    path = write(tmp_path, PLAIN)
    for columns in (["depth"], ["condition"], ["height", "height"], [], "height"):
        with pytest.raises(PolyscoreError):
            read_table(path, "condition", columns)
    named = write(tmp_path, PLAIN.replace("condition,", "condition,,,").replace("a,", "a,1,2,").replace("b,", "b,3,4,"))
    assert read_table(named, "condition", ["weight"]).variables == ("weight",)  # unnamed others do not matter then


def test_a_large_table_in_blocks(tmp_path):
    """Four blocks: text in the last cell of the last one is found, and its line named."""
    rows = [f"{'ab'[k % 2]},{2 * k},{k / 7!r}\n" for k in range(70_000)]
    table = read(tmp_path, "condition,x,y\n" + "".join(rows))
    np.testing.assert_array_equal(table["b"][:, 1], np.arange(1, 70_000, 2) / 7)
    rows[-1] = "b,1,oops\n"
    with pytest.raises(PolyscoreError, match="'oops' in line 70001"):
        read(tmp_path, "condition,x,y\n" + "".join(rows))


class Annotated:
    """What we ask of an AnnData, which the extra tables installs: `anndata` holds pandas back, and is no test tool."""

    def __init__(self, frame, conditions):
        self.frame, self.obs = frame, conditions
        self.var_names, self.n_obs, self.n_vars = frame.columns, *frame.shape

    def __getitem__(self, where):
        rows, columns = where
        return Annotated(self.frame.iloc[rows, columns], self.obs)

    def to_df(self):
        return self.frame


def test_annotated_data_are_tables(tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas")
    cells = pandas.DataFrame(np.arange(120.0).reshape(40, 3), columns=["g0", "g1", "g2"]).rename(index="c{}".format)
    obs = pandas.DataFrame({"condition": pandas.Categorical(["ctrl", "A+ctrl"] * 20), "batch": 1}, index=cells.index)
    data = Annotated(cells, obs)
    table = table_of(data, "condition", None)
    assert table.variables == ("g0", "g1", "g2") and table.rows == {"ctrl": 20, "A+ctrl": 20}
    np.testing.assert_array_equal(table["A+ctrl"], cells.to_numpy()[1::2])
    np.testing.assert_array_equal(table_of(data, "condition", ["g2", "g0"])["ctrl"], cells.to_numpy()[::2, [2, 0]])
    for condition, columns, words in (
        ("drug", None, "a column 'drug' in obs; got condition, batch"),
        ("condition", ["g0", "g7"], "a column 'g7'"),
    ):
        with pytest.raises(PolyscoreError, match=words):
            table_of(data, condition, columns)
    with pytest.raises(PolyscoreError, match="'condition' names a variable, too"):
        table_of(Annotated(cells.assign(condition=1.0), obs), "condition", None)

    (tmp_path / "cells.h5ad").touch()
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(PolyscoreError, match=r"pip install 'polyscore\[tables\]'"):
        read_table(tmp_path / "cells.h5ad", "condition")
    monkeypatch.setitem(sys.modules, "anndata", SimpleNamespace(read_h5ad=lambda path: data))
    assert read_table(tmp_path / "cells.h5ad", "condition", ["g1"]).variables == ("g1",)
    monkeypatch.setitem(sys.modules, "anndata", SimpleNamespace(read_h5ad=lambda path: 1 / 0))
    with pytest.raises(PolyscoreError, match="must be an h5ad file"):
        read_table(tmp_path / "cells.h5ad", "condition")


def frame(pandas, **columns):
    rng = np.random.default_rng(0)
    base = {"drug": ["ctrl", "drugA", "drugB"] * 20, "u": rng.normal(size=60), "v": rng.integers(0, 9, 60)}
    return pandas.DataFrame({**base, **columns})


def test_frames_are_tables(tmp_path):
    pandas = pytest.importorskip("pandas")
    f = frame(pandas, day=pandas.Timestamp("2020-01-01"), ok=True, kind=pandas.Categorical([1, 2] * 30), note="n")
    table = split_frame(f, "drug")
    assert table.variables == ("u", "v") and set(table.left_out) == {"day", "ok", "kind", "note"}
    np.testing.assert_array_equal(table["drugA"], f[f.drug == "drugA"][["u", "v"]].to_numpy())
    f[["drug", "u", "v"]].to_csv(tmp_path / "f.csv", index=False)
    np.testing.assert_array_equal(read_table(tmp_path / "f.csv", "drug")["drugB"], table["drugB"])
    numbered = f.assign(drug=[0, 1, 2] * 20)
    assert list(split_frame(numbered, "drug")) == ["0", "1", "2"]
    assert list(split_frame(numbered.assign(drug=numbered.drug.astype(float)), "drug")) == ["0", "1", "2"]
    with pytest.raises(PolyscoreError, match=r"column 'u'.*no missing values; got 'nothing' in row 3"):
        split_frame(f.assign(u=f.u.where(f.index != 3)), "drug")
    mixed = f.assign(u=f.u.astype(object))
    assert split_frame(mixed, "drug").variables == ("u", "v")
    mixed.loc[5, "u"] = "high"
    with pytest.raises(PolyscoreError, match=r"column 'u'.*must hold numbers.*'high' in row 5"):
        split_frame(mixed, "drug")
    for column in ("day", "ok", "note"):
        with pytest.raises(PolyscoreError, match=f"{column!r}.*must hold numbers"):
            split_frame(f, "drug", ["u", column])
    with pytest.raises(PolyscoreError, match="a condition in every row; got none in row 2"):
        split_frame(f.assign(drug=f.drug.where(f.index != 2)), "drug")
    with pytest.raises(PolyscoreError, match="'u' names 2 columns"):
        split_frame(pandas.concat([f, f[["u"]]], axis=1), "drug")


def test_fit_takes_frames_and_files(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    f = frame(pandas)
    f.to_csv(tmp_path / "f.csv", index=False)
    f.to_parquet(tmp_path / "f.parquet")
    families = [
        ps.fit(d, condition_column="drug", **SMALL) for d in (f, tmp_path / "f.csv", str(tmp_path / "f.parquet"))
    ]
    by_hand = ps.fit({n: f[f.drug == n][["u", "v"]].to_numpy() for n in ("ctrl", "drugA", "drugB")}, **SMALL)
    for p in families:
        assert list(p) == ["ctrl", "drugA", "drugB"] and p.variables == ("u", "v")
        assert torch.equal(p.groups[0].network.last, by_hand.groups[0].network.last)
        assert p.training["source"]["rows"] == {"ctrl": 20, "drugA": 20, "drugB": 20}
    ensemble = ps.fit(f, condition_column="drug", columns=["v"], members=2, **SMALL)
    back = ps.load(ensemble.save(tmp_path / "model"))
    assert back.variables == ("v",) and back.training["source"]["left_out"] == ["u"]
    assert ps.base_composition(back).exponents == {"drugA": 1, "drugB": 1, "ctrl": -1}
    with pytest.raises(PolyscoreError, match=r"map conditions to points.*condition_column"):
        ps.fit(f, **SMALL)
    with pytest.raises(PolyscoreError, match="columns must come with condition_column"):
        ps.fit({"a": f[["u"]]}, columns=["u"], **SMALL)
    with pytest.raises(PolyscoreError, match="an AnnData or a file"):
        ps.fit({"a": f[["u"]]}, condition_column="drug", **SMALL)


def test_few_rows_are_told_of(tmp_path):
    path = write(tmp_path, PLAIN + "rare,1,1\nrare,2,2\nrare,3,3\n")
    with pytest.warns(DegeneracyWarning, match="20 rows or more; 'rare' has 3") as told:
        p = ps.fit(path, condition_column="condition", **SMALL)
    assert p.training["train_sizes"] == [30, 30, 3]
    assert [warning.filename for warning in told] == [__file__]  # the caller's line, not ours
    with pytest.warns(DegeneracyWarning), pytest.raises(PolyscoreError, match="'rare' must hold two points or more"):
        ps.fit(write(tmp_path, PLAIN + "rare,1,1\n"), condition_column="condition", **SMALL)


def test_one_condition_alone_is_learned(tmp_path):
    p = ps.fit(write(tmp_path, PLAIN.replace("\nb,", "\na,")), condition_column="condition", **SMALL)
    assert list(p) == ["a"] and p.training["train_sizes"] == [60]


# ---- Scales --------------------------------------------------------------------------------------------------------


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize(("size", "word"), [(1e-3, "0.001. wide|wide in column"), (1e3, "should be small")])
def test_scales_are_warned_of_both_ways_where_nothing_is_standardised(size, word):
    points = {"a": size * normal(300, 2), "b": size * (normal(300, 2, seed=1) + 0.5)}
    with pytest.warns(DegeneracyWarning, match=rf"({word}).*standardise=True"):
        ps.fit(points, standardise=False, **SMALL)
    ps.fit(points, **SMALL)  # no warning, which would be an error here


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_data_of_any_scale_come_out_at_their_scale(size):
    """Variance 2,000 times too large at 1e-3, once. 1500 draws: 4 % by chance; the rest is the short training's."""
    points = size * (normal(2000, 2) * [1.0, 0.3] + [2.0, 0.0])
    p = ps.fit({"a": points}, steps=1500, width=64, depth=2, batch=256, learning_rate=2e-3, ema=0.99, device="cpu")
    samples = ps.Denoise(steps=200).sample(p["a"], 1500, seed=0).samples.numpy()
    np.testing.assert_allclose(samples.var(0) / points.var(0), 1, atol=0.5)
    np.testing.assert_allclose(samples.mean(0) / size, points.mean(0) / size, atol=0.2)


def test_far_values_and_heavy_tails_are_told_of():
    outlier = normal(500, 2)
    outlier[7, 1] = 1e6
    heavy = np.random.default_rng(0).standard_cauchy(size=(3000, 1)) ** 3
    beside = {"many": 1e-3 * normal(10_000, 1), "ten": 50 + normal(10, 1)}
    for points in ({"a": outlier}, {"a": normal(60, 2), "b": outlier[:60]}, {"a": heavy}, beside):
        with pytest.warns(DegeneracyWarning, match=r"wide in column.*far values") as told:
            ps.fit(points, **SMALL)
        assert {warning.filename for warning in told} == {__file__}
    fine = {"uniform": np.random.default_rng(1).uniform(size=(400, 2)), "exponential": normal(400, 2) ** 2}
    ps.fit(fine, **SMALL)  # no warning
    counts = np.random.default_rng(2).poisson(0.3, size=(400, 2)).astype(float)
    with pytest.warns(DegeneracyWarning) as told:
        ps.fit({**fine, "counts": counts}, **SMALL)
    assert ["2 of 2 repeat one number" in str(one.message) for one in told] == [True]  # no far values


def test_rows_in_a_pattern_are_as_wide_as_in_any_order():
    """Every other one of 200,000 rows is a hundredth as wide: by all of them a condition is 0.7 wide, no warning."""
    points = normal(200_000, 1)
    points[::2] *= 0.01
    ps.fit({"a": points}, standardise=False, **SMALL)


@pytest.mark.filterwarnings("ignore:data should settle:polyscore.errors.PolyscoreWarning")  # ten rows do not
def test_ten_points_beside_ten_thousand():
    """The few are a condition like any other: their score is about them, in the data's units.

    Mean and deviation of 1000 draws within five of their standard errors (0.032 and 0.022): a false alarm in 10^5 with
    all four. Over 24 seeds of data, training and draws the largest were 0.075 and 0.04."""
    points = {"many": 100 + 10 * normal(10_000, 1), "ten": 130 + 5 * normal(10, 1, seed=1)}
    p = ps.fit(points, steps=1200, width=48, depth=2, batch=128, learning_rate=2e-3, ema=0.99, device="cpu")
    for name, pool in points.items():
        samples = ps.Denoise(steps=150).sample(p[name], 1000, seed=0).samples.numpy()
        assert abs(samples.mean() - pool.mean()) < 0.16 * pool.std(), name
        assert abs(samples.std() / pool.std() - 1) < 0.112, name


# ---- Progress, checkpoints by time, Ctrl-C -------------------------------------------------------------------------


class Terminal:
    def __init__(self, seen=True):
        self.text, self.seen = "", seen

    def isatty(self):
        return self.seen

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def points():
    return {"a": normal(60, 2), "b": normal(60, 2, seed=1)}


def show(monkeypatch, terminal, patience=0.0):
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_PATIENCE", patience)
    monkeypatch.setattr(progress, "_PAUSE", 0.0)
    return terminal


def test_a_bar_shows_where_it_can_be_seen(monkeypatch):
    terminal = show(monkeypatch, Terminal())
    p = ps.fit(points(), **{**SMALL, "steps": 250})
    assert "training [" in terminal.text and "100 %" in terminal.text and "loss" in terminal.text
    assert terminal.text.endswith("\r") and terminal.text.isascii()
    terminal.text = ""
    ps.Denoise(steps=5).sample(p["a"], 3)
    assert "sampling [" in terminal.text and terminal.text.endswith("\r")
    terminal.text = ""
    ps.fit(points(), progress=False, **SMALL)
    ps.Denoise(steps=5).sample(p["a"], 3, progress=False)
    with progress.silenced():
        ps.fit(points(), **SMALL)
        ps.Denoise(steps=5).sample(p["a"], 3)
    told = []
    ps.fit(points(), progress=lambda *step: told.append(step), **SMALL)
    ps.Denoise(steps=5).sample(p["a"], 3, progress=lambda *step: told.append(step))
    assert terminal.text == "" and len(told) == 6


def test_no_bar_where_nobody_looks_or_it_is_quick(monkeypatch):
    for terminal, patience in ((Terminal(seen=False), 0.0), (Terminal(), 2.0)):
        show(monkeypatch, terminal, patience)
        p = ps.fit(points(), **SMALL)
        ps.Denoise(steps=5).sample(p["a"], 3)
        assert terminal.text == ""
    monkeypatch.setattr(sys, "stderr", None)
    ps.fit(points(), **SMALL)


def test_a_notebook_is_a_place_to_look(monkeypatch):
    class ZMQInteractiveShell:
        """What IPython calls the shell of a notebook; that of a terminal has another name."""

    for shell, seen in ((ZMQInteractiveShell(), True), (object(), False), (None, False)):
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        terminal = show(monkeypatch, Terminal(seen=False))
        ps.fit(points(), **SMALL)
        assert ("training [" in terminal.text) == seen


def test_a_broken_terminal_stops_no_work(monkeypatch):
    class Broken(Terminal):
        def write(self, text):
            raise OSError(5, "Input/output error")

    show(monkeypatch, Broken())
    assert ps.fit(points(), **{**SMALL, "steps": 250}).training["steps"] == 250


@pytest.mark.parametrize("bad", [3, "yes", 0.5])
def test_progress_is_a_callable_or_not(bad):
    with pytest.raises(PolyscoreError, match="progress must be a callable, True or False"):
        ps.fit(points(), progress=bad, **SMALL)
    with pytest.raises(PolyscoreError, match="progress must be a callable, True or False"):
        ps.Denoise(steps=2).sample(ps.Family({"a": ps.Gaussian()})["a"], 2, progress=bad)


class Clock:
    """A clock that goes by `tick` whenever it is looked at."""

    def __init__(self, tick):
        self.tick, self.now = tick, 0.0

    def monotonic(self):
        self.now += self.tick
        return self.now


@pytest.mark.parametrize("model", ["conditional", "separate"])
def test_slow_steps_report_and_save_by_time(tmp_path, monkeypatch, model):
    """Steps of 20 seconds: each is told of, so that whoever wants to stop it can; every second one is saved."""
    loop = sys.modules["polyscore.training.loop"]
    monkeypatch.setattr(loop, "time", Clock(20.0))
    saved, told = [], []
    real = Keeper.save
    monkeypatch.setattr(Keeper, "save", lambda self, t: (saved.append(t.step), real(self, t)))
    options = {**SMALL, "steps": 7, "model": model, "progress": lambda step, *_: told.append(step)}
    ps.fit(points(), checkpoint=tmp_path / "run", **options)
    assert told == [1, 2, 3, 4, 5, 6, 7] and saved == [2, 4, 6, 7]
    monkeypatch.setattr(loop, "time", Clock(20.0))
    assert ps.fit(points(), seconds=50, **options).training["steps"] == 3
    with pytest.raises(PolyscoreError, match="checkpoint_seconds"):
        ps.fit(points(), checkpoint_seconds=0, **SMALL)


INTERRUPTED = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
import polyscore as ps
from training.test_tables import points
ps.fit(points(), kind="vanilla", width=8, depth=1, batch=16, steps=10**7, device="cpu", checkpoint={path!r},
       progress=lambda step, *_: print(step, flush=True))
"""


def test_an_interrupt_leaves_a_checkpoint_of_its_very_step(tmp_path):
    """Ctrl-C, then the same training on: the same bytes as one that was never interrupted."""
    path = tmp_path / "run.safetensors"
    script = INTERRUPTED.format(tests=os.path.dirname(os.path.dirname(__file__)), path=str(path))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if int(line) == 300:
            process.send_signal(signal.SIGINT)
            break
    _, error = process.communicate(timeout=120)
    assert process.returncode != 0 and "KeyboardInterrupt" in error
    from polyscore.files.tensors import read_tensors

    reached = read_tensors(path)[1]["step"]
    assert reached >= 300
    options = {"kind": "vanilla", "width": 8, "depth": 1, "batch": 16, "steps": reached + 20, "device": "cpu"}
    resumed, whole = ps.fit(points(), checkpoint=path, **options), ps.fit(points(), **options)
    assert torch.equal(resumed.groups[0].network.last, whole.groups[0].network.last)


def test_an_interrupt_handler_of_ones_own_is_left_alone():
    before, seen = signal.getsignal(signal.SIGINT), []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        ps.fit(points(), progress=lambda *_: os.kill(os.getpid(), signal.SIGINT), **SMALL)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [1]


def test_blanks_around_a_condition_are_not_another_condition(tmp_path):
    """As in a csv file: two conditions of one name would both stand in `base_composition`."""
    pandas = pytest.importorskip("pandas")
    f = frame(pandas)
    blank = f.assign(drug=[f" {name} " if k % 2 else name for k, name in enumerate(f.drug)])
    assert list(split_frame(blank, "drug")) == list(split_frame(f, "drug")) == ["ctrl", "drugA", "drugB"]
    np.testing.assert_array_equal(split_frame(blank, "drug")["drugA"], split_frame(f, "drug")["drugA"])


@pytest.mark.parametrize("one, other, shown", [
    ("caf\u00e9ine", "cafe\u0301ine", r"'caf\\xe9ine', 'cafe\\u0301ine'"),  # composed, and e with a mark
    ("Kd7", "kd7", "'Kd7', 'kd7'"),
    ("kd 7", "kd\u00a07", r"'kd 7', 'kd\\xa07'"),
])  # fmt: skip
def test_conditions_that_look_alike_are_told_of(tmp_path, one, other, shown):
    """They stay apart: a name may be meant."""
    rows = "".join(f"{(one, other, 'wt')[k % 3]},{k * k % 17}.25\n" for k in range(66))
    path = write(tmp_path, f"condition,u\n{rows}")
    with pytest.warns(DegeneracyWarning, match=f"written in one way; {shown} differ"):
        table = table_of(path, "condition", None)
    assert list(table.rows.values()) == [22, 22, 22]


def test_a_column_that_numbers_the_rows_is_told_of(tmp_path):
    order = np.random.default_rng(0).permutation(60) + 7
    text = "id,condition,height\n" + "".join(f"{k},{'ab'[k % 2]},{k % 9}.5\n" for k in order)
    with pytest.warns(
        DegeneracyWarning, match=r"a column should measure something; 'id' of cells.csv numbers the rows"
    ):
        assert read(tmp_path, text).variables == ("id", "height")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(tmp_path, text, ["id"]).variables == ("id",)
        read(tmp_path, text.replace("\n8,", "\n1008,"))  # a gap
        read(tmp_path, PLAIN)  # halves, and tenths downward


def test_a_constant_column_is_told_of_by_its_name(tmp_path):
    text = "condition,height,batch\n" + "".join(f"{'ab'[k % 2]},{k % 9}.5,7\n" for k in range(60))
    with pytest.warns(DegeneracyWarning, match=r"every column should vary; 1 of 2 hold one number .* column 'batch'"):
        ps.fit(read(tmp_path, text), **SMALL)


@pytest.mark.parametrize("columns", [[0, 2], np.array([0, 2]), (name for name in (0, 2)), ["0", "2"], "index"])
def test_columns_are_named_as_the_frame_names_them(columns):
    """By numbers, by an array, by the frame's own index."""
    pandas = pytest.importorskip("pandas")
    numbers = np.random.default_rng(6).normal(size=(44, 3))
    frame = pandas.DataFrame(numbers).assign(g=["kd7", "ctl"] * 22)
    table = split_frame(frame, "g", frame.columns[[0, 2]] if isinstance(columns, str) else columns)
    assert table.variables == ("0", "2")
    np.testing.assert_array_equal(table["ctl"], numbers[1::2][:, [0, 2]])


@pytest.mark.parametrize("columns", [5, b"uv", "uv"])
def test_columns_that_are_no_list_are_refused(columns):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"g": ["a", "b"] * 4, "uv": np.arange(8) / 7})
    with pytest.raises(PolyscoreError, match="columns must be a list of names"):
        split_frame(frame, "g", columns)


def test_whole_numbers_beyond_floats_are_infinite():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"g": ["a", "b"] * 4, "u": [10**400, *range(7)]})
    with pytest.raises(PolyscoreError, match="column 'u' of the frame must be finite; got infinity in row 0"):
        split_frame(frame, "g")


def test_decimals_and_fractions_are_numbers(tmp_path):
    """As databases and parquet files hold them: a column of them was left out."""
    pandas = pytest.importorskip("pandas")
    exact = [Decimal(k) / 7 for k in range(8)]
    plain = {"g": ["a", "b"] * 4, "u": [0.5, 3.0, 1.0, 2.5, 0.25, 7.0, 4.0, 1.5]}
    table = split_frame(pandas.DataFrame({**plain, "v": exact, "w": [Fraction(k, 3) for k in range(8)]}), "g")
    assert table.variables == ("u", "v", "w")
    np.testing.assert_allclose(table["b"][:, 1:], [[k / 7, k / 3] for k in (1, 3, 5, 7)])
    pandas.DataFrame({**plain, "v": exact}).to_parquet(tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet", "g").variables == ("u", "v")
    for odd, message in (
        (Decimal("sNaN"), "column 'v' .*in row 0"),
        (Decimal("1e400"), "finite; got infinity in row 0"),
    ):
        with pytest.raises(PolyscoreError, match=message):
            split_frame(pandas.DataFrame({**plain, "v": [odd, *exact[1:]]}), "g")
