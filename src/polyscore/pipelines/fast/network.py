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

from polyscore.pipelines.fast.norm import added, norm, plain, plain_added


def quicken(network: nn.Module, kernels: bool) -> nn.Module:
    """Replace the forward passes of a network's blocks, in place; weights and their names stay.

    Args:
        kernels: norm and add by Triton's kernels; else by PyTorch's, for a compiler to fuse.
    """
    for module in network.modules():
        _quicken(module, *((norm, added) if kernels else (plain, plain_added)))
    return network.eval()


def restore(network: nn.Module) -> nn.Module:
    """Take the replacements away again."""
    for module in network.modules():
        module.__dict__.pop("forward", None)
    return network.train()


def _quicken(module: Any, normed: Any, summed: Any) -> None:
    forward: Any = _FORWARDS.get(type(module).__name__)
    if forward is not None and _fits(module):
        module.fast_norm, module.fast_sum, module.forward = normed, summed, MethodType(forward, module)


def _fits(module: Any) -> bool:
    """Whether a block is of the kind that is written out here."""
    name = type(module).__name__
    if name == "ResnetBlock2D":
        return bool(
            module.time_embedding_norm == "default" and module.upsample is None and module.downsample is None
            and module.time_emb_proj is not None and not module.skip_time_act and module.output_scale_factor == 1.0
            and module.dropout.p == 0 and isinstance(module.nonlinearity, nn.SiLU)
            and all(map(_is_plain, (module.conv1, module.conv2, module.conv_shortcut or module.conv1)))
        )  # fmt: skip
    if name == "Upsample2D":
        return bool(module.norm is None and module.use_conv and module.name == "conv" and module.interpolate)
    return True


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer is a convolution whose bias can be added elsewhere, and that nobody listens to."""
    return type(layer) is nn.Conv2d and layer.bias is not None and layer.padding_mode == "zeros" and not (
        layer._forward_hooks or layer._forward_pre_hooks
    )  # fmt: skip


def _normed(self: Any, layer: nn.GroupNorm, x: Tensor, act: bool, shift: Tensor | None = None) -> Tensor:
    found: Tensor = self.fast_norm(x, layer.weight, layer.bias, layer.num_groups, layer.eps, act, shift)
    return found


def _unbiased(layer: nn.Conv2d, x: Tensor) -> Tensor:
    return F.conv2d(x, layer.weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)


def _block(self: Any, x: Tensor, temb: Tensor, *_: Any, **__: Any) -> Tensor:
    """Biases go where a pass over the pictures is made anyway: cuDNN makes one for each."""
    h = _unbiased(self.conv1, _normed(self, self.norm1, x, True))
    shift = self.time_emb_proj(F.silu(temb)) + self.conv1.bias
    h, bias = _unbiased(self.conv2, _normed(self, self.norm2, h, True, shift)), self.conv2.bias
    if self.conv_shortcut is not None:
        x, bias = _unbiased(self.conv_shortcut, x), bias + self.conv_shortcut.bias
    found: Tensor = self.fast_sum(x, h, bias)
    return found


def _larger(self: Any, x: Tensor, output_size: Any = None, *_: Any, **__: Any) -> Tensor:
    found: Tensor = self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
    return found


def _norm_alone(self: Any, x: Tensor) -> Tensor:
    return _normed(self, self, x, False)


_FORWARDS = {"ResnetBlock2D": _block, "Upsample2D": _larger, "GroupNorm": _norm_alone}
