"""Images that are none of the classes, made of real ones: what a classifier is shown so that it can say so.

Sampling that goes wrong gives noise, blur, flat colour, saturation, ghosts of several rooms, and torn or melted ones.
Images are `(n, 3, H, W)` in [-1, 1]; random numbers come from the generator.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from polyscore.registry import Registry

Spoil = Callable[[Tensor, Generator], Tensor]
SPOILS = Registry[Spoil]("a way to spoil images")


def uniform(like: Tensor, generator: Generator, low: float, high: float) -> Tensor:
    """Return one number an image, `(n, 1, 1, 1)`."""
    drawn = torch.rand(len(like), 1, 1, 1, generator=generator, device=like.device)
    return low + (high - low) * drawn


def normal(like: Tensor, generator: Generator) -> Tensor:
    """Return standard normal numbers like an image."""
    return torch.randn(like.shape, generator=generator, device=like.device)


@SPOILS.register("noise")
def noise(x: Tensor, generator: Generator) -> Tensor:
    """White noise over what is left of the image."""
    return uniform(x, generator, 0.0, 0.8) * x + uniform(x, generator, 0.45, 1.2) * normal(x, generator)


@SPOILS.register("cloud")
def cloud(x: Tensor, generator: Generator) -> Tensor:
    """Smooth noise without any room."""
    side = max(2, x.shape[-1] // 8)
    coarse = torch.randn(len(x), 3, side, side, generator=generator, device=x.device)
    smooth = F.interpolate(coarse, x.shape[-2:], mode="bilinear", align_corners=False)
    return uniform(x, generator, -0.5, 0.5) + uniform(x, generator, 0.2, 1.0) * smooth


@SPOILS.register("flat")
def flat(x: Tensor, generator: Generator) -> Tensor:
    """One colour, grey every other time, and hardly more: walls without a room."""
    colour = 0.3 * torch.randn(len(x), 3, 1, 1, generator=generator, device=x.device)
    tinted = (uniform(x, generator, 0, 1) < 0.5).float() * colour
    mean = uniform(x, generator, -1.0, 1.0) + tinted
    return mean + uniform(x, generator, 0.0, 0.12) * (x - x.mean((2, 3), keepdim=True))


@SPOILS.register("blur")
def blur(x: Tensor, generator: Generator) -> Tensor:
    """Nothing finer than a sixth of the image."""
    side = 4 + int(torch.randint(3, (1,), generator=generator, device=x.device))
    return F.interpolate(F.adaptive_avg_pool2d(x, side), x.shape[-2:], mode="bilinear", align_corners=False)


@SPOILS.register("ghosts")
def ghosts(x: Tensor, generator: Generator) -> Tensor:
    """The mean of five rooms; of one or two, what they are mirrored and upside down counts as rooms."""
    if len(x) < 3:  # five permutations of so few are often the same one
        turned = torch.cat([x, x.flip(-1), x.flip(-2), x.flip(-2, -1)])
        order = torch.randperm(len(turned), generator=generator, device=x.device)
        return torch.stack([turned[order.roll(k)[: len(x)]] for k in range(5)]).mean(0)
    orders = [torch.randperm(len(x), generator=generator, device=x.device) for _ in range(5)]
    return torch.stack([x[order] for order in orders]).mean(0)


@SPOILS.register("torn")
def torn(x: Tensor, generator: Generator) -> Tensor:
    """Sixteen pieces in another order."""
    step = x.shape[-1] // 4
    pieces = F.unfold(x[..., : 4 * step, : 4 * step], step, stride=step)
    order = torch.randperm(16, generator=generator, device=x.device)
    whole = F.fold(pieces[..., order], (4 * step, 4 * step), step, stride=step)
    return F.interpolate(whole, x.shape[-2:]) if 4 * step != x.shape[-1] else whole


@SPOILS.register("melted")
def melted(x: Tensor, generator: Generator) -> Tensor:
    """Every place shifted by a smooth field of a tenth of the image's side."""
    coarse = torch.randn(len(x), 2, 5, 5, generator=generator, device=x.device)
    shift = F.interpolate(coarse, x.shape[-2:], mode="bicubic", align_corners=False).permute(0, 2, 3, 1)
    line = torch.linspace(-1, 1, x.shape[-1], device=x.device)
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
    strength = uniform(x, generator, 0.25, 0.5).view(-1, 1, 1, 1)
    return F.grid_sample(x, grid + strength * shift, padding_mode="reflection", align_corners=False)


@SPOILS.register("combed")
def combed(x: Tensor, generator: Generator) -> Tensor:
    """Rows or columns in another order."""
    order = torch.randperm(x.shape[-1], generator=generator, device=x.device)
    rows = torch.rand(1, generator=generator, device=x.device) < 0.5
    return torch.where(rows, x[:, :, order], x[..., order])


@SPOILS.register("negative")
def negative(x: Tensor, generator: Generator) -> Tensor:
    """Colours of another world: all of them inverted, or some of them."""
    signs = 1 - 2 * (torch.rand(len(x), 3, 1, 1, generator=generator, device=x.device) < 0.5).float()
    all_of_them = (signs.sum(1, keepdim=True) == 3).float()  # none was inverted, so all are
    return x * (signs - 2 * all_of_them)


@SPOILS.register("burnt")
def burnt(x: Tensor, generator: Generator) -> Tensor:
    """Colours driven far over their range."""
    return uniform(x, generator, 4.0, 10.0) * (x - x.mean((2, 3), keepdim=True)) + uniform(x, generator, -1.0, 1.0)


def spoiled(x: Tensor, generator: Generator) -> Tensor:
    """Return images that are none of the classes: equal parts of every way to spoil these, in [-1, 1]."""
    parts = x.chunk(min(len(x), len(SPOILS)))
    ways = torch.randperm(len(SPOILS), generator=generator, device=x.device).tolist()
    names = list(SPOILS)
    return torch.cat([SPOILS[names[way]](part, generator) for way, part in zip(ways, parts, strict=False)]).clamp(-1, 1)


def varied(x: Tensor, generator: Generator) -> Tensor:
    """Return images as a model might draw them: mirrored, moved, lighter or darker, a little blurred and noisy.

    What tells classes apart must not be the last bit of a renderer's noise.
    """
    mirrored = torch.where(uniform(x, generator, 0, 1) < 0.5, x.flip(-1), x)
    moved = _moved(mirrored, generator)
    lit = moved * uniform(x, generator, 0.8, 1.2) + uniform(x, generator, -0.15, 0.15)
    soft = F.avg_pool2d(F.pad(lit, (1, 1, 1, 1), mode="reflect"), 3, stride=1)
    mixed = torch.lerp(lit, soft, uniform(x, generator, -1.0, 0.8).clamp_min(0))
    return (mixed + uniform(x, generator, 0.0, 0.08) * normal(x, generator)).clamp(-1, 1)


def _moved(x: Tensor, generator: Generator) -> Tensor:
    """Shifted and scaled by up to a twentieth of the side."""
    zoom = uniform(x, generator, 0.95, 1.05).view(-1)
    shift = 0.1 * torch.rand(len(x), 2, generator=generator, device=x.device) - 0.05
    zero = torch.zeros_like(zoom)
    places = torch.stack([zoom, zero, shift[:, 0], zero, zoom, shift[:, 1]], 1).view(-1, 2, 3)
    grid = F.affine_grid(places, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def to_tensor(images: Tensor) -> Tensor:
    """Return uint8 `(n, H, W, 3)` as float32 `(n, 3, H, W)` in [-1, 1]."""
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1


def log_odds(logits: Tensor) -> Tensor:
    """Return the log-odds of being none of the classes, whose logit is the last `(n, classes + 1)`."""
    return logits[:, -1] - torch.logsumexp(logits[:, :-1], 1)
