"""Rooms by a text-to-image model: real code on a tiny random Flux pipeline of the same classes."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from polyscore.cli import app
from polyscore.errors import OutputError, PolyscoreError, PolyscoreWarning
from polyscore.features import EMBEDDINGS
from polyscore.rooms import Dataset, flux, pictures
from polyscore.rooms.classes import CLASSES
from polyscore.rooms.generating import Drawing, generate
from polyscore.rooms.learning import HeldOut, Judge
from polyscore.rooms.prompts import PROMPTS
from polyscore.rooms.selector import Selector, Trained
from rooms.tiny_flux import save

PLAIN = "The room is completely empty, except for a couch on the wall. It contains no plants"
WEIGHTED = PLAIN.replace("couch", "(couch)1.4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("models") / "tiny-flux")


@pytest.fixture(scope="module")
def painter(folder: Path) -> flux.Flux:
    return flux.load(str(folder), "cpu")


# ------------------------------------------------------------------------------------------------------------ prompts


def test_every_class_has_a_prompt_that_compel_reads() -> None:
    from compel import Compel

    assert set(PROMPTS) == set(CLASSES)
    for name, prompt in PROMPTS.items():
        (parsed,) = Compel.parse_prompt_string(prompt).prompts
        weighted = {part.text: part.weight for part in parsed.children if part.weight != 1}
        words = {"couch": "couch", "painting": "framed painting", "table": "coffee table"}
        assert weighted == {words[thing]: 1.4 for thing in CLASSES[name]}
    assert "completely empty, except for a (couch)1.4 and a (framed painting)1.4 on the wall. It" in PROMPTS[
        "couch+painting"
    ]  # fmt: skip
    assert "The room is completely empty. It contains no furniture" in PROMPTS["empty"]


@torch.inference_mode()
def test_a_prompt_without_weights_is_encoded_as_the_pipeline_does(painter: flux.Flux) -> None:
    for prompt in (PLAIN, PROMPTS["empty"]):
        tokens, pooled = painter.encode(prompt)
        theirs, their_pooled, _ = painter.pipeline.encode_prompt(prompt, prompt, max_sequence_length=flux.TOKENS)
        assert tokens.shape == (1, 256, 24) and pooled.shape == (1, 20)
        torch.testing.assert_close(tokens, theirs, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(pooled, their_pooled, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_weight_moves_its_tokens_away_from_an_empty_prompt(painter: flux.Flux) -> None:
    """e + w (z - e), z and e by T5 alone; other tokens, and CLIP's vector, stay."""
    pipe = painter.pipeline

    def states(ids: list[int]) -> torch.Tensor:
        padded = torch.tensor([ids + [0] * (256 - len(ids))])
        return pipe.text_encoder_2(padded).last_hidden_state[0]

    ids = pipe.tokenizer_2(PLAIN).input_ids
    z, e = states(ids), states([1])
    couch = [k for k, token in enumerate(pipe.tokenizer_2.convert_ids_to_tokens(ids)) if token == "▁couch"]
    expected = z.clone()
    expected[couch] = e[couch] + 1.4 * (z[couch] - e[couch])
    found, pooled = painter.encode(WEIGHTED)
    torch.testing.assert_close(pooled, painter.encode(PLAIN)[1])
    assert len(couch) == 1 and (expected - z).abs().max() > 0.01
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_prompts_are_encoded_as_compels_own_wrapper_does(painter: flux.Flux, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes its length from the tokenizer."""
    from compel import CompelForFlux

    monkeypatch.setattr(painter.pipeline.tokenizer_2, "model_max_length", 256)
    theirs = CompelForFlux(painter.pipeline, device="cpu")(PROMPTS["couch+table"])
    tokens, pooled = painter.encode(PROMPTS["couch+table"])
    torch.testing.assert_close(tokens, theirs.embeds)
    torch.testing.assert_close(pooled, theirs.pooled_embeds)


# ----------------------------------------------------------------------------------------------------------- pictures


def test_a_picture_is_the_pipelines_own(painter: flux.Flux) -> None:
    """Against a plain call of the pipeline with the prompt as text."""
    ours = painter.paint(PLAIN, [5, 6], 16, 3)
    theirs = painter.pipeline(
        PLAIN, height=16, width=16, num_inference_steps=3, guidance_scale=0.0, max_sequence_length=256,
        generator=torch.Generator().manual_seed(6),
    ).images[0]  # fmt: skip
    assert ours.shape == (2, 16, 16, 3) and ours.dtype == np.uint8 and ours.std() > 5
    assert np.abs(ours[1].astype(int) - np.asarray(theirs)).max() <= 1
    assert np.abs(painter.paint(WEIGHTED, [5], 16, 3)[0].astype(int) - ours[0]).max() >= 1


TINY: dict[str, Any] = {"device": "cpu", "batch": 3}


def tiny(folder: Path, **options: Any) -> Drawing:
    return Drawing(**{"resolution": 8, "drawn": 16, "steps": 1, "model": str(folder)} | options)


def test_a_dataset_grows_and_its_pictures_depend_on_seed_class_and_index_alone(folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    whole = generate(tmp_path / "one", 5, classes=["couch", "empty"], seed=4, drawing=tiny(folder), **TINY,
                     progress=lambda done, total: seen.append((done, total)))  # fmt: skip
    assert seen[0] == (0, 10) and seen[-1] == (10, 10) and whole.accepted is None
    data = whole.dataset
    told = {"format": "polyscore-rooms", "version": 1, "source": "generated", "seed": 4, "resolution": 8, "drawn": 16,
            "steps": 1, "model": "tiny-flux", "classes": {"empty": 5, "couch": 5}}  # fmt: skip
    assert data.about == told
    record = data.records("couch")[3]
    assert (record.file, record.shows, record.objects, record.flaw) == ("000003.png", "couch", {}, None)
    assert pictures.record(data.path / "couch" / "000003.png")["prompt"] == PROMPTS["couch"]
    images = data.images("couch").astype(int)
    assert all(np.abs(images[0] - other).max() > 3 for other in [*images[1:], *data.images("empty").astype(int)])
    generate(tmp_path / "two", 2, classes=["couch"], seed=4, drawing=tiny(folder), **TINY)
    others = TINY | {"batch": 2}
    times = (tmp_path / "two" / "couch" / "000001.png").stat().st_mtime_ns
    grown = generate(tmp_path / "two", 5, classes=["couch"], seed=4, drawing=tiny(folder), **others).dataset
    assert np.abs(grown.images("couch").astype(int) - images).max() <= 1  # other batches: rounding alone
    assert (tmp_path / "two" / "couch" / "000001.png").stat().st_mtime_ns == times
    assert np.abs(generate(tmp_path / "three", 1, classes=["couch"], seed=5, drawing=tiny(folder), **TINY)
                  .dataset.images("couch").astype(int) - images[0]).max() > 3  # fmt: skip


def test_a_complete_dataset_needs_no_model(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate(tmp_path / "out", 2, classes=["table"], drawing=tiny(folder), **TINY)
    (tmp_path / "out" / "table" / ".000002-x.png").write_bytes(b"half")  # of a process that was killed
    monkeypatch.setattr(flux, "load", lambda *options: pytest.fail("the model was loaded"))
    assert len(generate(tmp_path / "out", 2, classes=["table"], drawing=tiny(folder), **TINY).dataset) == 2
    assert not (tmp_path / "out" / "table" / ".000002-x.png").exists()


def test_without_its_packages_nothing_is_begun(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(PolyscoreError, match=r"must find diffusers; it is not installed. pip install"):
        generate(tmp_path / "out", 2, classes=["table"], drawing=tiny(folder), **TINY)
    assert not (tmp_path / "out").exists()


def test_pictures_are_shrunk_by_means_of_blocks(folder: Path, tmp_path: Path, painter: flux.Flux) -> None:
    from polyscore.rng import derive

    found = generate(tmp_path / "out", 1, classes=["couch"], seed=9, drawing=tiny(folder), **TINY)
    made = found.dataset.images("couch")
    large = painter.paint(PROMPTS["couch"], [derive(9, "rooms", "generated", "couch", 0)], 16, 1)[0]
    means = large.reshape(8, 2, 8, 2, 3).astype(float).mean((1, 3))
    assert np.abs(made[0] - means).max() <= 0.5 + 1e-6


# -------------------------------------------------------------------------------------------- until enough are accepted


@pytest.fixture
def selector(monkeypatch: pytest.MonkeyPatch) -> Selector:
    """Accepts what is redder than it is blue."""
    monkeypatch.setattr(EMBEDDINGS, "_entries", dict(EMBEDDINGS._entries))
    EMBEDDINGS.register("mean-colour")(_mean_colour)
    judge = Judge(np.array([1.0, 0.0, -1.0]), _OFFSET, 1.0)
    return Selector("mean-colour", None, 0.5, {"couch": Trained(judge, 50, 50, HeldOut(1, 1, 0, 1, 1))})


def _mean_colour(device: object, weights: str | None) -> object:
    return lambda images: images.float().mean((2, 3))


_OFFSET = 0.0


def centred(selector: Selector, dataset: Dataset) -> Selector:
    """The selector with its offset moved so that every other picture of a dataset passes."""
    images = dataset.images("couch").astype(float).mean((1, 2))
    middle = float(np.median(images[:, 0] - images[:, 2]))
    judge = selector.of("couch").judge._replace(intercept=-middle)
    return Selector("mean-colour", None, 0.5, {"couch": Trained(judge, 50, 50, selector.of("couch").worth)})


def test_it_goes_on_until_enough_are_accepted(folder: Path, tmp_path: Path, selector: Selector) -> None:
    first = generate(tmp_path / "out", 6, classes=["couch"], drawing=tiny(folder), **TINY).dataset
    selector = centred(selector, first)
    found = generate(tmp_path / "out", 6, classes=["couch"], drawing=tiny(folder), selector=selector, **TINY)
    passed = selector.passes("couch", found.dataset.images("couch"))
    assert found.accepted == {"couch": int(passed.sum())} and 6 <= passed.sum() <= 8
    assert len(found.dataset) > 6 and passed[: len(passed) - 3].sum() < 6  # not a batch more than it takes
    again = generate(tmp_path / "out", 6, classes=["couch"], drawing=tiny(folder), selector=selector, **TINY)
    assert again.accepted == found.accepted and len(again.dataset) == len(found.dataset)


def test_labels_count_before_the_selector(folder: Path, tmp_path: Path, selector: Selector) -> None:
    first = generate(tmp_path / "out", 6, classes=["couch"], drawing=tiny(folder), **TINY).dataset
    selector = centred(selector, first)
    label = {"class": "couch", "accepted": True, "at": "2026-11-16T20:00:00+00:00"}
    lines = [json.dumps(label | {"file": record.file}) + "\n" for record in first.records("couch")]
    (tmp_path / "out" / "labels.jsonl").write_text("".join(lines))
    found = generate(tmp_path / "out", 6, classes=["couch"], drawing=tiny(folder), selector=selector, **TINY)
    assert found.accepted == {"couch": 6} and len(found.dataset) == 6


def test_it_gives_up_in_the_end(folder: Path, tmp_path: Path, selector: Selector) -> None:
    judge = selector.of("couch").judge._replace(intercept=-1e6)
    never = Selector("mean-colour", None, 0.5, {"couch": Trained(judge, 50, 50, selector.of("couch").worth)})
    with pytest.warns(PolyscoreWarning, match="class couch should have 2 accepted pictures; of 5 there are 0"):
        found = generate(tmp_path / "out", 2, classes=["couch"], drawing=tiny(folder), selector=never, most=5, **TINY)
    assert len(found.dataset) == 5 and found.accepted == {"couch": 0}


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (0, {}, "count must be a whole number from 1"),
        (2, {"classes": ["kitchen"]}, "a class of rooms must be one of"),
        (2, {"seed": "1"}, "seed must be a whole number"),
        (2, {"batch": 0}, "batch must be a whole number"),
        (2, {"most": 5}, "most must come with a selector"),
        (2, {"offload": True}, "offload must have a GPU"),
        (2, {"device": "warp"}, "device must name a device"),
    ],
)
def test_bad_options_are_refused(folder: Path, tmp_path: Path, count: int, options: dict, message: str) -> None:
    with pytest.raises(PolyscoreError, match=message):
        generate(tmp_path / "out", count, **TINY | {"drawing": tiny(folder)} | options)
    assert not list(tmp_path.rglob("*.png"))


def test_bad_drawings_are_refused(folder: Path, tmp_path: Path, selector: Selector) -> None:
    with pytest.raises(PolyscoreError, match="resolution must be a whole number of at least 8"):
        Drawing(resolution=4)
    with pytest.raises(PolyscoreError, match="drawn must be a multiple of the resolution; got 100"):
        Drawing(resolution=64, drawn=100)
    assert (Drawing(64).side, Drawing(96).side, Drawing(512).side, Drawing(64, 64).side) == (256, 288, 512, 64)
    with pytest.raises(PolyscoreError, match="drawn must be a multiple of 4; got 18"):
        generate(tmp_path / "out", 1, drawing=tiny(folder, resolution=9, drawn=18), **TINY)
    with pytest.raises(PolyscoreError, match="it knows couch, not 'empty'"):
        generate(tmp_path / "out", 1, drawing=tiny(folder), selector=selector, **TINY)
    with pytest.raises(PolyscoreError, match="most must be from 4, the count"):
        generate(tmp_path / "out", 4, classes=["couch"], drawing=tiny(folder), selector=selector, most=3, **TINY)


def test_a_dataset_keeps_what_it_was_made_with(folder: Path, tmp_path: Path) -> None:
    generate(tmp_path / "out", 1, classes=["couch"], drawing=tiny(folder), **TINY)
    with pytest.raises(PolyscoreError, match="must keep its steps; got 2, it has 1"):
        generate(tmp_path / "out", 2, classes=["couch"], drawing=tiny(folder, steps=2), **TINY)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    with pytest.raises(OutputError, match="must have an empty folder"):
        generate(tmp_path / "mine", 1, drawing=tiny(folder), **TINY)


def test_models_that_are_none_are_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PolyscoreError, match=r"model must be a Flux pipeline; .* nor within reach.*--model"):
        flux.load("nobody/flux-of-nobody", "cpu")
    with pytest.raises(PolyscoreError, match=r"model must be a whole Flux pipeline; .* Check the folder"):
        flux.load(str(tmp_path / "nowhere"), "cpu")
    cut = tmp_path / "cut"
    save(cut)
    file = cut / "text_encoder_2" / "model.safetensors"
    whole, weights = file.read_bytes(), load_file(file)
    save_file({name: weights[name] for name in list(weights)[1:]}, file, metadata={"format": "pt"})
    with pytest.raises(PolyscoreError, match="must be all that its configuration asks for; got a file without"):
        flux.load(str(cut), "cpu")
    file.write_bytes(whole)
    config = cut / "text_encoder_2" / "config.json"
    sound = config.read_text()
    config.write_text(json.dumps({**json.loads(sound), "num_layers": 10**6}))
    with pytest.raises(PolyscoreError, match=r"num_layers of .* must be at most 1000; got 1000000"):
        flux.load(str(cut), "cpu")
    config.write_text(sound)
    (cut / "transformer" / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(PolyscoreError, match="model must be"):
        flux.load(str(cut), "cpu")


def test_a_disk_that_fills_up_leaves_whole_pictures(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) > 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="must be written whole"):
        generate(tmp_path / "out", 9, classes=["couch"], drawing=tiny(folder), **TINY)
    monkeypatch.setattr(os, "fsync", real)
    files = sorted(path.name for path in (tmp_path / "out" / "couch").iterdir())
    assert files == [f"{k:06}.png" for k in range(4)]  # the first of five writes was dataset.json
    assert all(pictures.record(tmp_path / "out" / "couch" / name) is not None for name in files)
    assert len(generate(tmp_path / "out", 6, classes=["couch"], drawing=tiny(folder), **TINY).dataset) == 6


# -------------------------------------------------------------------------------------------------------- command line


def test_the_command_generates_and_says_what_there_is(folder: Path, tmp_path: Path) -> None:
    run = CliRunner()
    asked = ["rooms", "generate", str(tmp_path / "out"), "-n", "2", "--class", "couch", "--model", str(folder),
             "--drawn", "16", "--resolution", "8", "--steps", "1", "--device", "cpu"]  # fmt: skip
    said = run.invoke(app, asked)
    assert said.exit_code == 0 and "out holds 2 couch" in said.stdout.replace("\n", "")
    told = json.loads(run.invoke(app, [*asked, "--json"]).stdout)
    assert told["classes"] == {"couch": 2} and told["accepted"] is None and told["model"] == "tiny-flux"
    wrong = run.invoke(app, [*asked, "--selector", str(tmp_path / "none")])
    assert wrong.exit_code == 2 and "a selector must be a file" in wrong.stderr.replace("\n", " ")
