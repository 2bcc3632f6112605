"""The page on causal models, executed: its blocks run in one session and print what the page says."""

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "causal.md"


def test_the_blocks_run_and_the_figures_are_the_pages(capsys):
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "causal.md", "exec"), names)  # our own page, not input
    run, double = names["run"], names["double"]
    # means of 2000 samples within 5 standard errors, three of them, and 0.03 for K = 16: false alarms 2e-6
    error = double.cov.diag().div(2000).sqrt()
    assert bool(((run.samples.mean(0) - double.mean).abs() < 5 * error + 0.03).all())
    printed = [float(n) for n in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", capsys.readouterr().out)]
    exact, estimate, evidence, divergence = printed[-4:]
    assert exact == pytest.approx(0, abs=1e-9) and estimate == pytest.approx(0, abs=0.03)
    stated = re.search(r"log Z is (\d\.\d+) instead of 0, and the stated double is (\d\.\d) nats", text)
    assert evidence == pytest.approx(float(stated[1]), abs=0.005)
    assert divergence == pytest.approx(float(stated[2]), abs=0.1)  # a mean over 4000 draws
    assert set(names["learned"]) == {"control", "A", "B"} and names["data"]["A"].shape == (1000, 2)
    assert torch.isfinite(names["bent"].distribution(names["one"], names["two"]).log_prob(names["data"]["B"])).all()
