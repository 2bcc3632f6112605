"""Streams that are told how many steps will be asked for: fewer numbers are drawn, and none of them is another."""

import pytest
import torch

from polyscore.errors import ArgumentError
from polyscore.rng import Stream, block_size, some_rows


def stream(shape, normal, dtype, steps, stop=70, block=None):
    block = block or block_size(torch.Size(shape).numel())
    return Stream(
        5, "noise", shape, 0, stop, block=block, normal=normal, dtype=dtype, device=torch.device("cpu"), steps=steps
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normal", [True, False], ids=["normal", "uniform"])
@pytest.mark.parametrize(("shape", "block"), [((1, 2), None), ((4, 2), None), ((1,), None), ((3, 5), 1), ((1, 2), 8),
                                              ((600, 3), None)])  # fmt: skip
@pytest.mark.parametrize("steps", [1, 2, 7, 63, 64, 65, 100])
def test_numbers_are_those_of_a_stream_without_an_end(shape, block, normal, dtype, steps):
    told, endless = (stream(shape, normal, dtype, count, block=block) for count in (steps, None))
    for i in range(steps):
        assert torch.equal(told(i), endless(i))


def test_few_steps_draw_few_numbers():
    assert stream((1, 2), True, torch.float32, 3)._buffer.shape == (3, 70, 1, 2)


def test_a_step_that_was_not_announced_is_refused():
    told = stream((1, 2), True, torch.float32, 70)
    told(69)
    with pytest.raises(ArgumentError, match="step must be below"):
        told(70)


def test_some_rows_are_all_or_as_many_as_are_enough_in_their_order():
    x = torch.arange(40)[:, None]
    assert some_rows(x, 21) is x
    some = some_rows(x, 20, seed=3)[:, 0]
    assert len(some) == 20 and bool((some.diff() > 0).all())
    assert torch.equal(some, some_rows(x, 20, seed=3)[:, 0]) and not torch.equal(some, some_rows(x, 20, seed=4)[:, 0])
