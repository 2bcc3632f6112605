"""What a scheduler of diffusers says of a model: its noise, at which timesteps, and what the model predicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polyscore.distributions.inputs import as_float64
from polyscore.errors import CompositionError, is_finite, require, shorten
from polyscore.schedules import SPACINGS, Flow, Stepped, Tabulated

PREDICTIONS = ("epsilon", "v_prediction", "sample", "flow")
# Schedulers of models that were distilled to jump to the data, or along the way: what they answer is no mean of the
# clean points behind x, and so no score. Several have alphas_cumprod all the same.
DISTILLED = ("CMStochasticIterativeScheduler", "FlowMapEulerDiscreteScheduler", "FlowMatchLCMScheduler",
             "HeliosDMDScheduler", "LCMScheduler", "PiflowScheduler", "SCMScheduler", "TCDScheduler")  # fmt: skip
_DYNAMIC = ("base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len")
_LARGEST = 700.0  # of which a float holds the exponential


@dataclass(frozen=True)
class Noising:
    """How a model was trained: the path of its noise, and what it predicts.

    Attributes:
        clip: bound on |x_0| that the scheduler puts on the model's clean point, or None. It is no part of the path.
    """

    schedule: Stepped
    prediction: str
    clip: float | None = field(default=None)


def noising_of(scheduler: Any, area: int = 0) -> Noising:
    """Return what a scheduler says.

    Args:
        area: tokens of an image, by which some flow schedulers shift their times.
    """
    config = getattr(scheduler, "config", None)
    require(isinstance(config, Mapping), "scheduler", "be a scheduler of diffusers", type(scheduler).__name__,
            "Pass scheduler=, the one that the model was trained with.")  # fmt: skip
    assert isinstance(config, Mapping)
    _check_supported(scheduler, config)
    if hasattr(scheduler, "alphas_cumprod"):
        return _noising_by_table(scheduler, config)
    flow = "FlowMatch" in type(scheduler).__name__
    # No other scheduler can be made of its config: what is missing there would be filled with defaults, silently.
    require(flow, "scheduler", "have alphas_cumprod, or be one of flow matching", type(scheduler).__name__,
            "Wrap the model in ps.Learned with the schedule of its noise.")  # fmt: skip
    schedule = Flow(config.get("num_train_timesteps"), _shift(config, area))  # type: ignore[arg-type]
    return Noising(schedule, "flow")


def _check_supported(scheduler: Any, config: Mapping[str, Any]) -> None:
    """Refuse models without a score, and what would change the model's answer in a way that is not reproduced here."""
    distilled = [kind.__name__ for kind in type(scheduler).__mro__ if kind.__name__ in DISTILLED]
    require(not distilled, "scheduler", "be of a model that has a score: those distilled to a few steps have none",
            type(scheduler).__name__, "Load the model that was distilled, with its own scheduler.")  # fmt: skip
    for name in ("thresholding", "invert_sigmas"):
        require(not config.get(name), f"scheduler's {name}", "be off", shorten(config.get(name)), "Turn it off.")


def _noising_by_table(scheduler: Any, config: Mapping[str, Any]) -> Noising:
    prediction, times = config.get("prediction_type", "epsilon"), config.get("timestep_type", "discrete")
    straight = config.get("use_flow_sigmas") or prediction == "flow_prediction"  # the table is not of its noise
    require(not straight, "scheduler", "be one of flow matching for a model of straight paths (use_flow_sigmas)",
            type(scheduler).__name__,
            f"Pass scheduler=FlowMatchEulerDiscreteScheduler(shift={config.get('flow_shift', 1.0)}).")  # fmt: skip
    require(times == "discrete", "scheduler's timestep_type", "be discrete", shorten(times),
            "Wrap a model that is told the logarithm of sigma in ps.Learned.")  # fmt: skip
    require(prediction in PREDICTIONS[:3], "scheduler's prediction_type", f"be one of {', '.join(PREDICTIONS[:3])}",
            shorten(prediction), "Say what the model was trained to predict.")  # fmt: skip
    alphas = as_float64(scheduler.alphas_cumprod, "scheduler's alphas_cumprod").sqrt()
    require(alphas.ndim == 1 and len(alphas) > 1, "scheduler's alphas_cumprod", "have one number a timestep",
            f"shape {tuple(alphas.shape)}", "Make the scheduler again.")  # fmt: skip
    if config.get("rescale_betas_zero_snr"):
        alphas[-1] = 0  # Euler's writes 2^-12 for it, to divide by
    require(alphas[-1] > 0 or prediction != "epsilon", "scheduler's prediction_type",
            "be v_prediction or sample where alpha is 0 at the last timestep (rescale_betas_zero_snr)", prediction,
            "Noise alone says nothing of the image there.")  # fmt: skip
    spacing = config.get("timestep_spacing", "leading")
    schedule = Tabulated(tuple(alphas.tolist()), spacing if spacing in SPACINGS else "leading",
                         config.get("steps_offset", 0))  # fmt: skip
    return Noising(schedule, prediction, _clip(config) if config.get("clip_sample") else None)


def _clip(config: Mapping[str, Any]) -> float:
    """The bound on clean points: one below 0 would make all of them the same."""
    found = config.get("clip_sample_range", 1)
    require(is_finite(found) and found > 0, "scheduler's clip_sample_range", "be a positive number", shorten(found),
            "Turn clip_sample off, or say where it clips.")  # fmt: skip
    return float(found)


def _shift(config: Mapping[str, Any], area: int) -> float:
    """exp(mu), with mu linear in the number of an image's tokens where the shift is dynamic."""
    if not config.get("use_dynamic_shifting"):
        shift: float = config.get("shift", 1.0)
        return shift
    found: list[Any] = [config.get(name) for name in _DYNAMIC]
    low, high, few, many = found
    good = all(map(is_finite, found)) and few != many
    require(good, "a flow scheduler's dynamic shift", f"have numbers {', '.join(_DYNAMIC)}, the last two different",
            shorten(found), "Turn use_dynamic_shifting off, or make the scheduler again.")  # fmt: skip
    mu = float(low + (high - low) * (area - few) / (many - few))
    return mu if config.get("time_shift_type") == "linear" else math.exp(min(mu, _LARGEST))


def check_same_path(noisings: Mapping[str, Noising]) -> None:
    """Refuse models whose noise is not the same: their scores at one time belong to different noise levels."""
    first = next(iter(noisings))
    for name, noising in noisings.items():
        ours, theirs = noisings[first].schedule, noising.schedule
        if ours != theirs:
            raise CompositionError(
                f"all schedulers must have the same noise at the same timesteps; {first!r} has {ours}, {name!r} "
                f"has {theirs}{_where(ours, theirs)}. Compose models of one noise, or train one again."
            )


def check_same_prediction(noisings: Mapping[str, Noising]) -> None:
    """Refuse a scheduler that takes a model's answer for another thing than it was trained to say."""
    first, *others = noisings.items()
    for name, noising in others:
        if noising.prediction != first[1].prediction:
            raise CompositionError(
                f"a scheduler's prediction_type must be what the model was trained for; {first[0]} says "
                f"{first[1].prediction!r}, {name} {noising.prediction!r}. Leave scheduler= out, or mend its config."
            )


def _where(ours: Stepped, theirs: Stepped) -> str:
    """Where two tables of one length part first; their ends may be the same."""
    if not isinstance(ours, Tabulated) or not isinstance(theirs, Tabulated) or ours.timesteps != theirs.timesteps:
        return ""
    i = next(i for i, pair in enumerate(zip(ours.alphas, theirs.alphas, strict=True)) if pair[0] != pair[1])
    return f" (alpha at timestep {i}: {ours.alphas[i]:.8g} and {theirs.alphas[i]:.8g})"
