"""What a caller has set, or his model does, and must not change a result: defaults, threads, writing into its input."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyscore as ps
from images.flat import MIXTURES, RECIPE, flat
from pipelines.small import ddpm, unet
from polyscore import features, plots
from polyscore.causal import Additive, Linear, Model
from polyscore.errors import PolyscoreError
from polyscore.images import train

ONES, HALF = torch.ones(1, 2), torch.tensor(0.5)


@contextmanager
def default(kind: torch.dtype | str) -> Iterator[None]:
    device, dtype = torch.get_default_device(), torch.get_default_dtype()
    (torch.set_default_device if isinstance(kind, str) else torch.set_default_dtype)(kind)
    try:
        yield
    finally:
        torch.set_default_device(device)
        torch.set_default_dtype(dtype)


@pytest.fixture(scope="module", params=["mixture", "structured"])
def fitted(request: pytest.FixtureRequest) -> ps.Family:
    """Conditions in bent coordinates whose quotient lives off the proper side by little."""
    source = np.random.default_rng(0)
    data = {name: np.exp(source.normal(mean, 0.7, (80, 2))) for name, mean in (("a", 0.0), ("b", 0.5), ("base", 0.2))}
    sizes = {"steps": 5, "width": 4, "depth": 1} if request.param == "structured" else {}
    return ps.fit(data, kind=request.param, bend=True, progress=False, **sizes)


WORKS: dict[str, Callable[[ps.Composition], Any]] = {
    "sample": lambda q: ps.FeynmanKac(4, steps=6).sample(q, 10).samples,
    "pooled": lambda q: ps.FeynmanKac(4, steps=6, pooled=True).sample(q, 10).samples,
    "controlled": lambda q: ps.Controlled(4, steps=6).sample(q, 10).samples,
    "auto": lambda q: repr(ps.auto(q, most=8, steps=6)),
    "score": lambda q: q.score(ONES, HALF),
    "residual": lambda q: (q**0.5).residual(ONES, HALF),
    "validity": lambda q: repr(q.validity()),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::polyscore.errors.PolyscoreWarning")  # of few rows and steps
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("kind", ["meta", torch.float64], ids=str)
def test_fitted_families_do_not_care_for_defaults(fitted: ps.Family, work: str, kind: Any) -> None:
    """A default device that is no CPU, as on most machines with a GPU, broke every fit of a mixture."""
    q = fitted["a"] * fitted["b"] / fitted["base"]
    plain = WORKS[work](q)
    with default(kind):
        found = WORKS[work](q)
    assert torch.equal(found, plain) if isinstance(plain, torch.Tensor) else found == plain


GAUSSIANS = ps.Family({"a": ps.Gaussian(cov=[3, 1]), "b": ps.Mixture([[1, 0], [0, 2]]), "base": ps.Gaussian(cov=4)})
POINTS = torch.arange(24.0).reshape(8, 3).sin()
LINE = {"x": Linear(), "y": Additive(lambda given: given[..., 0] ** 2, ["x"])}


def target(method: str | None) -> tuple[float, torch.Tensor]:
    q = GAUSSIANS["a"] ** 2 / GAUSSIANS["base"] if method is None else ps.base_composition(GAUSSIANS)
    found = ps.exact(q, method)
    return found.log_evidence, found.sample(20)


OTHERS: dict[str, Callable[[], Any]] = {
    "gaussian": lambda: ps.Gaussian(cov=[[2, 1], [1, 2]]).sample(5),
    "mixture": lambda: ps.Mixture([[1.0, 2.0]]).sample(5),
    "closed form": lambda: target(None),
    "grid": lambda: target("grid"),
    "importance": lambda: target("importance"),
    "sw": lambda: ps.sliced_wasserstein(POINTS, 2 * POINTS, projections=20),
    "mmd": lambda: ps.mmd2(POINTS.numpy(), 2 * POINTS.numpy()),
    "frechet": lambda: features.frechet(POINTS.numpy(), 2 * POINTS.numpy()),
    "causal": lambda: Model(LINE).data({"A": {"x": Linear(shift=1.0)}}, n=5)["A"],
    "linear": lambda: Model({"x": Linear(), "y": Linear({"x": 0.5})}).distribution().sample(5),
    "picture": lambda: plots.density(POINTS[:, :2], GAUSSIANS.members["a"])._repr_png_() and None,
}  # fmt: skip


@pytest.mark.parametrize("work", OTHERS)
@pytest.mark.parametrize("kind", ["meta", torch.float64, torch.float16], ids=str)
def test_nothing_else_cares_for_defaults_either(work: str, kind: Any) -> None:
    """The README could not be followed with another default device, and with float16 evidence was -inf."""
    plain = OTHERS[work]()
    with default(kind):
        found = OTHERS[work]()
    assert torch.equal(found, plain) if isinstance(plain, torch.Tensor) else str(found) == str(plain)


@pytest.mark.filterwarnings("ignore::polyscore.errors.PolyscoreWarning")  # of few rows and steps
@pytest.mark.parametrize("kind", ["meta", torch.float64, torch.float16], ids=str)
def test_networks_read_by_table_do_not_care_for_defaults(kind: Any) -> None:
    data = {name: np.random.default_rng(k).normal(k, 1, (40, 2)) for k, name in enumerate(("a", "b", "base"))}
    learned = ps.fit(data, kind="vanilla", steps=5, width=4, depth=1, progress=False)
    work = lambda: ps.FeynmanKac(8, steps=6).sample(ps.base_composition(learned), 200).samples  # noqa: E731
    plain = work()
    with default(kind):
        assert torch.equal(work(), plain)


@pytest.mark.parametrize("kind", ["set_default_device('meta')", "set_default_dtype(torch.float64)"])
def test_defaults_may_be_set_before_the_import(kind: str) -> None:
    program = f"""
import torch
torch.{kind}
import warnings
import numpy as np, polyscore as ps
warnings.simplefilter("ignore")
from polyscore.nn.structured import _LEVELS
data = {{name: np.random.default_rng(k).normal(k, 1, (40, 2)) for k, name in enumerate("ab")}}
ps.Denoise(steps=4).sample(ps.fit(data, steps=3, width=4, depth=1, progress=False)["a"], 5)
print(_LEVELS.dtype, _LEVELS.device)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["torch.float32", "cpu"], done.stderr[-500:]


def test_autocast_does_not_shorten_distances() -> None:
    """A product in bfloat16, which NumPy cannot sort, ended in a traceback."""
    plain = ps.sliced_wasserstein(POINTS, 2 * POINTS, projections=20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ps.sliced_wasserstein(POINTS, 2 * POINTS, projections=20) == plain


@pytest.mark.parametrize("kind", ["meta", torch.float64, torch.float16], ids=str)
def test_files_and_folders_are_read_the_same_under_any_defaults(fitted: ps.Family, kind: Any, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    unet(2).save_pretrained(tmp_path)
    ddpm().save_pretrained(tmp_path)
    x = torch.zeros(1, 3, 8, 8)
    plain = fitted["a"].score(ONES, HALF), ps.from_diffusers(tmp_path)["0"].score(x, HALF)
    with default(kind):
        found = ps.load(tmp_path / "model")["a"].score(ONES, HALF), ps.from_diffusers(tmp_path)["0"].score(x, HALF)
    assert all(map(torch.equal, found, plain))


@pytest.mark.parametrize("kind", ["meta", torch.float64, torch.float16], ids=str)
def test_image_models_are_trained_the_same_under_any_defaults(kind: Any, tmp_path: Path) -> None:
    """With float64 it was another network, whose losses differed in the first digit; with the others a traceback."""
    data, about = flat(tmp_path / "data"), {"recipe": RECIPE, "device": "cpu", "progress": False}
    plain = train(data, MIXTURES, tmp_path / "plain", **about)
    with default(kind):
        found = train(data, MIXTURES, tmp_path / "found", **about)
        score = found.load("cpu")["a"].score(torch.zeros(1, 3, 8, 8, device="cpu", dtype=torch.float32), HALF)
    assert found.held_out == plain.held_out
    assert torch.equal(score, plain.load("cpu")["a"].score(torch.zeros(1, 3, 8, 8), HALF))


def test_two_threads_do_not_train_one_network(tmp_path: Path) -> None:
    """Trainings of one shape share a network: in two threads both came out wrong, with nothing said."""
    data, errors = flat(tmp_path / "data"), []
    about: dict[str, Any] = {"recipe": RECIPE, "device": "cpu"}

    def other() -> None:
        try:
            train(data, MIXTURES, tmp_path / "other", **about, progress=False)
        except PolyscoreError as error:
            errors.append(str(error))

    def meanwhile(step: int, steps: int, loss: float) -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    plain = train(data, MIXTURES, tmp_path / "plain", **about, progress=False)
    found = train(data, MIXTURES, tmp_path / "found", **about, progress=meanwhile)
    assert found.held_out == plain.held_out
    assert errors and all("must train one image model at a time; another thread does" in error for error in errors)
    other()  # afterwards it may
    assert (tmp_path / "other" / "export" / "model.json").exists()


class Writes(torch.nn.Module):
    """A model that writes into what it is given, as many layers with inplace=True do."""

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        t.mul_(1000)
        return x.neg_()


def test_a_model_that_writes_into_its_input_changes_no_point() -> None:
    """With one condition the model had the sampler's own points: deviations of 5e8 instead of 1."""
    models = Writes().eval(), lambda x, t: -x
    kinds: dict[str, Any] = {"event": (2,), "schedule": ps.VP(), "prediction": "score"}
    written, plain = (ps.Family({"a": ps.Learned(model, **kinds)})["a"] for model in models)
    x, t = torch.full((5, 2), 0.7), torch.full((5,), 0.3)
    assert torch.equal(written.score(x, t), plain.score(x, t)) and bool((x == 0.7).all()) and bool((t == 0.3).all())
    assert torch.equal(*(ps.Denoise(steps=6).sample(q, 20).samples for q in (written, plain)))


def test_a_model_that_answers_in_the_same_memory_every_time() -> None:
    """As networks of other runtimes do: the answer of the first condition became that of the last."""
    kept = torch.empty(1, 2)

    def answers(centre: float) -> ps.Learned:
        return ps.Learned(lambda x, t: kept.copy_(centre - x), event=(2,), schedule=ps.VP(), prediction="score")

    p = ps.Family({"a": answers(0.0), "b": answers(2.0)})
    assert (p["a"] ** 2 / p["b"]).score(ONES, HALF).tolist() == [[-3.0, -3.0]]


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool], ids=str)
def test_answers_that_are_no_real_numbers_are_refused(dtype: torch.dtype) -> None:
    """Whole numbers were taken for scores, and the imaginary parts of complex ones thrown away."""
    learned = ps.Learned(lambda x, t: (-x).to(dtype), event=(2,), schedule=ps.VP(), prediction="score")
    with pytest.raises(PolyscoreError, match="must return real numbers with a fraction; got torch"):
        ps.Family({"a": learned})["a"].score(ONES, HALF)


def test_answers_on_another_device_are_refused() -> None:
    """A part that was left behind on another device."""
    learned = ps.Learned(lambda x, t: (-x).to("meta"), event=(2,), schedule=ps.VP(), prediction="score")
    with pytest.raises(PolyscoreError, match="must answer where it is asked; got an answer on meta"):
        ps.Family({"a": learned})["a"].score(ONES, HALF)


@dataclass(frozen=True)
class Listed(ps.Schedule):
    """A schedule whose fields cannot be hashed."""

    betas: list[float]

    def alpha(self, t: torch.Tensor) -> torch.Tensor:
        return ps.VP().alpha(t)

    def sigma(self, t: torch.Tensor) -> torch.Tensor:
        return ps.VP().sigma(t)

    def drift(self, t: torch.Tensor) -> torch.Tensor:
        return ps.VP().drift(t)

    def diffusion(self, t: torch.Tensor) -> torch.Tensor:
        return ps.VP().diffusion(t)


def test_a_schedule_that_holds_a_list_serves_a_model_of_several_conditions() -> None:
    schedule = Listed([0.1, 0.2])

    def model(x: torch.Tensor, t: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return -x * c[:, None]

    p = ps.Family({name: ps.Learned(model, (2,), schedule, "score", condition=c) for name, c in (("a", 2), ("b", 3))})
    assert (p["a"] * p["b"]).score(ONES, HALF).tolist() == (-5 * ONES).tolist()
    assert p.members["a"].source is p.members["b"].source  # one call for both
