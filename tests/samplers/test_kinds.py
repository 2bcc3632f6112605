"""Every kind of sampler: by name in specs and on the command line, on networks, and in the data's units."""

import inspect
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import polyscore as ps
from cases import F64, gaussian_family
from polyscore.cli import app
from polyscore.errors import ScoreError
from polyscore.experiments.driver import run as drive
from polyscore.experiments.spec import parse_spec
from polyscore.experiments.store import Store
from polyscore.samplers import build_sampler
from training.networks import families

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target of SuperDiff", "ignore:weight should", "ignore:swarms should", "ignore:K should be large",
    "ignore:the precision of the clean point", "ignore:log Z", "ignore:samples must stay", "ignore:traces should be",
)  # fmt: skip
FAMILY = Path(__file__).parents[2] / "examples" / "family.yaml"
KINDS = (
    "denoise",
    "feynman-kac",
    "annealed-langevin",
    "precision-weighted",
    "precision-feynman-kac",
    "superdiff-or",
    "superdiff-and",
)
every = pytest.mark.parametrize("kind", KINDS)


def short(kind):
    return build_sampler({"kind": kind, "steps": 20})


@every
def test_it_runs_from_the_command_line(kind, tmp_path):
    out = tmp_path / "x.npz"
    options = ["-n", "30", "--sampler", f"{{kind: {kind}, steps: 20}}", "--out", str(out), "--json"]
    done = CliRunner().invoke(app, ["sample", str(FAMILY), "a1 * a2", *options])
    assert done.exit_code == 0, done.output
    assert np.isfinite(np.load(out)["samples"]).all()
    said = json.loads(done.stdout)["warnings"]
    assert any("the target of" in warning for warning in said) == kind.startswith("superdiff")


def test_specs_hold_them(tmp_path):
    samplers = "".join(f"  {kind}: {{kind: {kind}, steps: 20}}\n" for kind in KINDS)
    shutil.copy(FAMILY, tmp_path / "family.yaml")
    spec = (
        f"families: {{mine: family.yaml}}\nsamplers:\n{samplers}protocol: {{swarms: 200}}\nexperiments:\n"
        f"  mine: {{family: mine, expression: a1 * a2, samplers: [{', '.join(KINDS)}], runs: 1, metrics: [sw2]}}\n"
    )
    store = Store(tmp_path / "store")
    outcome = drive(list(parse_spec(spec, folder=tmp_path).values()), store, device="cpu")
    assert outcome.missing == 0
    found = [record.results["sw2"] for record in Store(tmp_path / "store").records.values()]
    assert len(found) == len(KINDS) and len(set(found)) == len(KINDS) and np.isfinite(found).all()


@every
@pytest.mark.parametrize("shared", [True, False], ids=["one network", "a network each"])
def test_it_runs_on_networks(kind, shared):
    p = families(3, 2, shared)[0]
    run = short(kind).sample(p["c0"] * p["c1"] ** 0.5, 40, seed=5)
    assert run.samples.shape == (40, 2) and run.samples.isfinite().all()
    assert run.arithmetic != "closed form"


@every
def test_units_change_nothing_but_the_units(kind):
    inside = gaussian_family(2)
    units = torch.tensor([5.0, -3.0], dtype=F64), torch.tensor([2.0, 0.5], dtype=F64)
    outside = ps.Family(inside.members, units=units)
    x, y = (short(kind).sample(p["a"] * p["b"] ** 0.5, 50, seed=5, dtype=F64).samples for p in (inside, outside))
    torch.testing.assert_close(units[0] + units[1] * x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS[2:])
def test_scores_that_are_not_finite_are_named(kind):
    """By the condition and the time, as in every sampler, not by what linear algebra thinks of them."""

    def broken(x, t):
        return torch.where(t[:, None] < 0.5, torch.nan, -x)

    p = ps.Family({"good": ps.Learned(lambda x, t: -x, (2,), ps.VP(), "score"),
                   "bad": ps.Learned(broken, (2,), ps.VP(), "score")})  # fmt: skip
    with pytest.raises(ScoreError, match=r"condition 'bad' gives \d+ non-finite"):
        short(kind).sample(p["good"] * p["bad"], 20, seed=1)


def test_signatures_offer_what_is_taken():
    """`resampling=None`, no weights, is no option of a sampler that weighs; its signature must not say so."""
    for kind in (ps.FeynmanKac, ps.PrecisionFeynmanKac, ps.Controlled):
        assert "None" not in inspect.signature(kind).parameters["resampling"].annotation
        with pytest.raises(ValueError, match="resampling must"):
            kind(resampling=None)
