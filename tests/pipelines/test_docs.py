"""The page on diffusers, executed: its blocks stand for themselves, given models."""

import re
from pathlib import Path

import pytest
import torch

import polyscore as ps
from pipelines.small import ddpm, unet
from pipelines.tiny import flux, stable_diffusion

PAGE = Path(__file__).parents[2] / "docs" / "diffusers.md"


@pytest.mark.filterwarnings("ignore::polyscore.errors.DegeneracyWarning")
def test_every_block_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) == 3
    models = {"unet": unet(3), "scheduler": ddpm("v_prediction", zero_snr=True), "stable_diffusion": stable_diffusion(),
              "flux": flux()}  # fmt: skip
    for block in blocks:
        names = {"ps": ps, **models}
        exec(block, names)
        assert len(names["run"].samples) == 2 and bool(names["run"].samples.isfinite().all())
        images = names["p"].decode(names["run"].samples)
        assert torch.equal(images, names.get("images", images)) and 0 <= images.min() < images.max() <= 1
