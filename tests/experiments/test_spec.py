"""Specs: the paper's twelve experiments, and what is refused."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from polyscore import paper as papers
from polyscore.errors import ArgumentError
from polyscore.experiments import spec
from polyscore.experiments.entries import SpecError, networks_of
from polyscore.experiments.experiment import quick
from polyscore.experiments.protocol import OF_A_SPEC, Protocol
from polyscore.nn import NETWORKS, Stack
from polyscore.paper import PROTOCOL, SETTINGS
from polyscore.paper.specs import GROUND
from polyscore.paper.specs import parse as parse_spec
from polyscore.paper.specs import read as load_spec
from polyscore.schema import Checked, Domain, count, setting
from small import spec_text

parse_experiment = partial(spec.parse_experiment, ground=GROUND)


class Named(Stack):
    @dataclasses.dataclass(frozen=True)
    class Options(Checked):
        waves: int = setting(4, count())
        words: str = setting("", Domain("be text", lambda value: isinstance(value, str)))


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind of network with options, for one test."""
    monkeypatch.setattr(NETWORKS, "_entries", {**NETWORKS, "named-by-tests": Named})


def test_the_paper_is_twelve_experiments_of_defaults() -> None:
    every = [papers.named(name) for name in papers.names()]
    assert {(e.family, e.kinds) for e in every} == {(s, m) for s in SETTINGS for m in ("conditional", "separate")}
    assert all(e == papers.experiment(e.family, e.kinds) and e.protocol == PROTOCOL for e in every)
    assert every[0].train_sizes == (100, 1000, 10_000) and every[0].particles == (1, 4, 16, 64, 256)
    assert every[0].runs == 30 and every[0].conditions_alone and every[0].models == ("conditional", "analytic")
    assert [e.name for e in every] == papers.names()
    with pytest.raises(ArgumentError, match="Did you mean 'mixture-id-separate'"):
        papers.named("mixture-id-seperate")


def test_specs_survive_the_round_trip(tmp_path: Path) -> None:
    every = {name: papers.named(name) for name in papers.names()} | {
        "small": quick(papers.named("mixture-ood-separate"))
    }
    (tmp_path / "spec.yaml").write_text(spec_text(every))
    every["small"] = dataclasses.replace(every["small"], label="small")
    assert load_spec(tmp_path / "spec.yaml") == every


def test_a_spec_knows_every_field_of_a_protocol() -> None:
    """One schema: what a spec may write is what a protocol holds, all of it with a domain."""
    assert [field.name for field in dataclasses.fields(Protocol)] == [*OF_A_SPEC, "content"]
    assert all("domain" in Protocol.__dataclass_fields__[name].metadata for name in OF_A_SPEC)
    with pytest.raises(SpecError, match="a key of protocol must be one of"):
        parse_experiment({"setting": "mixture-ood", "protocol": {"content": {}}})


def test_a_shared_protocol_fills_what_an_experiment_leaves_out() -> None:
    text = """
protocol: {clip: null, steps: 100}
experiments:
  one: {setting: mixture-ood}
  two: {setting: mixture-ood, protocol: {steps: 50}}
"""
    found = parse_spec(text)
    assert found["one"].protocol == dataclasses.replace(PROTOCOL, clip=None, steps=100)
    assert found["two"].protocol == dataclasses.replace(PROTOCOL, clip=None, steps=50)


@pytest.mark.parametrize(
    ("description", "parts"),
    [
        ({"setting": "mixture-odd"}, ["a setting must be one of", "Did you mean 'mixture-ood'?"]),
        (
            {"setting": "mixture-ood", "partcles": [1]},
            ["a key of an experiment", "'partcles'", "Did you mean 'particles'?"],
        ),
        ({"setting": "mixture-ood", "protocol": {"clp": 1}}, ["a key of protocol", "Did you mean 'clip'?"]),
        ({"setting": "mixture-ood", "particles": [0]}, ["particles must hold", "at least 1; got [0]"]),
        ({"setting": "mixture-ood", "particles": []}, ["must have a row; got none"]),
        (
            {"setting": "mixture-ood", "models": "both"},
            ["models must be one of analytic, conditional, separate", "got 'both'"],
        ),
        ({"setting": "mixture-ood", "runs": "many"}, ["runs must", "got 'many'"]),
        (
            {"setting": "mixture-ood", "protocol": {"churn": 0}},
            ["churn must be left out for `FeynmanKac.published`; got 0.0", "corrected: true"],
        ),
        (
            {"setting": "mixture-ood", "protocol": {"grid": "snr"}},
            ["grid must be left out for `FeynmanKac.published`; got snr. Set corrected: true"],
        ),
        (
            {"setting": "mixture-ood", "protocol": {"corrected": True, "grid": "log"}},
            ["protocol: grid must be one of snr, equal", "got 'log'"],
        ),
        (
            {"setting": "mixture-ood", "protocol": {"ema": 1}},
            ["protocol: ema must be a number above 0, and below 1, or None; got 1"],
        ),
        ({"setting": "mixture-ood", "protocol": {"corrected": True, "threshold": float("nan")}}, ["threshold must be"]),
        ({}, ["setting must be given; got nothing"]),
        ({"setting": "mixture-ood", "runs": True}, ["runs must be a whole number of at least 1; got True. Correct it"]),
        (
            {"setting": "mixture-ood", "protocol": {"clip": True}},
            ["protocol: clip", "be a number above 0, or None; got True"],
        ),
        ({"setting": "mixture-ood", "train_sizes": [1]}, ["train_sizes must hold", "at least 2; got [1]"]),
        (
            {"setting": "mixture-ood", "protocol": {"corrected": True, "churn": 1e20}},
            ["churn must be a number of at least 0, and at most 100; got 1e+20"],
        ),
        ({"setting": "mixture-ood", "models": "analytic", "train_sizes": [5]}, ["empty for analytic models"]),
        ({"setting": "mixture-ood", "models": "analytic", "analytic": False}, ["must have a column"]),
        ({"setting": "mixture-ood", "train_sizes": [], "analytic": False}, ["must have a column"]),
    ],
)
def test_bad_specs_are_refused(description: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(SpecError) as refused:
        parse_experiment(description)
    for part in parts:
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("experiments: {a: {setting: mixture-ood", "valid YAML"),
        ("[1, 2]", "must hold `experiments:`"),
        ("experiments: {a: 3}", "experiment 'a'"),
        ("experiments: {}\nprotocl: {}", "got 'protocl'"),
        ("experiments: {a: {setting: mixture-odd}}", "experiment a: a setting must be one of"),
        (
            "protocol: 3\nexperiments: {a: {setting: mixture-ood}}",
            "`protocol` must be a mapping from name to value",
        ),
    ],
)
def test_bad_spec_files_are_refused(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "spec.yaml").write_text(text)
    with pytest.raises(SpecError, match=r"spec\.yaml") as refused:
        load_spec(tmp_path / "spec.yaml")
    assert part in str(refused.value)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("runs: 1000000000000000000", r"must have at most 1000000 cells; got 23000000000000000000\. Lower its runs"),
        (
            "particles: [1, 1000000000000]",
            "a swarm of K = 1000000000000 particles must fit into memory; got 64 TB needed",
        ),
        ("train_sizes: [1000000000000]", "1000000000000 training points a condition must fit into memory"),
        ("protocol: {swarms: 1000000000000}", "1000000000000 swarms must fit into memory; got 64 TB needed"),
        ("protocol: {projections: 10000000000000}", "10000000000000 projections must fit into memory"),
        ("protocol: {width: 10000000}", "a network of width 10000000 and depth 4 must fit into memory"),
        ("protocol: {depth: 1000000000}", "depth 1000000000 must fit into memory"),
        ("protocol: {batch: 1000000000000}", "a batch of 1000000000000 .* must fit into memory"),
        (
            "protocol: {steps: 1000000000}",
            "steps must be a whole number of at least 1, and at most 1000000; got 1000000000",
        ),
        (
            "protocol: {train_steps: 1000000000000}",
            "train_steps must be a whole number of at least 1, and at most 100000000",
        ),
        (
            "protocol: {first_seed: 99999999999999999999}",
            "first_seed must be a whole number of at least 0, and at most",
        ),
        ("protocol: {clip: .inf}", "clip must be a number above 0, or None; got inf"),
        ("protocol: {clip: .nan}", "clip must be"),
        ("protocol: {learning_rate: .nan}", "learning_rate must be"),
        ("runs: 1.5", "runs must be a whole number"),
        ("runs: 2001-01-01", "runs must be a whole number"),
        ("runs: " + "9" * 900, "must have at most 1000000 cells"),
        ("particles: [" + "9" * 900 + "]", "must fit into memory"),
    ],
)
def test_counts_have_a_ceiling(entry: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        parse_spec(f"experiments: {{a: {{setting: mixture-ood, {entry}}}}}")


def test_cells_are_counted_without_being_made() -> None:
    for found in (papers.named("mixture-ood-separate"), quick(papers.named("mixture-id-conditional")),
                  papers.experiment("mixture-ood", "analytic"),
                  papers.experiment("mixture-ood", analytic=False)):  # fmt: skip
        assert found.count == len(list(found.cells()))
    with pytest.raises(ArgumentError, match="must have at most 1000000 cells"):
        next(dataclasses.replace(found, runs=10**18).cells())


def test_a_missing_spec_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="readable YAML file"):
        load_spec(tmp_path / "none.yaml")


def test_a_name_may_stand_only_once(tmp_path: Path) -> None:
    text = "experiments:\n  one: {setting: mixture-id}\n  one: {setting: mixture-ood}\n"
    with pytest.raises(SpecError, match="the key 'one' stands twice"):
        parse_spec(text)


def test_numbers_may_not_repeat_or_be_missing() -> None:
    with pytest.raises(SpecError, match="train_sizes must hold different values"):
        parse_experiment({"setting": "mixture-id", "train_sizes": [20, 20]})
    with pytest.raises(SpecError, match=r"an experiment must have a row; got none\. Add particles"):
        parse_experiment({"setting": "mixture-id", "particles": []})


def test_quick_never_scales_up() -> None:
    small = parse_experiment({"setting": "mixture-id", "protocol": {"train_steps": 10, "width": 8, "swarms": 64}})
    protocol = quick(small).protocol
    assert (protocol.train_steps, protocol.width, protocol.swarms, protocol.steps) == (10, 8, 64, 100)


def test_analytic_models_have_no_train_sizes() -> None:
    found = parse_experiment({"setting": "mixture-ood", "models": "analytic", "runs": 2, "particles": [1, 4]})
    assert {(cell.models, cell.train_size) for cell in found.cells()} == {("analytic", 0)}
    assert len(list(found.cells())) == 4


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("experimnts: {a: {setting: mixture-ood}}", "got 'experimnts'. Did you mean 'experiments'?"),
        ("protocl: {}\nexperiments: {a: {setting: mixture-ood}}", "Did you mean 'protocol'?"),
        ("protocol: {}", "Write experiments: {my-name: {setting: mixture-ood}}."),
        ("experiments: {? [1, 2] : {setting: mixture-ood}}", "at line 1, column 17: a key must be a name"),
        ("experiments: {0: {setting: mixture-ood}, '0': {setting: mixture-id}}", "the key '0' stands twice"),
        ("experiments: {../../x: {setting: mixture-ood}}", "must be of a-z, A-Z, 0-9, blanks"),
        ("experiments: {a/b: {setting: mixture-ood}}", "got 'a/b'"),
    ],
)
def test_names_and_keys_are_checked(text: str, part: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ({"model": "separate", "width": 16}, "separate-16"),  # as it has always been: it is part of keys
        ({"model": "conditional", "ema": 0.999, "width": 16}, "conditional-0.999-16"),
        (
            {"model": "conditional", "kind": "named-by-tests", "options": {"waves": 8}},
            "conditional-named-by-tests-waves8",
        ),
        ({"model": "conditional", "learning_rate": 1e20}, "conditional-1e20"),
        ({"model": "conditional", "kind": "vanilla", "options": {}}, "conditional-vanilla"),
        ({"model": "conditional", "kind": "named-by-tests", "options": {"waves": 8}, "name": "mine"}, "mine"),
    ],
)
def test_models_are_named_by_what_sets_them_apart(named: None, entry: dict[str, Any], name: str) -> None:
    assert list(networks_of([entry])) == [name]


def test_a_model_that_cannot_be_named_by_itself_asks_for_a_name(named: None) -> None:
    entry = {"model": "conditional", "kind": "named-by-tests", "options": {"words": "w" * 100}}
    with pytest.raises(ArgumentError, match=r"the name of a model must be .*Give it another: name: my-model\."):
        networks_of([entry])
