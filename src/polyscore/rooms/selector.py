"""A selector: which pictures of each class to accept, as a file that whoever makes pictures can use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyscore.errors import ArgumentError, is_number, listed, nearest, require, shorten
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
        path = Path(path) / FILE if Path(path).is_dir() else Path(path)
        if not path.is_file():
            raise ArgumentError(
                f"a selector must be a file, or a folder with {FILE}; {str(path)!r} is none. Make one with "
                "`polyscore rooms select`."
            )
        tensors, about = read_tensors(path)
        try:
            classes = {name: _trained(one, tensors[name].numpy()) for name, one in about["classes"].items()}
            told = about["kind"], about["version"], about["embedding"], about["weights"], about["threshold"]
        except (KeyError, TypeError, AttributeError):
            told = (None,) * 5
        if told[:2] != (KIND, VERSION):
            raise FileError(f"{path} must be a selector of rooms, version {VERSION}; it is something else.")
        return cls(*told[2:], classes)


def check_threshold(threshold: object) -> float:
    """Return a threshold that a probability can be compared with."""
    good = is_number(threshold) and 0 < float(threshold) < 1  # type: ignore[arg-type]
    require(good, "threshold", "be a number above 0, and below 1", threshold, "0.5 lets through what is likelier good.")
    return float(threshold)  # type: ignore[arg-type]


def _told(one: Trained) -> dict[str, Any]:
    return {"accepted": one.accepted, "rejected": one.rejected, "intercept": one.judge.intercept, "c": one.judge.c,
            "worth": list(one.worth)}  # fmt: skip


def _trained(told: dict[str, Any], coefficients: Floats) -> Trained:
    judge = Judge(coefficients, told["intercept"], told["c"])
    return Trained(judge, told["accepted"], told["rejected"], HeldOut(*told["worth"]))
