"""Keys and the code behind them: what a registered name stands for may change, and then the result is another."""

from __future__ import annotations

import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

import polyscore as ps
from polyscore.errors import PolyscoreError
from polyscore.experiments.checks import check_experiments
from polyscore.experiments.functions import CodeError, Function, Module
from polyscore.experiments.spec import load_spec, parse_spec

PLUG = """
from dataclasses import dataclass
import torch
import polyscore as ps
from helper_of_plug import SIZE
FACTOR = {factor}

@ps.distributions.KINDS.register("flat")
class Flat(ps.Density):
    def __init__(self): self.dim = 2
    def score(self, x, alpha=1.0, sigma=0.0): return -FACTOR * x
    def log_prob(self, x, alpha=1.0, sigma=0.0): return -FACTOR * x.square().sum(-1) / 2

@ps.samplers.KERNELS.register("shake")
@dataclass(frozen=True)
class Shake(ps.samplers.Kernel):
    def __call__(self, plan, state, i, z, u): return state

@ps.nn.NETWORKS.register("lin")
class Lin(ps.nn.Stack):
    def __init__(self, architecture, seeds):
        super().__init__(architecture, seeds)
        self.w = torch.nn.Parameter(torch.ones(len(seeds), 1, 1, architecture.dim))
    def predict(self, x, at): return FACTOR * x * self.w
"""
SPEC = """
families: {f: f.yaml, g: g.yaml}
samplers: {k: {kind: denoise, kernels: [shake]}}
experiments:
  own-distribution: {family: g, expression: a, runs: 1, particles: [1]}
  own-kernel: {family: f, expression: a, samplers: [k], runs: 1}
  own-network: {family: f, expression: a, models: [{model: separate, kind: lin, name: n}], train_sizes: [10],
                particles: [1], runs: 1}
  ours: {family: f, expression: a, runs: 1, particles: [1]}
"""
CODE = """
import sys; sys.path.insert(0, {folder!r}); import plug
from polyscore.experiments.spec import load_spec
for name, e in load_spec({folder!r} + "/s.yaml").items(): print(name, e.key(next(e.cells())))
"""


def keys(folder: Path, factor: float, size: int) -> dict[str, str]:
    """The first cell's key of every experiment, in a process of its own."""
    (folder / "plug.py").write_text(PLUG.format(factor=factor))
    (folder / "helper_of_plug.py").write_text(f"SIZE = {size}\n")
    (folder / "f.yaml").write_text("conditions: {a: {kind: gaussian, cov: [7, 1.3]}}\n")
    (folder / "g.yaml").write_text("conditions: {a: {kind: flat}}\n")
    (folder / "s.yaml").write_text(SPEC)
    command = [sys.executable, "-B", "-W", "ignore", "-c", CODE.format(folder=str(folder))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())


def test_a_changed_part_is_another_result(tmp_path):
    first, again = keys(tmp_path, 1.0, 3), keys(tmp_path, 1.0, 3)
    other, helped = keys(tmp_path, 2.0, 3), keys(tmp_path, 1.0, 4)
    assert first == again
    for name in ("own-distribution", "own-kernel", "own-network"):
        assert first[name] != other[name]
        assert first[name] != helped[name], "a module beside the named one counts too"
    assert first["ours"] == other["ours"] == helped["ours"]


def test_a_worker_refuses_another_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "worker_plug.py").write_text("A = 1\n")
    seen = Module("worker_plug", str(tmp_path)).seen()
    assert seen.digest
    assert seen.load().A == 1
    (tmp_path / "worker_plug.py").write_text("A = 2\n")
    with pytest.raises(CodeError, match="worker_plug must be the same wherever it runs"):
        seen.load()
    del sys.modules["worker_plug"]


class Mute(ps.Density):
    """A density that cannot be drawn from."""

    dim = 2

    def score(self, x, alpha=1.0, sigma=0.0):
        return -x

    def log_prob(self, x, alpha=1.0, sigma=0.0):
        return -x.square().sum(-1) / 2


ps.distributions.KINDS.register("mute-density")(Mute)


def test_what_cannot_be_sampled_is_refused_before_the_work(tmp_path):
    (tmp_path / "f.yaml").write_text("conditions: {a: {kind: mute-density}}\n")
    (tmp_path / "s.yaml").write_text(
        "families: {f: f.yaml}\nexperiments: {e: {family: f, expression: a, models: [analytic, conditional], runs: 1}}"
    )
    with pytest.raises(PolyscoreError, match="must have points to learn from; condition 'a'"):
        check_experiments(list(load_spec(tmp_path / "s.yaml").values()))


@pytest.mark.parametrize("size", ["width: 3000000", "depth: 30000000", "batch: 3000000000"])
def test_a_networks_own_size_is_asked_beforehand(tmp_path, size):
    (tmp_path / "f.yaml").write_text("conditions: {a: {kind: gaussian}}\n")
    spec = (
        "families: {f: f.yaml}\nexperiments: {e: {family: f, expression: a, runs: 1, train_sizes: [100], "
        f"models: [{{model: separate, {size}, name: big}}]}}}}"
    )
    (tmp_path / "s.yaml").write_text(spec)
    with pytest.raises(PolyscoreError, match=r"fit into memory|must be"):
        check_experiments(list(load_spec(tmp_path / "s.yaml").values()))
    assert parse_spec  # the text alone is no spec: families lie beside it


def test_a_compiled_module_beside_a_function_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes were read as Python: a spec that named a function beside it ended in a SyntaxError."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "quick_part.py").write_text("def two():\n    return 2\n")
    py_compile.compile(str(tmp_path / "quick_part.py"), cfile=str(tmp_path / "quick_part.pyc"))
    (tmp_path / "quick_part.py").unlink()
    (tmp_path / "beside_it.py").write_text("import quick_part\n\n\ndef make():\n    return quick_part.two()\n")
    function = Function.find("beside_it:make", str(tmp_path))
    assert function.load()() == 2 and len(function.digest) == 16
