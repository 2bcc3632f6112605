"""The benchmark of modules at sizes at which nothing is measured: both of its ways run, and its rows add up."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from polyscore.models import calls

pytestmark = pytest.mark.filterwarnings("ignore::polyscore.errors.PolyscoreWarning")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    monkeypatch.setattr(calls, "BACKEND", "eager")
    with torch.random.fork_rng():
        yield importlib.import_module("learned_module")
    for name in ("learned_module", "plain"):
        sys.modules.pop(name, None)


def cells(row):
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_rows_of_a_gpu(script):
    bench = script.prepare("cpu", script.Kind(16, training=2))
    rows = script.on_gpu(bench, swarms=8, steps=4, counts=[2, 64], seeds=2)
    timed, pairs = rows[: rows.index("")], rows[rows.index("") + 3 :]
    assert [cells(row)[0].split(":")[0] for row in timed] == [
        "K = 2, plain loop", "K = 2, float32", "K = 2, tf32, compiled", "K = 2, bf16, compiled", "K = 2, auto",
        "K = 64, plain loop, scaled", "K = 64, tf32, compiled", "K = 64, bf16, compiled", "K = 64, auto",
    ]  # fmt: skip
    assert all(float(cells(row)[1]) >= 0 for row in timed)
    assert len(pairs) == 3 + 2 and all(cells(row)[3].endswith("%") for row in pairs)


def test_the_rows_of_a_cpu(script):
    bench = script.prepare("cpu", script.Kind(16, training=2))
    rows = script.on_cpu(bench, swarms=8, steps=3, counts=[1, 2], rounds=2, alone=[1.0, 2.0])
    assert [cells(row)[0] for row in rows[:3]] == [
        "4 x 16 silu, 3 steps, K = 1, plain loop: float32", "4 x 16 silu, 3 steps, K = 1, module in ps.Learned: model",
        "4 x 16 silu, 3 steps, K = 1, network of ps.fit: float32",
    ]  # fmt: skip
    assert len(rows) == 6 and cells(rows[0])[2] == "1.00"
    seconds, ratio = (float(cells(rows[3])[place]) for place in (1, 3))  # seconds are shown to a thousandth
    assert 2.0 / (seconds + 0.00051) <= ratio <= 2.0 / max(seconds - 0.00051, 1e-9)
    [*_, row] = script.paired_on_cpu(bench, swarms=8, particles=2, steps=3, seeds=1)
    assert "+0.00 %" in row or "-0.00 %" in row  # too few particles for a table


def test_the_plain_loop_asks_the_same_network(script):
    """Its scores are those of the family, condition by condition."""
    bench = script.prepare("cpu", script.Kind(16, training=2))
    x = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plain = script.plain_scores(bench.net)(x, 0.3)
        ours = bench.q.family.scores(x, torch.tensor(0.3), list(bench.q.family))
    torch.testing.assert_close(torch.stack(plain), ours, rtol=1e-4, atol=1e-4)
