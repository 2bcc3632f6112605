"""A U-Net of diffusers whose blocks keep their channels side by side, and norm in one step.

The numbers are those of the blocks that are replaced. In training mode diffusers copies tensors to the other layout
(before every shortcut, and before upsampling of 64 pictures or more), which costs more than the convolutions; with no
dropout, evaluation mode is the same function.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from polyscore.pipelines.fast.norm import norm, plain


def quicken(network: nn.Module, kernels: bool) -> nn.Module:
    """Replace the forward passes of a network's blocks, in place; weights and their names stay.

    Args:
        kernels: norm by Triton's kernels; else by PyTorch's, for a compiler to fuse.
    """
    for module in network.modules():
        _quicken(module, norm if kernels else plain)
    return network.eval()


def restore(network: nn.Module) -> nn.Module:
    """Take the replacements away again."""
    for module in network.modules():
        module.__dict__.pop("forward", None)
    return network.train()


def _quicken(module: Any, normed: Any) -> None:
    forward: Any = _FORWARDS.get(type(module).__name__)
    if forward is not None and _fits(module):
        module.fast_norm, module.forward = normed, MethodType(forward, module)


def _fits(module: Any) -> bool:
    """Whether a block is of the kind that is written out here."""
    name = type(module).__name__
    if name == "ResnetBlock2D":
        return bool(
            module.time_embedding_norm == "default" and module.upsample is None and module.downsample is None
            and module.time_emb_proj is not None and not module.skip_time_act and module.output_scale_factor == 1.0
            and module.dropout.p == 0 and isinstance(module.nonlinearity, nn.SiLU)
        )  # fmt: skip
    if name == "Upsample2D":
        return bool(module.norm is None and module.use_conv and module.name == "conv" and module.interpolate)
    return True


def _normed(self: Any, layer: nn.GroupNorm, x: Tensor, act: bool) -> Tensor:
    found: Tensor = self.fast_norm(x, layer.weight, layer.bias, layer.num_groups, layer.eps, act)
    return found


def _block(self: Any, x: Tensor, temb: Tensor, *_: Any, **__: Any) -> Tensor:
    h = self.conv1(_normed(self, self.norm1, x, True))
    h = h + self.time_emb_proj(F.silu(temb))[:, :, None, None]
    h = self.conv2(_normed(self, self.norm2, h, True))
    return (x if self.conv_shortcut is None else self.conv_shortcut(x)) + h


def _larger(self: Any, x: Tensor, output_size: Any = None, *_: Any, **__: Any) -> Tensor:
    found: Tensor = self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
    return found


def _norm_alone(self: Any, x: Tensor) -> Tensor:
    return _normed(self, self, x, False)


_FORWARDS = {"ResnetBlock2D": _block, "Upsample2D": _larger, "GroupNorm": _norm_alone}
