"""The classifier that counts: what it tells apart, what it calls none of the classes, and its files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from images.toys import CLASSES, draw
from polyscore.errors import PolyscoreError
from polyscore.files.tensors import FileError, read_tensors, write_tensors
from polyscore.images.classifier import Classifier, Lessons, Network, load_classifier, train_classifier
from polyscore.images.counting import rates
from polyscore.images.degenerate import SPOILS, log_odds, spoiled, to_tensor, varied
from polyscore.rng import derive, generator

SIDE = 16
QUICK = Lessons(images=128, width=4, batch=64, fine=False)


def images(count, seed):
    return np.concatenate([draw(n, count, SIDE, seed) for n in CLASSES]), np.repeat(np.arange(4), count)


@pytest.fixture(scope="module")
def classifier():
    lessons = Lessons(images=8000, width=8, batch=64, fine=False)
    return train_classifier(*images(60, 1), CLASSES, held_out=images(100, 2), lessons=lessons, device="cpu", seed=3)


def test_it_tells_the_classes_of_new_images_apart(classifier):
    x, y = images(50, 5)
    assert (classifier.verdicts(x) == y).mean() > 0.95 and classifier.accuracy() > 0.98
    table = classifier.confusion()
    assert table.shape == (4, 5) and table.sum() == 200  # half of what was held out: the other half set the threshold
    assert 0 <= classifier.false_alarms <= 0.06  # 1 % is meant; more than 12 of 200 once in 10^5
    some = ["couch", "empty"]
    assert (classifier.verdicts(draw("couch", 20, SIDE, 6), some) == 0).mean() > 0.9
    assert classifier.confusion(some).shape == (2, 3) and classifier.accuracy(some) > 0.98


def test_verdicts_on_held_out_images_are_counted():
    """Of two of each class one is right and one called none; one is right and one taken for the other."""
    logits = torch.tensor([[4.0, 0.0, 0.0], [0.0, 0.0, 9.0], [0.0, 4.0, 0.0], [4.0, 0.0, 0.0]])
    made = Classifier(Network(SIDE, 3, 4), ("one", "two"), SIDE, 2.0, logits, torch.tensor([0, 0, 1, 1]), QUICK)
    assert made.confusion().tolist() == [[1, 0, 1], [1, 1, 0]] and made.false_alarms == 0.25
    assert made.accuracy() == pytest.approx(2 / 3) and made.accuracy(["two"]) == 1


def test_the_threshold_is_set_by_images_that_measure_nothing(classifier):
    """By their share, 1 %, of the half that is not kept."""
    logits = classifier.logits(images(100, 2)[0])
    measured = (logits[:, None] - classifier.held_out).abs().amax(2).amin(1) < 1e-4
    assert int(measured.sum()) == 200
    assert classifier.threshold == pytest.approx(log_odds(logits[~measured]).quantile(0.99).item(), abs=1e-4)


def _unseen():
    """Degenerate images of kinds that are not trained on."""
    source, couch = np.random.default_rng(0), draw("couch", 40, SIDE, 7)
    chess = 255 * ((np.arange(SIDE)[:, None] // 2 + np.arange(SIDE) // 2) % 2)
    speckled = source.random((40, SIDE, SIDE, 1))
    return {
        "uniform noise": source.integers(0, 256, couch.shape), "grey": np.full(couch.shape, 128),
        "black": np.zeros(couch.shape), "chess board": np.broadcast_to(chess[None, :, :, None], couch.shape),
        "salt and pepper": np.where(speckled < 0.3, 255 * (speckled < 0.15), couch),
    }  # fmt: skip


@pytest.mark.parametrize("kind", list(_unseen()))
def test_degenerate_images_of_unseen_kinds_are_none_of_the_classes(classifier, kind):
    assert (classifier.verdicts(_unseen()[kind].astype(np.uint8)) == 4).mean() > 0.8


def test_it_is_a_function_of_its_seed_and_survives_a_file(classifier, tmp_path):
    lessons, rooms = Lessons(images=512, width=4, batch=64), images(12, 1)
    one, again, other = (
        train_classifier(*rooms, CLASSES, held_out=images(8, 2), lessons=lessons, device="cpu", seed=seed)
        for seed in (0, 0, 1)
    )
    assert one.digest() == again.digest() != other.digest()
    found = load_classifier(classifier.save(tmp_path / "c.safetensors"))
    x, _ = images(10, 8)
    assert (found.verdicts(x) == classifier.verdicts(x)).all() and found.digest() == classifier.digest()
    assert (found.confusion() == classifier.confusion()).all() and found.lessons == classifier.lessons
    (tmp_path / "c.safetensors").write_bytes((tmp_path / "c.safetensors").read_bytes()[:-7])
    with pytest.raises(PolyscoreError, match=r"c.safetensors must be a whole safetensors file|hold what was written"):
        load_classifier(tmp_path / "c.safetensors")


def test_every_way_to_spoil_changes_images_and_varying_hardly_does():
    x = to_tensor(torch.from_numpy(draw("couch+painting", 24, SIDE)))
    for name in SPOILS:
        found = SPOILS[name](x, generator(0, name))
        assert found.shape == x.shape and found.isfinite().all()
        assert (found.clamp(-1, 1) - x).abs().mean() > 0.08, name
        assert torch.equal(found, SPOILS[name](x, generator(0, name)))
    assert spoiled(x, generator(0)).shape == x.shape and spoiled(x[:3], generator(0)).shape == (3, 3, SIDE, SIDE)
    near = varied(x, generator(1))
    assert near.abs().max() <= 1 and torch.minimum((near - x).abs(), (near - x.flip(-1)).abs()).mean() < 0.2


def test_training_leaves_every_global_generator_alone(monkeypatch):
    seeded, before = [], torch.random.get_rng_state()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    train_classifier(*images(4, 1), CLASSES, held_out=images(4, 2), lessons=QUICK, device="cpu")
    assert torch.equal(before, torch.random.get_rng_state()) and seeded == []


def test_every_class_is_in_both_halves_of_what_is_held_out():
    """Four of each are enough: by chance alone, one set in seven would leave a class out."""
    for seed in range(20):
        found = train_classifier(*images(4, 1), CLASSES, held_out=images(4, 2), lessons=QUICK, device="cpu", seed=seed)
        assert len(found.truths) == 8 and np.bincount(found.truths, minlength=4).min() >= 2
        assert rates(found.confusion()).shape == (5, 5)


def test_halves_that_hold_every_class_are_drawn_by_chance_alone():
    """As those of stored results were."""
    held = images(40, 2)
    found = train_classifier(*images(4, 1), CLASSES, held_out=held, lessons=QUICK, device="cpu", seed=3)
    order = np.random.default_rng(derive(3, "classifier", "halves")).permutation(160)
    assert (found.truths.numpy() == held[1][order][80:]).all()


@pytest.mark.parametrize("count", [1, 2])
def test_ghosts_of_few_rooms_are_no_room(count):
    """Five permutations of so few are often the same, and their mean a room as it was."""
    x = to_tensor(torch.from_numpy(draw("couch+painting", count, SIDE)))
    for seed in range(40):
        found = SPOILS["ghosts"](x, generator(seed))
        assert found.shape == x.shape
        nearest = min((found - room).abs().mean((1, 2, 3)).min() for room in (x, x.flip(-1)) for room in room)
        assert nearest > 0.05


@pytest.mark.parametrize("count", [3, 9])
def test_ghosts_of_more_rooms_are_means_of_five(count):
    """As in the lessons of stored results: batches of 64 and 256 spoil parts of 3 and 9."""
    x = to_tensor(torch.from_numpy(draw("couch+painting", count, SIDE)))
    source = generator(0)
    five = torch.stack([x[torch.randperm(count, generator=source)] for _ in range(5)])
    assert torch.equal(SPOILS["ghosts"](x, generator(0)), five.mean(0))


def test_lessons_in_batches_too_small_to_spoil_are_refused():
    assert Lessons(batch=50).batch == 50
    with pytest.raises(PolyscoreError, match=r"batch must be a whole number of at least 50, .*got 49"):
        Lessons(batch=49)


def test_a_file_of_such_lessons_is_refused_by_name(tmp_path):
    lessons = Lessons(width=4)
    object.__setattr__(lessons, "batch", 32)  # as an older version took it
    taught = Classifier(Network(SIDE, 5, 4, True), CLASSES, SIDE, 0.0, torch.zeros(4, 5), torch.arange(4), lessons)
    with pytest.raises(PolyscoreError, match=r"c.safetensors must hold lessons .* got 32.* Train it again"):
        load_classifier(taught.save(tmp_path / "c.safetensors"))


def test_log_odds_are_those_of_the_softmax():
    logits = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    p = logits.softmax(1)[:, -1]
    torch.testing.assert_close(log_odds(logits), (p / (1 - p)).log())


@pytest.mark.parametrize("side", [8, 32, 48, 64, 128])
def test_networks_take_any_resolution(side):
    for fine in (False, True):
        assert Network(side, 7, 4, fine)(torch.zeros(2, 3, side, side)).shape == (2, 7)


def test_bad_images_are_refused(classifier):
    good = draw("couch", 4, SIDE)
    for bad, what in (
        (good.astype(np.float32), "float32"),
        (good[:, :8], r"8, 16, 3"),
        (good[0], r"uint8 \(16, 16, 3\)"),
    ):
        with pytest.raises(PolyscoreError, match=rf"images must be uint8 \(n, 16, 16, 3\); got .*{what}"):
            classifier.verdicts(bad)
    with pytest.raises(PolyscoreError, match="classes must be among empty, couch"):
        classifier.verdicts(good, ["sofa"])
    x, y = images(12, 1)
    with pytest.raises(PolyscoreError, match="show every class four times"):
        train_classifier(x, y, CLASSES, held_out=(x[:20], y[:20]), device="cpu")
    with pytest.raises(PolyscoreError, match="classes must be at least two names"):
        train_classifier(x, y, ["a"], held_out=(x, y), device="cpu")


@pytest.fixture(scope="module")
def written(classifier, tmp_path_factory):
    return read_tensors(classifier.save(tmp_path_factory.mktemp("written") / "c.safetensors"))


_NONE = object()


@pytest.mark.parametrize(("key", "value"), [
    *((key, _NONE) for key in ("classes", "resolution", "threshold", "lessons", "held_out", "truths")),
    ("classes", None), ("classes", 5), ("classes", ["a", "a", "b", "c"]), ("classes", [1, 2, 3, 4]),
    ("resolution", "x"), ("resolution", float("nan")), ("resolution", 10**9), ("resolution", []),
    ("threshold", None), ("threshold", float("nan")), ("threshold", float("inf")), ("threshold", 10**400),
    ("threshold", "x"), ("lessons", None), ("lessons", [1]), ("lessons", {"more": 1}), ("lessons", {"width": 1024}),
    ("held_out", torch.zeros(0)), ("held_out", torch.zeros(1, 5)), ("held_out", torch.full((4, 5), float("nan"))),
    ("truths", torch.zeros(0)), ("truths", torch.arange(4) + 100), ("truths", -torch.arange(4) - 1),
    ("network.head.bias", torch.full((5,), float("nan"))), ("network.head.bias", torch.zeros(5, dtype=torch.long)),
    ("network.head.bias", torch.zeros(5, dtype=torch.float16)), ("network.head.bias", torch.zeros(4)),
])  # fmt: skip
def test_a_file_that_makes_no_sense_is_refused_whatever_its_checksum(written, tmp_path, key, value):
    tensors, about = (dict(part) for part in written)
    if key in ("held_out", "truths") and isinstance(value, torch.Tensor) and value.numel() > 1:
        tensors |= {"held_out": torch.zeros(4, 5), "truths": torch.arange(4)}  # of one length
    place = tensors if key in tensors else about
    place.pop(key)
    place |= {} if value is _NONE else {key: value}
    write_tensors(tmp_path / "c.safetensors", tensors, about)
    with pytest.raises(FileError, match=r"c.safetensors must hold (a classifier as it was|lessons).*Train it again"):
        load_classifier(tmp_path / "c.safetensors")
