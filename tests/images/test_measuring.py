"""Distances of images by hand: which rooms they are compared with, whose images count, and the jackknife's error."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from polyscore.features import kernel_distance
from polyscore.images.measuring import Yardstick, _drawn

MASSES = {"one": 0.7, "two": 0.0, "three": 0.3}


def rooms(count=40, shift=0.0, seed=0):
    return np.random.default_rng(seed).normal(shift, 1.0, (count, 3)).astype(np.float32)


@pytest.fixture
def yardstick():
    images = {name: rooms(40, 2.0 * k, k) for k, name in enumerate(MASSES)}
    return Yardstick(SimpleNamespace(images=images), None, lambda x: np.asarray(x), reference=30)


def test_warp_is_the_mean_by_counts_with_the_jackknifes_error(yardstick):
    """Of classes with eight images or more; each eighth group left out, sqrt(7 / 8 sum of squares about the mean)."""
    shown = ["one"] * 24 + ["two"] * 8 + ["three"] * 7
    seen, real = rooms(39, 0.4, 9), {name: yardstick._of_class(name, 5) for name in ("one", "two")}
    found = yardstick._warp(seen, shown, MASSES, 5)

    def far(rows, name):
        return kernel_distance(torch.from_numpy(rows), torch.from_numpy(real[name]))

    one, two = seen[:24], seen[24:32]
    assert set(found) == {"kernel one", "kernel two", "warp", "warp error"}
    assert found["kernel one"] == far(one, "one") and found["kernel two"] == far(two, "two")
    assert found["warp"] == pytest.approx((24 * far(one, "one") + 8 * far(two, "two")) / 32)
    assert found["kernel one"] != pytest.approx(found["kernel two"], rel=0.2)
    left = []
    for k in range(8):
        parts = [np.array([x for i, x in enumerate(rows) if i % 8 != k]) for rows in (one, two)]
        left.append((24 * far(parts[0], "one") + 8 * far(parts[1], "two")) / 32)
    squares = sum((value - np.mean(left)) ** 2 for value in left)
    assert found["warp error"] == pytest.approx(np.sqrt(7 / 8 * squares))


def test_images_that_are_none_of_the_classes_are_of_no_class(yardstick):
    found = yardstick._distances(rooms(10), np.full(10, len(MASSES)), MASSES, 1)
    assert {"frechet", "kernel"} <= set(found) and "warp" not in found


def test_rooms_come_again_only_once_all_have_come_and_in_an_order_of_their_class(yardstick):
    order = yardstick._order("one", 90, 3)
    assert sorted(order[:40]) == sorted(order[40:80]) == list(range(40)) and order[:40] != order[40:80]
    assert order != yardstick._order("three", 90, 3) and order != yardstick._order("one", 90, 4)
    assert order[:7] == yardstick._order("one", 7, 3)
    asked = yardstick.rooms(["one", "three", "one"], 3)
    one, three = (yardstick.real.images[name] for name in ("one", "three"))
    expected = [one[order[0]], three[yardstick._order("three", 1, 3)[0]], one[order[1]]]
    np.testing.assert_array_equal(asked, expected)


def test_a_class_is_compared_with_as_many_rooms_as_the_reference_has(yardstick):
    assert len(yardstick._of_class("one", 0)) == 30
    yardstick.reference = 1024
    assert len(yardstick._of_class("one", 0)) == 40


def test_classes_are_drawn_by_their_masses():
    """Of 2000 at 0.3 between 500 and 700: 1 in 10^21 by chance."""
    drawn = _drawn(MASSES, 2000, 1)
    assert "two" not in drawn and 500 < drawn.count("three") < 700
