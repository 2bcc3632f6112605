"""What decides the result of a training, in one place: the network's shape and how it learns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polyscore.errors import require
from polyscore.schema import Checked, Domain, choice, count, flag, number, optional, setting

MODELS = ("conditional", "separate")
PRECISIONS = ("auto", "bf16", "float32")


def _whole(least: int) -> Domain:
    """Tuples of whole numbers, which may repeat."""
    one = count(least)
    return Domain(
        f"list whole numbers of at least {least}",
        lambda value: isinstance(value, (list, tuple)) and all(map(one.holds, value)),
        lambda value: tuple(map(int, value)),
    )


@dataclass(frozen=True)
class UNet(Checked):
    """The shape of a U-Net for square pictures.

    Attributes:
        resolution: pixels a side; divisible by two for every level but the last.
        channels: of each level, the finest first; divisible by `groups`.
        attends: levels with attention, of which the finest is 0.
        layers: residual blocks a level.
        head: channels of one attention head.
        groups: of every group norm.
    """

    resolution: int = setting(256, count(8, 2048))
    channels: tuple[int, ...] = setting((128, 256, 256, 512), _whole(1))
    attends: tuple[int, ...] = setting((2,), _whole(0))
    layers: int = setting(2, count(1, 16))
    head: int = setting(8, count())
    groups: int = setting(32, count())

    def __post_init__(self) -> None:
        super().__post_init__()
        levels = len(self.channels)
        require(levels >= 1, "channels", "have at least one level", self.channels, "Write channels=(64, 128).")
        require(all(c % self.groups == 0 and c % self.head == 0 for c in self.channels), "channels",
                f"be multiples of groups ({self.groups}) and of head ({self.head})", self.channels,
                "Choose channels that both divide, or smaller groups and head.")  # fmt: skip
        require(self.resolution % 2 ** (levels - 1) == 0, "resolution",
                f"be divisible by {2 ** (levels - 1)}, for {levels} levels", self.resolution,
                "Use fewer levels, or another resolution.")  # fmt: skip
        require(all(level < levels for level in self.attends), "attends",
                f"name levels from 0 to {levels - 1}", self.attends,
                "Name levels of channels, the first is 0.")  # fmt: skip


@dataclass(frozen=True)
class Recipe(Checked):
    """A training recipe.

    Attributes:
        unet: the network's shape.
        model: "conditional" (one network told the condition) or "separate" (one network a condition, each with its
            share of the batch, so that the work is the same).
        steps: optimiser steps; None counts `epochs`.
        epochs: passes over as many pictures as there are.
        batch: pictures a step, of all conditions.
        learning_rate, weight_decay: of AdamW; the rate rises linearly over `warm_up` steps and falls to 0 as a cosine.
        warm_up: at most a tenth of the steps is used.
        ema: largest decay of the average of the weights, which is the result. After k steps the decay is
            min(ema, (1 + k) / (10 + k)): an average over about the last tenth of any short training, in which a
            constant 0.9999 would still hold 74 % of the random start after 3,000 steps.
        clip: largest norm of a gradient, or None.
        flip: mirror half of the pictures.
        precision: "bf16", "float32", or "auto": bf16 on a GPU, float32 on a CPU. Weights are float32 in all.
        held_out: pictures of each class, an eighth of them at most, that are not trained on but measured with.
    """

    unet: UNet = field(default_factory=UNet, metadata={"domain": Domain("be a UNet", lambda v: isinstance(v, UNet))})
    model: str = setting("conditional", choice(MODELS))
    steps: int | None = setting(None, optional(count(1, 99_999_999)))  # eight digits in a checkpoint's name
    epochs: int = setting(50, count(1, 1_000_000))
    batch: int = setting(16, count(1, 65536))
    learning_rate: float = setting(1e-4, number(0, 1, ends=False))
    weight_decay: float = setting(0.0, number(0, 1))
    warm_up: int = setting(500, count(0))
    ema: float = setting(0.9999, number(0, 1, ends=False))
    clip: float | None = setting(None, optional(number(0, ends=False)))
    flip: bool = setting(True, flag())
    precision: str = setting("auto", choice(PRECISIONS))
    held_out: int = setting(16, count())

    def length(self, pictures: int) -> int:
        """Return the optimiser steps for this many training pictures."""
        return self.steps or self.epochs * max(1, -(-pictures // self.batch))

    def decay(self, step: int) -> float:
        """Return the decay of the average after so many steps."""
        return min(self.ema, (1 + step) / (10 + step))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**plain, "unet": dataclasses.asdict(self.unet)}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Recipe:
        """Return the recipe that `to_dict`, or a file, described."""
        unet = UNet.parse(description.get("unet", {}), "unet")
        return cls.parse({**description, "unet": unet}, "recipe")
