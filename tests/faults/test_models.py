"""Model files and training checkpoints: whatever happens to their bytes, they are themselves or an error of ours."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import polyscore as ps
from faults.children import as_nobody
from faults.tally import Tally
from polyscore.errors import PolyscoreError
from polyscore.files.tensors import FileError, read_tensors, write_tensors
from polyscore.models.checkpoints import Checkpoint, read_checkpoint

OLD = Path(__file__).parent / "files"
RECIPE = {
    "kind": "vanilla",
    "steps": 3,
    "width": 4,
    "depth": 1,
    "batch": 6,
    "standardise": True,
    "seed": 5,
    "device": "cpu",
}


def data() -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    return {name: torch.randn(12, 2, generator=source) * scale for name, scale in (("a1", 2), ("a2", 1), ("base", 3))}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    training = folder / "training.safetensors"
    return {"family": ps.fit(data(), **RECIPE, checkpoint=training).save(folder / "family"), "training": training}


def family_meaning(path: Path) -> Any:
    return checkpoint_meaning(read_checkpoint(path))


def checkpoint_meaning(found: Checkpoint) -> Any:
    networks = [{name: t.tolist() for name, t in network.tensors().items()} for network in found.networks]
    shapes = [(network.dim, network.about()) for network in found.networks]
    units = found.units and [part.tolist() for part in found.units]
    return repr([networks, shapes, list(found.conditions.items()), found.schedule, units, found.training])


def training_meaning(path: Path) -> Any:
    tensors, about = read_tensors(path)
    return repr([{name: (t.dtype, t.tolist()) for name, t in sorted(tensors.items())}, about])


MEANING: dict[str, Callable[[Path], Any]] = {"family": family_meaning, "training": training_meaning}


def flipped(content: bytes, places: Iterator[tuple[int, int]] | list[tuple[int, int]]) -> Iterator[tuple[str, bytes]]:
    for byte, bit in places:
        broken = bytearray(content)
        broken[byte] ^= 1 << bit
        yield f"bit {bit} of byte {byte}", bytes(broken)


def refused(kind: str, path: Path, versions: Iterator[tuple[str, bytes]], whole: Any) -> list[str]:
    """Those of other contents that load with another meaning, or fail in other ways than by an error of ours."""
    bad = []
    for what, content in versions:
        path.write_bytes(content)
        try:
            if MEANING[kind](path) != whole:
                bad.append(what)
        except FileError:
            pass
        except Exception as error:
            bad.append(f"{what}: {error!r}")
    return bad


@pytest.mark.parametrize("kind", MEANING)
def test_no_flipped_bit_changes_what_a_file_means(
    kind: str, files: dict[str, Path], memory: Path, tally: Tally
) -> None:
    """Every bit of the header, and 400 others."""
    content, whole = files[kind].read_bytes(), MEANING[kind](files[kind])
    start = 8 + struct.unpack("<Q", content[:8])[0]
    source = random.Random(0)
    rest = [(source.randrange(start, len(content)), i % 8) for i in range(400)]
    places = [(byte, bit) for byte in range(start) for bit in range(8)] + rest
    tally.add("flips", len(places))
    tally.wrong(refused(kind, memory / "broken.safetensors", flipped(content, places), whole))


@pytest.mark.parametrize("kind", MEANING)
def test_a_file_cut_anywhere_or_of_random_bytes(kind: str, files: dict[str, Path], memory: Path, tally: Tally) -> None:
    content, source = files[kind].read_bytes(), random.Random(1)
    cuts = [(f"the first {n} bytes", content[:n]) for n in range(len(content))]
    noise = [(f"noise {n}", source.randbytes(n)) for n in range(0, 2000, 50)]
    overwritten = [
        (f"noise from {start}", content[:start] + source.randbytes(20) + content[start + 20 :])
        for start in range(0, len(content) - 20, 11)
    ]
    tally.add("truncations", len(cuts))
    tally.add("forged files", len(noise) + len(overwritten))
    whole = MEANING[kind](files[kind])
    tally.wrong(refused(kind, memory / "broken.safetensors", iter(cuts + noise + overwritten), whole))


def test_a_training_goes_on_only_from_its_own_checkpoint(files: dict[str, Path], tmp_path: Path, tally: Tally) -> None:
    content, path, wrong = files["training"].read_bytes(), tmp_path / "run.safetensors", []
    whole = checkpoint_meaning(read_checkpoint(files["family"]))
    places = [(random.Random(i).randrange(len(content)), i % 8) for i in range(60)]
    for what, broken in flipped(content, places):
        path.write_bytes(broken)
        try:
            saved = ps.fit(data(), **RECIPE, checkpoint=path).save(tmp_path / "family")
        except PolyscoreError:
            continue
        if family_meaning(saved) != whole:
            wrong.append(what)
    tally.add("flips", len(places))
    tally.wrong(wrong)


FORGED: dict[str, dict[str, Any]] = {
    "training": {"training": 3}, "no training": {"training": None}, "indices": {"conditions": {"a": True}},
    "fractions": {"conditions": {"a": 0.0}}, "names": {"conditions": {'a"b': 0}}, "empty name": {"conditions": {"": 0}},
    "layers": {"hidden_layers": 10**12}, "negative layers": {"hidden_layers": -1}, "text": {"hidden_layers": "2"},
    "dimension": {"event": ["2"]}, "event": {"event": None}, "infinite": {"event": [float("inf")]},
    "schedule": {"schedule": "VP"}, "beta": {"schedule": {"kind": "VP", "beta_min": "x", "beta_max": 1}},
    "kind": {"schedule": {"kind": ["VP"]}}, "activation": {"activation": ["silu"]}, "format": {"format": ["x"] * 10**5},
    "version": {"version": [2]}, "models": {"models": float("nan")},
}  # fmt: skip


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_description_with_its_checksum(
    forged: dict[str, Any], files: dict[str, Path], tmp_path: Path, tally: Tally
) -> None:
    tensors, about = read_tensors(files["family"])
    write_tensors(tmp_path / "forged.safetensors", tensors, {**about, **forged})
    tally.add("forged files")
    with pytest.raises(FileError) as told:
        ps.load(tmp_path / "forged")
    assert len(str(told.value)) < 1000


@pytest.mark.parametrize("names", [3, "ab", ["x"], ["x", "x"], ["x", None], ["x", "\x1b[2J"]], ids=str)
def test_forged_names_of_variables(names: object, files: dict[str, Path], tmp_path: Path, tally: Tally) -> None:
    tensors, about = read_tensors(files["family"])
    write_tensors(tmp_path / "forged.safetensors", tensors, {**about, "training": {"variables": names}})
    tally.add("forged files")
    with pytest.raises(PolyscoreError, match="variables must be 2 different names"):
        ps.load(tmp_path / "forged")


@pytest.mark.parametrize("change", [
    {"first": torch.zeros(1, 2, 4, dtype=torch.int64)}, {"first": torch.zeros(1, 2, 4, dtype=torch.float16)},
    {"scale": torch.tensor([1.0, -1.0])}, {"scale": torch.tensor([1.0, float("nan")])}, {"scale": torch.ones(3)},
    {"shift": torch.zeros(2, dtype=torch.int64)}, {"shift": torch.zeros(())}, {"constant": torch.zeros(())},
    {"constant": torch.zeros(0, 4)},
])  # fmt: skip
def test_forged_tensors_with_their_checksum(
    change: dict[str, torch.Tensor], files: dict[str, Path], tmp_path: Path, tally: Tally
) -> None:
    tensors, about = read_tensors(files["family"])
    write_tensors(tmp_path / "forged.safetensors", {**tensors, **change}, about)
    tally.add("forged files")
    with pytest.raises(FileError):
        ps.load(tmp_path / "forged")


@pytest.mark.parametrize("change", [{"step": "3"}, {"step": -1}, {"step": None}, {"step": 10**9}, {"kind": "family"}])
def test_a_forged_checkpoint_is_refused(
    change: dict[str, Any], files: dict[str, Path], tmp_path: Path, tally: Tally
) -> None:
    tensors, about = read_tensors(files["training"])
    write_tensors(tmp_path / "run.safetensors", tensors, {**about, **change})
    tally.add("forged files")
    with pytest.raises(PolyscoreError):
        ps.fit(data(), **RECIPE, checkpoint=tmp_path / "run")
    without = {name: tensor for name, tensor in tensors.items() if name != "parameter.0"}
    for other in (without, {**tensors, "parameter.0": torch.zeros(3)}):
        write_tensors(tmp_path / "run.safetensors", other, about)
        with pytest.raises(PolyscoreError, match="every tensor of its training"):
            ps.fit(data(), **RECIPE, checkpoint=tmp_path / "run")


def test_a_description_nested_too_deep(tmp_path: Path, tally: Tally) -> None:
    from safetensors.torch import save_file

    for text in ("[" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000, "[" * 100_000 + "]" * 100_000):
        save_file({"first": torch.zeros(1)}, tmp_path / "deep.safetensors", metadata={"polyscore": text})
        tally.add("forged files")
        with pytest.raises(FileError, match="damaged or foreign"):
            ps.load(tmp_path / "deep")


def test_the_copy_for_people_is_never_read(files: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "family.safetensors"
    shutil.copy(files["family"], path)
    about = json.loads(files["family"].with_suffix(".json").read_text())
    about["conditions"] = {"other": 0}
    path.with_suffix(".json").write_text(json.dumps(about))
    assert list(ps.load(path)) == list(ps.load(path.with_suffix(".json"))) == ["a1", "a2", "base"]


def test_files_of_0_2_0_are_still_read(files: dict[str, Path], tmp_path: Path) -> None:
    """Written by that version from the same data and recipe, the sum of their numbers only."""
    old, new = read_checkpoint(OLD / "family-0.2.0"), read_checkpoint(files["family"])
    assert (old.conditions, old.schedule, old.units is None) == (new.conditions, new.schedule, False)
    assert old.training["seed"] == 5 and old.networks[0].alike == new.networks[0].alike
    assert list(ps.load(OLD / "family-0.2.0")) == ["a1", "a2", "base"]
    again = read_checkpoint(ps.load(OLD / "family-0.2.0").save(tmp_path / "again"))
    assert checkpoint_meaning(again) == checkpoint_meaning(old)
    tensors, about = read_tensors(OLD / "training-0.2.0.safetensors")
    assert about["step"] == 3 and "parameter.0" in tensors
    broken = bytearray((OLD / "family-0.2.0.safetensors").read_bytes())
    broken[-1] ^= 1
    (tmp_path / "broken.safetensors").write_bytes(broken)
    with pytest.raises(FileError, match="damaged"):
        ps.load(tmp_path / "broken")


def test_files_of_0_3_0_are_still_read_and_gone_on_with(files: dict[str, Path], tmp_path: Path) -> None:
    """They name no kind of network: theirs is the first. Written by that version from the same data and recipe."""
    old, new = read_checkpoint(OLD / "family-0.3.0"), read_checkpoint(files["family"])
    assert "network" not in read_tensors(OLD / "family-0.3.0.safetensors")[1]
    assert (old.conditions, old.schedule, old.training) == (new.conditions, new.schedule, new.training)
    again = read_checkpoint(ps.load(OLD / "family-0.3.0").save(tmp_path / "again"))
    assert checkpoint_meaning(again) == checkpoint_meaning(old)
    shutil.copy(OLD / "training-0.3.0.safetensors", tmp_path / "run.safetensors")
    longer = {**RECIPE, "steps": 9}
    resumed, whole = ps.fit(data(), **longer, checkpoint=tmp_path / "run"), ps.fit(data(), **longer)
    for one, other in zip(*(p.groups[0].network.tensors().values() for p in (resumed, whole)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)  # other processors round otherwise


FORGERIES: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "no second moments": ("adam.0.exp_avg_sq", lambda t: t[:0]),
    "few first moments": ("adam.1.exp_avg", lambda t: t[..., :1]),
    "moments in bfloat16": ("adam.0.exp_avg", lambda t: t.bfloat16()),
    "moments in float64": ("adam.0.exp_avg_sq", lambda t: t.double()),
    "moments in whole numbers": ("adam.0.exp_avg_sq", lambda t: t.int()),
    "a scalar for weights": ("parameter.0", lambda t: t.flatten()[0].clone()),
    "a column for weights": ("parameter.0", lambda t: t[..., :1].contiguous()),
    "weights in float64": ("parameter.0", lambda t: t.double()),
    "an average of another shape": ("average.0", lambda t: t.flatten()[0].clone()),
    "many steps": ("adam.0.step", lambda t: t.expand(3).contiguous()),
    "a step that is none": ("adam.0.step", lambda t: t * float("nan")),
    "a step below 0": ("adam.0.step", lambda t: t - 9),
    "a whole step": ("adam.0.step", lambda t: t.long()),
}


@pytest.mark.parametrize("forged", FORGERIES)
def test_a_checkpoint_whose_tensors_do_not_fit_is_refused(forged: str, tmp_path: Path, tally: Tally) -> None:
    """A fused optimiser reads moments beyond their end, and a copy broadcasts; the checksum holds of both."""
    path, recipe = tmp_path / "run.safetensors", {**RECIPE, "ema": 0.9}
    ps.fit(data(), **recipe, checkpoint=path)
    tensors, about = read_tensors(path)
    name, change = FORGERIES[forged]
    write_tensors(path, {**tensors, name: change(tensors[name])}, about)
    tally.add("forged files")
    with pytest.raises(FileError, match=rf"every tensor of its training, in shape.*{name}"):
        ps.fit(data(), **{**recipe, "steps": 6}, checkpoint=path)


@pytest.mark.parametrize(
    "kind", ["forest", "", 3, None, ["vanilla"], {"kind": "vanilla"}, "os", "x" * 10**5, "\x1b[2J"]
)
def test_a_file_chooses_no_class_but_a_registered_one(
    kind: Any, files: dict[str, Path], tmp_path: Path, tally: Tally
) -> None:
    tensors, about = read_tensors(files["family"])
    write_tensors(tmp_path / "forged.safetensors", tensors, {**about, "network": kind, "module": "antigravity"})
    before = set(sys.modules)
    tally.add("forged files")
    with pytest.raises(FileError, match=r"of a kind that is known here.*Import the module.*'antigravity'") as told:
        ps.load(tmp_path / "forged")
    assert len(str(told.value)) < 1000 and str(told.value).isprintable()
    assert "antigravity" not in set(sys.modules) - before


def test_the_old_sum_does_not_pass_for_a_new_file(files: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from polyscore.files.tensors import _sum_of_0_2

    tensors, about = read_tensors(files["family"])
    described = json.dumps({**about, "sum": _sum_of_0_2(tensors)})
    save_file(tensors, tmp_path / "mixed.safetensors", metadata={"polyscore": described})
    with pytest.raises(FileError, match="damaged"):
        ps.load(tmp_path / "mixed")


@pytest.mark.parametrize("name", ["x" * 5000, "nul\0byte", "folder", "missing/model", "fifo"])
def test_what_is_no_file_is_named(tmp_path: Path, name: str, tally: Tally) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    os.mkfifo(tmp_path / "fifo.safetensors")
    tally.add("names")
    with pytest.raises(FileError, match="must exist"):
        ps.load(tmp_path / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to be")
def test_permission_denied(files: dict[str, Path], memory: Path, tally: Tally) -> None:
    path = memory / "family.safetensors"
    shutil.copy(files["family"], path)
    memory.chmod(0o755)
    path.chmod(0o600)
    tally.add("forged files", 2)
    assert as_nobody(lambda: ps.load(path)).startswith("FileError: ")
    memory.chmod(0o700)
    assert as_nobody(lambda: ps.load(path)).startswith("FileError: a model file must exist")
