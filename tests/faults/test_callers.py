"""What a caller's model does, and must not change a result: writing into its input, answers that are no numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import polyscore as ps
from polyscore.errors import PolyscoreError

ONES, HALF = torch.ones(1, 2), torch.tensor(0.5)


class Writes(torch.nn.Module):
    """A model that writes into what it is given, as many layers with inplace=True do."""

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        t.mul_(1000)
        return x.neg_()


def test_a_model_that_writes_into_its_input_changes_no_point() -> None:
    """With one condition the model had the sampler's own points: deviations of 5e8 instead of 1."""
    models = Writes().eval(), lambda x, t: -x
    kinds: dict[str, Any] = {"event": (2,), "schedule": ps.VP(), "prediction": "score"}
    written, plain = (ps.Family({"a": ps.Learned(model, **kinds)})["a"] for model in models)
    x, t = torch.full((5, 2), 0.7), torch.full((5,), 0.3)
    assert torch.equal(written.score(x, t), plain.score(x, t)) and bool((x == 0.7).all()) and bool((t == 0.3).all())
    assert torch.equal(*(ps.Denoise(steps=6).sample(q, 20).samples for q in (written, plain)))


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool], ids=str)
def test_answers_that_are_no_real_numbers_are_refused(dtype: torch.dtype) -> None:
    """Whole numbers were taken for scores, and the imaginary parts of complex ones thrown away."""
    learned = ps.Learned(lambda x, t: (-x).to(dtype), event=(2,), schedule=ps.VP(), prediction="score")
    with pytest.raises(PolyscoreError, match="must return real numbers with a fraction; got torch"):
        ps.Family({"a": learned})["a"].score(ONES, HALF)
