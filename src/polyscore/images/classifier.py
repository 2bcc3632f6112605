"""A classifier that counts: which class an image shows, or that it is none of them.

A small convolutional network is trained on real images, and on spoiled ones as a class of its own (degenerate.py). An
image is "none of these" where the log-odds of that class are above a threshold that 1 % of real held-out images exceed:
one half of the held-out images sets the threshold, the other half gives accuracy and confusion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from polyscore.devices import check_device, plain_defaults
from polyscore.errors import ArgumentError, is_count, is_finite, listed, require, shorten
from polyscore.files.tensors import FileError, read_tensors, write_tensors
from polyscore.images.convolutions import Network as Network
from polyscore.images.degenerate import log_odds, spoiled, to_tensor, varied
from polyscore.progress import reporting
from polyscore.rng import derive, generator, weights_drawn
from polyscore.schema import Checked, count, flag, number, setting

FALSE_ALARMS = 0.01  # share of real images that are called none of the classes
_FORMAT, _VERSION = "polyscore-classifier", 1
_ROWS, _LARGEST = 512, 2048  # images a call, pixels a side
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Lessons(Checked):
    """How a classifier is trained: AdamW with a rate that rises and falls, a quarter of each batch spoiled.

    Attributes:
        images: shown in all, real ones.
        batch: real images of a step.
        width: channels of the first layer.
        fine: whether the first layers work at full resolution; without, a CPU can train it in a minute.
    """

    images: int = setting(400_000, count(1, 10**9))
    # A third as many are spoiled in ten ways: of fewer, ways that need several images get one.
    batch: int = setting(256, count(50, 65_536))
    width: int = setting(32, count(4, 1024))
    fine: bool = setting(True, flag())
    learning_rate: float = setting(3e-3, number(0, 1, ends=False))


@dataclass(frozen=True)
class Classifier:
    """A trained network with what is known of it.

    Attributes:
        threshold: of the log-odds of none.
        held_out: logits of the held-out images that set no threshold, `(n, classes + 1)`, on the CPU.
        truths: their classes `(n,)`.
    """

    network: Network
    classes: tuple[str, ...]
    resolution: int
    threshold: float
    held_out: Tensor
    truths: Tensor
    lessons: Lessons

    def verdicts(self, images: Images, among: Sequence[str] | None = None) -> Labels:
        """Return each image's class as its number in `among`, or their number for none of them.

        Args:
            images: uint8 `(n, resolution, resolution, 3)`.
            among: the classes that are told apart; all by default.
        """
        return self._decided(self.logits(images), among)

    def logits(self, images: Images) -> Tensor:
        """Return logits `(n, classes + 1)` on the CPU."""
        _require_images(images, self.resolution)
        return _asked(self.network, torch.from_numpy(np.ascontiguousarray(images)))

    def _decided(self, logits: Tensor, among: Sequence[str] | None) -> Labels:
        chosen = list(self.classes if among is None else among)
        unknown = [name for name in chosen if name not in self.classes]
        require(not unknown and chosen, "classes", f"be among {listed(self.classes, 30, str)}", shorten(chosen),
                "Name classes that it was trained on.")  # fmt: skip
        columns = [self.classes.index(name) for name in chosen]
        best = logits[:, columns].argmax(1)
        return torch.where(log_odds(logits) > self.threshold, len(chosen), best).numpy()

    def confusion(self, among: Sequence[str] | None = None) -> Labels:
        """Return verdicts on held-out images of these classes, counted: (classes, classes + 1)."""
        chosen = list(self.classes if among is None else among)
        rows = [self._decided(self.held_out[self.truths == self.classes.index(name)], chosen) for name in chosen]
        return np.stack([np.bincount(row, minlength=len(chosen) + 1) for row in rows])

    def accuracy(self, among: Sequence[str] | None = None) -> float:
        """Return the share of right classes among held-out images that are not called none."""
        table = self.confusion(among)[:, :-1]
        return float(table.trace() / max(1, table.sum()))

    @property
    def false_alarms(self) -> float:
        """The share of held-out images, other than those that set the threshold, that are called none."""
        return float((log_odds(self.held_out) > self.threshold).float().mean())

    def to(self, device: torch.device | str) -> Classifier:
        """Move the network."""
        self.network.to(device)
        return self

    def digest(self) -> str:
        """Return a short hash of its weights and threshold."""
        total = hashlib.sha256(repr((self.classes, self.resolution, self.threshold)).encode())
        for value in self.network.state_dict().values():
            total.update(value.detach().cpu().contiguous().numpy().tobytes())
        return total.hexdigest()[:16]

    def save(self, path: Path | str) -> Path:
        """Write one safetensors file that describes itself."""
        about = {"format": _FORMAT, "version": _VERSION, "classes": list(self.classes), "resolution": self.resolution,
                 "threshold": self.threshold, "lessons": vars(self.lessons)}  # fmt: skip
        known = {"held_out": self.held_out, "truths": self.truths}
        weights = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        write_tensors(Path(path), weights | known, about)
        return Path(path)


@plain_defaults()
def load_classifier(path: Path | str) -> Classifier:
    """Read what `Classifier.save` wrote, or say what is wrong with it."""
    tensors, about = read_tensors(Path(path))
    if about.get("format") != _FORMAT or about.get("version") != _VERSION:
        raise FileError(f"{path} must hold a classifier; it holds {shorten(about.get('format'))}. Train one.")
    try:
        return _rebuilt(tensors, about, Lessons.parse(about["lessons"], "lessons"))
    except ArgumentError as error:
        raise FileError(
            f"{path} must hold lessons that are still given; it holds others. {error} Train it again."
        ) from error
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FileError(
            f"{path} must hold a classifier as it was written; it does not ({error!r:.120}). Train it again."
        ) from error


def _rebuilt(tensors: dict[str, Tensor], about: dict[str, Any], lessons: Lessons) -> Classifier:
    """The classifier that a file describes, where all of it makes sense together; a `ValueError` where not."""
    classes, resolution, threshold = about["classes"], about["resolution"], about["threshold"]
    names = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    _agree(names and len(set(classes)) == len(classes) >= 2, "classes")
    _agree(is_count(resolution) and 8 <= resolution <= _LARGEST, "a resolution")
    _agree(is_finite(threshold), "a threshold")
    logits, truths = tensors["held_out"], tensors["truths"]
    _agree(logits.shape == (len(truths), len(classes) + 1) and _is_real(logits), "logits")
    _agree(truths.dtype == torch.int64 and all(k in range(len(classes)) for k in truths.tolist()), "truths")
    weights = {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}
    _agree(all(_is_real(t) for name, t in weights.items() if not name.endswith("num_batches_tracked")), "weights")
    with torch.device("meta"):  # nothing is made of a network that its weights do not fit
        network = Network(resolution, len(classes) + 1, lessons.width, lessons.fine)
    network.load_state_dict(weights, assign=True)
    return Classifier(network.eval(), tuple(classes), resolution, threshold, logits, truths, lessons)


def _agree(condition: object, what: str) -> None:
    if not condition:
        raise ValueError(f"{what} that cannot be")


def _is_real(values: Tensor) -> bool:
    return values.dtype == torch.float32 and bool(values.isfinite().all())


@plain_defaults()
def train_classifier(
    images: Images, labels: Labels, classes: Sequence[str], *, held_out: tuple[Images, Labels],
    lessons: Lessons | None = None, seed: int = 0, device: torch.device | str | None = None, progress: Any = None,
) -> Classifier:  # fmt: skip
    """Train a classifier of real images and measure it on others.

    Args:
        images: uint8 `(n, H, H, 3)`.
        labels: numbers of their classes `(n,)`.
        held_out: images and labels that are not trained on, at least four of each class.
    """
    lessons, place = lessons or Lessons(), check_device(device)
    resolution = _checked(images, labels, classes, held_out)
    network = _taught(images, labels, len(classes), resolution, lessons, seed, place, progress)
    first, second = _halves(held_out[1], len(classes), seed)
    order, half = np.concatenate([first, second]), len(first)
    logits, truths = _asked(network, torch.from_numpy(held_out[0][order])), torch.from_numpy(held_out[1][order])
    threshold = float(log_odds(logits[:half]).quantile(1 - FALSE_ALARMS))
    return Classifier(network, tuple(classes), resolution, threshold, logits[half:], truths[half:], lessons)


def _halves(truths: Labels, classes: int, seed: int) -> tuple[Labels, Labels]:
    """Places of the images that set the threshold and of those that measure, each class twice or more in both."""
    draw = np.random.default_rng(derive(seed, "classifier", "halves"))
    first, second = np.split(draw.permutation(len(truths)), [len(truths) // 2])
    if min(np.bincount(truths[half], minlength=classes).min() for half in (first, second)) >= 2:
        return first, second
    # Of few images chance leaves a class out; where it does not, stored classifiers were halved by it.
    own = [np.array_split(draw.permutation(np.flatnonzero(truths == k)), 2) for k in range(classes)]
    return np.concatenate([half for half, _ in own]), np.concatenate([half for _, half in own])


def _checked(images: Images, labels: Labels, classes: Sequence[str], held_out: tuple[Images, Labels]) -> int:
    """The resolution, once everything has been seen to fit."""
    require(len(classes) >= 2 and len(set(classes)) == len(classes), "classes", "be at least two names", list(classes),
            "Train on a dataset of several classes.")  # fmt: skip
    resolution = int(np.shape(images)[1]) if np.ndim(images) == 4 else 0
    require(is_count(resolution) and resolution >= 8, "images", "have at least 8 x 8 pixels", np.shape(images),
            "Use larger pictures.")  # fmt: skip
    for x, y in ((images, labels), held_out):
        _require_images(x, resolution)
        seen = np.bincount(y, minlength=len(classes)) if len(y) and y.min() >= 0 else np.zeros(len(classes))
        few = [name for name, number in zip(classes, seen, strict=False) if number < 4]
        require(len(x) == len(y) and len(seen) == len(classes) and not few, "a classifier's images",
                "show every class four times, in training and held out", f"{len(x)} images, too few of {few}",
                "Render more.")  # fmt: skip
    return resolution


def _require_images(images: Any, resolution: int) -> None:
    good = isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.ndim == 4
    if not good or images.shape[1:] != (resolution, resolution, 3):
        what = f"{getattr(images, 'dtype', type(images).__name__)} {np.shape(images)}"
        raise ArgumentError(
            f"images must be uint8 (n, {resolution}, {resolution}, 3); got {what}. Resize or convert them."
        )


def _taught(
    images: Images, labels: Labels, classes: int, resolution: int, lessons: Lessons, seed: int, device: torch.device,
    progress: Any,
) -> Network:  # fmt: skip
    """A trained network."""
    with weights_drawn(seed, "classifier", "weights"):
        network = Network(resolution, classes + 1, lessons.width, lessons.fine)
    network.to(device).train()
    x, y = torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device)
    steps = max(2, lessons.images // lessons.batch)
    optimiser = torch.optim.AdamW(network.parameters(), lessons.learning_rate, weight_decay=0.05)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, lessons.learning_rate, total_steps=steps)
    draw = generator(seed, "classifier", "lessons", device=device)
    with reporting(progress, "classifier") as report:
        for step in range(steps):
            loss = _loss(network, x, y, classes, lessons.batch, draw)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            rate.step()
            if report and step % 20 == 0:
                report(step, steps, float(loss.detach()))
    return network.eval()


def _loss(network: Network, x: Tensor, y: Tensor, classes: int, batch: int, draw: torch.Generator) -> Tensor:
    """Cross-entropy of one batch of varied images, a third as many spoiled ones beside them."""
    chosen = torch.randint(len(x), (batch,), generator=draw, device=x.device)
    others = torch.randint(len(x), (max(1, batch // 3),), generator=draw, device=x.device)
    seen = torch.cat([varied(to_tensor(x[chosen]), draw), spoiled(to_tensor(x[others]), draw)])
    truth = torch.cat([y[chosen], torch.full((len(others),), classes, device=x.device)])
    return F.cross_entropy(network(seen), truth)


@torch.no_grad()
def _asked(network: Network, images: Tensor) -> Tensor:
    device = next(network.parameters()).device
    parts = [network(to_tensor(part.to(device))).float().cpu() for part in images.split(_ROWS)]
    return torch.cat(parts) if parts else torch.empty(0, network.head.out_features)
