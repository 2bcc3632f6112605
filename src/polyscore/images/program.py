"""A network as the program that is trained: each row's loss, in the layout, precision and form that suit the device.

Compiling belongs to shapes, not to weights: one process keeps each program, and the next training of the same shape
puts its weights into the same network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from polyscore.devices import has_triton
from polyscore.errors import require
from polyscore.images.pool import Batch
from polyscore.images.recipe import UNet
from polyscore.images.unet import TIMES, build, noise_scales
from polyscore.notices import warn
from polyscore.pipelines.fast.network import quicken, restore

FORMS = ("auto", "plain", "kernels", "compiled")
_KINDS = 64  # shapes of which torch keeps compiled code, all networks of diffusers together
_TOLERANCE = 0.05  # of a loss in bf16
Losses = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class Program:
    """A network, and two ways to the losses (b,) of a batch.

    Attributes:
        network: of diffusers; its weights are those of the training that runs.
        losses: compiled where asked for, for one size of batch each.
        plain: as it is written, for any size.
        form: what came of the wish.
    """

    network: nn.Module
    losses: Losses
    plain: Losses
    form: str


def form_for(wanted: str, device: torch.device) -> str:
    """Return the form of a program on a device: kernels where a GPU and Triton are, unless told otherwise."""
    require(wanted in FORMS, "form", f"be one of {', '.join(FORMS)}", repr(wanted)[:60], "Leave form at auto.")
    if wanted != "auto":
        return wanted
    return "kernels" if device.type == "cuda" and has_triton() else "plain"


@lru_cache(maxsize=8)
def program(shape: UNet, conditions: int, device: torch.device, precision: str, form: str) -> Program:
    """Return the program of a shape; its network is shared by all who ask for it.

    Args:
        form: "plain" (as diffusers wrote it), "kernels" (blocks in one layout, norms by Triton: ready in seconds),
            "compiled" (blocks in one layout, by torch.compile: ready in minutes).
    """
    plain = _built(shape, conditions, device, precision)
    if form == "plain" or not _quickened(plain, form, _probe(shape, conditions, device)):
        return plain
    return replace(plain, losses=_compiled(plain.plain) if form == "compiled" else plain.plain, form=form)


def _built(shape: UNet, conditions: int, device: torch.device, precision: str) -> Program:
    network: Any = build(shape, conditions).to(device).train()
    if device.type == "cuda":
        network = network.to(memory_format=torch.channels_last)
    losses = _losses_of(network, conditions > 1, device, precision)
    return Program(network, losses, losses, "plain")


def _quickened(made: Program, form: str, probe: Batch) -> bool:
    """Give a network quick blocks, if they say what its own said: losses and gradients; otherwise its own come back."""
    expected = _answers(made, probe)
    try:
        quicken(made.network, kernels=form == "kernels")
        wrong = [f"{a:.4g} for {b:.4g}" for a, b in zip(_answers(made, probe), expected, strict=True)
                 if abs(a - b) > _TOLERANCE * abs(b)]  # fmt: skip
    except Exception as error:  # a compiler's, of any kind: a training need not fail for want of speed
        wrong = [f"{type(error).__name__}: {error}"[:200]]
    if wrong:
        warn(f"quick blocks should compute what diffusers' own do; got {wrong[0]}. These are used instead.")
        restore(made.network)
    return not wrong


def _answers(made: Program, probe: Batch) -> list[float]:
    """The losses of a probe, and the norm of their gradient."""
    losses = made.plain(probe)
    gradients = torch.autograd.grad(losses.sum(), list(made.network.parameters()))
    return [*losses.tolist(), float(torch.stack([g.norm() for g in gradients]).norm())]


def _probe(shape: UNet, conditions: int, device: torch.device) -> Batch:
    source, side = torch.Generator().manual_seed(0), shape.resolution
    pixels = torch.randint(256, (3, side, side, 3), generator=source, dtype=torch.uint8)
    times, noise = torch.tensor([10, TIMES // 2, TIMES - 1]), torch.randn(3, 3, side, side, generator=source)
    batch = Batch(pixels, torch.tensor([True, False, False]), torch.arange(3) % conditions, times, noise)
    return Batch(*(tensor.to(device) for tensor in batch))


def _losses_of(network: nn.Module, conditional: bool, device: torch.device, precision: str) -> Losses:
    alphas, sigmas = noise_scales(device)
    half = precision == "bf16" or (precision == "auto" and device.type == "cuda")
    kind = device.type

    def losses(batch: Batch) -> Tensor:
        """Mean over a picture of (v_hat - v)^2, for each row."""
        pixels, mirrored, labels, times, noise = batch
        clean = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
        clean = torch.where(mirrored[:, None, None, None], clean.flip(-1), clean)
        alpha, sigma = alphas[times][:, None, None, None], sigmas[times][:, None, None, None]
        noisy = alpha * clean + sigma * noise
        told = labels if conditional else None
        # No cache of casted weights: it would outlive the step inside of another autocast.
        with torch.autocast(kind, torch.bfloat16, enabled=half, cache_enabled=False):
            found = network(noisy, times, class_labels=told, return_dict=False)[0]
        return (found.float() - (alpha * noise - sigma * clean)).square().mean((1, 2, 3))

    return losses


def _compiled(losses: Losses) -> Losses:
    import torch._dynamo.config as settings

    limits: Any = settings
    limits.recompile_limit = max(limits.recompile_limit, _KINDS)
    return torch.compile(losses, dynamic=False)
