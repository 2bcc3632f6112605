"""What conditions may be, checked before a model is asked: classes, or embeddings by the names of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from polyscore.errors import ArgumentError, require, shorten
from polyscore.pipelines.networks import classes_of, is_a

_EMBEDDED = {"FluxTransformer2DModel": ("encoder_hidden_states", "pooled_projections"),
             "UNet2DConditionModel": ("encoder_hidden_states",)}  # fmt: skip


def checked_conditions(model: nn.Module, conditions: Any) -> dict[str, Any]:
    """Return what the model knows every condition by; classes by their numbers where no names are given."""
    wanted = next((names for kind, names in _EMBEDDED.items() if is_a(model, kind)), ())
    told = getattr(model, "class_embedding", None)
    require(wanted or told is None or isinstance(told, nn.Embedding), "a U-Net's class_embed_type",
            "be a table of classes (num_class_embeds), or none", type(told).__name__,
            "Wrap the model in ps.Learned, with condition= for what it is told.")  # fmt: skip
    if conditions is None and not wanted:
        known = classes_of(model)
        return {"data": None} if known is None else {str(index): index for index in range(known)}
    prompts = "Pass the pipeline with its text encoders: prompts are conditions then."
    remedy = prompts if wanted else 'Write {"base": 0, "couch": 1}.'
    require(isinstance(conditions, Mapping) and conditions, "conditions", "be a mapping from names",
            shorten(conditions), remedy)  # fmt: skip
    if not wanted:
        return {name: _class(model, name, index) for name, index in conditions.items()}
    return {name: _embedded(name, value, wanted) for name, value in conditions.items()}


def _class(model: nn.Module, name: str, index: Any) -> int | None:
    known = classes_of(model)
    if known is None:
        require(index is None, f"conditions[{name!r}]", "be None: the model knows no classes", shorten(index),
                "Pass a mapping of models for conditions of their own.")  # fmt: skip
        return None
    whole = isinstance(index, (int, np.integer)) and not isinstance(index, bool)
    require(whole and 0 <= index < known, f"conditions[{name!r}]", f"be a class from 0 to {known - 1}", shorten(index),
            "Choose a class that the model knows.")  # fmt: skip
    return int(index)


def _embedded(name: str, value: Any, wanted: tuple[str, ...]) -> dict[str, Tensor]:
    """A tensor stands for the first argument; every one is of one row, whether it says so or not."""
    given = {wanted[0]: value} if isinstance(value, Tensor) else value
    tensors = isinstance(given, Mapping) and all(isinstance(part, Tensor) for part in given.values())
    if not tensors or any(argument not in given for argument in wanted):
        raise ArgumentError(
            f"conditions[{name!r}] must hold tensors for {', '.join(wanted)}; got {shorten(value)}. "
            "Pass the pipeline, which makes them of prompts."
        )
    full = {"encoder_hidden_states": 3, "class_labels": 1}
    return {key: part if part.ndim == full.get(key, 2) else part[None] for key, part in given.items()}
