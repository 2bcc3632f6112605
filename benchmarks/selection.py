"""From flawed rooms to accepted ones, the whole chain: render, label by script, select; AUC of accept/reject per class.

    python benchmarks/selection.py [--count 100] [--flawed 0.4] [--labelled 0.8] [--data FOLDER]

Rooms of which a stated share is flawed on purpose (an object missing, extra or cut by the edge; noise) are rendered, a
share of them is labelled as their records say (flawed: reject), and `select` learns from these labels. Its own held-out
figures stand beside those on rooms that had no label at all, for which the records know the truth. Writes
results/select.md.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from polyscore import rooms
from polyscore.rooms.labels import Labels, Picture
from polyscore.rooms.learning import auc
from polyscore.rooms.selecting import select
from polyscore.rooms.selector import Selector

RESULT = Path(__file__).parent / "results" / "select.md"


def label(dataset: rooms.Dataset, share: float) -> None:
    """Label the first rooms of each class as a person would who sees every flaw."""
    labels = Labels(dataset.path)
    for name in dataset.classes:
        records = dataset.records(name)
        for record in records[: round(share * len(records))]:
            if Picture(name, record.file) not in labels:
                labels.add(Picture(name, record.file), record.flaw is None)


def unseen(dataset: rooms.Dataset, selector: Selector, name: str, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Ratings of rooms without a label, and whether they are in order."""
    records = dataset.records(name)
    rows = range(round(share * len(records)), len(records))
    return selector.rate(name, dataset.images(name, rows)), np.array([records[k].flaw is None for k in rows])


def caught(dataset: rooms.Dataset, selector: Selector, share: float) -> str:
    """Of each kind of flaw among rooms without a label, how many were rejected."""
    all_, rejected = Counter[str](), Counter[str]()
    for name in dataset.classes:
        rated, _ = unseen(dataset, selector, name, share)
        for kind, value in zip(dataset.flaws(name)[-len(rated) :], rated, strict=True):
            all_[kind or "none"] += 1
            rejected[kind or "none"] += value < selector.threshold
    return ", ".join(f"{kind} {rejected[kind]} of {all_[kind]}" for kind in sorted(all_))


def line(name: str, dataset: rooms.Dataset, selector: Selector, share: float, copied: int) -> str:
    one, (rated, good) = selector.of(name), unseen(dataset, selector, name, share)
    area, error = auc(rated, good)
    right = ((rated >= selector.threshold) == good).mean()
    worth = one.worth
    return (
        f"| {name} | {one.accepted} + {one.rejected} | {one.judge.c:g} | {worth.accuracy:.3f} | "
        f"{worth.auc:.3f} ± {worth.auc_error:.3f} | {worth.precision:.3f} | {right:.3f} | "
        f"{area:.3f} ± {error:.3f} | {copied} |"
    )


def report(folder: Path, count: int, flawed: float, share: float) -> str:
    """Run the chain and return its table."""
    dataset = rooms.render(folder / "rooms", count, look=rooms.Look(64, flawed=flawed), workers=1, progress=False)
    label(dataset, share)
    began = time.process_time()
    found = select(dataset.path, folder / "selected", per_class=round(count * (1 - flawed) * 0.9), device="cpu")
    seconds = time.process_time() - began
    flaws = sum(one is not None for name in dataset.classes for one in dataset.flaws(name))
    pooled = [unseen(dataset, found.selector, name, share) for name in dataset.classes]
    area, error = auc(*(np.concatenate(part) for part in zip(*pooled, strict=True)))
    accepted, unfit = found.dataset, 1 - np.mean(np.concatenate([fine for _, fine in pooled]))
    passed = [good for rated, fine in pooled for good in fine[rated >= found.selector.threshold]]
    rows = "\n".join(
        line(name, dataset, found.selector, share, len(accepted.records(name))) for name in dataset.classes
    )
    return f"""# Accept or reject, learned from labels

{count} rooms a class of 64 x 64, seed 0, {100 * flaws / len(dataset):.0f} % of them flawed on purpose (missing, extra, cut, noise);
the first {100 * share:.0f} % of each class labelled by script from their records; features of {found.selector.embedding}; threshold {found.selector.threshold}.
Held-out: on labelled rooms, by nested cross-validation. Unseen: on the rooms without a label. AUC ± one standard error.

| class | labels: accepted + rejected | C | held-out accuracy | held-out AUC | held-out precision | unseen accuracy | unseen AUC | copied |
|---|---|---|---|---|---|---|---|---|
{rows}

All unseen rooms together: AUC {area:.3f} ± {error:.3f}. Rejected among them, by flaw: {caught(dataset, found.selector, share)}.
Of the {len(passed)} that were let through, {len(passed) - sum(passed)} are flawed: {100 * (1 - np.mean(passed)):.0f} %, of all unseen rooms {100 * unfit:.0f} %.
`select` took {seconds:.0f} s of one core ({platform.machine()}). Made by `python benchmarks/selection.py --count {count} --flawed {flawed:g} --labelled {share:g}`.
"""  # noqa: E501


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--flawed", type=float, default=0.4)
    options.add_argument("--labelled", type=float, default=0.8)
    options.add_argument("--data", type=Path)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        text = report(given.data or Path(temporary), given.count, given.flawed, given.labelled)
    print(text)
    RESULT.write_text(text, encoding="utf-8")
