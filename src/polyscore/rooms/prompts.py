"""What a text-to-image model is asked for: one prompt a class, with weights on the objects that it must show.

Weights are written as compel reads them: `(couch)1.4` counts 1.4 times. All other words count once.
"""

from __future__ import annotations

import re

from polyscore.errors import require, shorten
from polyscore.registry import Registry

_BEFORE = (
    "A photograph of an empty living room with plain white walls and wooden floors. "
    "The room has a large window, and it is sunny outside. "
)
_AFTER = (
    " It contains no furniture, no decorations, no plants, and no other objects. Completely undecorated. "
    "Abandoned but clean. The photo is wide angle, showing the entire room and how it is empty."
)
WEIGHT = 1.4
LONGEST, DEEPEST = 5000, 3  # characters; brackets open at once, each of which makes compel read five times as long


def _holding(*objects: str) -> str:
    """A prompt for a room that is empty except for some objects."""
    things = " and ".join(f"a ({thing}){WEIGHT}{where}" for thing, _, where in (one.partition("|") for one in objects))
    return f"{_BEFORE}The room is completely empty{', except for ' * bool(objects)}{things}.{_AFTER}"


PROMPTS = Registry[str](
    "a class with a prompt",
    {
        "empty": _holding(),
        "couch": _holding("couch"),
        "painting": _holding("framed painting| on the wall"),
        "table": _holding("coffee table"),
        "couch+painting": _holding("couch", "framed painting| on the wall"),
        "couch+table": _holding("couch", "coffee table"),
    },
    hint="Register a prompt in polyscore.rooms.prompts.PROMPTS.",
)


def check_prompt(prompt: object, name: str) -> str:
    """Return the prompt of a class, or refuse what no tokenizer reads, or compel reads without end."""
    what = f"the prompt of {name}"
    good = isinstance(prompt, str) and prompt == prompt.encode(errors="ignore").decode()  # no half of a character
    require(good, what, "be text", shorten(prompt, 80), "Write it in quotes.")
    text = str(prompt)
    require(len(text) <= LONGEST, what, f"have at most {LONGEST} characters", len(text), "Shorten it.")
    require(_depth(text) <= DEEPEST, what, f"open at most {DEEPEST} brackets at once", shorten(text, 80),
            "Close them, or write \\( for one that is meant as such.")  # fmt: skip
    return text


def _depth(text: str) -> int:
    """How many brackets are open at once, at most; those that are never closed are open to the end."""
    depth = deepest = 0
    for bracket in re.findall(r"\\.|[()]", text):
        depth = max(0, depth + {"(": 1, ")": -1}.get(bracket, 0))
        deepest = max(deepest, depth)
    return deepest
