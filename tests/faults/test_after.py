"""What a second round of attacks got through: two fits in one folder, names that command a terminal, huge numbers."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import polyscore as ps
from cases import gaussian_family
from polyscore.cli import app
from polyscore.cli.fit import example_of
from polyscore.errors import ArgumentError, DegeneracyWarning, OutputError, PolyscoreError
from polyscore.files.atomic import held

TINY = ["--steps", "2", "--width", "4", "--depth", "1", "--batch", "8"]


def table(folder: Path, column: str = "x") -> Path:
    rows = [f"{c},{k}.5" for k in range(30) for c in "ab"]
    path = folder / "cells.csv"
    path.write_text("\n".join([f"c,{column}", *rows]) + "\n")
    return path


def run(*arguments: object):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_two_fits_cannot_share_a_folder(tmp_path):
    out = tmp_path / "RUN"
    with held(out / "model.safetensors"):
        done = run("fit", table(tmp_path), "-c", "c", "-o", out, *TINY)
        assert done.exit_code == 2 and "at a time; another does" in done.output
    with held(tmp_path / "t.safetensors"), pytest.raises(OutputError, match="at a time"):
        ps.fit({"a": torch.randn(9, 2, generator=torch.Generator().manual_seed(0))}, steps=1, width=4,
               checkpoint=tmp_path / "t")  # fmt: skip
    assert run("fit", table(tmp_path), "-c", "c", "-o", out, *TINY).exit_code == 0
    assert not list(out.glob(".*.lock"))


def test_the_next_command_is_one_that_works(tmp_path):
    out = tmp_path / "RUN"
    run("fit", table(tmp_path), "-c", "c", "-o", out, *TINY)
    done = run("sample", out, example_of(["a", "b"]), "-n", 4, "-K", 1, "--steps", 5, "-o", tmp_path / "s.csv")
    assert done.exit_code == 0, done.output
    assert example_of(["drug A", "B", "ctrl", "C"]) == '"drug A" * B / ctrl'


@pytest.mark.parametrize("name", ["\x1b]0;owned\x07x", "a\u202eb", "y" * 500])
def test_a_column_that_commands_the_terminal_is_refused(tmp_path, name):
    done = run("fit", table(tmp_path, name), "-c", "c", "-o", tmp_path / "RUN", *TINY)
    assert done.exit_code == 2 and "printable" in done.output
    assert "\x1b]" not in done.output and "\u202e" not in done.output
    with pytest.raises(PolyscoreError, match="variables"):
        ps.Family({"a": ps.Gaussian(cov=[1.0])}, variables=["\x1b[2J"])


@pytest.mark.parametrize("build", [
    lambda: ps.FeynmanKac(clip=10**40), lambda: ps.FeynmanKac(churn=10**20), lambda: ps.Denoise(churn=10**400),
    lambda: ps.Recipe(learning_rate=10**400), lambda: ps.Denoise(steps=5).sample(gaussian_family(2)["a"] ** 1e39, 4),
    lambda: ps.fit({"a": [[0.0], [1.0]]}, steps=1, width=10**400, progress=False),
])  # fmt: skip
def test_numbers_beyond_all_arithmetic_are_refused(build):
    with pytest.raises(ArgumentError, match="must"):
        build()


def test_an_option_that_cannot_be_shown_is_refused_without_a_traceback():
    command = Path(sys.executable).parent / "polyscore"
    done = subprocess.run([command, "--\x1b[2J"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "must be printable" in done.stderr
    assert "Traceback" not in done.stderr and "\x1b[2J" not in done.stderr


def test_sampling_does_not_care_for_the_default_device():
    q, sampler = gaussian_family(2)["a"], ps.FeynmanKac(2, 10)
    plain = sampler.sample(q, 30)
    with torch.device("meta"):
        assert torch.equal(sampler.sample(q, 30).samples, plain.samples)


class Wrong(ps.LinearFlow):
    """A schedule whose SDE is not that of its marginal."""

    def diffusion(self, t):
        return t.sqrt()


def test_a_schedule_that_contradicts_itself_is_refused():
    with pytest.raises(ArgumentError, match="diffusion\\^2 of Wrong must follow from its alpha and sigma"):
        ps.Family({"a": ps.Gaussian()}, schedule=Wrong())


def test_a_condition_named_by_a_number_is_told_how_to_be_written():
    p = ps.Family({"1": ps.Gaussian(), "2": ps.Gaussian()})
    with pytest.raises(PolyscoreError, match='stands in double quotes: "1"'):
        ps.parse("1 * 2", p)
    assert ps.parse('"1" * "2"', p).exponents == {"1": 1.0, "2": 1.0}


@pytest.mark.parametrize("deviation", [1e-3, 1e3])
def test_learned_scores_of_another_size_are_told(deviation):
    """Perfect scores of data 0.001 or 1000 wide: noise and steps are chosen for data about 1 wide."""
    schedule, part = ps.VP(), ps.Gaussian(cov=deviation**2)

    def score(x, t):
        return part.score(x, schedule.alpha(t), schedule.sigma(t))

    p = ps.Family({"a": ps.Learned(score, (2,), schedule, "score")})
    with pytest.warns(DegeneracyWarning, match="about 1 wide"):
        ps.Denoise().sample(p["a"], 100)


def test_samples_far_from_the_training_data_are_told():
    data = {"a": torch.randn(200, 2, generator=torch.Generator().manual_seed(1))}
    family = ps.fit(data, kind="vanilla", steps=1, width=4, progress=False)
    family.members["a"].group.network.last_bias.fill_(-8.0)
    with pytest.warns(DegeneracyWarning, match="lie where the data were|about 1 wide"):
        ps.Denoise().sample(family["a"], 100)


def test_a_mixture_whose_signal_is_left_keeps_its_rare_part():
    """5 % at -6 under a schedule that leaves three quarters of the signal; 4000 samples: five standard errors."""
    p = ps.Family({"x": ps.Mixture([[-6.0], [1.0]], cov=0.2, weights=[0.05, 0.95])}, ps.VP(0.1, 1))
    for sampler in (ps.FeynmanKac(4), ps.Denoise()):
        share = (sampler.sample(p["x"], 4000, seed=8).samples < -2).double().mean().item()
        assert share == pytest.approx(0.05, abs=5 * (0.05 * 0.95 / 4000) ** 0.5)


def test_units_of_closed_forms_do_not_move_the_evidence():
    p = ps.Family({"a": ps.Mixture([[-1.0], [1.0]], cov=0.3, weights=[0.3, 0.7]), "b": ps.Gaussian([0.2], cov=[1.5])},
                  ps.VP(0.1, 4), units=(torch.tensor([5.0]), torch.tensor([2.0])))  # fmt: skip
    q = p["a"] * p["b"] ** 0.5
    run = ps.FeynmanKac().sample(q, 1000, seed=1)
    assert run.total_log_evidence == pytest.approx(ps.exact(q).log_evidence, abs=0.03 + 4 * run.log_evidence_error)


@pytest.mark.parametrize("schedule", [ps.VP(), ps.LinearFlow(), ps.Cosine()], ids=str)
@pytest.mark.parametrize("mean, deviation", [(1000.0, 1.0), (170.0, 10.0), (0.0, 50.0)])
def test_wide_and_far_targets_are_not_shrunk_by_the_last_signal(schedule, mean, deviation):
    """4000 samples; four and a half standard errors, and 2 % of bias in the variance."""
    p = ps.Family({"a": ps.Gaussian([mean], cov=[deviation**2])}, schedule)
    x = ps.Denoise().sample(p["a"], 4000, dtype=torch.float64).samples
    assert x.mean().item() == pytest.approx(mean, abs=4.5 * deviation / 4000**0.5)
    assert x.var().item() / deviation**2 == pytest.approx(1, abs=0.02 + 4.5 * (2 / 4000) ** 0.5)


def test_evidence_counts_the_last_signal_where_w_is_not_one():
    p = ps.Family({"a": ps.Gaussian([0.0] * 20, cov=1.0), "b": ps.Gaussian([0.1] * 20, cov=1.0)}, ps.LinearFlow())
    q = p["a"] * p["b"] ** 0.5
    run = ps.FeynmanKac(64).sample(q, 50)
    assert run.total_log_evidence == pytest.approx(ps.exact(q).log_evidence, abs=0.03 + 4 * run.log_evidence_error)


def test_k_that_is_too_small_is_told_by_the_evidence_itself():
    """At K = 2 a mean is 0.2 deviations off, and weighting swarms by their evidence puts it right."""
    p = ps.Family({"u": ps.Gaussian([1.2, -0.4], [[0.9, 0.3], [0.3, 0.5]]), "v": ps.Gaussian([-0.3, 0.8], [0.6, 1.4]),
                   "w": ps.Gaussian([0.1, 0.1], [1.7, 1.9])})  # fmt: skip
    q = ps.parse("u^0.9 * v^0.75 / w^0.4", p)
    exact = ps.exact(q).gaussian.mean
    with pytest.warns(DegeneracyWarning, match="a bias of about that size is left by K = 2"):
        run = ps.FeynmanKac(2).sample(q, 3000)
    weights = torch.softmax(run.log_evidence.double(), 0)
    better = (weights[:, None] * run.samples.double()).sum(0)
    plain = run.samples.double().mean(0)
    assert (plain - exact).abs().max() > 0.1 > 0.05 > (better - exact).abs().max()
    assert not ps.FeynmanKac(32).sample(q, 1000).findings


def test_denoise_is_not_approved_of_what_it_cannot_know():
    q = ps.base_composition(gaussian_family(2))
    assert "nothing is known" in ps.Denoise().sample(q, 50).summary()
    with pytest.warns(DegeneracyWarning, match="fine enough"):
        coarse = ps.FeynmanKac(4, 8).sample(gaussian_family(2)["a"], 50)
    assert any("fine enough" in finding for finding in coarse.findings) and "fine enough" in coarse.summary()


def test_a_lock_that_was_taken_away_keeps_nobody_out_and_is_not_believed(tmp_path, monkeypatch):
    """Who ends takes the lock's file away; one who had opened it before would hold a file that nobody else sees."""
    path, lock = tmp_path / "x.json", tmp_path / ".x.json.lock"

    def just_before(handle, operation):
        monkeypatch.setattr("polyscore.files.atomic.fcntl.flock", flock)
        lock.unlink()  # the last holder ends here
        flock(handle, operation)

    flock = fcntl.flock
    monkeypatch.setattr("polyscore.files.atomic.fcntl.flock", just_before)
    with held(path):
        assert lock.exists()
        with pytest.raises(OutputError, match="at a time"), held(path):
            pass
    assert not lock.exists()
