"""The front door: a model of diffusers, a pipeline, a folder, or several models by name, as one family."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polyscore.devices import check_device, plain_defaults
from polyscore.errors import is_finite, require
from polyscore.pipelines.conditions import checked_conditions
from polyscore.pipelines.denoiser import Denoiser
from polyscore.pipelines.family import Diffusers, Prompted
from polyscore.pipelines.folders import read_folder
from polyscore.pipelines.networks import MODELS, FlowTransformer, UNet, event_of, is_a
from polyscore.pipelines.prompts import check_prompt, decoder_of, embed
from polyscore.pipelines.schedulers import check_same_path, check_same_prediction, noising_of

_SIZE = 128  # of a flow transformer's latents, which says nothing of it: 1024 pixels


@plain_defaults()
def from_diffusers(
    model: Any,
    *,
    scheduler: Any = None,
    conditions: Any = None,
    most_rows: int | None = None,
    device: torch.device | str | None = None,
    size: int | tuple[int, int] | None = None,
    guidance: float = 3.5,
) -> Diffusers:
    """Return a model of diffusers as a family: its predictions as scores, on its own timesteps, composed at will.

    Args:
        model: a `UNet2DModel`, `UNet2DConditionModel` or `FluxTransformer2DModel`; a pipeline of one; a folder that one
            of them was saved to; or a mapping from condition to such models, each of one condition.
        scheduler: the one that the model was trained with; pipelines have their own.
        conditions: from name to class, or for models without their pipeline to the embeddings that they are told; for
            a pipeline with prompts, names for some of them. Unnamed prompts are conditions too: `p["a couch"]`.
        most_rows: rows (points times conditions) of one call of a model; by the free memory unless given.
        device: where to move the models; they stay where they are unless given.
        size: height and width of the model's points (latents, where it has such); its own unless given.
        guidance: what a transformer that was distilled with guidance is told of it.
    """
    require(is_finite(guidance), "guidance", "be a finite number", guidance, "Leave it out for the model's own scores.")
    where = None if device is None else check_device(device)
    options = {"most_rows": most_rows, "size": size, "guidance": guidance}
    if isinstance(model, (str, Path)):
        model, scheduler = read_folder(Path(model), scheduler)
    if isinstance(model, Mapping):
        require(conditions is None, "conditions", "be left out for several models: their names are", conditions,
                'Name the models instead: {"cat": model, ...}.')  # fmt: skip
        family = _separate(model, scheduler, options)
    elif hasattr(model, "components") and hasattr(model, "scheduler"):
        family = _of_pipeline(model, scheduler, conditions, options)
    else:
        family = _of_model(model, scheduler, conditions, options)
    return family.to(where)


def _of_model(model: Any, scheduler: Any, conditions: Any, options: Mapping[str, Any]) -> Diffusers:
    """One model with its scheduler."""
    group = _group(model, scheduler, options)
    named = checked_conditions(model, conditions)
    return Diffusers({name: group.condition(index) for name, index in named.items()})


def _group(model: Any, scheduler: Any, options: Mapping[str, Any]) -> Denoiser:
    good = isinstance(model, nn.Module) and hasattr(getattr(model, "config", None), "in_channels")
    require(good, "model", "be a U-Net or flow transformer of diffusers, a pipeline, a folder, or a mapping of such",
            type(model).__name__, "See docs/diffusers.md.")  # fmt: skip
    # Others are asked in other ways; some answer all the same, without being told the time.
    known = is_a(model, *MODELS) or not is_a(model, "ModelMixin")
    require(known, "a model of diffusers", f"be one of {', '.join(MODELS)}", type(model).__name__,
            "Wrap it in ps.Learned with the schedule of its noise.")  # fmt: skip
    require(scheduler is not None, "scheduler", "be the one that the model was trained with", "none",
            "Pass scheduler=DDPMScheduler(...), or the pipeline.")  # fmt: skip
    flows = is_a(model, "FluxTransformer2DModel")
    event = event_of(model, _SIZE if flows and options["size"] is None else options["size"])
    noising = noising_of(scheduler, area=event[-1] * event[-2] // 4)
    if flows:
        return FlowTransformer(model, event, noising, options["most_rows"], options["guidance"])
    return UNet(model, event, noising, options["most_rows"])


def _of_pipeline(pipeline: Any, scheduler: Any, conditions: Any, options: Mapping[str, Any]) -> Diffusers:
    """A pipeline, with prompts where it has an encoder of text."""
    if scheduler is not None:
        both = {"the pipeline's": noising_of(pipeline.scheduler), "scheduler=": noising_of(scheduler)}
        check_same_path(both)
        check_same_prediction(both)
    model = getattr(pipeline, "unet", None) or getattr(pipeline, "transformer", None)
    others = tuple(part for part in pipeline.components.values() if isinstance(part, nn.Module) and part is not model)
    for part in others:
        part.eval()  # an encoder's dropout would make a prompt another at every start
    if getattr(pipeline, "text_encoder", None) is None:
        family = _of_model(model, scheduler or pipeline.scheduler, conditions, options)
        family.decoder, family.others = decoder_of(pipeline), others
        return family
    known = is_a(model, "UNet2DConditionModel", "FluxTransformer2DModel")
    require(known, "a pipeline with prompts", "have a UNet2DConditionModel or a FluxTransformer2DModel",
            type(model).__name__, "Wrap its model in ps.Learned, with condition= for what it is told.")  # fmt: skip
    group = _group(model, scheduler or pipeline.scheduler, options)
    named = _names(conditions)
    return Prompted(
        group, lambda text: embed(pipeline, named.get(text, text), group.event), decoder_of(pipeline), others, named
    )


def _names(conditions: Any) -> dict[str, str]:
    """Names for prompts."""
    require(conditions is None or isinstance(conditions, Mapping), "conditions", "map names to prompts", conditions,
            'Write conditions={"cat": "a photo of a cat", ...}.')  # fmt: skip
    for prompt in (conditions or {}).values():
        check_prompt(prompt)
    return dict(conditions or {})


def _separate(models: Mapping[str, Any], scheduler: Any, options: Mapping[str, Any]) -> Diffusers:
    """One model a condition, all of one path of noise."""
    require(models, "model", "be a mapping with at least one model", "none", 'Write {"cat": model, ...}.')
    families = {
        name: from_diffusers(each, scheduler=scheduler if _is_bare(each) else None, **options)
        for name, each in models.items()
    }
    for name, family in families.items():
        require(len(family) == 1 and not isinstance(family, Prompted), f"the model of {name!r}", "have one condition",
                f"{len(family)} or more", "Pass a model of several conditions by itself.")  # fmt: skip
    members: dict[str, Any] = {name: next(iter(family.members.values())) for name, family in families.items()}
    check_same_path({name: member.group.noising for name, member in members.items()})
    first = next(iter(families.values()))
    return Diffusers(members, first.decoder, first.others)


def _is_bare(model: Any) -> bool:
    """Whether it is a model without a scheduler of its own."""
    return isinstance(model, nn.Module)
