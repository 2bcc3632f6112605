"""A composed step of a class-conditional U-Net at 64 x 64 against three separate calls of it, in the same precision.

    python benchmarks/composed_step.py --device cuda              # torch, diffusers and this package are all it needs
    python benchmarks/composed_step.py --size 16 --particles 2 4 --steps 3 --repeats 1       # on a CPU, to see it run

The plain loop is what one writes with diffusers: a call a condition, scores from v, DDPM's own `scheduler.step` with
the composed v of W = 1, log-weights, systematic resampling. The library's loop does the same, as `ps.FeynmanKac` on the
model's own timesteps: as it is, and compiled. Times are of a step, in turns within one run, the best of the repeats;
ratios are what counts. Goals on an H200: 2 times at 16 particles, 1.3 times at 256.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

# Modules beside this one have names of packages that diffusers looks for (kernels).
sys.path = [place for place in sys.path if Path(place or ".").resolve() != Path(__file__).resolve().parent]

import torch  # noqa: E402
from diffusers import DDPMScheduler, UNet2DModel  # noqa: E402
from torch import Tensor  # noqa: E402

import polyscore as ps  # noqa: E402

EXPONENTS = {"couch": 1.0, "painting": 1.0, "base": -1.0}
LABELS = {"base": 0, "couch": 1, "painting": 2}
TYPES = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def unet(size: int) -> UNet2DModel:
    """A U-Net of 14 million weights: four levels, attention on the lower two."""
    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=size, in_channels=3, out_channels=3, layers_per_block=2, block_out_channels=(64, 128, 192, 256),
        num_class_embeds=len(LABELS), down_block_types=("DownBlock2D",) * 2 + ("AttnDownBlock2D",) * 2,
        up_block_types=("AttnUpBlock2D",) * 2 + ("UpBlock2D",) * 2,
    )  # fmt: skip


def noise_schedule() -> DDPMScheduler:
    return DDPMScheduler(prediction_type="v_prediction", rescale_betas_zero_snr=True, timestep_spacing="trailing",
                         clip_sample=False)  # fmt: skip


@torch.no_grad()
def plain_loop(model: UNet2DModel, scheduler: DDPMScheduler, particles: int, steps: int, device: str) -> Tensor:
    """One swarm, as one writes it down."""
    dtype, size = model.dtype, model.config.sample_size
    scheduler.set_timesteps(steps, device=device)
    power = scheduler.alphas_cumprod.to(device)
    x = torch.randn(particles, 3, size, size, device=device)
    log_weights = torch.zeros(particles, device=device)
    for t in scheduler.timesteps:
        alpha, sigma = power[t].sqrt(), (1 - power[t]).sqrt()
        labels = {name: torch.full((particles,), LABELS[name], device=device) for name in EXPONENTS}
        answers = {name: model(x.to(dtype), t, class_labels=labels[name]).sample.float() for name in EXPONENTS}
        scores = {name: -(x + alpha / sigma * v) for name, v in answers.items()}
        composed = sum(w * scores[name] for name, w in EXPONENTS.items())
        squares = sum(w * scores[name].square().sum((1, 2, 3)) for name, w in EXPONENTS.items())
        log_weights = log_weights + 1e-3 * (composed.square().sum((1, 2, 3)) - squares)
        v = sum(w * answers[name] for name, w in EXPONENTS.items())
        x = scheduler.step(v, t, x).prev_sample
        places = (torch.arange(particles, device=device) + torch.rand(1, device=device)) / particles
        chosen = torch.searchsorted(log_weights.softmax(0).cumsum(0), places).clamp_max(particles - 1)
        x, log_weights = x[chosen], torch.zeros_like(log_weights)
    return x


def best(works: dict[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """Seconds of each work, the best of the repeats, in turns; what comes first warms up and is not counted."""
    found = dict.fromkeys(works, float("inf"))
    for turn in range(repeats + 1):
        for name, work in works.items():
            synchronize(device)
            begin = time.perf_counter()
            work()
            synchronize(device)
            found[name] = min(found[name], time.perf_counter() - begin) if turn else float("inf")
    return found


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def library(asked: argparse.Namespace, precision: str, compiled: bool) -> Callable[[int], object]:
    model = unet(asked.size).to(TYPES[precision])
    p = ps.from_diffusers(model, scheduler=noise_schedule(), conditions=LABELS)
    told = {"precision": precision} if TYPES[precision] == torch.float32 else {}
    p.to(asked.device, **told, **({"compile": True} if compiled else {}))
    q = ps.Composition(p, EXPONENTS)

    def work(particles: int) -> object:
        sampler = ps.FeynmanKac(particles, asked.steps, grid="timesteps", integrator="ancestral")
        return sampler.sample(q, 1, progress=False)

    return work


def compare(asked: argparse.Namespace, precision: str) -> None:
    """Print the table's rows of one precision."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    model, scheduler = unet(asked.size).to(asked.device, TYPES[precision]).eval(), noise_schedule()
    ways = {"library": library(asked, precision, compiled=False)}
    if not asked.eager:
        ways["compiled"] = library(asked, precision, compiled=True)
    for particles in asked.particles:
        works: dict[str, Callable[[], object]] = {
            "plain": lambda k=particles: plain_loop(model, scheduler, k, asked.steps, asked.device)
        }
        works |= {name: (lambda way=way, k=particles: way(k)) for name, way in ways.items()}
        took = best(works, asked.repeats, asked.device)
        for name in ways:
            ratio, each = took["plain"] / took[name], 1000 / asked.steps
            told = f"{precision} | {particles} | {name} | {each * took['plain']:.1f} | {each * took[name]:.1f}"
            print(f"| {told} | {ratio:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--particles", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precisions", nargs="+", default=["bf16", "tf32"], choices=list(TYPES))
    parser.add_argument("--eager", action="store_true", help="do not compile")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")  # a random network is no density's, and says so
    machine = torch.cuda.get_device_name() if asked.device.startswith("cuda") else platform.processor() or "CPU"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}, torch {torch.__version__}, Python {platform.python_version()}, "
          f"3 conditions at {asked.size} x {asked.size}, {asked.steps} steps\n")  # fmt: skip
    print("| precision | particles | way | plain ms a step | library ms a step | times as fast |")
    print("|---|---|---|---|---|---|")
    for precision in asked.precisions:
        compare(asked, precision)


if __name__ == "__main__":
    main()
