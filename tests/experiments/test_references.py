"""What samples are compared with: the paper's own method for what the paper composes, and no name decides it."""

from __future__ import annotations

import pytest
import torch

from polyscore.experiments.references import REFERENCES, Wanted, exact_points
from polyscore.experiments.sources import Source, Written
from polyscore.paper import experiment

OWN = Written("conditions: {a: {kind: mixture, means: [[-3.0], [2.0]]}, b: {kind: gaussian, cov: 4.0, dim: 1}}")


def wanted(source: Source, family: str, alone: bool = False, **exponents: float) -> Wanted:
    return Wanted(family, source, tuple(exponents.items()), alone, 500, 3, 4)


@pytest.mark.parametrize("name", ["mixture-id", "mixture-ood"])
def test_another_composition_of_the_papers_mixtures_is_compared_with_itself(name: str) -> None:
    asked = wanted(experiment(name).source, name, a1=0.5, a2=0.5)
    assert torch.equal(REFERENCES["paper"](asked), exact_points(asked))


@pytest.mark.parametrize("name", ["mixture-of-mine", "mixture-id", "mixture-ood"])
def test_a_family_of_ones_own_is_no_setting_whatever_its_name(name: str) -> None:
    for asked in (wanted(OWN, name, a=1.0, b=0.5), wanted(OWN, name, alone=True, a=1.0)):
        assert torch.equal(REFERENCES["paper"](asked), exact_points(asked))


def test_the_papers_composition_has_its_reference_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = wanted(experiment("mixture-ood").source, "mixture-ood", base=-1.0, a2=1.0, a1=1.0)
    monkeypatch.setattr("polyscore.paper.references._shared", lambda *which: which)
    assert REFERENCES["paper"](asked) == ("mixture-ood", 3, 500)
