"""A family whose conditions are those of a diffusers model, and whose points become images again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from polyscore.algebra import Composition, Family
from polyscore.errors import require
from polyscore.pipelines.denoiser import Denoiser, Told

Decoder = Callable[[Tensor], Tensor]


def pixels(x: Tensor) -> Tensor:
    """Return images in [0, 1] of those in [-1, 1]."""
    return (0.5 * x + 0.5).clamp(0, 1)


class Diffusers(Family):
    """Conditions of a diffusers model or pipeline.

    Args:
        members: as of any family.
        decoder: turns points `(n, *event)` into images `(n, channels, height, width)` in [0, 1].
        others: modules that move with the models: encoders, a VAE.
    """

    def __init__(
        self, members: Mapping[str, Any], decoder: Decoder = pixels, others: tuple[nn.Module, ...] = ()
    ) -> None:
        super().__init__(members)
        self.decoder, self.others = decoder, others

    @torch.no_grad()
    def decode(self, x: Tensor) -> Tensor:
        """Return the images of points `(..., *event)`, `(..., channels, height, width)` in [0, 1]."""
        shaped = isinstance(x, Tensor) and tuple(x.shape[-len(self.event) :]) == self.event
        require(shaped, "x", f"have points of shape {self.event} last", tuple(getattr(x, "shape", ())),
                "Draw noise of that shape, or sample by a sampler.")  # fmt: skip
        images = self.decoder(x.reshape(-1, *self.event))
        return images.view(*x.shape[: x.ndim - len(self.event)], *images.shape[1:])

    def to(self, device: torch.device | str | None = None, *args: Any, **options: Any) -> Diffusers:
        """Move models, encoders and VAE to a device; the rest as in `Family.to`."""
        super().to(device, *args, **options)
        for module in self.others if device is not None else ():
            module.to(device)
        return self


class _Encoded(dict[str, Any]):
    """Members by prompt, made when they are first asked for."""

    def __init__(self, group: Denoiser, encode: Callable[[str], Told]) -> None:
        super().__init__()
        self.group, self.encode = group, encode

    def __missing__(self, prompt: str) -> Any:
        self[prompt] = self.group.condition(Prompt(prompt, self.encode(prompt)))
        return self[prompt]


class Prompt(dict[str, Tensor]):
    """What a model is told of a prompt; it shows as the prompt."""

    def __init__(self, text: str, told: Told) -> None:
        super().__init__(told)
        self.text = text

    def __repr__(self) -> str:
        return repr(self.text)


class Prompted(Diffusers):
    """Conditions that are prompts, encoded when they are first asked for: `p["a couch"] / p[""]`.

    Args:
        encode: what the model is told of a prompt.
        named: conditions that are there from the start; the empty prompt where there are none.
    """

    def __init__(
        self, group: Denoiser, encode: Callable[[str], Told], decoder: Decoder, others: tuple[nn.Module, ...],
        named: Collection[str] = (),
    ) -> None:  # fmt: skip
        members = _Encoded(group, encode)
        known = [members[name] for name in named or [""]]
        super().__init__({"nothing": known[0]}, decoder, others)
        self.members = members

    def __getitem__(self, name: str) -> Composition:
        return Composition(self, {name: 1.0})

    def __contains__(self, name: object) -> bool:
        """Any text is a condition; it is encoded here, so that what is wrong with it is said at once."""
        return isinstance(name, str) and self.members[name] is not None
