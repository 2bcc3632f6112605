"""A dataset of flat pictures: each class has a colour of its own, and noise."""

from pathlib import Path

import numpy as np
from PIL import Image

from polyscore.images import Mixtures, Recipe, UNet
from polyscore.rooms import Dataset
from polyscore.rooms.dataset import Record, write_about, write_lines

COLOURS = {"red": (220, 40, 30), "green": (30, 200, 60), "blue": (20, 40, 210)}
SHAPE = UNet(8, (8, 16), (1,), layers=1, head=8, groups=4)
RECIPE = Recipe(unet=SHAPE, steps=6, batch=6, learning_rate=2e-3, warm_up=2, clip=1.0, held_out=2)
MIXTURES = Mixtures(tuple(COLOURS), {"base": (0.6, 0.4, 0.0), "a": (0.1, 0.2, 0.7)})


def picture(name: str, index: int, side: int) -> np.ndarray:
    noise = np.random.default_rng([index, len(name)]).integers(-20, 21, (side, side, 3))
    return np.clip(np.array(COLOURS[name]) + noise, 0, 255).astype(np.uint8)


def flat(path: Path, count: int = 10, side: int = 8) -> Dataset:
    for name in COLOURS:
        (path / name).mkdir(parents=True)
        lines = [Record(f"{k:06}.png", name, k, name, {}, None).to_dict() for k in range(count)]
        for k in range(count):
            Image.fromarray(picture(name, k, side)).save(path / name / f"{k:06}.png")
        write_lines(path / name, lines)
    about = {"source": "flat", "seed": 0, "resolution": side, "classes": dict.fromkeys(COLOURS, count)}
    write_about(path, about)
    return Dataset(path)
