"""The network of the classifier: convolutions, nothing pretrained."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


class Network(nn.Module):
    """Convolutions that halve the side to 4, mean and maximum over what is left, one linear layer.

    Args:
        fine: begin with two layers at full resolution: small objects, at four times the cost.
    """

    def __init__(self, resolution: int, outputs: int, width: int, fine: bool = False) -> None:
        super().__init__()
        halvings = max(1, (resolution // 4).bit_length() - 1)
        widths = [width * min(2**k, 4) for k in range(halvings + 1)]
        begin = [_Block(3, width, 3, 1), _Block(width, width, 3, 1)] if fine else []
        layers: list[nn.Module] = [*begin, _Block(width if fine else 3, widths[0], 4, 2)]
        for before, after in itertools.pairwise(widths[:-1]):
            layers += [_Block(before, after, 3, 1), _Block(after, after, 4, 2)]
        self.body = nn.Sequential(*layers, _Block(widths[-2], widths[-1], 3, 1))
        self.head = nn.Linear(2 * widths[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `(n, outputs)` of images `(n, 3, H, W)` in [-1, 1]."""
        seen = self.body(x).flatten(2)
        return self.head(torch.cat([seen.mean(2), seen.amax(2)], 1))


class _Block(nn.Sequential):
    def __init__(self, inner: int, outer: int, kernel: int, stride: int) -> None:
        padding = (kernel - 1) // 2
        super().__init__(nn.Conv2d(inner, outer, kernel, stride, padding, bias=False), nn.BatchNorm2d(outer), nn.SiLU())
