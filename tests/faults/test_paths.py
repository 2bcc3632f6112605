"""Names that no file system takes are refused in words, before the work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import polyscore as ps
from images.flat import MIXTURES, RECIPE, flat
from polyscore import plots, rooms
from polyscore.errors import PolyscoreError
from polyscore.experiments.sources import find_source

NAMES = {"long": "x" * 300, "longer": "x" * 5000, "deep": "y/" * 3000 + "x", "nul": "a\0b", "half a pair": "\ud800"}
DATA = {name: torch.randn(30, 2, generator=torch.Generator().manual_seed(k)) for k, name in enumerate("ab")}
SMALL: dict[str, Any] = {"kind": "vanilla", "steps": 1, "width": 4, "depth": 1, "progress": False}


def composed() -> ps.Composition:
    return ps.Family({"a": ps.Gaussian()})["a"]


USES: dict[str, Callable[[str, Path], Any]] = {
    "table": lambda name, here: ps.fit(f"{name}.csv", condition_column="c"),
    "checkpoint": lambda name, here: ps.fit(DATA, checkpoint=name, **SMALL),
    "save": lambda name, here: ps.fit(DATA, **SMALL).save(name),
    "samples": lambda name, here: ps.Denoise(steps=20).sample(composed(), 4).save(f"{name}.csv"),
    "picture": lambda name, here: plots.scatter(torch.eye(3), path=f"{name}.png"),
    "spec": lambda name, here: find_source(name, here),
    "diffusers": lambda name, here: ps.from_diffusers(name),
    "selector": lambda name, here: rooms.Selector.load(name),
    "images": lambda name, here: ps.images.load(name),
    "pack": lambda name, here: rooms.pack(flat(here / "flat", 2), name),
    "train": lambda name, here: ps.images.train(flat(here / "flat", 2), MIXTURES, name, recipe=RECIPE, device="cpu"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::polyscore.errors.PolyscoreWarning")
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("use", USES)
def test_names_that_no_system_takes_are_our_errors(use: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(PolyscoreError) as caught:
        USES[use](name, tmp_path)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1200
