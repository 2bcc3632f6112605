"""The denoising models of diffusers, each as it wants to be asked: told a class, a prompt's embedding, or nothing.

What a condition is known by is a class, None, or a mapping from arguments of the model to tensors of one row, such as a
prompt's embeddings; `prompts` makes these of text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from polyscore.devices import has_triton
from polyscore.errors import is_count, require, shorten
from polyscore.models.calls import channels_last
from polyscore.notices import warn
from polyscore.pipelines.denoiser import Denoiser, Told
from polyscore.pipelines.fast.network import quicken, restore
from polyscore.pipelines.schedulers import Noising
from polyscore.schedules import Flow

MODELS = ("UNet2DModel", "UNet2DConditionModel", "FluxTransformer2DModel")
_NEAR = 0.02  # of an answer, that half precision may put between two ways to the same
_PATCH = 2  # sides of the patches of which a flow transformer's tokens are made


class UNet(Denoiser):
    """`UNet2DModel` and `UNet2DConditionModel`. Channels beyond those of x are a learned variance, and cut off."""

    def told(self, index: Any) -> Told:
        """A class, what the model is told by name, or nothing."""
        if index is None or isinstance(index, Mapping):
            return index or {}
        return {"class_labels": torch.tensor([index])}

    def predict(self, x: Tensor, timestep: Tensor, told: Told) -> Tensor:
        """Additions to the time embedding go as one argument."""
        added = {name: value for name, value in told.items() if name in ("text_embeds", "time_ids")}
        plain: dict[str, Any] = {name: value for name, value in told.items() if name not in added}
        if added:
            plain["added_cond_kwargs"] = added
        return self.model(x, timestep, **plain, return_dict=False)[0][:, : self.event[0]]

    def set_compile(self, compile: bool) -> None:
        """On a GPU a plain U-Net gets blocks of own kernels, ready in seconds; others are compiled, in minutes."""
        super().set_compile(False)
        restore(self.model).eval()
        self.compiled = compile and self._takes_kernels() and self._quickened()
        if compile and not self.compiled:
            super().set_compile(True)

    def _takes_kernels(self) -> bool:
        return self.device.type == "cuda" and has_triton() and is_a(self.model, "UNet2DModel")

    @torch.no_grad()
    def _quickened(self) -> bool:
        """Replace the model's blocks, unless it then says something else."""
        channels_last(self.model)
        probe = self._probe()
        expected = self.predict(*probe)
        try:
            quicken(self.model, kernels=True)
            off = float((self.predict(*probe) - expected).norm() / expected.norm())
        except Exception as error:  # Triton's, of any kind: nobody need do without a sample for want of speed
            warn(f"quick blocks should fit a U-Net; got {type(error).__name__}: {str(error)[:200]}. It is compiled.")
            off = math.inf
        if off > _NEAR:
            restore(self.model).eval()
        return off <= _NEAR

    def _probe(self) -> tuple[Tensor, Tensor, Told]:
        """Two rows of noise, early and in the middle."""
        on: dict[str, Any] = {"device": self.device}
        x = torch.randn(2, *self.event, generator=torch.Generator(self.device).manual_seed(0), dtype=self.dtype, **on)
        classes = classes_of(self.model) is not None
        told = {"class_labels": torch.zeros(2, dtype=torch.long, **on)} if classes else {}
        return x, torch.tensor([10.0, 0.5 * self.schedule.timesteps], **on), told


class FlowTransformer(Denoiser):
    """`FluxTransformer2DModel`: an image is a row of patches, each told where it is.

    Args:
        guidance: what a model that was distilled with guidance is told of it; others are not.
    """

    def __init__(
        self, model: nn.Module, event: tuple[int, ...], noising: Noising, most_rows: int | None, guidance: float
    ) -> None:
        super().__init__(model, event, noising, most_rows)
        require(isinstance(noising.schedule, Flow), "the scheduler of a flow transformer", "be one of flow matching",
                noising.schedule,
                "Pass the pipeline's own scheduler, such as FlowMatchEulerDiscreteScheduler.")  # fmt: skip
        self.guidance = guidance if getattr(model.config, "guidance_embeds", False) else None

    @property
    def hidden(self) -> int:
        """Numbers of a row's patches in a layer."""
        config: Any = self.model.config
        patches = self.event[-1] * self.event[-2] // _PATCH**2
        return int(config.num_attention_heads * config.attention_head_dim * patches)

    def told(self, index: Any) -> Told:
        """The embeddings of a prompt."""
        return index

    def predict(self, x: Tensor, timestep: Tensor, told: Told) -> Tensor:
        """Patches in, patches out; the timestep is told as sigma."""
        _, height, width = self.event
        places = _places(height // _PATCH, width // _PATCH, x)
        guided = None if self.guidance is None else torch.full_like(timestep, self.guidance)
        out = self.model(
            hidden_states=to_patches(x), timestep=(timestep / self.schedule.timesteps).to(x.dtype), guidance=guided,
            img_ids=places, txt_ids=x.new_zeros(told["encoder_hidden_states"].shape[1], 3), **told, return_dict=False,
        )[0]  # fmt: skip
        return from_patches(out, self.event)


def to_patches(x: Tensor) -> Tensor:
    """Return images `(B, C, H, W)` as rows of patches, `(B, H W / 4, 4 C)`."""
    batch, channels, height, width = x.shape
    tiles = x.reshape(batch, channels, height // _PATCH, _PATCH, width // _PATCH, _PATCH)
    return tiles.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * _PATCH**2)


def from_patches(patches: Tensor, event: tuple[int, ...]) -> Tensor:
    """Return the images of which `to_patches` made rows."""
    channels, height, width = event
    tiles = patches.view(len(patches), height // _PATCH, width // _PATCH, channels, _PATCH, _PATCH)
    return tiles.permute(0, 3, 1, 4, 2, 5).reshape(len(patches), *event)


def _places(height: int, width: int, like: Tensor) -> Tensor:
    """Row and column of every patch, `(H W, 3)`."""
    rows, columns = torch.meshgrid(*(torch.arange(n, device=like.device) for n in (height, width)), indexing="ij")
    return torch.stack([torch.zeros_like(rows), rows, columns], -1).view(-1, 3).to(like.dtype)


def is_a(model: object, *names: str) -> bool:
    """Whether a model's class is one of these or made of one; diffusers need not be there to tell."""
    return any(kind.__name__ in names for kind in type(model).__mro__)


def event_of(model: Any, size: int | tuple[int, int] | None) -> tuple[int, int, int]:
    """Return the shape of a model's points: its own, or of another size."""
    config, patches = model.config, is_a(model, "FluxTransformer2DModel")
    size = getattr(config, "sample_size", None) if size is None else size
    pair: Any = (size, size) if is_count(size) else size
    good = isinstance(pair, (tuple, list)) and len(pair) == 2 and all(map(is_count, pair))
    require(good, "size", "be height and width of the model's points", shorten(size), "Pass size=(64, 64).")
    channels = config.in_channels // _PATCH**2 if patches else config.in_channels
    require(not patches or not any(n % _PATCH for n in pair), "size", f"be multiples of {_PATCH}", pair,
            "Round it to such multiples.")  # fmt: skip
    out = getattr(config, "out_channels", None) or config.in_channels
    require(out in (config.in_channels, 2 * config.in_channels), "a denoiser",
            f"return as many channels as it takes, {config.in_channels}, or twice with a variance", out,
            "Models that are told another image beside the noisy one cannot be composed as they are.")  # fmt: skip
    # Such a model works without being told the guidance, and answers something else.
    told = getattr(config, "time_cond_proj_dim", None)
    require(told is None, "a denoiser", "have a score: a U-Net that is told its guidance was distilled, and has none",
            f"time_cond_proj_dim {told}", "Load the model that was distilled.")  # fmt: skip
    height, width = map(int, pair)
    return channels, height, width


def classes_of(model: nn.Module) -> int | None:
    """Return how many classes a U-Net knows; None for one that is told none."""
    table = getattr(model, "class_embedding", None)
    return table.num_embeddings if isinstance(table, nn.Embedding) else None
