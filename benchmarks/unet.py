"""Seconds a training step of the presets' U-Nets: the loop that people write against ours, in one run.

    python benchmarks/unet.py --device cuda [--cases 256,64,32] [--forms kernels,kernels-eager,compiled,plain]

The plain loop is that of diffusers' own example: `UNet2DModel` in training mode as it was built (contiguous, eager),
bf16 autocast on a GPU, `torch.optim.AdamW` as it comes, gradients clipped at 1, a cosine rate by `LambdaLR`,
`EMAModel` after every step, `scheduler.add_noise` and `get_velocity`, and `loss.item()` in every step. "in memory"
gives it batches that already are on the device; "with loading" gives it a `DataLoader` (no workers, as in the example)
that opens, mirrors and scales one PNG after the other. Ours draws its batches from all pictures on the device; its
forms are those of `polyscore.images.program` ("-eager": without a CUDA graph). "compiled" takes a minute or two more.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from polyscore.images import PRESETS, Mixtures, Recipe
from polyscore.images.pool import Pictures, Pool
from polyscore.images.program import program
from polyscore.images.trainer import Trainer
from polyscore.images.training import settings
from polyscore.images.unet import build, cost, scheduler
from polyscore.images.workers import Alone

# This folder holds a kernels.py, which transformers would take for the package of that name.
sys.path = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]

MIXTURES = Mixtures(conditions={"base": (0.85, 0.05, 0.05, 0.05), "couch": (0.05, 0.85, 0.05, 0.05),
                                "painting": (0.05, 0.05, 0.85, 0.05)})  # fmt: skip
WARM_UP, PICTURES = 5, 16  # pictures of each class


def pictures(side: int) -> list[np.ndarray]:
    """Smooth pictures: random colours on a coarse grid, made larger."""
    coarse = np.random.default_rng(0).integers(0, 256, (4, PICTURES, 8, 8, 3), dtype=np.uint8)
    return [np.stack([np.asarray(Image.fromarray(one).resize((side, side))) for one in part]) for part in coarse]


def seconds_a_step(step: Callable[[], object], device: torch.device, budget: float) -> float:
    """Mean over as many steps as fit into the budget, five at least, after a warm-up."""

    def timed(count: int) -> float:
        _wait(device)
        began = time.perf_counter()
        for _ in range(count):
            step()
        _wait(device)
        return (time.perf_counter() - began) / count

    first = timed(WARM_UP if device.type == "cuda" else 1)
    return timed(max(3, min(200, math.ceil(budget / min(first, 1.0)))) if device.type == "cuda" else 3)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


class Folder(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Pictures as people read them: open, mirror, scale, one at a time."""

    def __init__(self, root: Path, parts: list[np.ndarray]) -> None:
        self.files = [root / f"{k}-{i}.png" for k, part in enumerate(parts) for i in range(len(part))]
        for file, image in zip(self.files, np.concatenate(parts), strict=True):
            Image.fromarray(image).save(file)

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[index % len(self.files)]) as opened:
            image = opened.convert("RGB")
        if index % 2:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        array = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return (array - 0.5) / 0.5, index % 3


def plain_loop(recipe: Recipe, device: torch.device, batches: Iterator[Any]) -> Callable[[], float]:
    """Return a step of the loop that people write."""
    from diffusers.training_utils import EMAModel

    model: Any = build(recipe.unet, 3).to(device).train()
    noising, optimiser = scheduler(), torch.optim.AdamW(model.parameters(), lr=1e-4)
    rates = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda k: 0.5 * (1 + math.cos(math.pi * min(1, k / 10_000))))
    average = EMAModel(model.parameters(), decay=0.9999)

    def step() -> float:
        images, labels = (tensor.to(device) for tensor in next(batches))
        noise = torch.randn(images.shape, device=device)
        times = torch.randint(0, 1000, (len(images),), device=device)
        noisy = noising.add_noise(images, noise, times)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            found = model(noisy, times, class_labels=labels).sample
        loss = F.mse_loss(found.float(), noising.get_velocity(images, noise, times))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rates.step()
        optimiser.zero_grad()
        average.step(model.parameters())
        return loss.item()

    return step


def in_memory(recipe: Recipe, parts: list[np.ndarray], device: torch.device) -> Iterator[Any]:
    """The same batch again and again, on the device."""
    images = torch.from_numpy(np.concatenate(parts)).permute(0, 3, 1, 2).contiguous().float().to(device) / 127.5 - 1
    rows = torch.arange(recipe.batch) % len(images)
    batch = images[rows.to(device)], (rows % 3).to(device)
    while True:
        yield batch


def ours(recipe: Recipe, parts: list[np.ndarray], device: torch.device, form: str) -> Callable[[], None]:
    """Return a step of `polyscore.images.train`."""
    quick = program(recipe.unet, 3, device, recipe.precision, form.removesuffix("-eager"))
    held = Pictures(MIXTURES.classes, tuple(parts), tuple(part[:1] for part in parts), "benchmark")
    pool = Pool(held, MIXTURES, recipe, 0, device)
    graph = device.type == "cuda" and not form.endswith("-eager")
    return Trainer(quick, pool, recipe, 10_000, recipe.batch, Alone(device), graph).advance


def measure(name: str, device: torch.device, forms: list[str], budget: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what each loop takes for one preset; one that fails says so."""
    recipe, parts = PRESETS[name], pictures(PRESETS[name].unet.resolution)
    with tempfile.TemporaryDirectory() as root:
        loader = torch.utils.data.DataLoader(Folder(Path(root), parts), recipe.batch)
        made: dict[str, Callable[[], Callable[[], object]]] = {
            "in memory": lambda: plain_loop(recipe, device, in_memory(recipe, parts, device)),
            "with loading": lambda: plain_loop(recipe, device, iter(loader)),
        }
        made |= {form: lambda form=form: ours(recipe, parts, device, form) for form in forms}  # type: ignore[misc]
        for label, make in made.items():
            context = settings(device) if label in forms else torch.enable_grad()
            with context:
                one = _measured(make, device, budget / 2 if label == "with loading" else budget)
            yield label, one
            program.cache_clear()  # one network at a time in memory


def _measured(make: Callable[[], Callable[[], object]], device: torch.device, budget: float) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        step = seconds_a_step(make(), device, budget)
    except Exception as error:  # one way that fails must not hide what the others take
        traceback.print_exc(limit=-4, chain=False, file=sys.stderr)
        return {"failed": f"{type(error).__name__}: {error}"[:200]}
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    return {"seconds": step, "whole": time.perf_counter() - began, "memory": memory}


def show(name: str, found: dict[str, dict[str, Any]]) -> None:
    """Print one preset's table."""
    recipe, weighs = PRESETS[name], cost(PRESETS[name].unet)
    work = 6 * weighs.multiply_adds * recipe.batch
    base = found["in memory"].get("seconds", math.nan)
    told = f"{weighs.weights / 1e6:.1f} M weights, {weighs.multiply_adds / 1e9:.2f} G multiply-adds a picture"
    print(f"\n{name}: {told}, batch {recipe.batch}")
    print(f"{'loop':16} {'ms a step':>10} {'times':>6} {'TFLOP/s':>8} {'GiB':>6} {'s in all':>9}")
    for label, one in found.items():
        if "failed" in one:
            print(f"{label:16} failed: {one['failed']}")
            continue
        s = one["seconds"]
        print(f"{label:16} {1e3 * s:10.1f} {base / s:6.2f} {work / s / 1e12:8.1f} {one['memory']:6.1f} "
              f"{one['whole']:9.1f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cases", default="256,64,32")
    parser.add_argument("--forms", default="kernels,kernels-eager")
    parser.add_argument("--seconds", type=float, default=4.0, help="that each loop is timed for")
    parser.add_argument("--out", type=Path, help="a JSON file")
    options = parser.parse_args()
    device, results = torch.device(options.device), {}
    for name in options.cases.split(","):
        found: dict[str, dict[str, Any]] = {}
        for label, one in measure(name, device, options.forms.split(","), options.seconds):
            found[label] = one
        show(name, found)
        results[name] = found
        if options.out:
            options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
