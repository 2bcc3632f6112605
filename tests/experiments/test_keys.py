"""Keys are promises: every record of the committed stores is found again, and no default decides a stored result."""

import dataclasses
import inspect
import itertools
import json
from pathlib import Path

import pytest

import polyscore as ps
from polyscore.experiments.cells import Cell
from polyscore.experiments.compute import recipe_of, sampler_of
from polyscore.experiments.experiment import Experiment
from polyscore.experiments.protocol import LATER, Protocol
from polyscore.experiments.sources import Written
from polyscore.experiments.store import Store
from polyscore.paper import PROTOCOL

RESULTS = Path(__file__).parents[2] / "results"
STORES = ["paper", "findings"]


def protocol_of(description: dict) -> Protocol:
    return Protocol(**{**LATER, **{key: value for key, value in description.items() if key != "results_version"}})


@pytest.mark.parametrize("name", STORES)
def test_every_stored_key_is_that_of_its_cell_and_protocol(name):
    store = Store(RESULTS / name)
    protocols = {key: protocol_of(description) for key, description in store.protocols().items()}
    assert {key: protocol.key for key, protocol in protocols.items()} == {key: key for key in protocols}
    assert len(store.records) > 500
    for key, record in store.records.items():
        assert record.cell.key(protocols[record.protocol]) == key


def test_the_keys_of_0_2_0_to_the_letter():
    """Computed by version 0.2.0; a change here would orphan every stored record."""
    assert PROTOCOL.key == "29badd11bdafdb3c"
    cell = Cell("mixture-ood", "conditional", 1000, 3, 16)
    assert cell.key(PROTOCOL) == "dfb29f532a2cfa9d"
    assert cell.key(dataclasses.replace(PROTOCOL, clip=None, corrected=True, reference="exact")) == "24f0a91e209645ed"


def test_the_key_of_a_spec_of_ones_own_to_the_letter():
    """Of the first version that had such specs: family and expression by content, at the library's defaults."""
    family = Written("conditions: {a: {kind: gaussian, cov: 2.0}, b: {kind: gaussian, cov: 1.0}}")
    chosen = Experiment("mine", family, "a / b^0.5", metrics=("sw2",))
    assert [chosen.key(cell) for cell in itertools.islice(chosen.cells(), 2)] == [
        "92b0534e92d0c9bd",
        "a7ffe8b5bc389a73",
    ]
    assert json.loads(json.dumps(chosen.protocol_of(next(chosen.cells())).to_dict()["content"])) == {
        "family": {"written": {"conditions": {"a": {"kind": "gaussian", "cov": 2.0},
                                              "b": {"kind": "gaussian", "cov": 1.0}}}, "order": ["a", "b"]},
        "exponents": [["a", 1.0], ["b", -0.5]],
    }  # fmt: skip


@pytest.mark.parametrize("field", LATER)
def test_a_later_field_has_a_key_of_its_own_away_from_what_0_2_0_did(field):
    other = {"grid": "snr", "integrator": "multistep", "quadrature": "noise", "start": "matched", "threshold": 0.5,
             "resampling": "residual", "activation": "tanh", "standardise": True, "ema": 0.999,
             "content": {"family": {"written": {}}}}[field]  # fmt: skip
    assert field not in PROTOCOL.to_dict()
    changed = dataclasses.replace(PROTOCOL, **{field: other})
    assert changed.key != PROTOCOL.key
    assert json.loads(json.dumps(changed.to_dict()))[field] == other


def test_the_librarys_own_protocol_is_that_of_its_samplers_and_trainings():
    """What a spec leaves out is what `FeynmanKac` and `fit` do."""
    assert sampler_of(16, Protocol()) == ps.FeynmanKac()
    assert recipe_of("conditional", Protocol(), ps.VP()) == ps.Recipe(kind="vanilla")


def given(build, *arguments) -> set[str]:
    """The keyword arguments that a function of ours hands to what it builds, by reading its source once."""
    source = inspect.getsource(build)
    return {name for name in arguments if f"{name}=" in source}


def test_the_runner_leaves_no_default_of_samplers_and_recipes_open():
    samplers = {field.name for field in dataclasses.fields(ps.FeynmanKac) if field.init}
    assert given(sampler_of, *samplers) == samplers
    recipes = {field.name for field in dataclasses.fields(ps.Recipe)}
    assert given(recipe_of, *recipes) == recipes
    published = ps.FeynmanKac.published(4)
    assert dataclasses.asdict(published) | {"move": None} == {
        "particles": 4, "steps": 500, "clip": 15.0, "churn": 1.0, "resampling": "systematic", "threshold": 1.0,
        "window": None, "move": None, "ancestry": False, "grid": "equal", "integrator": "euler", "quadrature": "right",
        "start": "noise", "kernels": (), "order": 1, "pooled": False,
    }  # fmt: skip
