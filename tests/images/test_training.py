"""Trainings: they learn, go on exactly where they were cut, and refuse what is not theirs."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import polyscore as ps
from images.flat import COLOURS, MIXTURES, RECIPE, flat
from polyscore.errors import ArgumentError, PolyscoreWarning
from polyscore.files.tensors import FileError, read_tensors
from polyscore.images import Mixtures, export, train
from polyscore.images.loop import Pace
from polyscore.images.trainer import Trainer
from polyscore.images.unet import noise_scales
from polyscore.training.keeper import CheckpointError
from polyscore.training.loop import DivergenceError

SOURCE = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return flat(tmp_path_factory.mktemp("flat") / "data").path


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    return train(data, MIXTURES, out, recipe=RECIPE, device="cpu")


def newest(out, name="network"):
    return sorted((Path(out) / "checkpoints" / name).glob("checkpoint-*"))[-1]


def stop_at(step):
    """Progress that interrupts, as Ctrl-C does, once a step is done."""

    def tell(done, total, loss):
        if done == step:
            signal.raise_signal(signal.SIGINT)

    return tell


def same(a, b):
    (one, about), (two, other) = read_tensors(a), read_tensors(b)
    assert about == other
    assert one.keys() == two.keys()
    return all(torch.equal(one[name], two[name]) for name in one)


def blind(masses):
    """The loss of whoever knows a condition's mean and does not look: E alpha^2 + E sigma^2 Var x_0."""
    alpha, sigma = noise_scales(torch.device("cpu"))
    colours, masses = np.array(list(COLOURS.values())) / 127.5 - 1, np.array(masses)
    spread = (masses @ colours**2 - (masses @ colours) ** 2).mean() + (40 / 127.5) ** 2 / 12
    return float((alpha**2).mean() + (sigma**2).mean() * spread)


def test_it_learns_what_it_is_shown(data, tmp_path):
    """A hundred small steps already beat whoever does not look at the picture, in both conditions."""
    trained = train(
        data, MIXTURES, tmp_path / "out", recipe=RECIPE, device="cpu", steps=100, learning_rate=1e-2, batch=32
    )
    first, last = trained.history["network"][0], trained.history["network"][-1]
    assert trained.complete
    assert last["step"] == 100
    for name, masses in MIXTURES.conditions.items():
        assert last["held_out"][name] < 0.88 * blind(masses)
        assert last["held_out"][name] < first["held_out"][name]
    assert trained.held_out == last["held_out"]


def test_a_training_that_was_cut_goes_on_exactly(data, undisturbed, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        train(data, MIXTURES, out, recipe=RECIPE, device="cpu", progress=stop_at(4))
    assert newest(out).name == "checkpoint-00000004.safetensors"
    assert not (out / "export").exists()
    trained = train(data, MIXTURES, out, recipe=RECIPE, device="cpu")
    assert same(newest(out), newest(undisturbed.path))
    assert trained.history == undisturbed.history


def test_a_training_that_was_killed_goes_on_exactly(data, undisturbed, tmp_path):
    """The process dies without a word after its fifth step; the checkpoint of the fourth is there."""
    script = (
        "import os, sys, torch; torch.set_num_threads(1)\n"
        "from images.flat import MIXTURES, RECIPE\n"
        "from polyscore.images import train\n"
        "tell = lambda done, total, loss: os._exit(9) if done == 5 else None\n"
        f"train({str(data)!r}, MIXTURES, {str(tmp_path / 'out')!r}, recipe=RECIPE, device='cpu', save_every=2,"
        " progress=tell)"
    )
    code = subprocess.run([sys.executable, "-c", script], env=environment(), check=False, timeout=120).returncode
    assert code == 9
    assert newest(tmp_path / "out").name == "checkpoint-00000004.safetensors"
    train(data, MIXTURES, tmp_path / "out", recipe=RECIPE, device="cpu")
    assert same(newest(tmp_path / "out"), newest(undisturbed.path))


def environment():
    paths = f"{SOURCE / 'src'}{os.pathsep}{SOURCE / 'tests'}"
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def test_a_checkpoint_cut_short_gives_way_to_the_one_before(data, undisturbed, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        train(data, MIXTURES, out, recipe=RECIPE, device="cpu", save_every=2, progress=stop_at(4))
    files = sorted((out / "checkpoints" / "network").iterdir())
    assert [file.name for file in files] == ["checkpoint-00000002.safetensors", "checkpoint-00000004.safetensors"]
    files[1].write_bytes(files[1].read_bytes()[:-1000])
    with pytest.warns(PolyscoreWarning, match="a checkpoint should be whole; .*00000004.* the one before it is used"):
        train(data, MIXTURES, out, recipe=RECIPE, device="cpu")
    assert same(newest(out), newest(undisturbed.path))


def test_without_a_whole_checkpoint_it_is_refused(data, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        train(data, MIXTURES, out, recipe=RECIPE, device="cpu", progress=stop_at(4))
    newest(out).write_bytes(newest(out).read_bytes()[:5000])
    with pytest.raises(FileError, match=r"must have a whole checkpoint to go on from; .*Delete them to start again"):
        train(data, MIXTURES, out, recipe=RECIPE, device="cpu")


def test_another_training_is_refused(data, undisturbed, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        train(data, MIXTURES, out, recipe=RECIPE, device="cpu", progress=stop_at(4))
    with pytest.raises(CheckpointError, match="differs in seed"):
        train(data, MIXTURES, out, recipe=RECIPE, device="cpu", seed=1)
    other = Mixtures(tuple(COLOURS), {"base": (0.5, 0.5, 0.0), "a": (0.1, 0.2, 0.7)})
    with pytest.raises(CheckpointError, match="differs in mixtures"):
        train(data, other, out, recipe=RECIPE, device="cpu")
    with pytest.raises(CheckpointError, match=r"differs in recipe \(steps \d+, asked 7\)"):
        train(data, MIXTURES, undisturbed.path, recipe=RECIPE, device="cpu", steps=7)


def test_what_is_complete_is_not_trained_again(data, undisturbed):
    before = {file: file.stat().st_mtime_ns for file in undisturbed.path.rglob("*") if file.is_file()}
    again = train(data, MIXTURES, undisturbed.path, recipe=RECIPE, device="cpu",
                  progress=lambda *told: pytest.fail("trained"))  # fmt: skip
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert (again.complete, again.steps, again.held_out) == (True, 6, undisturbed.held_out)


def test_it_stops_before_its_time_is_over(data, undisturbed, tmp_path):
    early = train(data, MIXTURES, tmp_path / "out", recipe=RECIPE, device="cpu", minutes=0)
    assert (early.complete, early.steps) == (False, 0)
    assert not Pace(deadline=100.0, saving=2.0).is_late(95.9)
    assert Pace(deadline=100.0, saving=2.0).is_late(96.1)
    train(data, MIXTURES, tmp_path / "out", recipe=RECIPE, device="cpu")
    assert same(newest(tmp_path / "out"), newest(undisturbed.path))


def test_a_loss_that_is_not_finite_stops_it_with_the_last_good_checkpoint(data, tmp_path, monkeypatch):
    own = Trainer.advance

    def poisoned(self):
        own(self)
        if self.step == 5:
            with torch.no_grad():
                self.parameters[0].fill_(math.nan)

    monkeypatch.setattr(Trainer, "advance", poisoned)
    with pytest.raises(DivergenceError, match=r"must stay finite; .*last good checkpoint, of step 4, is in"):
        train(data, MIXTURES, tmp_path / "out", recipe=RECIPE, device="cpu", save_every=2)
    tensors, about = read_tensors(newest(tmp_path / "out"))
    assert about["step"] == 4
    assert all(value.isfinite().all() for value in tensors.values())


def test_the_average_is_the_stated_one(data, tmp_path):
    """Two trainings that differ in their average alone walk the same way; its recursion, by hand, gives the other."""
    walk = []
    own = Trainer.advance

    def noted(self):
        if not walk:
            walk.append([p.detach().double().clone() for p in self.parameters])
        own(self)
        walk.append([p.detach().double().clone() for p in self.parameters])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "advance", noted)
        train(data, MIXTURES, tmp_path / "out", recipe=RECIPE, device="cpu", ema=0.25)
    average = walk[0]
    for k, weights in enumerate(walk[1:], 1):
        decay = min(0.25, (1 + k) / (10 + k))
        average = [decay * a + (1 - decay) * w for a, w in zip(average, weights, strict=True)]
    tensors, _ = read_tensors(newest(tmp_path / "out"))
    for found, expected in zip([v for n, v in sorted(tensors.items()) if n.startswith("average.")],
                               [a for _, a in sorted(zip(names(tensors), average, strict=True), key=lambda x: x[0])],
                               strict=True):  # fmt: skip
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7)


def names(tensors):
    from polyscore.images.unet import build

    return [name for name, _ in build(RECIPE.unet, 2).named_parameters()]


def test_weights_walk_as_adamw_says(data, tmp_path):
    """The same batches through torch's own loop, unfused, with a rate from the formula by hand."""
    from polyscore.images.pool import Pool, read
    from polyscore.images.program import program
    from polyscore.images.unet import build
    from polyscore.rng import derive
    from polyscore.rooms import Dataset

    trained = train(data, MIXTURES, tmp_path / "out", recipe=RECIPE, device="cpu", steps=25, warm_up=4, clip=None)
    recipe = ps.images.Recipe(**{**vars(RECIPE), "steps": 25, "warm_up": 4, "clip": None})
    pool = Pool(read(Dataset(data), MIXTURES, recipe), MIXTURES, recipe, 0, torch.device("cpu"))
    shared = program(recipe.unet, 2, torch.device("cpu"), "auto", "plain")
    shared.network.load_state_dict(build(recipe.unet, 2, derive(0, "network")).state_dict())
    optimiser = torch.optim.AdamW(shared.network.parameters(), lr=1.0, weight_decay=0.0, foreach=False, fused=False)
    for k in range(25):
        rate = (k + 1) / 2 if k < 2 else 0.5 * (1 + math.cos(math.pi * (k - 2) / 23))  # 4 is above a tenth of 25
        optimiser.param_groups[0]["lr"] = 2e-3 * rate
        optimiser.zero_grad()
        shared.losses(pool.batch(k, 6)).mean().backward()
        optimiser.step()
    tensors, _ = read_tensors(newest(trained.path))
    for name, weight in shared.network.named_parameters():
        if name.endswith("to_k.bias"):  # attention does not depend on it: Adam walks by its rounding alone
            continue
        torch.testing.assert_close(tensors[f"weight.{name}"], weight.detach(), rtol=1e-3, atol=2e-5)


def test_separate_networks_share_the_work(data, tmp_path):
    trained = train(data, MIXTURES, tmp_path / "out", recipe=RECIPE, device="cpu", model="separate")
    assert (trained.complete, trained.steps) == (True, 12)
    assert sorted(trained.held_out) == ["a", "base"]
    told = export.about(trained.path)
    assert [one["conditions"] for one in told["networks"].values()] == [["base"], ["a"]]
    family = trained.load("cpu")
    assert sorted(family) == ["a", "base"]
    x, t = torch.randn(2, 3, 8, 8), torch.tensor(0.5)
    assert not torch.allclose(family["a"].score(x, t), family["base"].score(x, t))


def test_a_separate_training_goes_on_in_the_network_where_it_was_cut(data, tmp_path):
    options = {"recipe": RECIPE, "device": "cpu", "model": "separate"}
    whole = train(data, MIXTURES, tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        train(data, MIXTURES, tmp_path / "cut", progress=stop_at(6 + 3), **options)
    train(data, MIXTURES, tmp_path / "cut", **options)
    for name in MIXTURES.conditions:
        assert same(newest(whole.path, name), newest(tmp_path / "cut", name))


def test_the_export_is_small_and_says_what_it_is(undisturbed):
    folder = undisturbed.path / "export"
    told = json.loads((folder / "model.json").read_text())
    assert Mixtures.parse(told["mixtures"]) == MIXTURES
    assert ps.images.Recipe.from_dict(told["recipe"]) == RECIPE
    shards = [load_file(folder / file) for file in told["networks"]["network"]["shards"]]
    weights = {name: value for shard in shards for name, value in shard.items()}
    tensors, _ = read_tensors(newest(undisturbed.path))
    averages = {name.removeprefix("average."): v for name, v in tensors.items() if name.startswith("average.")}
    assert weights.keys() == averages.keys()
    assert all(value.dtype == torch.float16 for value in weights.values())
    assert all(torch.equal(value, averages[name].half()) for name, value in weights.items())


def test_diffusers_alone_can_read_an_export(undisturbed):
    from diffusers import DDPMScheduler, UNet2DModel

    told = json.loads((undisturbed.path / "export" / "model.json").read_text())
    model = UNet2DModel.from_config(told["unet"])
    (shard,) = told["networks"]["network"]["shards"]
    model.load_state_dict({k: v.float() for k, v in load_file(undisturbed.path / "export" / shard).items()})
    ours = next(iter(export.networks(undisturbed.path, "cpu").values()))
    x, t, label = torch.randn(2, 3, 8, 8), torch.tensor([3, 999]), torch.tensor([0, 1])
    with torch.no_grad():
        torch.testing.assert_close(model(x, t, class_labels=label).sample, ours(x, t, class_labels=label).sample)
    assert DDPMScheduler.from_config(told["scheduler"]).config.rescale_betas_zero_snr


def test_shards_stay_below_their_size(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "LARGEST", 2**18)
    source = torch.Generator().manual_seed(0)
    weights = {f"w{k}": torch.randn(100, 300, generator=source).half() for k in range(7)}
    told = export._write_network(tmp_path, "network", ("a",), weights)
    sizes = [(tmp_path / file).stat().st_size for file in told["shards"]]
    assert len(sizes) == 4  # two tensors of 60 kB each
    assert max(sizes) <= 2**18


def test_an_export_becomes_a_family_with_the_right_scores(undisturbed):
    """score = -eps_hat / sigma with eps_hat = alpha v + sigma x, at a time of the network's own, for each condition."""
    family = ps.images.load(undisturbed.path, "cpu")
    assert list(family) == ["base", "a"]
    model = next(iter(export.networks(undisturbed.path, "cpu").values()))
    x, step = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)), 400
    alpha, sigma = (v[step] for v in noise_scales(torch.device("cpu")))
    for label, name in enumerate(family):
        with torch.no_grad():
            v = model(x, torch.tensor([step] * 2), class_labels=torch.tensor([label] * 2)).sample
        expected = -(alpha * v + sigma * x) / sigma
        torch.testing.assert_close(family[name].score(x, torch.tensor((step + 1) / 1000)), expected,
                                   rtol=1e-3, atol=1e-3)  # fmt: skip


@pytest.mark.parametrize("model", ["conditional", "separate"])
def test_one_condition_is_a_family_too(model, data, tmp_path):
    """Its network is told no class."""
    one = Mixtures(MIXTURES.classes, {"base": MIXTURES.conditions["base"]})
    p = train(data, one, tmp_path, recipe=RECIPE, model=model, steps=2, device="cpu").load("cpu")
    assert list(p) == ["base"] and p["base"].score(torch.zeros(1, 3, 8, 8), 0.5).shape == (1, 3, 8, 8)


@pytest.mark.parametrize("change", [
    lambda told: told["recipe"]["unet"].update(channels=[8, 24]),
    lambda told: told["networks"]["network"].update(conditions=["base"]),
    lambda told: told.pop("history"),
], ids=["another network", "another condition", "no history"])  # fmt: skip
def test_descriptions_that_do_not_fit_are_refused(change, undisturbed, tmp_path):
    shutil.copytree(undisturbed.path / "export", tmp_path / "export")
    file = tmp_path / "export" / "model.json"
    told = json.loads(file.read_text())
    change(told)
    file.write_text(json.dumps(told))
    with pytest.raises(FileError, match=r"model.json must describe"):
        export.load(tmp_path, "cpu")


def test_damaged_exports_are_refused(undisturbed, tmp_path, data):
    import shutil

    with pytest.raises(ArgumentError, match=r"be a folder with model\.json"):
        ps.images.load(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(undisturbed.path / "export", copy)
    shard = next(copy.glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-100] ^= 1
    shard.write_bytes(content)
    with pytest.raises(FileError, match="damaged"):
        ps.images.load(copy)
    shard.unlink()
    with pytest.raises(FileError, match="must exist"):
        ps.images.load(copy)
    (copy / "model.json").write_text("{")
    with pytest.raises(FileError, match="must describe an image model"):
        ps.images.load(copy)


def test_bad_options_are_refused_before_anything_is_written(data, tmp_path):
    out = tmp_path / "out"
    for bad, told in (
        ({"minutes": -1}, "minutes must be at least 0"),
        ({"save_every": 0}, "save_every must be"),
        ({"form": "quick"}, "form must be one of auto, plain, kernels, compiled"),
        ({"device": "tpu"}, "device must name a device"),
        ({"batches": 3}, "Did you mean 'batch'"),
    ):
        with pytest.raises(ArgumentError, match=told):
            train(data, MIXTURES, out, recipe=RECIPE, **{"device": "cpu", **bad})
    with pytest.raises(ArgumentError, match="sum to 1"):
        train(data, {"classes": [*COLOURS], "conditions": {"base": [0.5, 0.4, 0]}}, out, recipe=RECIPE)
    assert not out.exists()


def test_bf16_trains_too(data, tmp_path):
    """Inside somebody's autocast and inference mode as well: the weights must move in every step."""
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        trained = train(data, MIXTURES, tmp_path / "out", recipe=RECIPE, device="cpu", precision="bf16", steps=30)
    losses = [entry["held_out"]["base"] for entry in trained.history["network"]]
    assert losses[-1] < losses[0] < 2


@pytest.mark.slow
def test_two_processes_train_what_one_does(data, undisturbed, tmp_path):
    """Started as `accelerate launch` starts processes of one machine. Sums of gradients are rounded otherwise, nothing
    else differs; Adam's moments would show gradients that are halved or doubled, which its steps do not."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch; torch.set_num_threads(1)\n"
        "from images.flat import MIXTURES, RECIPE\n"
        "from polyscore.images import train\n"
        f"print(train({str(data)!r}, MIXTURES, {str(tmp_path / 'out')!r}, recipe=RECIPE, device='cpu').complete)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    done = subprocess.run(command, env=environment(), check=False, timeout=240, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("True") == 2
    (one, about), (two, other) = read_tensors(newest(tmp_path / "out")), read_tensors(newest(undisturbed.path))
    assert about["step"] == other["step"] == 6
    for name, value in one.items():
        if "to_k.bias" not in name:  # as above
            assert (value - two[name]).norm() <= 1e-3 * two[name].norm(), name
