"""What a text-to-image model is asked for: one prompt a class, with weights on the objects that it must show.

Weights are written as compel reads them: `(couch)1.4` counts 1.4 times. All other words count once.
"""

from __future__ import annotations

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
