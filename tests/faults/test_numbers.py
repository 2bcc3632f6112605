"""Numbers that nobody can mean, where the work would take them: refused in words, before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import polyscore as ps
from polyscore import features, plots
from polyscore.errors import PolyscoreError
from polyscore.targets import OnGrid

FAMILY = ps.Family({"a": ps.Gaussian(cov=[3, 1]), "b": ps.Gaussian()})
POINTS = torch.arange(24.0).reshape(8, 3).sin()


@pytest.mark.parametrize("gamma", [10**400, float("nan"), float("inf"), 0, -1.0, True, "5", [], np.ones(2)], ids=str)
def test_rates_of_kernels(gamma: Any) -> None:
    with pytest.raises(PolyscoreError, match="gamma must be positive and finite"):
        ps.mmd2(POINTS, 2 * POINTS, gamma=gamma)
    assert ps.mmd2(POINTS, 2 * POINTS, gamma=10**20) == ps.mmd2(POINTS, 2 * POINTS, gamma=1e20)  # an int of torch's


@pytest.mark.parametrize("splits", [10**9, 10**400, 0])
def test_splits_of_features(splits: int) -> None:
    """A thousand million of them took hours."""
    with pytest.raises(PolyscoreError, match="splits must be a whole number of at least 1, and at most 1000"):
        features.frechet(POINTS, 2 * POINTS, extrapolated=True, splits=splits)


@pytest.mark.parametrize("cells", [10**9, 10**20, 0, -1, True, 2.0, float("nan"), "5", []], ids=str)
def test_cells_of_grids(cells: Any) -> None:
    """A thousand million of them took all memory; 0 was as many as by default."""
    with pytest.raises(PolyscoreError, match="cells"):
        OnGrid(FAMILY["a"] * FAMILY["b"], cells)


@pytest.mark.parametrize("method", [[], {}, 5, np.ones(2)], ids=str)
def test_methods_of_targets(method: Any) -> None:
    with pytest.raises(PolyscoreError, match="method must be one of closed form"):
        ps.exact(FAMILY["a"], method)


FIRST = pytest.param(0, marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a first GPU"))


@pytest.mark.parametrize("device", [FIRST, [], {}, -0.0, ""], ids=repr)
def test_a_device_that_is_false_is_no_default(device: Any) -> None:
    """0 is the first GPU; it meant wherever the family is."""
    with pytest.raises(PolyscoreError, match="device must name a device of this machine"):
        ps.Denoise(steps=20).sample(FAMILY["a"], 4, device=device)


@pytest.mark.parametrize("variables", [5, 0, object(), True], ids=["5", "0", "object", "True"])
def test_variables_of_pictures(variables: Any) -> None:
    with pytest.raises(PolyscoreError, match="variables must be 1 to 2 names or numbers"):
        plots.scatter(POINTS, variables=variables)
