"""`polyscore example`."""

from __future__ import annotations

from importlib.resources import files

import typer


def command() -> None:
    """Print a family file to begin with.

    Example: `polyscore example > family.yaml`, then `polyscore sample family.yaml "a1 * a2 / base"`
    """
    typer.echo((files("polyscore") / "example.yaml").read_text(encoding="utf-8"), nl=False)
