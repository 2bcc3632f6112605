"""Toy rooms whose exact distribution is known: a class is a template plus noise, so its scores have closed forms."""

from __future__ import annotations

import numpy as np
import torch

import polyscore as ps
from polyscore.models.group import Group
from polyscore.rooms import pictures
from polyscore.rooms.dataset import Dataset, write_about, write_lines

CLASSES = ("empty", "couch", "painting", "couch+painting")
WIDTH = 0.15  # deviation of a pixel


def templates(side: int) -> torch.Tensor:
    """Return one image a class, (4, 3, side, side): a block for a couch below, one for a painting above."""
    plain = torch.full((4, 3, side, side), 0.2)
    plain[..., 3 * side // 4 :, :] -= 0.3  # a floor
    plain[..., : side // 2, : side // 4] += 0.4  # a window
    low, high, third = slice(side // 2, None), slice(0, side // 2), slice(side // 4, 3 * side // 4)
    for couch in (1, 3):
        plain[couch, :, low, third] = torch.tensor([-0.1, 0.2, 0.5])[:, None, None]
    for painting in (2, 3):
        plain[painting, :, high, third] = torch.tensor([0.5, -0.1, 0.2])[:, None, None]
    return plain


class Exact(Group):
    """The scores of mixtures of templates, noised."""

    def __init__(self, mixtures, side, schedule=None):
        super().__init__((3, side, side), schedule or ps.VP())
        self.means, self.mixtures = templates(side), mixtures

    def scores(self, x, t, members):
        at = t.reshape(*t.shape, *([1] * (x.ndim - t.ndim))) if t.ndim else t
        alpha, sigma = self.schedule.alpha(at), self.schedule.sigma(at)
        variance = (alpha * WIDTH) ** 2 + sigma**2
        away = x.unsqueeze(0) - alpha * self.means.view(4, *([1] * (x.ndim - 3)), *self.event)
        logs = -(away.square() / (2 * variance)).sum((-3, -2, -1), keepdim=True)
        found = []
        for member in members:
            masses = torch.tensor(self.mixtures.conditions[member.index]).log().view(4, *([1] * x.ndim))
            found.append(-(torch.softmax(logs + masses, 0) * away).sum(0) / variance)
        return torch.stack(found)


def family(mixtures, side=8, schedule=None):
    group = Exact(mixtures, side, schedule)
    return ps.Family({name: group.condition(name) for name in mixtures.conditions})


def draw(name: str, count: int, side: int, seed: int = 0) -> np.ndarray:
    """Return images of one class, uint8 (count, side, side, 3)."""
    source = np.random.default_rng([seed, CLASSES.index(name)])
    clean = templates(side)[CLASSES.index(name)].permute(1, 2, 0).numpy()
    noisy = clean + WIDTH * source.standard_normal((count, side, side, 3))
    return np.rint((noisy.clip(-1, 1) + 1) * 127.5).astype(np.uint8)


def dataset(folder, count=40, side=16) -> Dataset:
    """Write a dataset of toy rooms."""
    for name in CLASSES:
        lines = []
        for index, image in enumerate(draw(name, count, side)):
            line = {
                "file": f"{index:06}.png",
                "class": name,
                "index": index,
                "shows": name,
                "objects": {},
                "flaw": None,
            }
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / line["file"]).write_bytes(pictures.png(image, line))
            lines.append(line)
        write_lines(folder / name, lines)
    write_about(folder, {"source": "toy", "seed": 0, "resolution": side, "classes": dict.fromkeys(CLASSES, count)})
    return Dataset(folder)
