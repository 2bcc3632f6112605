"""Pages: one HTML file that holds all of a report and asks nobody for anything."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2


@dataclass(frozen=True)
class Picture:
    """A figure as a data URL, with its caption."""

    caption: str
    source: str

    @classmethod
    def read(cls, path: Path, caption: str) -> Picture:
        """Return a figure's file inlined."""
        data = base64.b64encode(path.read_bytes()).decode()
        return cls(caption, f"data:image/png;base64,{data}")


def render(package: str, template: str, **values: Any) -> str:
    """Return a page from a template of a package; it may extend those of this one."""
    loaders = [jinja2.PackageLoader(name, ".") for name in (package, "polyscore.experiments")]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template(template).render(**values)
