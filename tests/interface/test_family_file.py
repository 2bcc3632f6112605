"""Families from YAML: what is read is what was written, and errors name the place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import polyscore as ps
from polyscore.algebra.family_file import load_family, parse_family
from polyscore.errors import PolyscoreError

EXAMPLE = Path(__file__).parents[2] / "examples" / "family.yaml"


def test_example_file_is_the_family_it_describes() -> None:
    family = load_family(EXAMPLE)
    assert list(family) == ["a1", "a2", "base", "twin"]
    assert family.schedule == ps.VP(0.1, 20.0)
    assert torch.equal(family["a1"].distribution("a1").cov, torch.tensor([[10.0, 0], [0, 1]], dtype=torch.float64))
    twin = family["twin"].distribution("twin")
    assert isinstance(twin, ps.Mixture) and twin.means.tolist() == [[-2, 0], [2, 0]]
    assert twin.weights.tolist() == [0.5, 0.5]


def test_schedule_is_optional_and_may_be_a_name() -> None:
    text = "conditions: {a: {kind: gaussian}}"
    assert parse_family(text).schedule == ps.VP()
    assert parse_family("schedule: Cosine\n" + text).schedule == ps.Cosine()
    assert parse_family("schedule: {kind: DDPM, zero_snr: true}\n" + text).schedule == ps.DDPM(zero_snr=True)


def test_full_covariances_and_dimensions_are_passed_on() -> None:
    family = parse_family(
        "conditions:\n  a: {kind: gaussian, cov: [[2, 0.5], [0.5, 1]]}\n  b: {kind: gaussian, dim: 2}"
    )
    assert family["a"].distribution("a").cov[0, 1].item() == pytest.approx(0.5)
    assert family.event == (2,)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("conditions: [1, 2", ["valid YAML", "line 1"]),
        ("conditions:\n  a: {kind: gaussian\n  b: {kind: gaussian}\n", ["valid YAML", "line 3"]),
        ("", ["mapping", "nothing", "conditions"]),
        ("schedule: VP", ["must have `conditions`"]),
        ("conditions: {}", ["at least one entry", "nothing"]),
        ("condition: {a: {kind: gaussian}}", ["'condition'", "Did you mean 'conditions'?"]),
        ("conditions: {a: {kind: gausian}}", ["'gausian'", "Did you mean 'gaussian'?", "'a'"]),
        ("conditions: {a: {kind: gaussian, covv: 2}}", ["'covv'", "Did you mean 'cov'?"]),
        ("conditions: {a: {cov: 2}}", ["'a'", "must have a kind"]),
        ("conditions: {a: {kind: mixture}}", ["'a'", "must have means"]),
        ("conditions: {a: {kind: gaussian, cov: -1}}", ["'a'", "positive definite", "-1"]),
        ("conditions: {a: {kind: gaussian, cov: wide}}", ["'a'", "cov must be", "wide"]),
        ("conditions: {a: {kind: [gaussian]}}", ["kind of condition 'a'", "must be one of"]),
        ("conditions: {a: 3}", ["condition 'a' must be a mapping", "3"]),
        ("conditions: {a: {kind: gaussian}, a: {kind: gaussian}}", ["the key 'a' stands twice", "line 1"]),
        ("conditions: {a: {kind: gaussian}, b: {kind: gaussian, dim: 3}}", ["one shape", "(2,)", "(3,)"]),
        ("schedule: {kind: VPP}\nconditions: {a: {kind: gaussian}}", ["'VPP'", "Did you mean 'VP'?"]),
        ("schedule: {kind: VP, beta: 1}\nconditions: {a: {kind: gaussian}}", ["beta_max", "beta"]),
        ("schedule: {kind: VP, beta_min: low}\nconditions: {a: {kind: gaussian}}", ["schedule", "low"]),
    ],
)
def test_errors_name_the_rule_the_value_and_the_file(text: str, parts: list[str]) -> None:
    with pytest.raises(PolyscoreError) as caught:
        parse_family(text, "mine.yaml")
    message = str(caught.value)
    assert message.startswith("mine.yaml: ")
    for part in parts:
        assert part in message, message


def test_missing_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PolyscoreError, match="must be readable"):
        load_family(tmp_path / "none.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(PolyscoreError, match="not UTF-8"):
        load_family(binary)
