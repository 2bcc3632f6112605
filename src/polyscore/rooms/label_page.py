"""The label page: one picture, its class's rule, two answers, undo, and how far everything is."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nicegui import ui

from polyscore.errors import PolyscoreError
from polyscore.rooms.dataset import Dataset
from polyscore.rooms.label_pictures import problem
from polyscore.rooms.labelling import Labelling, Progress
from polyscore.rooms.labels import NAME, Picture
from polyscore.rooms.rules import FREE, rule

_STYLE = (Path(__file__).parent / "label.css").read_text(encoding="utf-8")
_SCRIPT = (Path(__file__).parent / "label.js").read_text(encoding="utf-8")
_WORDS = {True: "accepted", False: "rejected"}


def show(dataset: Dataset, classes: Collection[str] | None, per_class: int) -> None:
    """Fill a page with the labelling of a dataset."""
    ui.add_css(_STYLE)
    ui.add_body_html(f"<script>{_SCRIPT}</script>")
    _Page(dataset, Labelling(dataset, classes, per_class)).show()


def refuse(error: PolyscoreError) -> None:
    """Fill a page with what is wrong."""
    ui.add_css(_STYLE)
    with _box("page"):
        _text(str(error), "wrong")


class _Page:
    """What one browser window shows."""

    def __init__(self, dataset: Dataset, labelling: Labelling) -> None:
        self._dataset, self._labelling = dataset, labelling
        self._said = f"{len(labelling.labels)} labels in {NAME}"

    def show(self) -> None:
        ui.on("answer", lambda event: self._answer(event.args))
        with _box("page"):
            with _box("left"):
                self._stage()
                self._buttons()
                self._last()
            with _box("right"):
                self._rule()
                self._progress()

    def _answer(self, sent: Any) -> None:
        """What a key or a click asks for; an answer names the picture that was on the screen."""
        if not isinstance(sent, dict):  # no message of this page's script
            return
        try:
            self._said = self._do(str(sent.get("what")), sent.get("picture"), str(sent.get("name")))
        except PolyscoreError as error:
            ui.notify(str(error), type="negative", multi_line=True, timeout=0, close_button="OK")
        for part in (self._stage, self._rule, self._progress, self._last):
            part.refresh()

    def _do(self, what: str, seen: object, name: str) -> str:
        labelling, current = self._labelling, self._labelling.current
        if what in ("accept", "reject") and current is not None and seen == _key(current):
            labelling.answer(current, what == "accept")
            return f"{_key(current)} {_WORDS[what == 'accept']}, saved"
        if what == "undo":
            back = labelling.undo()
            return "nothing to undo" if back is None else f"{_key(back)} is open again"
        if what == "choose":
            labelling.choose(name)
        return self._said

    @ui.refreshable_method
    def _stage(self) -> None:
        current, following = self._labelling.current, self._labelling.following()
        with _box("stage"):
            if current is None:
                return self._done()
            self._picture(current)
            if following is not None:
                ui.element("img").props(f'src="{self._address(following)}" alt="" hidden').classes("early")
        return None

    def _picture(self, current: Picture) -> None:
        wrong = problem(self._dataset.path, current, self._dataset.resolution)
        shown = ui.element("img").props(f'id="picture" src="{self._address(current)}"').classes("picture")
        shown._props["data-picture"] = _key(current)
        shown._props["alt"] = f"{_key(current)} cannot be shown"
        if wrong is not None:
            _text(f"Reject it: {wrong}", "wrong")

    def _address(self, picture: Picture) -> str:
        """A picture's address, with its time: another dataset on this port, or a newer file, is another picture."""
        try:
            found = os.lstat(self._dataset.path / picture.name / picture.file)
            at = f"{found.st_mtime_ns}-{found.st_ino}"
        except OSError:
            at = "none"
        return f"/picture/{quote(picture.name, safe='')}/{quote(picture.file, safe='')}?at={at}"

    def _done(self) -> None:
        with _box("done"):
            _text("All labelled", "title")
            _text(f"Every class has what was wanted. Next: polyscore rooms select {self._dataset.path} OUT", "note")

    def _buttons(self) -> None:
        with _box("buttons"):
            for what, name, keys in (
                ("reject", "Reject", "R or ←"),
                ("undo", "Undo", "U or ⌫"),
                ("accept", "Accept", "A or →"),
            ):
                with ui.element("button").props(f'id="{what}" type="button"').classes(f"answer {what}") as button:
                    _text(name, "name")
                    _text(keys, "keys")
                button.on("click", js_handler=f"() => window.answer('{what}')")

    @ui.refreshable_method
    def _last(self) -> None:
        _text(self._said, "said").props('id="said" role="status"')

    @ui.refreshable_method
    def _rule(self) -> None:
        current = self._labelling.current
        if current is None:
            return
        wanted = rule(current.name)
        with _box("card"):
            _text(current.name, "title").props('id="class"')
            for heading, kind, lines in (
                ("Must be seen", "must", wanted.must),
                ("Must not be seen", "never", wanted.never),
                ("And always", "always", wanted.always),
            ):
                _text(heading, "heading")
                for line in lines:
                    _text(line, f"line {kind}")
            _text(FREE, "note")

    @ui.refreshable_method
    def _progress(self) -> None:
        current = self._labelling.current
        with _box("card"):
            for name, progress in self._labelling.progress().items():
                self._bar(name, progress, current is not None and current.name == name)

    def _bar(self, name: str, progress: Progress, chosen: bool) -> None:
        with ui.element("button").props('type="button"').classes("class chosen" if chosen else "class") as row:
            with _box("row"):
                _text(name, "name")
                with _box("count"):
                    for kind, text in (("yes", f"{progress.accepted} ✓"), ("no", f"{progress.rejected} ✕")):
                        ui.html(text, tag="span", sanitize=False).classes(kind)
                    ui.html(f"{progress.done} of {progress.wanted}", tag="b", sanitize=False)
            with _box("bar"):
                for kind, count in (("good", progress.accepted), ("bad", progress.rejected)):
                    _box(kind).style(f"width: {min(100, 100 * count / progress.wanted):.2f}%")
        row._props["data-class"] = name
        row.on("click", js_handler="(event) => window.answer('choose', event.currentTarget.dataset.class)")


def _key(picture: Picture) -> str:
    return f"{picture.name}/{picture.file}"


def _box(kind: str) -> Any:
    return ui.element("div").classes(kind)


def _text(text: str, kind: str) -> Any:
    return ui.label(text).classes(kind)
