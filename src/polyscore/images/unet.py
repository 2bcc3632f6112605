"""The U-Net and its noise, both of diffusers.

x_t = alpha_t x_0 + sigma_t eps with the linear betas 1e-4 ... 0.02 of 1000 times, rescaled so that alpha_T = 0; the
network predicts v = alpha_t eps - sigma_t x_0 from x_t, t and the number of its condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from polyscore.devices import plain_defaults
from polyscore.extras import load
from polyscore.images.recipe import UNet
from polyscore.rng import weights_drawn

TIMES = 1000
_SCHEDULER = {
    "num_train_timesteps": TIMES, "beta_start": 1e-4, "beta_end": 0.02, "beta_schedule": "linear",
    "prediction_type": "v_prediction", "rescale_betas_zero_snr": True, "timestep_spacing": "trailing",
    "clip_sample": False,
}  # fmt: skip


def diffusers() -> Any:
    """Return the module, or say how to get it."""
    return load("diffusers", "image models")


def config(shape: UNet, conditions: int) -> dict[str, Any]:
    """Return the arguments of diffusers' `UNet2DModel`; that of one condition is told none."""
    attends = [level in shape.attends for level in range(len(shape.channels))]
    return {
        "sample_size": shape.resolution, "in_channels": 3, "out_channels": 3, "layers_per_block": shape.layers,
        "block_out_channels": shape.channels, "num_class_embeds": conditions if conditions > 1 else None,
        "down_block_types": tuple("AttnDownBlock2D" if one else "DownBlock2D" for one in attends),
        "up_block_types": tuple("AttnUpBlock2D" if one else "UpBlock2D" for one in reversed(attends)),
        "attention_head_dim": shape.head, "norm_num_groups": shape.groups,
    }  # fmt: skip


def build(shape: UNet, conditions: int, seed: int = 0) -> nn.Module:
    """Return a fresh network on the CPU, the same for the same seed whatever was drawn before."""
    model = diffusers().UNet2DModel
    with weights_drawn(seed, "weights"):
        return model(**config(shape, conditions))


@plain_defaults()
def scheduler() -> Any:
    """Return diffusers' scheduler with the betas that networks are trained with."""
    return diffusers().DDPMScheduler(**_SCHEDULER)


def noise_scales(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return alpha and sigma of every time, both (1000,), in float32."""
    kept = scheduler().alphas_cumprod.double().to(device)
    return kept.sqrt().float(), (1 - kept).sqrt().float()


@dataclass(frozen=True)
class Cost:
    """What a network weighs.

    Attributes:
        weights: numbers it learns.
        multiply_adds: of one picture, forward.
    """

    weights: int
    multiply_adds: int


def cost(shape: UNet, conditions: int = 3) -> Cost:
    """Count weights and multiply-adds, without computing anything."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = diffusers().UNet2DModel(**config(shape, conditions))
        picture = torch.empty(1, 3, shape.resolution, shape.resolution)
        with FlopCounterMode(display=False) as counter:
            label = torch.zeros(1, dtype=torch.long) if conditions > 1 else None
            model(picture, torch.zeros(1), class_labels=label)
    return Cost(sum(p.numel() for p in model.parameters()), counter.get_total_flops() // 2)
