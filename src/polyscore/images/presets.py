"""Recipes by name: the shape of each network, and how long it is trained.

Weights and multiply-adds a picture (forward; a training step takes three times as many) for three conditions:

    256    68.8 M    456 G     the U-Net of diffusers' size, batch 16, 50 epochs
    128    22.7 M     17 G     batch 64
    64     11.4 M    4.2 G     batch 128
    32      7.4 M    1.4 G     batch 256
    tiny    0.5 M   0.08 G     for two CPU cores: 32 x 32 pixels, shapes and colours
"""

from __future__ import annotations

import dataclasses
from typing import Any

from polyscore.errors import require_known
from polyscore.images.recipe import Recipe, UNet
from polyscore.registry import Registry

_SHORT: dict[str, Any] = {"learning_rate": 4e-4, "warm_up": 250, "clip": 1.0}

_TINY = UNet(32, (16, 32, 48), (2,), layers=1, head=16, groups=8)

PRESETS: Registry[Recipe] = Registry(
    "a preset",
    {
        "256": Recipe(unet=UNet()),
        "128": Recipe(unet=UNet(128, (64, 64, 128, 192, 256), (3, 4), head=32), steps=4000, batch=64, **_SHORT),
        "64": Recipe(unet=UNet(64, (64, 64, 128, 192), (2, 3), head=32), steps=3000, batch=128, **_SHORT),
        "32": Recipe(unet=UNet(32, (64, 96, 160), (1, 2), head=32), steps=2500, batch=256, **_SHORT),
        "tiny": Recipe(unet=_TINY, steps=400, batch=32, learning_rate=2e-3, warm_up=40, clip=1.0, held_out=8),
    },
)


def recipe_of(which: str | Recipe, **fields: Any) -> Recipe:
    """Return a preset's recipe, or the one given, with other values in some of its fields."""
    recipe = which if isinstance(which, Recipe) else PRESETS[which]
    for name in fields:
        require_known(name, Recipe.names(), "an option of train", "Leave it out.")
    return dataclasses.replace(recipe, **fields)
