"""A control's rate is div c + <c, S> of the drift it says; its coefficients are those of least variance."""

import numpy as np
import pytest
import torch

from polyscore.samplers.control import Control, Frame, frame_of, least_variance, solved

KINDS = ("affine", "diagonal", "scalar")


def random_control(kind: str, dim: int, bumps: int, seed: int = 0) -> Control:
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    matrix = {"affine": (dim, dim), "diagonal": (dim,), "scalar": (1,)}[kind]
    width = torch.full((1,), 0.8, dtype=torch.float64)
    return Control(normal(dim), normal(dim).abs() + 0.5, normal(bumps, dim), width, normal(*matrix), normal(dim),
                   normal(bumps, dim))  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim, bumps", [(1, 3), (3, 5), (3, 0), (6, 2)])
def test_the_rate_is_the_divergence_of_the_drift_and_its_product_with_the_score(kind, dim, bumps):
    control = random_control(kind, dim, bumps)
    draw = torch.Generator().manual_seed(1)
    sizes = torch.logspace(-1, 2, 20, dtype=torch.float64)[:, None]  # inside of the ellipsoid and far outside
    x = control.centre + sizes * torch.randn(20, dim, generator=draw, dtype=torch.float64)
    score = torch.randn(20, dim, generator=draw, dtype=torch.float64)
    w = control.frame.held(x)[1]
    assert 0 < int((w < 1).sum()) < 20
    jacobians = torch.stack([torch.autograd.functional.jacobian(control.drift, point) for point in x])
    expected = jacobians.diagonal(dim1=1, dim2=2).sum(-1) + (control.drift(x) * score).sum(-1)
    torch.testing.assert_close(control.rate(x, score), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_drift_is_bounded_however_far_a_point_strays(kind):
    control = random_control(kind, 3, 4)
    far = torch.eye(3, dtype=torch.float64) * torch.tensor([[1e3], [1e6], [1e9]], dtype=torch.float64)
    drifts = control.drift(torch.cat([far, -far])).norm(dim=1)
    assert drifts.max() < 1e3 and bool(control.rate(far, 0 * far).isfinite().all())


@pytest.mark.parametrize("kind", KINDS)
def test_the_solution_says_what_the_control_will_cost(kind):
    draw = torch.Generator().manual_seed(2)
    x, score = (torch.randn(300, 2, generator=draw, dtype=torch.float64) for _ in range(2))
    rate, weights = torch.randn(300, generator=draw, dtype=torch.float64), torch.rand(300, generator=draw).double()
    weights = weights / weights.sum()
    frame = frame_of(x, weights, 4, torch.Generator().manual_seed(0))
    control = solved(frame, x, score, rate, weights, kind)

    def variance(values: torch.Tensor) -> float:
        return (weights @ (values - weights @ values).square()).item()

    best = variance(rate + control.rate(x, score))
    assert best < variance(rate)
    for name in ("matrix", "shift", "pushes"):  # no coefficient can be moved for the better
        part = getattr(control, name)
        for sign in (-1, 1):
            for k in range(part.numel()):
                other = part.clone()
                other.view(-1)[k] += sign * 0.02
                moved = variance(rate + control._replace(**{name: other}).rate(x, score))
                assert moved > best - 1e-4 * variance(rate)


def test_least_variance_is_weighted_regression():
    draw = np.random.default_rng(0)
    columns, rate, weights = draw.normal(size=(50, 3)), draw.normal(size=50), draw.random(50)
    weights /= weights.sum()
    design = np.column_stack([np.ones(50), columns]) * np.sqrt(weights)[:, None]
    expected = np.linalg.lstsq(design, -rate * np.sqrt(weights), rcond=None)[0][1:]
    found = least_variance(*(torch.from_numpy(part) for part in (columns, rate, weights)))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-3)  # a ridge of 1e-4


def test_bumps_of_points_that_coincide_are_finite():
    x, weights = torch.zeros(10, 2, dtype=torch.float64), torch.full((10,), 0.1, dtype=torch.float64)
    frame = frame_of(x, weights, 3, torch.Generator().manual_seed(0))
    assert isinstance(frame, Frame) and all(bool(part.isfinite().all()) for part in frame)
    assert frame.bumps.shape == (3, 2)  # every time has as many, as a table needs


def test_a_frame_lies_where_the_weight_is():
    x = torch.tensor([[0.0, 0.0], [4.0, 0.0], [4.0, 2.0], [90.0, 90.0]], dtype=torch.float64)
    weights = torch.tensor([0.2, 0.3, 0.5, 0.0], dtype=torch.float64)
    frame = frame_of(x, weights, 3, torch.Generator().manual_seed(0))
    torch.testing.assert_close(frame.centre, torch.tensor([3.2, 1.0], dtype=torch.float64))
    torch.testing.assert_close(frame.scale, torch.tensor([1 / 1.6, 1.0], dtype=torch.float64))
    assert sorted(frame.bumps.tolist()) == x[:3].tolist()


def test_a_frame_follows_its_points_into_other_units():
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.full((40,), 1 / 40, dtype=torch.float64)
    one, other = (frame_of(points, weights, 3, torch.Generator().manual_seed(1)) for points in (x, 8 * x + 3))
    for found, expected in zip(other, (8 * one.centre + 3, one.scale / 8, 8 * one.bumps + 3, 8 * one.width)):
        torch.testing.assert_close(found, expected)


def test_rates_that_are_no_numbers_are_not_steered_by():
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights, rate = torch.full((50,), 0.02, dtype=torch.float64), torch.full((50,), torch.inf, dtype=torch.float64)
    frame = frame_of(x, weights, 2, torch.Generator().manual_seed(0))
    assert bool((solved(frame, x, -x, rate, weights, "affine").drift(x) == 0).all())
