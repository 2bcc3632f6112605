"""Stages as experiments: which settings, models and K, by which recipe; those of the paper, or of a YAML file.

stages:
  mine: [{settings: [ood-painting], models: [conditional], preset: "32", recipe: {steps: 1000}, particles: [1, 16]}]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from polyscore.errors import require, require_known, shorten
from polyscore.files import yaml_file
from polyscore.images.classifier import Lessons
from polyscore.images.experiment import PRECISIONS, ImageExperiment
from polyscore.images.presets import PRESETS
from polyscore.images.real import Real
from polyscore.images.recipe import MODELS, Recipe
from polyscore.paper.images.settings import BETA, OBJECTS, SETTINGS, ImageSetting, made, out_of_distribution, setting
from polyscore.rooms import Dataset
from polyscore.schema import Checked, Domain, choice, count, each, flag, number, optional
from polyscore.schema import setting as checked

_mapping = Domain("be a mapping", lambda value: isinstance(value, Mapping), dict)
_text = Domain("be a text", lambda value: isinstance(value, str))


@dataclass(frozen=True)
class Block(Checked):
    """Trainings of a stage that share their recipe.

    Attributes:
        settings, models: one training for each of their pairs.
        preset: of `polyscore.images.PRESETS`; `recipe` holds fields that win over it.
        times, widths: factors of the preset's steps and channels.
        rare: a factor of beta, the mass of rare classes out of distribution.
        variant: a name for what sets this block apart; needed where a factor is given.
        particles, conditions_alone, swarms, steps, reference, precision, lessons: as in `ImageExperiment`.
    """

    settings: tuple[str, ...] = checked(tuple(SETTINGS), each(choice(SETTINGS), 1))
    models: tuple[str, ...] = checked(("conditional",), each(choice(MODELS), 1))
    preset: str = checked("32", choice(PRESETS))
    recipe: Mapping[str, Any] = field(default_factory=dict, metadata={"domain": _mapping})
    times: float | None = checked(None, optional(number(0, 1000, ends=False)))
    widths: float | None = checked(None, optional(number(0, 16, ends=False)))
    rare: float | None = checked(None, optional(number(0, 15, ends=False)))
    variant: str = checked("", _text)
    particles: tuple[int, ...] = checked((1, 4, 16), each(count(), 1))
    conditions_alone: bool = checked(True, flag())
    swarms: int = checked(256, count(2))
    steps: int = checked(100, count())
    reference: int = checked(1024, count(16))
    precision: str = checked("auto", choice(PRECISIONS))
    lessons: Mapping[str, Any] = field(default_factory=dict, metadata={"domain": _mapping})

    def __post_init__(self) -> None:
        super().__post_init__()
        changed = [name for name in ("times", "widths", "rare") if getattr(self, name) is not None]
        require(self.variant or not changed, "variant", f"name a block with {', '.join(changed)}", "nothing",
                "Add a variant: of your own.")  # fmt: skip
        foreign = [name for name in self.settings if self.rare is not None and not _is_ood(name)]
        require(not foreign, "rare", f"go with {', '.join(f'ood-{other}' for other in OBJECTS)}", shorten(foreign),
                "Leave rare out of other settings.")  # fmt: skip

    def experiments(self, real: Real) -> list[ImageExperiment]:
        """Return its experiments on these rooms."""
        shared = ("particles", "conditions_alone", "swarms", "steps", "reference", "variant", "precision")
        fields = {name: getattr(self, name) for name in shared}
        fields["lessons"] = Lessons.parse(self.lessons, "lessons")
        recipe = self.whole_recipe()
        side = int(recipe["unet"]["resolution"])
        return [
            ImageExperiment(setting=name, mixtures=one.mixtures, exponents=one.exponents, resolution=side,
                            recipe=recipe | {"model": kind}, rooms=real.digest,
                            train_size=real.size, models=kind, **fields)
            for kind, name in itertools.product(self.models, self.settings)
            for one in [self._setting(name)]
        ]  # fmt: skip

    def _setting(self, name: str) -> ImageSetting:
        if self.rare is None:
            return setting(name)
        return made(name, out_of_distribution(BETA * self.rare), name.removeprefix("ood-"))

    def whole_recipe(self) -> dict[str, Any]:
        """Return every field of the recipe, JSON-ready."""
        recipe = PRESETS[self.preset]
        plain = recipe.to_dict() | {key: value for key, value in self.recipe.items() if key != "unet"}
        plain["unet"] = dict(plain["unet"]) | dict(self.recipe.get("unet", {}))
        if self.times is not None:
            plain["steps"] = max(1, round(self.times * plain["steps"]))
        if self.widths is not None:
            plain["unet"]["channels"] = [_multiple(self.widths * c, plain["unet"]) for c in plain["unet"]["channels"]]
        return _plain(Recipe.from_dict(plain).to_dict())


def _is_ood(name: str) -> bool:
    return name in {f"ood-{other}" for other in OBJECTS}


def _multiple(channels: float, unet: Mapping[str, Any]) -> int:
    """The nearest number of channels that groups and heads divide."""
    step = math.lcm(int(unet["groups"]), int(unet["head"]))
    return max(1, round(channels / step)) * step


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON has them: a description must hash alike before and after it was written."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def stages(path: Path | str | None = None) -> dict[str, list[Block]]:
    """Return the stages of a YAML file, or the paper's."""
    own = resources.files(__package__).joinpath("stages.yaml")
    text = own.read_text(encoding="utf-8") if path is None else yaml_file.read_text(path)
    content = yaml_file.parse(text)
    found = content.get("stages") if isinstance(content, Mapping) else None
    require(isinstance(found, Mapping) and found, "a file of stages", "hold `stages:`, lists of blocks by name",
            shorten(content, 80), "Write stages: {mine: [{settings: [ood-painting]}]}.")  # fmt: skip
    return {str(name): _blocks(str(name), given) for name, given in found.items()}  # type: ignore[union-attr]


def _blocks(name: str, given: Any) -> list[Block]:
    require(isinstance(given, Sequence) and not isinstance(given, str) and given, f"stage {name}",
            "be a list of blocks", shorten(given, 80), "Write a list: - {settings: [...]}.")  # fmt: skip
    return [Block.parse(block, f"a block of stage {name}") for block in given]


def stage(name: str, path: Path | str | None = None) -> list[Block]:
    """Return the blocks of a stage."""
    require_known(name, known := stages(path), "a stage")
    return known[name]


def experiments(blocks: Sequence[Block], dataset: Dataset) -> list[ImageExperiment]:
    """Return the experiments of blocks on a dataset."""
    real = Real(dataset, dataset.resolution)  # one for all: its hash reads every pixel
    return [one for block in blocks for one in block.experiments(real)]


def narrowed(blocks: Sequence[Block], **fields: Any) -> list[Block]:
    """Return blocks with other fields where one is given; settings and models are cut down to those that are named."""
    given = {name: value for name, value in fields.items() if value is not None}
    lists: dict[str, Any] = {name: given.pop(name) for name in ("settings", "models") if name in given}
    found = []
    for block in blocks:
        cut: dict[str, Any] = {
            name: tuple(v for v in getattr(block, name) if v in wanted) for name, wanted in lists.items()
        }
        if all(cut.values()):
            changes: dict[str, Any] = {**cut, **given}
            changes |= {
                name: {**getattr(block, name), **given[name]} for name in ("recipe", "lessons") if name in given
            }
            found.append(replace(block, **changes))
    require(found, "what is asked for", "be in the stage", shorten(lists), "Leave one of the options out.")
    return found
