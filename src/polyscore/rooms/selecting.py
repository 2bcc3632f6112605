"""Selecting: from labels on some pictures to a dataset of accepted ones.

A person's label decides where there is one; where there is none, the selector does: a picture is let through when its
probability of acceptance is at least the threshold. The first `per_class` accepted pictures by index are copied, files
and records as they are, and the pictures after them are not looked at.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyscore.errors import ArgumentError, is_count, listed, require, shorten
from polyscore.features import DEFAULT, choose, embed
from polyscore.files.folders import new_folder, require_empty
from polyscore.limits import require_space
from polyscore.notices import warn
from polyscore.progress import reporting
from polyscore.rng import as_seed
from polyscore.rooms import pictures
from polyscore.rooms.dataset import Dataset, Record, write_about, write_lines
from polyscore.rooms.growing import names_of
from polyscore.rooms.labels import Labels
from polyscore.rooms.learning import held_out, learn, require_both
from polyscore.rooms.selector import FILE, Selector, Trained, check_selector, check_threshold

PER_CLASS = 2000
Answers = dict[str, dict[str, bool]]  # class -> file -> accepted
Passes = Callable[[str, NDArray[np.uint8]], NDArray[np.bool_]]


@dataclass(frozen=True)
class Selection:
    """What was selected, and by whom.

    Attributes:
        dataset: the accepted pictures.
        looked: of each class, how many pictures were looked at until it had enough.
    """

    dataset: Dataset
    selector: Selector
    looked: dict[str, int]


def select(
    data: Path | str,
    out: Path | str,
    *,
    per_class: int = PER_CLASS,
    classes: Collection[str] | None = None,
    embedding: str = DEFAULT,
    weights: str | None = None,
    threshold: float = 0.5,
    selector: Selector | None = None,
    seed: int = 0,
    device: Any = None,
    batch: int = 64,
    progress: Any = None,
) -> Selection:
    """Copy accepted pictures of a dataset, with a selector that its labels train, into a new or empty folder.

    Args:
        data: a dataset with `labels.jsonl`, at least ten accepted and ten rejected pictures a class.
        per_class: pictures to copy of each class; where there are fewer, all, and a warning.
        classes: those to select from; all by default.
        embedding: a name in `features.EMBEDDINGS`, or "auto".
        weights: of the embedding, where they are a choice.
        threshold: the least probability of acceptance of a picture without a label.
        selector: one that is trained already; embedding, weights and threshold are its own then.
        seed: of the parts that cross-validation leaves out.
        progress: called with (pictures done, pictures in all).
    """
    dataset, seed, threshold = Dataset(data), as_seed(seed), check_threshold(threshold)
    require(is_count(per_class), "per_class", "be a whole number of at least 1", per_class,
            "Leave it out for the default.")  # fmt: skip
    check_selector(selector)
    out = require_empty(Path(out), "selected pictures")
    names = names_of(classes, dataset.classes)
    for name in names:
        _require_pictures(dataset, name)
    labels = answers(dataset)
    if selector is None:
        _require_labels(labels, names)
        selector = _train(dataset, labels, names, *choose(embedding, weights), threshold, seed, device, batch)
    for name in names:
        selector.of(name)
    passes = partial(selector.passes, device=device, batch=batch)
    with reporting(progress, "pictures") as report:
        chosen = _choose(dataset, labels, names, passes, per_class, batch, report)
    for name in names:
        _tell_short(name, len(chosen[name][0]), per_class)
    _write(dataset, out, {name: kept for name, (kept, _) in chosen.items()}, selector, seed)
    return Selection(Dataset(out), selector, {name: looked for name, (_, looked) in chosen.items()})


def answers(dataset: Dataset) -> Answers:
    """Return the labels of a dataset's pictures; those of what it does not hold are refused."""
    found: Answers = {name: {} for name in dataset.classes}
    known = {name: {record.file for record in dataset.records(name)} for name in dataset.classes}
    for picture, accepted in Labels(dataset.path).items():
        if picture.file not in known.get(picture.name, ()):
            raise ArgumentError(
                f"a label must name a picture of the dataset; {shorten(f'{picture.name}/{picture.file}', 100)} is none "
                f"of {str(dataset.path)!r}. Use the labels of this dataset, or take that line out of labels.jsonl."
            )
        found[picture.name][picture.file] = accepted
    return found


def judged(
    dataset: Dataset, name: str, labels: dict[str, bool], passes: Passes, batch: int = 64
) -> Iterator[tuple[Record, bool]]:
    """Yield the pictures of a class by index, each with whether it is accepted."""
    records = dataset.records(name)
    for first in range(0, len(records), batch):
        rows = range(first, min(first + batch, len(records)))
        open_ = [k for k in rows if records[k].file not in labels]
        passed = dict(zip(open_, passes(name, dataset.images(name, open_)), strict=True)) if open_ else {}
        for k in rows:
            yield records[k], bool(passed[k]) if k in passed else labels[records[k].file]


def _require_pictures(dataset: Dataset, name: str) -> None:
    """Refuse what is no class of the dataset, and a file that is not there, before the work."""
    for record in dataset.records(name):
        path = dataset.path / name / record.file
        require(path.is_file(), "a picture of the dataset", "be there", path, "Make it again, or mend rooms.jsonl.")


def _require_labels(labels: Answers, names: list[str]) -> None:
    none = [name for name in names if not labels[name]]
    require(not none, "every class", "have labels", f"none for {listed(none, 30, str)}",
            "Label them with `polyscore rooms label`, or choose classes (--class).")  # fmt: skip
    for name in names:
        require_both(np.array(list(labels[name].values())), f"the labels of {name}")


def _train(
    dataset: Dataset, labels: Answers, names: list[str], embedding: str, weights: str | None, threshold: float,
    seed: int, device: Any, batch: int,
) -> Selector:  # fmt: skip
    trained = {}
    for name in names:
        rows = [k for k, record in enumerate(dataset.records(name)) if record.file in labels[name]]
        accepted = np.array([labels[name][dataset.records(name)[k].file] for k in rows])
        features = embed(dataset.images(name, rows), embedding, device, batch, weights=weights)
        worth = held_out(features, accepted, threshold, seed)
        trained[name] = Trained(
            learn(features, accepted, seed), int(accepted.sum()), int((~accepted).sum()), worth
        )  # fmt: skip
    return Selector(embedding, weights, threshold, trained)


def _choose(
    dataset: Dataset, labels: Answers, names: list[str], passes: Passes, per_class: int, batch: int,
    report: Callable[..., None] | None,
) -> dict[str, tuple[list[Record], int]]:  # fmt: skip
    """The pictures to copy, and how many were looked at."""
    total, before = sum(len(dataset.records(name)) for name in names), 0
    chosen = {}
    for name in names:
        kept, looked = list[Record](), 0
        for record, accepted in judged(dataset, name, labels[name], passes, batch):
            looked += 1
            if accepted:
                kept.append(record)
                pictures.read(dataset.path / name / record.file, dataset.resolution)  # a label alone has not looked
            if report is not None:
                report(before + looked, total)
            if len(kept) == per_class:
                break
        before += len(dataset.records(name))
        chosen[name] = kept, looked
    return chosen


def _tell_short(name: str, found: int, wanted: int) -> None:
    require(found, f"class {name}", "have an accepted picture", "none", "Generate more, or lower the threshold.")
    if found < wanted:
        warn(
            f"class {name} should have {wanted} accepted pictures; there are {found}. Make more: `polyscore rooms "
            "generate DATA --selector SELECTED`, then select again."
        )


def _write(dataset: Dataset, out: Path, chosen: dict[str, list[Record]], selector: Selector, seed: int) -> None:
    files = [dataset.path / name / record.file for name, kept in chosen.items() for record in kept]
    require_space(out, sum(file.stat().st_size for file in files), f"{len(files)} pictures", "Free some space.")
    about = {"source": "selected", "resolution": dataset.resolution, "of": dataset.about, "seed": seed,
             "embedding": selector.embedding, "threshold": selector.threshold,
             "classes": {name: len(kept) for name, kept in chosen.items()}}  # fmt: skip
    with new_folder(out) as folder:
        for name, kept in chosen.items():
            (folder / name).mkdir()
            for record in kept:
                shutil.copyfile(dataset.path / name / record.file, folder / name / record.file)
            write_lines(folder / name, (record.to_dict() for record in kept))
        selector.save(folder / FILE)
        write_about(folder, about)
