"""Pictures of composed images: the grid of settings, the verdicts on 64 of them, and the counts beside the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from polyscore.files.atomic import write_atomically
from polyscore.images.counting import NONE
from polyscore.images.sheets import COLUMNS, Sheet
from polyscore.paper.images.reading import Row

COLOURS = ("#999999", "#0072B2", "#E69F00", "#009E73", "#D55E00")  # empty, couch, X, both, none
_INK, _GAP, _TITLE, _LABEL = (40, 40, 40), 2, 16, 150
_SHOWN = (4, 2)  # images across and down a panel
Images = NDArray[np.uint8]
Panel = tuple[str, str, int]  # setting, models, K


def grid(path: Path, table: Mapping[Panel, Row], sheets: Mapping[str, Sheet], settings: Sequence[str]) -> bool:
    """Save the paper's figure: settings down, models and {naive, K = 16} across; False where no sheet is there.

    A panel that was not computed stays white.
    """
    columns = [(models, k) for models in ("conditional", "separate") for k in (1, 16)]
    found = {(s, m, k): sheets[row.key] for (s, m, k), row in table.items() if row.key in sheets}
    columns = [column for column in columns if any((s, *column) in found for s in settings)]
    down = [setting for setting in settings if any((setting, *column) in found for column in columns)]
    if not down:
        return False
    side = 64 * max(1, round(next(iter(found.values())).images.shape[1] / 64))
    width, height = _SHOWN[0] * side + 4 * _GAP, _SHOWN[1] * side + 4 * _GAP
    page = Image.new("RGB", (_LABEL + len(columns) * width, _TITLE + len(down) * height), "white")
    pen = ImageDraw.Draw(page)
    for across, (models, k) in enumerate(columns):
        pen.text((_LABEL + across * width, 2), f"{models}, {'naive' if k == 1 else f'FKC K = {k}'}", fill=_INK)
    for row, setting in enumerate(down):
        pen.text((4, _TITLE + row * height + 4), setting, fill=_INK)
        for across, column in enumerate(columns):
            if sheet := found.get((setting, *column)):
                page.paste(_panel(sheet, side), (_LABEL + across * width, _TITLE + row * height))
    write_atomically(path, lambda temporary: page.save(temporary, "PNG", optimize=True))
    return True


def _panel(sheet: Sheet, side: int) -> Image.Image:
    across, down = _SHOWN
    page = Image.new("RGB", (across * side, down * side), "white")
    for k, image in enumerate(sheet.images[: across * down]):
        page.paste(_scaled(image, side), ((k % across) * side, (k // across) * side))
    return page


def _scaled(image: Images, side: int) -> Image.Image:
    return Image.fromarray(image).resize((side, side), Image.Resampling.NEAREST)


def verdicts(path: Path, sheet: Sheet, classes: Sequence[str]) -> None:
    """Save the images of a sheet, each framed in the colour of its verdict, with a legend."""
    names = (*classes, NONE)
    side = max(48, sheet.images.shape[1])
    step, rows = side + 6, -(-len(sheet.images) // COLUMNS)
    page = Image.new("RGB", (COLUMNS * step, rows * step + 20), "white")
    pen = ImageDraw.Draw(page)
    for k, (image, verdict) in enumerate(zip(sheet.images, sheet.verdicts, strict=True)):
        left, top = (k % COLUMNS) * step, (k // COLUMNS) * step
        colour = COLOURS[names.index(verdict)] if verdict in names else "black"
        pen.rectangle((left, top, left + step - 2, top + step - 2), outline=colour, width=3)
        page.paste(_scaled(image, side), (left + 3, top + 3))
    _legend(pen, names, rows * step + 5)
    write_atomically(path, lambda temporary: page.save(temporary, "PNG", optimize=True))


def _legend(pen: ImageDraw.ImageDraw, names: Sequence[str], top: int) -> None:
    left = 4
    for name, colour in zip(names, COLOURS, strict=True):
        pen.rectangle((left, top, left + 9, top + 9), fill=colour)
        pen.text((left + 13, top - 1), name, fill=_INK)
        left += 26 + 6 * len(name)


def bars(path: Path, table: Mapping[Panel, Row], settings: Sequence[str]) -> None:
    """Save shares as stacked bars: the target, then every K of both kinds of model, a panel a setting."""
    from polyscore import plots

    shown = [setting for setting in settings if any(place[0] == setting for place in table)]
    with plots.Panels(path, [2.6] * len(shown), 2.6, dpi=110) as (_, axes):
        for axis, setting in zip(axes, shown, strict=True):
            own = sorted((place[1:], row) for place, row in table.items() if place[0] == setting)
            first = own[0][1]
            stacks = [("target", [*map(first.mass, first.classes), 0.0])]
            stacks += [(f"{m[:4]}. {k}", [*map(r.share, r.classes), r.share(NONE)]) for (m, k), r in own]
            _stack(axis, stacks)
            axis.set_title(setting, parse_math=False, fontsize=8)


def _stack(axis: object, stacks: Sequence[tuple[str, list[float]]]) -> None:
    places = range(len(stacks))
    below = np.zeros(len(stacks))
    for k, colour in enumerate(COLOURS):
        heights = np.array([shares[k] for _, shares in stacks])
        axis.bar(places, 100 * heights, bottom=100 * below, color=colour, width=0.8)  # type: ignore[attr-defined]
        below += heights
    axis.set_xticks(list(places), [name for name, _ in stacks], rotation=90, fontsize=7)  # type: ignore[attr-defined]
    axis.set_ylim(0, 100)  # type: ignore[attr-defined]
