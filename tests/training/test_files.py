"""Models on disk: what is read is what was written, and nothing else is ever taken for it."""

import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import polyscore as ps
from polyscore.errors import PolyscoreError
from polyscore.files import atomic as files
from polyscore.files import tensors as tensor_files
from training.networks import families
from training.test_training import data, fit, tensors

TRAININGS = {
    "conditional": {},
    "separate": {"model": "separate"},
    "standardised": {"standardise": True, "schedule": ps.Cosine(), "activation": "tanh"},
    "one layer": {"depth": 1, "ema": 0.5},
}


@pytest.fixture(scope="module", params=TRAININGS.values(), ids=TRAININGS)
def family(request):
    return fit(data(1), steps=5, **request.param)


@pytest.fixture
def saved(tmp_path):
    return fit(data(1), steps=5).save(tmp_path / "model")


def rewrite(path, change_about=None, change_tensors=None):
    """Write the file anew with another description or other tensors; its checksum is right, so that others must see."""
    stored, about = tensor_files.read_tensors(path)
    if change_about:
        change_about(about)
    if change_tensors:
        change_tensors(stored)
    tensor_files.write_tensors(path, stored, about)


def test_a_round_trip_keeps_every_bit(family, tmp_path):
    path = family.save(tmp_path / "model")
    back = ps.load(path)
    for one, other in zip(tensors(family), tensors(back), strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype
    assert list(back) == list(family)
    assert back.schedule == family.schedule
    assert back.event == family.event
    assert back.training == json.loads(json.dumps(family.training))
    assert (back.units is None) == (family.units is None)
    if family.units is not None:
        for one, other in zip(family.units, back.units, strict=True):
            assert torch.equal(one, other)
    x = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(family["c1"].score(x, 0.3), back["c1"].score(x, 0.3))
    runs = [ps.FeynmanKac(particles=3, steps=5).sample(p["c0"] / p["c1"] * p["c1"], 5) for p in (family, back)]
    assert torch.equal(runs[0].particles, runs[1].particles)
    again = back.save(tmp_path / "again")
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("options", [{}, {"model": "separate"}, {"standardise": True}], ids=str)
def test_an_ensemble_survives_the_disk(tmp_path, options):
    p = fit(data(1), steps=5, members=3, **options)
    path = p.save(tmp_path / "model")
    back = ps.load(path)
    x = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
    t = torch.tensor(0.3)
    for name in p:
        assert torch.equal(p[name].score(x, 0.3), back[name].score(x, 0.3))
        assert torch.equal(p.members[name].spread(x, t), back.members[name].spread(x, t))
        assert bool((back.members[name].spread(x, t) > 0).all())
    about = json.loads(path.with_suffix(".json").read_text())
    assert (about["models"], about["training"]["members"], about["training"]["seed"]) == (3, 3, 0)
    assert back.save(tmp_path / "again").read_bytes() == path.read_bytes()


def test_what_is_not_one_ensemble_is_refused(tmp_path):
    plain = {"steps": 2, "standardise": False}  # the same coordinates for all, closed forms too
    shallow, deep, other = fit(data(1), **plain), fit(data(1), depth=3, **plain), fit(data(2), **plain)
    first, second = shallow.members["c0"], shallow.members["c1"]
    families = {
        "other depths": {"c0": ps.Ensemble([first, deep.members["c0"]])},
        "other conditions": {"c0": ps.Ensemble([first, second])},
        "other networks": {"c0": first, "c1": other.members["c1"]},
        "an ensemble in another": {"c0": ps.Ensemble([ps.Ensemble([first]), other.members["c0"]])},
        "one and several": {"c0": first, "c1": ps.Ensemble([second, other.members["c1"]])},
        "closed form": {"c0": ps.Gaussian(cov=1.0)},
        "with a closed form": {"c0": first, "c1": ps.Gaussian(cov=1.0)},
    }
    for members in families.values():
        with pytest.raises(PolyscoreError, match="Save each part by itself"):
            ps.Family(members).save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("models", [0, -1, 2, 10**9, "3", None, 1.5])
def test_a_wrong_number_of_models_is_refused(tmp_path, models):
    path = fit(data(1), steps=2).save(tmp_path / "model")
    stored, about = tensor_files.read_tensors(path)
    tensor_files.write_tensors(path, stored, {**about, "models": models})
    with pytest.raises(tensor_files.FileError, match="must hold every tensor"):
        ps.load(path)


@pytest.mark.parametrize("name", ["model", "model.safetensors", "model.v1", "a b/ü.safetensors"])
def test_names_of_files(tmp_path, name):
    path = fit(data(1), steps=2).save(tmp_path / name)
    assert path.suffix == ".safetensors"
    assert path.is_file()
    assert list(ps.load(tmp_path / name)) == list(ps.load(str(tmp_path / name))) == ["c0", "c1"]
    assert sorted(p.suffix for p in path.parent.iterdir()) == [".json", ".safetensors"]


def test_the_json_beside_it_can_be_read(saved):
    text = saved.with_suffix(".json").read_text()
    about = json.loads(text)
    assert text.count("\n") > 10
    assert about["format"] == "polyscore-family"
    assert about["version"] == 2
    assert about["conditions"] == {"c0": 0, "c1": 1}
    assert about["schedule"]["kind"] == "VP"
    assert about["training"]["recipe"]["width"] == 24
    assert about["training"]["seed"] == 0
    assert about["training"]["train_sizes"] == [60, 35]


def test_the_file_needs_no_pickle(saved):
    """Safetensors alone reads it, and loading it imports and calls no unpickler."""
    assert set(load_file(saved)) >= {"first", "time", "constant", "last", "last_bias", "hidden.0", "hidden_bias.0"}
    script = (
        "import pickle, torch, sys\n"
        "import polyscore as ps\n"
        "def refuse(*a, **k): raise SystemExit('pickle was used')\n"
        "pickle.load = pickle.loads = pickle.Unpickler = torch.load = refuse\n"
        "ps.load(sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(saved)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1, -1000])
def test_a_truncated_file(saved, keep):
    content = saved.read_bytes()
    saved.write_bytes(content[:keep])
    with pytest.raises(PolyscoreError, match=r"model\.safetensors.*damaged"):
        ps.load(saved)


def test_a_file_with_garbage_behind_or_before(saved):
    content = saved.read_bytes()
    for spoiled in (content + b"junk", b"junk" + content, b"\x80\x04K\x01.", os.urandom(500)):
        saved.write_bytes(spoiled)
        with pytest.raises(PolyscoreError, match="damaged or foreign"):
            ps.load(saved)


def test_a_foreign_file(tmp_path):
    save_file({"weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(PolyscoreError, match="another program"):
        ps.load(tmp_path / "other")
    save_file({"weight": torch.zeros(3)}, tmp_path / "other.safetensors", metadata={"format": "pt"})
    with pytest.raises(PolyscoreError, match="another program"):
        ps.load(tmp_path / "other")
    save_file({"weight": torch.zeros(3)}, tmp_path / "other.safetensors", metadata={"polyscore": "{not json"})
    with pytest.raises(PolyscoreError, match="damaged or foreign"):
        ps.load(tmp_path / "other")


def test_a_missing_file_and_a_directory(tmp_path):
    with pytest.raises(PolyscoreError, match=r"nothing\.safetensors"):
        ps.load(tmp_path / "nothing")
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(PolyscoreError, match="folder"):
        ps.load(tmp_path / "folder")


def test_a_training_checkpoint_is_not_a_family(tmp_path):
    path = tmp_path / "run.safetensors"
    fit(data(1), steps=3, checkpoint=path)
    with pytest.raises(PolyscoreError, match="fit\\(checkpoint=\\)"):
        ps.load(path)


WRONG = {
    "newer version": ({"version": 3}, "got polyscore-family version 3"),
    "no version": ({"version": None}, "got polyscore-family version None"),
    "other format": ({"format": "polyscore-table"}, "got polyscore-table version 2"),
    "no dimension": ({"event": []}, "list index out of range"),
    "other dimension": ({"event": [3]}, r"first of shape \(1, 2, 24\) instead of \(1, 3, 24\)"),
    "unknown activation": ({"activation": "swish"}, "activation 'swish'"),
    "unknown schedule": ({"schedule": {"kind": "Unknown"}}, "Unknown"),
    "impossible schedule": ({"schedule": {"kind": "VP", "beta_max": -1}}, "beta_max"),
    "condition beyond the network": ({"conditions": {"c0": 0, "c1": 7}}, "'c1': 7.* for a network of 2"),
    "no conditions": ({"conditions": {}}, "at least one condition"),
    "shared neither true nor false": ({"shared": None}, "shared None"),
    "conditions without indices": ({"conditions": ["c0", "c1"]}, r"\['c0', 'c1'\]"),
    "variables of another number": ({"training": {"variables": ["x"]}}, "variables must be 2 different names"),
    "variables that are no names": ({"training": {"variables": [1, 2]}}, "variables must be 2 different names"),
}


@pytest.mark.parametrize(("wrong", "word"), WRONG.values(), ids=WRONG)
def test_a_wrong_description_is_an_error_at_loading(saved, wrong, word):
    rewrite(saved, change_about=lambda about: about.update(wrong))
    with pytest.raises(PolyscoreError, match=word):
        ps.load(saved)


@pytest.mark.parametrize(
    "key", ["format", "version", "schedule", "event", "conditions", "shared", "activation", "training"]
)
def test_a_missing_key_is_an_error_at_loading(saved, key):
    rewrite(saved, change_about=lambda about: about.pop(key))
    with pytest.raises(PolyscoreError, match=rf"model\.safetensors.*({key}|None)"):
        ps.load(saved)


@pytest.mark.parametrize("name", ["first", "time", "constant", "last", "last_bias", "hidden.0", "hidden_bias.0"])
def test_a_missing_tensor_is_named(saved, name):
    rewrite(saved, change_tensors=lambda stored: stored.pop(name))
    with pytest.raises(PolyscoreError, match=f"'{name}' is missing"):
        ps.load(saved)


@pytest.mark.parametrize("name", ["first", "time", "constant", "last", "last_bias", "hidden.0", "hidden_bias.0"])
def test_a_tensor_of_the_wrong_shape_is_an_error_at_loading(saved, name):
    rewrite(saved, change_tensors=lambda stored: stored.update({name: stored[name][..., :-1].contiguous()}))
    with pytest.raises(PolyscoreError, match=r"of shape \(.* instead of \("):
        ps.load(saved)


def test_a_crash_while_writing_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()
    new = fit(data(2), steps=3)

    def crash(*_):
        raise KeyboardInterrupt

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(files.os, name, crash)
            new.save(saved)
        assert saved.read_bytes() == before
        assert sorted(p.name for p in saved.parent.iterdir()) == ["model.json", "model.safetensors"]
    ps.load(saved)
    new.save(saved)
    assert saved.read_bytes() != before


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "run.safetensors"
    fit(data(1), steps=10, checkpoint=path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises((OSError, PolyscoreError), match="space"):
        fit(data(1), steps=20, checkpoint=path)
    assert path.read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_place(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PolyscoreError, match="writable"):
        fit(data(1), steps=2).save(tmp_path / "deep" / "model")


def test_a_path_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PolyscoreError, match="writable"):
        fit(data(1), steps=2).save(tmp_path / "file" / "model")


def test_a_checkpoint_that_cannot_be_written_is_found_before_the_training(tmp_path):
    (tmp_path / "file").write_text("")
    told = []
    with pytest.raises(PolyscoreError):
        fit(data(1), steps=200, checkpoint=tmp_path / "file" / "run", progress=lambda *_: told.append(1))
    assert not told


def test_families_that_no_file_holds(tmp_path):
    one, two = families(2, 2, True)[0], families(2, 2, True, seed=1)[0]
    mixed = ps.Family({"a": one.members["c0"], "b": two.members["c1"]})
    for p in (ps.Family({"a": ps.Gaussian()}), mixed, families(2, 2, True)[1]):
        with pytest.raises(PolyscoreError, match="save"):
            p.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_part_of_a_family_saves(tmp_path):
    p = fit(data(1), steps=3)
    part = ps.Family({"only": p.members["c1"]})
    back = ps.load(part.save(tmp_path / "model"))
    x = torch.from_numpy(np.ones((2, 2), dtype=np.float32))
    assert torch.equal(back["only"].score(x, 0.2), p["c1"].score(x, 0.2))


def test_precision_is_chosen_at_loading(saved):
    assert ps.load(saved, precision="float32").groups[0].precision == "float32"
    with pytest.raises(PolyscoreError, match="double"):
        ps.load(saved, precision="double")


def test_one_flipped_bit_is_noticed(tmp_path):
    """In every tensor, weights and units alike; a training's checkpoint too."""
    paths = [fit(data(1), steps=5, standardise=True).save(tmp_path / "model"), tmp_path / "run.safetensors"]
    fit(data(1), steps=5, checkpoint=paths[1])
    for path, read in zip(paths, (ps.load, lambda p: fit(data(1), steps=9, checkpoint=p)), strict=True):
        whole = path.read_bytes()
        start = 8 + struct.unpack("<Q", whole[:8])[0]
        for place in np.linspace(start, len(whole) - 1, 12).astype(int):
            broken = bytearray(whole)
            broken[place] ^= 1
            path.write_bytes(broken)
            with pytest.raises(PolyscoreError, match="damaged"):
                read(path)
        path.write_bytes(whole)
        read(path)


def test_the_json_may_be_named_instead(tmp_path):
    path = fit(data(1), steps=2).save(tmp_path / "model")
    assert list(ps.load(path.with_suffix(".json"))) == ["c0", "c1"]


def test_a_checkpoint_needs_no_ending(tmp_path):
    fit(data(1), steps=3, checkpoint=tmp_path / "run")
    assert (tmp_path / "run.safetensors").is_file()


def test_a_schedule_that_is_not_registered_is_refused_before_writing(tmp_path):
    class Mine(ps.VP):
        pass

    with pytest.raises(
        PolyscoreError, match=r"schedule must be registered to be saved; got .* Register it: @polyscore"
    ):
        fit(data(1), steps=2, schedule=Mine()).save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_an_ensemble_of_one_model_twice_survives(tmp_path):
    member = fit(data(1), steps=2).members["c0"]
    p = ps.Family({"c0": ps.Ensemble([member, member])})
    x = torch.ones(3, 2)
    assert torch.equal(ps.load(p.save(tmp_path / "model"))["c0"].score(x, 0.3), p["c0"].score(x, 0.3))


def test_part_of_a_standardised_family_keeps_its_units(tmp_path):
    p = fit(data(1, scale=7.0), steps=5, standardise=True)
    part = ps.load(ps.Family({"only": p.members["c1"]}).save(tmp_path / "part"))
    assert all(torch.equal(a, b) for a, b in zip(part.units, p.units, strict=True))


def test_a_device_that_is_not_there(tmp_path):
    path = fit(data(1), steps=2).save(tmp_path / "model")
    missing = "xpu" if torch.cuda.is_available() else "cuda"
    with pytest.raises(PolyscoreError, match="device must name a device of this machine"):
        ps.load(path, device=missing)
    with pytest.raises(PolyscoreError, match="device must name a device of this machine"):
        ps.fit(data(1), steps=2, device=missing)
    with pytest.raises(PolyscoreError, match="device must name a device of this machine"):
        ps.Denoise(steps=2).sample(ps.load(path)["c0"], 3, device=missing)


def test_a_family_of_foreign_models_is_not_saved_and_says_which(tmp_path):
    """One network for two members is what the message used to ask for, and to say that it got."""
    model = ps.Learned(lambda x, t: x, (2,), ps.VP())
    with pytest.raises(ps.errors.CompositionError, match=r"'a' is of another kind\. Save each part by itself"):
        ps.Family({"a": model, "b": model}).save(tmp_path / "family")


@pytest.mark.parametrize("path", [None, 3, b"model", ["model"], torch.tensor(3)], ids=str)
def test_what_names_no_file_is_refused_in_words(path):
    with pytest.raises(PolyscoreError, match=r"a model's file must be named by a path; got .* Write 'model"):
        ps.load(path)
