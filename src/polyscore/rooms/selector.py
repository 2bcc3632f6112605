"""A selector: which pictures of each class to accept, as a file that whoever makes pictures can use."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import isdir, isfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyscore.errors import ArgumentError, is_finite, listed, nearest, require, shorten
from polyscore.features import embed
from polyscore.files.tensors import FileError, read_tensors, write_tensors
from polyscore.rooms.learning import Floats, HeldOut, Judge

FILE, KIND, VERSION = "selector.safetensors", "rooms-selector", 1


@dataclass(frozen=True)
class Trained:
    """A judge, the labels that it saw, and what it is worth."""

    judge: Judge
    accepted: int
    rejected: int
    worth: HeldOut


@dataclass(frozen=True)
class Selector:
    """One judge a class, on the features of one embedding.

    Attributes:
        embedding: its name in `features.EMBEDDINGS`.
        weights: those of the embedding, where they are a choice.
        threshold: the least probability of acceptance with which a picture is let through.
    """

    embedding: str
    weights: str | None
    threshold: float
    classes: dict[str, Trained]

    def rate(self, name: str, images: NDArray[np.uint8], device: Any = None, batch: int = 64) -> Floats:
        """Return the probability of acceptance of pictures (N, H, W, 3) of a class, (N,)."""
        features = embed(images, self.embedding, device, batch, weights=self.weights)
        judge = self.of(name).judge
        require(features.shape[1] == len(judge.coefficients), "features", f"be {len(judge.coefficients)} a picture",
                features.shape[1], "The selector was trained with other weights.")  # fmt: skip
        return judge.probability(features)

    def passes(self, name: str, images: NDArray[np.uint8], device: Any = None, batch: int = 64) -> NDArray[np.bool_]:
        """Return which pictures (N, H, W, 3) of a class are let through, (N,)."""
        return np.asarray(self.rate(name, images, device, batch) >= self.threshold)

    def of(self, name: str) -> Trained:
        """Return what was learned of a class."""
        if name not in self.classes:
            raise ArgumentError(
                f"a selector must know the class; it knows {listed(self.classes, 30, str)}, not {shorten(name)}."
                f"{nearest(name, self.classes) or ' Label and select that class too.'}"
            )
        return self.classes[name]

    def save(self, path: Path | str) -> Path:
        """Write it as safetensors; return the path."""
        classes = {name: _told(one) for name, one in self.classes.items()}
        told = {"kind": KIND, "version": VERSION, "embedding": self.embedding, "weights": self.weights,
                "threshold": self.threshold, "classes": classes}  # fmt: skip
        tensors = {name: torch.from_numpy(one.judge.coefficients.copy()) for name, one in self.classes.items()}
        write_tensors(Path(path), tensors, told)
        return Path(path)

    @classmethod
    def load(cls, path: Path | str) -> Selector:
        """Read one from its file, or from the folder that `select` wrote."""
        path = Path(path) / FILE if isdir(path) else Path(path)
        if not isfile(path):
            raise ArgumentError(
                f"a selector must be a file, or a folder with {FILE}; {shorten(str(path))} is none. Make one with "
                "`polyscore rooms select`."
            )
        tensors, about = read_tensors(path)
        try:
            _require((about["kind"], about["version"]) == (KIND, VERSION) and about["classes"])
            classes = {name: _trained(one, tensors[name]) for name, one in about["classes"].items()}
            embedding, weights = about["embedding"], about["weights"]
            _require(isinstance(embedding, str) and (weights is None or isinstance(weights, str)))
            return cls(embedding, weights, check_threshold(about["threshold"]), classes)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise FileError(
                f"{path} must be a selector of rooms, version {VERSION}; it is something else. Select rooms again."
            ) from error


def check_threshold(threshold: object) -> float:
    """Return a threshold that a probability can be compared with."""
    good = is_finite(threshold) and 0 < float(threshold) < 1  # type: ignore[arg-type]
    require(good, "threshold", "be a number above 0, and below 1", threshold, "0.5 lets through what is likelier good.")
    return float(threshold)  # type: ignore[arg-type]


def check_selector(selector: object) -> None:
    """Refuse what is no selector, such as the path of one."""
    good = selector is None or isinstance(selector, Selector)
    require(good, "selector", "be a Selector, or None", shorten(selector), "Read a file: Selector.load(path).")


def _told(one: Trained) -> dict[str, Any]:
    return {"accepted": one.accepted, "rejected": one.rejected, "intercept": one.judge.intercept, "c": one.judge.c,
            "worth": list(one.worth)}  # fmt: skip


def _trained(told: dict[str, Any], coefficients: Tensor) -> Trained:
    _require(coefficients.ndim == 1 and coefficients.is_floating_point() and coefficients.isfinite().all())
    _require(is_finite(told["intercept"]) and is_finite(told["c"]))
    counts, figures = (told["accepted"], told["rejected"]), told["worth"]
    _require(all(type(count) is int and count >= 0 for count in counts))
    _require(all(type(figure) is float for figure in figures))  # NaN too: where nothing is let through
    return Trained(Judge(coefficients.numpy(), told["intercept"], told["c"]), *counts, HeldOut(*figures))


def _require(condition: object) -> None:
    if not condition:
        raise ValueError
