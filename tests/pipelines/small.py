"""Small models: exact ones of Gaussians behind the interface of diffusers, and random ones of its own classes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler, UNet2DModel
from torch import nn

from cases import spd, vector

PARTS = {"a": (vector(3, 21, 0.8), spd(3, 22, 1.2)), "b": (vector(3, 23, 0.8), spd(3, 24, 0.8)),
         "base": (vector(3, 25, 0.5), spd(3, 26, 2.0, floor=1.5))}  # fmt: skip


class GaussianNet(nn.Module):
    """What a perfect network of Gaussians in three dimensions would predict, told a class and a timestep.

    Written with the posterior mean of x_0 alone, by linear algebra: it shares nothing with what turns it into scores.
    """

    def __init__(self, scheduler, parts=PARTS):
        super().__init__()
        self.config = SimpleNamespace(sample_size=1, in_channels=3)
        self.class_embedding = nn.Embedding(len(parts), 1)
        self.double()
        self.prediction = scheduler.config.get("prediction_type", "flow")
        if hasattr(scheduler, "alphas_cumprod"):
            self.signal = scheduler.alphas_cumprod.double().sqrt()
        else:  # straight paths are told T sigma
            self.signal = 1 - torch.arange(1001, dtype=torch.float64) / 1000
        self.means, self.covs = (torch.tensor(np.stack(values)) for values in zip(*parts.values(), strict=True))
        self.rows = []

    def _level(self, timestep):
        place = timestep.double().clamp(0, len(self.signal) - 1)
        low = place.floor().long().clamp_max(len(self.signal) - 2)
        share = place - low
        alpha = (1 - share) * self.signal[low] + share * self.signal[low + 1]
        return alpha, 1 - alpha if self.prediction == "flow" else (1 - alpha**2).sqrt()

    def forward(self, x, timestep, class_labels=None, return_dict=True):
        self.rows.append(len(x))
        assert bool((timestep == timestep[0]).all()) and len(timestep) == len(x) == len(class_labels)
        alpha, sigma = self._level(timestep[0])
        noised = alpha**2 * self.covs + sigma**2 * torch.eye(3, dtype=torch.float64)
        gain = alpha * self.covs @ torch.linalg.inv(noised)
        y, mean = x.flatten(1).double(), self.means[class_labels]
        clean = mean + torch.einsum("bij,bj->bi", gain[class_labels], y - alpha * mean)
        noise = (y - alpha * clean) / sigma
        out = {"epsilon": noise, "sample": clean, "v_prediction": alpha * noise - sigma * clean, "flow": noise - clean}
        return (out[self.prediction].view_as(x).to(x.dtype),)


def ddpm(prediction="epsilon", zero_snr=False, spacing="trailing", **options):
    return DDPMScheduler(prediction_type=prediction, rescale_betas_zero_snr=zero_snr, timestep_spacing=spacing,
                         **{"clip_sample": False, **options})  # fmt: skip


def flow(**options):
    return FlowMatchEulerDiscreteScheduler(**options)


def unet(classes=None, seed=0, channels=3, size=8, out=None):
    """A U-Net of 8 x 8 images with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return UNet2DModel(
            sample_size=size, in_channels=channels, out_channels=out or channels, layers_per_block=1,
            block_out_channels=(8, 16), norm_num_groups=4, attention_head_dim=4, num_class_embeds=classes,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )  # fmt: skip
