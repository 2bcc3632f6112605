"""The paper's twelve experiments, and specs in its words: `setting`, one kind of `models`, `analytic` beside it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from polyscore.errors import require, require_known, shorten
from polyscore.experiments.cells import ANALYTIC
from polyscore.experiments.experiment import Experiment
from polyscore.experiments.protocol import LATER, Protocol
from polyscore.experiments.spec import Ground, load_spec, parse_spec
from polyscore.paper import references  # noqa: F401  (registers the paper's reference)
from polyscore.paper.settings import SETTINGS, Setting

PROTOCOL = Protocol(**{**LATER, "steps": 500, "clip": 15.0, "corrected": False, "reference": "paper"})
KINDS = ("conditional", "separate")
_DEFAULTS: dict[str, Any] = {
    "train_sizes": [100, 1000, 10_000], "particles": [1, 4, 16, 64, 256], "runs": 30, "conditions_alone": True,
}  # fmt: skip


def translate(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment in the paper's words in those of any spec: `setting`, `models` and `analytic`."""
    found = dict(entry)
    if "setting" in found:
        require_known(found["setting"], SETTINGS, "a setting")
        found["family"] = found.pop("setting")
    require("family" in found, "setting", "be given", "nothing", f"Write setting: one of {', '.join(SETTINGS)}.")
    kinds = found.get("models", "conditional")
    if isinstance(kinds, str):
        analytic = found.pop("analytic", True)
        require(isinstance(analytic, bool), "analytic", "be True or False", shorten(analytic), "Write true or false.")
        found["models"] = list(dict.fromkeys([kinds, ANALYTIC])) if analytic else [kinds]
        if kinds == ANALYTIC:
            require(analytic, "an experiment", "have a column", "none", "Set analytic: true, or train_sizes.")
            return {"train_sizes": [], **found}
    return found


GROUND = Ground({name: Setting(name) for name in SETTINGS}, PROTOCOL, _DEFAULTS, translate, "{setting: mixture-ood}")


def experiment(setting: str, models: str = "conditional", analytic: bool = True, **fields: Any) -> Experiment:
    """Return an experiment on one of the paper's settings; what is left out is the paper's."""
    entry = translate({"setting": setting, "models": models, "analytic": analytic})
    entry |= {"models": tuple(entry["models"]), "protocol": PROTOCOL, "source": Setting(setting)}
    return Experiment(**{**_DEFAULTS, **entry, **fields})


def read(path: Path | str) -> dict[str, Experiment]:
    """Return the experiments of a spec file that may be in the paper's words."""
    return load_spec(path, GROUND)


def parse(text: str, source: str = "a spec") -> dict[str, Experiment]:
    """Return the experiments of a spec's text that may be in the paper's words."""
    return parse_spec(text, source, ground=GROUND)


@lru_cache(maxsize=1)
def _experiments() -> dict[str, Experiment]:
    text = resources.files(__package__).joinpath("experiments.yaml").read_text(encoding="utf-8")
    return parse(text, "experiments.yaml")


def names() -> list[str]:
    """Return the names of the paper's experiments, in the order of its tables."""
    return list(_experiments())


def named(name: str) -> Experiment:
    """Return one of the paper's experiments."""
    require_known(name, known := _experiments(), "an experiment")
    return known[name]
