"""Pictures and batches: who is drawn how often, what is held out, what is refused."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from images.flat import COLOURS, MIXTURES, RECIPE, flat
from polyscore.errors import ArgumentError
from polyscore.images import Mixtures, UNet
from polyscore.images.pool import REPEATS, Pool, read
from polyscore.images.presets import recipe_of
from polyscore.rooms import Dataset

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return flat(tmp_path_factory.mktemp("flat") / "data")


def pool_of(dataset, recipe=RECIPE, mixtures=MIXTURES, seed=0):
    return Pool(read(dataset, mixtures, recipe), mixtures, recipe, seed, CPU)


def shown(pixels):
    """The class of each picture, by its nearest colour."""
    means = pixels.float().mean((1, 2))
    colours = torch.tensor(list(COLOURS.values()), dtype=torch.float32)
    return torch.cdist(means, colours).argmin(1)


def test_batches_follow_the_mixtures(dataset):
    """Counts of (condition, class) in 60,000 draws: chi-square beyond 25 happens in 1 of 10,000 runs; classes without
    mass never come."""
    batch = pool_of(dataset).batch(0, 60_000)
    counts = torch.bincount(batch.labels * 3 + shown(batch.pixels), minlength=6).double()
    expected = 60_000 / 2 * torch.tensor(list(MIXTURES.conditions.values()), dtype=torch.float64).flatten()
    assert counts[expected == 0].sum() == 0
    seen = expected > 0
    assert ((counts - expected)[seen] ** 2 / expected[seen]).sum() < 25  # 4 degrees of freedom: 1e-4 is at 23.5
    assert abs(batch.mirrored.double().mean() - 0.5) < 0.01
    assert batch.times.min() == 0
    assert batch.times.max() == 999
    assert abs(batch.noise.mean()) < 1e-3  # 11 million numbers


def test_a_batch_is_a_function_of_seed_and_step(dataset):
    pool, again = pool_of(dataset), pool_of(dataset)
    pool.batch(3, 8)
    assert all(torch.equal(a, b) for a, b in zip(pool.batch(7, 8), again.batch(7, 8), strict=True))
    assert not torch.equal(pool.batch(7, 8).noise, pool.batch(8, 8).noise)
    assert not torch.equal(pool.batch(7, 8).noise, pool_of(dataset, seed=1).batch(7, 8).noise)


def test_held_out_pictures_are_not_trained_on(dataset):
    pictures = read(dataset, MIXTURES, RECIPE)
    assert [len(part) for part in pictures.held_out] == [1, 1, 1]  # an eighth of ten
    for trained, held in zip(pictures.trained, pictures.held_out, strict=True):
        assert len(trained) == 9
        assert not (trained[:, None] == held[None]).all((2, 3, 4)).any()


def test_held_out_shares_are_the_mixtures(dataset):
    pool = pool_of(dataset)
    batch, shares = pool.held_out()
    assert len(batch.pixels) == 3 * REPEATS
    sums = torch.stack([shares[:, shown(batch.pixels) == k].sum(1) for k in range(3)], 1)
    torch.testing.assert_close(sums, pool.masses)
    assert sorted((batch.times * 12 // 1000).tolist()) == list(range(12))  # one in each twelfth of the times


def test_no_picture_is_mirrored_where_flip_is_false(dataset):
    batch = pool_of(dataset, recipe_of(RECIPE, flip=False)).batch(0, 200)
    assert not batch.mirrored.any()


def test_larger_pictures_are_made_smaller_by_means_of_squares(tmp_path):
    large = flat(tmp_path / "large", 3, 16)
    pictures = read(large, MIXTURES, RECIPE)
    original = large.images("green").astype(float)
    expected = sum(original[:, i::2, j::2] for i in (0, 1) for j in (0, 1)) / 4
    found = np.concatenate([pictures.held_out[1], pictures.trained[1]])
    assert np.abs(found - expected).max() <= 0.5


def test_classes_without_mass_are_not_read(tmp_path):
    dataset = flat(tmp_path / "data")
    for file in (tmp_path / "data" / "blue").glob("*.png"):
        file.write_bytes(b"no picture")
    alone = Mixtures(tuple(COLOURS), {"base": (0.5, 0.5, 0.0)})
    assert read(dataset, alone, RECIPE).count == 18


@pytest.mark.parametrize("side", [4, 12])
def test_other_resolutions_are_refused(tmp_path, side):
    with pytest.raises(
        ArgumentError, match=rf"resolution must be 8, .*never larger; got {side}\. Choose another preset"
    ):
        read(flat(tmp_path / "data", 3, side), MIXTURES, RECIPE)


def test_missing_and_empty_classes_are_refused(tmp_path):
    dataset = flat(tmp_path / "data")
    other = Mixtures(("red", "couch"), {"base": (0.5, 0.5)})
    with pytest.raises(ArgumentError, match="one of the dataset's, red, green, blue; got 'couch'"):
        read(dataset, other, RECIPE)
    (tmp_path / "data" / "red" / "rooms.jsonl").write_text("")
    with pytest.raises(ArgumentError, match=r"class red must hold a room; got none\. Render or copy"):
        read(Dataset(tmp_path / "data"), MIXTURES, RECIPE)
    (tmp_path / "data" / "red" / "rooms.jsonl").unlink()
    with pytest.raises(ArgumentError, match=r"rooms\.jsonl"):
        read(Dataset(tmp_path / "data"), MIXTURES, RECIPE)


def test_a_class_of_one_picture_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="class red must hold at least 2 pictures"):
        read(flat(tmp_path / "data", 1), MIXTURES, RECIPE)


@pytest.mark.parametrize(("mode", "size"), [("L", (8, 8)), ("RGBA", (8, 8)), ("RGB", (8, 9))])
def test_pictures_of_other_modes_and_sizes_are_refused(tmp_path, mode, size):
    dataset = flat(tmp_path / "data")
    Image.new(mode, size).save(tmp_path / "data" / "red" / "000003.png")
    with pytest.raises(ArgumentError, match="must have 8 x 8 pixels in RGB"):
        read(dataset, MIXTURES, RECIPE)


def test_bad_recipes_are_refused():
    for bad, told in (
        ({"batch": 0}, "batch must be a whole number of at least 1"),
        ({"ema": 1.0}, "ema must be a number above 0, and below 1"),
        ({"model": "both"}, "model must be one of conditional, separate"),
        ({"bach": 3}, "Did you mean 'batch'"),
        ({"precision": "fp8"}, "precision must be one of"),
    ):
        with pytest.raises(ArgumentError, match=told):
            recipe_of("tiny", **bad)
    with pytest.raises(ArgumentError, match="a preset must be one of 256, 128, 64, 32, tiny; got '48'"):
        recipe_of("48")
    with pytest.raises(ArgumentError, match="multiples of groups"):
        UNet(32, (20,), ())
    with pytest.raises(ArgumentError, match="divisible by 4, for 3 levels"):
        UNet(30, (32, 32, 32), ())


def test_epochs_count_the_last_batch_however_few_pictures_are_in_it():
    recipe = recipe_of("tiny", steps=None, epochs=3, batch=16)
    assert [recipe.length(pictures) for pictures in (1, 16, 17, 48)] == [3, 3, 6, 9]
    assert recipe_of("tiny", steps=7).length(48) == 7


def test_recipes_survive_json():
    for name in ("256", "tiny"):
        recipe = recipe_of(name, model="separate")
        assert type(recipe).from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
