"""Generating a dataset by a text-to-image model: a picture is a function of (seed, class, index), and of the model.

With a selector it goes on until enough pictures of each class are accepted, by their label or by the selector; those
that are not stay where they are, for `select` to leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from os.path import exists, isdir
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyscore.errors import is_count, require, shorten
from polyscore.files.atomic import write_bytes
from polyscore.notices import warn
from polyscore.progress import reporting
from polyscore.rng import as_seed, derive
from polyscore.rooms import flux, pictures
from polyscore.rooms.dataset import Dataset
from polyscore.rooms.growing import MOST, begun, check_count, file_of, grown, line_of, names_of
from polyscore.rooms.labels import Labels
from polyscore.rooms.prompts import PROMPTS, check_prompt
from polyscore.rooms.selector import Selector, check_selector
from polyscore.schema import Checked, count, optional, setting, text

SMALLEST_DRAWN = 256  # below, a model of large pictures draws fragments
Images = NDArray[np.uint8]
Make = Callable[[str, Sequence[int]], Images]
Passes = Callable[[str, Images], NDArray[np.bool_]]


@dataclass(frozen=True)
class Drawing(Checked):
    """How pictures are drawn; a dataset that grows keeps it.

    Attributes:
        resolution: pixels a side.
        drawn: pixels a side at which the model draws, a multiple of the resolution, shrunk afterwards; by default the
            resolution, and its first multiple of at least 256 where that is smaller.
        steps: of the model; schnell takes four.
        model: a name, or a folder.
    """

    resolution: int = setting(256, count(8, 2048))
    drawn: int | None = setting(None, optional(count(8, 4096)))
    steps: int = setting(4, count(1, 1000))
    model: str = setting(flux.SCHNELL, text(1000))

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.side % self.resolution == 0, "drawn", "be a multiple of the resolution", self.drawn,
                "Leave it out for the model's own size.")  # fmt: skip

    @property
    def side(self) -> int:
        """Pixels a side at which the model draws."""
        return self.drawn or self.resolution * -(-SMALLEST_DRAWN // self.resolution)

    def to_dict(self) -> dict[str, Any]:
        """Return it as `dataset.json` holds it: a folder by its name, wherever it lies."""
        name = Path(self.model).name if isdir(self.model) else self.model
        return {"resolution": self.resolution, "drawn": self.side, "steps": self.steps, "model": name}


@dataclass(frozen=True)
class Generated:
    """What there is now: all pictures, and how many of each class are accepted; None where nobody asked."""

    dataset: Dataset
    accepted: dict[str, int] | None


def generate(
    out: Path | str,
    count: int,
    *,
    classes: Collection[str] | None = None,
    seed: int = 0,
    drawing: Drawing | None = None,
    selector: Selector | None = None,
    most: int | None = None,
    batch: int = 8,
    device: Any = None,
    offload: bool = False,
    progress: Any = None,
) -> Generated:
    """Generate `count` pictures of each class, or those of them that are missing; with a selector, accepted ones.

    Args:
        out: a new or empty folder, or a dataset of the same seed and drawing, which grows.
        classes: names in `CLASSES` and `PROMPTS`; all by default.
        selector: what accepts pictures without a label.
        most: pictures of a class at which it gives up; ten times `count` by default. With a selector only.
        batch: pictures at a time; one changes with it by rounding at most.
        device: the GPU where there is one.
        offload: keep on the GPU only the part that works.
        progress: called with (pictures done, pictures in all); of accepted ones with a selector.
    """
    names, drawing, seed = names_of(classes, PROMPTS), Drawing() if drawing is None else drawing, as_seed(seed)
    require(isinstance(drawing, Drawing), "drawing", "be a Drawing", shorten(drawing), "Write drawing=Drawing(256).")
    check_selector(selector)
    check_count(names, count)
    most = _checked(names, count, most, selector, batch)
    if not exists(Path(out) / "dataset.json"):  # else what is there may be all that is asked for
        flux.require_installed()
    out, about = begun(out, {"source": "generated", "seed": seed, **drawing.to_dict()}, names, count)
    make = _maker(drawing, seed, device, offload)
    passes = None if selector is None else partial(selector.passes, device=device, batch=batch)
    with grown(out, about, names), reporting(progress, "pictures") as report:
        accepted = _generate(out, names, count, most, batch, make, passes, report)
    return Generated(Dataset(out), None if selector is None else accepted)


def _checked(names: Collection[str], count: int, most: int | None, selector: Selector | None, batch: int) -> int:
    for name in names:
        check_prompt(PROMPTS[name], name)
        if selector is not None:
            selector.of(name)
    require(is_count(batch) and batch <= 1024, "batch", "be a whole number from 1 to 1024", batch,
            "Leave it out for the default.")  # fmt: skip
    require(most is None or selector is not None, "most", "come with a selector", most, "Leave it out.")
    limit = min(10 * count, MOST) if most is None else most
    require(is_count(limit) and count <= limit <= MOST, "most", f"be from {count}, the count, to {MOST}", most,
            "Leave it out, or raise it.")  # fmt: skip
    return limit if selector is not None else count


def _maker(drawing: Drawing, seed: int, device: Any, offload: bool) -> Make:
    """What makes pictures of a class; the model is loaded when the first is wanted."""
    loaded: list[flux.Flux] = []

    def make(name: str, indices: Sequence[int]) -> Images:
        if not loaded:
            loaded.append(flux.load(drawing.model, device, offload))
            require(drawing.side % loaded[0].multiple == 0, "drawn", f"be a multiple of {loaded[0].multiple}",
                    drawing.side, "Choose another resolution, or drawn.")  # fmt: skip
        seeds = [derive(seed, "rooms", "generated", name, index) for index in indices]
        made = loaded[0].paint(PROMPTS[name], seeds, drawing.side, drawing.steps)
        return np.stack([pictures.shrunk(image, drawing.resolution) for image in made])

    return make


def _generate(
    out: Path, names: list[str], count: int, most: int, batch: int, make: Make, passes: Passes | None,
    report: Callable[..., None] | None,
) -> dict[str, int]:  # fmt: skip
    """Write what is missing; return how many of each class count: all, or those that are accepted."""
    tallies, side = dict.fromkeys(names, 0), _side(out)

    def tell() -> None:
        if report is not None:
            report(sum(min(tally, count) for tally in tallies.values()), count * len(names))

    for name in names:
        there = list(_there(out, name, most, side))
        tallies[name] = _tally(out, name, there, passes, batch)
        for indices in _parts(sorted(set(range(most)) - set(there)), batch):
            tell()
            if tallies[name] >= count:
                break
            images = make(name, indices)
            for index, image in zip(indices, images, strict=True):
                write_bytes(file_of(out, name, index), pictures.png(image, _record(name, index)))
            tallies[name] += len(indices) if passes is None else int(passes(name, images).sum())
        tell()
        if tallies[name] < count:
            warn(
                f"class {name} should have {count} accepted pictures; of {most} there are {tallies[name]}. Raise most."
            )
    return tallies


def _there(out: Path, name: str, most: int, side: int) -> Iterator[int]:
    """Yield the pictures that are there; those of another prompt are another class, and do not go with new ones."""
    for index in range(most):
        line = line_of(file_of(out, name, index), name, side)
        if line is not None:
            asked = line.get("prompt", PROMPTS[name])
            require(asked == PROMPTS[name], f"a class that grows ({name})", "keep its prompt",
                    shorten(PROMPTS[name], 80), f"It has {shorten(asked, 80)}: choose another place.")  # fmt: skip
            yield index


def _tally(out: Path, name: str, there: Sequence[int], passes: Passes | None, batch: int) -> int:
    """How many of the pictures that are there count: a label decides where there is one."""
    if passes is None:
        return len(there)
    labels = {picture.file: accepted for picture, accepted in Labels(out).items() if picture.name == name}
    files = [file_of(out, name, index) for index in there]
    total = sum(labels.get(file.name, False) for file in files)
    for part in _parts([file for file in files if file.name not in labels], batch):
        total += int(passes(name, np.stack([pictures.read(file, _side(out)) for file in part])).sum())
    return total


def _side(out: Path) -> int:
    return Dataset(out).resolution


def _parts(row: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (row[first : first + size] for first in range(0, len(row), size))


def _record(name: str, index: int) -> dict[str, Any]:
    """What is known of a picture: what was asked for. What it shows, nobody has looked at yet."""
    return {"class": name, "index": index, "shows": name, "objects": {}, "flaw": None, "prompt": PROMPTS[name]}
