"""`fit(kind="mixture")` and `fit(kind="structured")`: closed forms, gates from held-out data, files, few points."""

import math
import warnings

import pytest
import torch

import polyscore as ps
from polyscore.algebra.alternatives import alternatives
from polyscore.algebra.proper import certainty, chance, expected, proper
from polyscore.files.tensors import read_tensors, write_tensors
from polyscore.models.fitted import Fitted
from polyscore.nn.structured import shrunk
from polyscore.samplers.support import moved
from polyscore.training import Recipe, trainer
from polyscore.training.pools import stack_pools
from training.looks import Looks

QUICK = {"steps": 200, "width": 32, "depth": 2, "learning_rate": 2e-3, "progress": False}


def clusters(n: int, seed: int = 0) -> dict[str, torch.Tensor]:
    truth = {
        "a": ps.Mixture([[100.0, -3.0], [130.0, 2.0]], [9.0, 0.2], [0.3, 0.7]),
        "b": ps.Mixture([[110.0, 1.0], [130.0, 2.0]], [9.0, 0.2]),
        "base": ps.Gaussian([115.0, 0.0], [400.0, 9.0]),
    }
    return {name: member.sample(n, seed=seed + k) for k, (name, member) in enumerate(truth.items())}


def ring(n: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(3)
    angle = 2 * math.pi * torch.rand(n, generator=draw)
    radius = 4 + 0.3 * torch.randn(n, generator=draw)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


@pytest.mark.parametrize("model", ["conditional", "separate"])
def test_a_fitted_mixture_is_a_closed_form_in_the_units_of_the_data(model):
    data = clusters(2000)
    p = ps.fit(data, kind="mixture", model=model, progress=False)
    assert isinstance(p.members["a"], Fitted) and p["a"].is_closed_form
    x = data["a"][:200].double()
    density = ps.exact(p["a"]).log_prob(x)
    truth = ps.Mixture([[100.0, -3.0], [130.0, 2.0]], [9.0, 0.2], [0.3, 0.7]).log_prob(x)
    assert (density - truth).abs().mean() < 0.1
    x.requires_grad_(True)
    slope = torch.autograd.grad(p["a"].log_density(x, 0.3).sum(), x)[0]
    torch.testing.assert_close(p["a"].score(x.detach(), 0.3), slope)


def test_a_fitted_mixture_survives_its_file(tmp_path):
    p = ps.fit(clusters(500), kind="mixture", progress=False)
    p.save(tmp_path / "mixture")
    again = ps.load(tmp_path / "mixture")
    x = torch.tensor([[120.0, 1.0], [90.0, -5.0]])
    assert torch.equal(again["b"].score(x, 0.2), p["b"].score(x, 0.2)) and again.members["b"].points == 500


@pytest.mark.parametrize("kind", ["mixture", "structured"])
def test_trainings_resume_and_serve_ensembles(kind, tmp_path):
    data = clusters(300)
    whole = ps.fit(data, kind=kind, **QUICK)
    ps.fit(data, kind=kind, **{**QUICK, "steps": 100}, checkpoint=tmp_path / "t")
    resumed = ps.fit(data, kind=kind, **QUICK, checkpoint=tmp_path / "t")
    x = torch.tensor([[120.0, 1.0], [100.0, -4.0]])
    torch.testing.assert_close(resumed["a"].score(x, 0.3), whole["a"].score(x, 0.3))
    both = ps.fit(data, kind=kind, ensemble=2, **QUICK)
    assert both.members["a"].spread(x, 0.3).shape == x.shape


def test_the_score_of_a_structured_network_is_its_mixture_far_from_all_data():
    data = {"ring": ring(1500), "base": torch.randn(1500, 2, generator=torch.Generator().manual_seed(1)) * 4}
    p = ps.fit(data, kind="structured", **QUICK)
    q = ps.fit(data, kind="mixture", progress=False)
    far = torch.tensor([[200.0, 100.0], [-300.0, 20.0]])
    # float32 a million deviations out: relative
    torch.testing.assert_close(p["ring"].score(far, 0.1), q["ring"].score(far, 0.1), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_the_residual_is_believed_where_the_mixture_is_wrong_and_nowhere_else():
    """A ring with one Gaussian allowed needs the network; a Gaussian does not: few gates open by chance."""
    draw = torch.Generator().manual_seed(5)
    data = {"ring": ring(3000), "gaussian": 3 * torch.randn(3000, 2, generator=draw)}
    p = ps.fit(data, kind="structured", options={"components": 1, "dense": 0}, steps=3000, width=128, depth=3,
               learning_rate=1e-3, ema=0.99, progress=False)  # fmt: skip
    gates = p.groups[0].network.tensors()["gates"][0]
    inside = slice(2, 9)  # noise from a twentieth of the data's width to all of it
    assert gates[0, inside, :3].mean() > 0.5
    assert gates[1].mean() < 0.03
    assert bool((gates[..., -1] == 0).all())


def test_a_gate_is_the_least_squares_factor_less_two_errors():
    draw = torch.Generator().manual_seed(0)
    residual = torch.randn(4000, 3, generator=draw)
    left = 0.6 * residual + 0.5 * torch.randn(4000, 3, generator=draw)
    depth, rows = torch.rand(4000, generator=draw), torch.arange(4000)
    shells, gates = shrunk(depth, residual, left, rows)
    inner = depth <= torch.quantile(depth, 0.5)
    factor = (residual * left)[inner].sum() / residual[inner].square().sum()
    assert gates[0] < factor and gates[0] == pytest.approx(factor.item(), abs=0.05)
    assert gates[-1] == 0 and bool((shells.diff() > 0).all())
    assert shrunk(depth, residual, -left, rows)[1].max() == 0


@pytest.mark.filterwarnings("ignore:(points should be many|every column should (vary|be continuous)|data should be)")
@pytest.mark.parametrize("kind", ["mixture", "structured"])
def test_few_and_degenerate_points_give_finite_scores(kind):
    draw = torch.Generator().manual_seed(0)
    flat = torch.cat([torch.randn(60, 2, generator=draw), torch.zeros(60, 1)], 1)
    two, few = torch.tensor([[1.0, 2.0, 3.0], [1.5, 0.0, 3.5]]), torch.randn(4, 3, generator=draw)
    data = {"two": two, "same": torch.ones(40, 3), "flat": flat, "few": few}
    p = ps.fit(data, kind=kind, **QUICK)
    for name in data:
        assert bool(p[name].score(torch.randn(5, 3, generator=draw), 0.3).isfinite().all())


def test_the_mean_of_a_normal_cut_off_at_zero():
    x = torch.linspace(0, 40, 400_001, dtype=torch.float64)
    for z in (-12.0, -8.5, -3.0, -0.5, 0.0, 1.3, 4.0):
        log = -0.5 * (x - z) ** 2
        weights = (log - log.max()).exp()
        weights[0] *= 0.5  # the trapezoid
        assert expected(z) == pytest.approx((weights @ x / weights.sum()).item(), rel=2e-2 if z < -8 else 1e-4)


def test_a_composition_that_is_improper_by_chance_is_made_proper_and_says_so():
    """At 60 points N(0, 10) N(0, 1) / N(0, 1) is improper about every other time."""
    seen = 0
    for seed in range(4):
        draw = torch.Generator().manual_seed(seed)
        data = {name: torch.randn(60, 2, generator=draw) * torch.tensor(scale).sqrt()
                for name, scale in (("a", [10.0, 1.0]), ("b", [1.0, 10.0]), ("base", [1.0, 1.0]))}  # fmt: skip
        q = ps.base_composition(ps.fit(data, kind="mixture", progress=False))
        seen += q.validity().proper is False
        with pytest.warns(ps.errors.DegeneracyWarning, match="fits should be proper beyond doubt"):
            other = proper(q)
        assert other.validity().proper is True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ps.errors.DegeneracyWarning)
            run = ps.Denoise(20).sample(q, 50, seed=0)
        assert run.moved > 0.3  # other fits would be improper, or nearly so
        assert bool(run.samples.isfinite().all()) and any("beyond doubt" in doubt for doubt in run.doubts)
    assert seen > 0


def test_what_other_rows_move_is_known_in_many_dimensions():
    """Three fits of n standard normal rows: the composed mean errs by (3 / n)^½ in each coordinate. The largest of 400
    root mean squares of 16 is 1.5 times that; among weighted samples it was 4.5 times, since few of them counted.
    """
    draw, n = torch.Generator().manual_seed(0), 40
    data = {name: torch.randn(n, 200, generator=draw) for name in ("a", "b", "base")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.errors.DegeneracyWarning)
        q = ps.base_composition(ps.fit(data, kind="mixture", options={"components": 1}, bend=False, progress=False))
    assert 1 < moved(q, ps.exact(q).sample(512, seed=1)) / math.sqrt(3 / n) < 2


def test_what_other_rows_move_is_the_same_by_weights_and_by_formula(monkeypatch):
    monkeypatch.setattr("polyscore.samplers.support._WEIGHABLE", 0)
    draw = torch.Generator().manual_seed(1)
    data = {name: torch.randn(500, 2, generator=draw) + (name == "a") for name in ("a", "b", "base")}
    q = ps.base_composition(ps.fit(data, kind="mixture", options={"components": 1}, bend=False, progress=False))
    x = ps.exact(q).sample(512, seed=1)
    found = moved(q, x)
    monkeypatch.setattr(ps.Composition, "is_gaussian", False)
    assert moved(q, x) == pytest.approx(found, rel=0.25)  # of 512 samples


def test_a_composition_that_is_surely_proper_stays_itself():
    q = ps.base_composition(ps.fit(clusters(2000), kind="mixture", progress=False), base="base")
    assert proper(q) is q and certainty(q.factors, list(q.exponents.values()), 0.0) > 2


def test_what_is_moved_is_as_certain_as_it_was_asked_for_and_keeps_its_names():
    """The least rate of the widened factors themselves, over its error before."""
    draw = torch.Generator().manual_seed(3)
    data = {name: torch.randn(60, 2, generator=draw) * torch.tensor(scale).sqrt()
            for name, scale in (("a", [10.0, 1.0]), ("b", [1.0, 10.0]), ("base", [1.1, 1.1]))}  # fmt: skip
    p = ps.fit(data, kind="mixture", progress=False)
    family = ps.Family(p.members, p.schedule, p.units, ["dose", "signal"])
    q = ps.base_composition(family)
    exponents = list(q.exponents.values())
    assert all(factor.components.count == 1 for factor in q.factors)
    with pytest.warns(ps.errors.DegeneracyWarning, match="fits should be proper beyond doubt"):
        other = proper(q)
    assert other.family.variables == ("dose", "signal") == alternatives(q, 1)[0].family.variables
    before, after = (torch.cat([factor.components.precisions for factor in c.factors]) for c in (q, other))
    angles = torch.linspace(0, math.pi, 2001, dtype=torch.float64)
    v = torch.stack([angles.cos(), angles.sin()])
    w = torch.tensor(exponents, dtype=torch.float64)
    errors = torch.stack([factor.errors[0] for factor in q.factors])
    forms, moved = (torch.einsum("dn,ade,en->an", v, each, v) for each in (before, after))
    spread = ((w * errors)[:, None] * forms).square().sum(0).sqrt()
    z = ((w[:, None] * forms).sum(0) / spread).min().item()
    assert ((w[:, None] * moved).sum(0) / spread).min().item() == pytest.approx(expected(z), abs=1e-3)


def test_a_recipe_takes_the_sizes_of_its_kind_unless_it_is_told():
    own, paper = ps.Recipe(), ps.Recipe(kind="vanilla")
    assert (own.kind, own.steps, own.width, own.depth, own.learning_rate) == ("structured", 10_000, 256, 3, 5e-4)
    assert (paper.steps, paper.width, paper.depth, paper.learning_rate) == (20_000, 512, 4, 2e-4)
    assert ps.Recipe(steps=7).steps == 7 and ps.Recipe(steps=7).width == 256
    assert ps.Recipe.from_dict(paper.to_dict()) == paper and ps.Recipe.from_dict(own.to_dict()) == own
    with pytest.raises(ps.errors.ArgumentError, match="kind must be one of"):
        ps.Recipe(kind="structred")


def test_a_training_ends_at_its_review_where_the_mixture_is_enough_whoever_trains_beside_it(monkeypatch, tmp_path):
    """A Gaussian and a ring that may have one component: the first is given up, alone as in company."""
    monkeypatch.setattr(trainer, "REVIEW", 400)
    draw = torch.Generator().manual_seed(5)
    plain = {"a": 3 * torch.randn(2000, 2, generator=draw), "b": torch.randn(2000, 2, generator=draw)}
    bent = {"a": ring(2000), "b": ring(2000) + 1}
    options = {"options": {"components": 1, "dense": 0}, "width": 48, "depth": 2, "learning_rate": 4e-3, "steps": 600}
    seen: list[int] = []
    alone = ps.fit(plain, **options, progress=lambda step, *_: seen.append(step), checkpoint=tmp_path / "run")
    assert max(seen) == 400 and isinstance(alone.members["a"], Fitted) and alone["a"].is_closed_form
    again = ps.fit(plain, **options, progress=False, checkpoint=tmp_path / "run")  # nothing left to do
    first, second = ps.fit_many([plain, bent], [0, 1], **options, progress=False)
    x = torch.tensor([[0.5, -2.0], [4.0, 1.0]])
    assert torch.equal(again["a"].score(x, 0.2), alone["a"].score(x, 0.2))
    torch.testing.assert_close(first["a"].score(x, 0.2), alone["a"].score(x, 0.2))
    assert isinstance(first.members["a"], Fitted) and not second["a"].is_closed_form
    alone.save(tmp_path / "model")
    assert isinstance(ps.load(tmp_path / "model").members["b"], Fitted)


def test_gates_are_those_of_the_network_alone_whoever_stands_beside_it():
    bent = {"a": ring(600), "b": ring(600) + 1}
    plain = {name: 3 * torch.randn(500, 2, generator=torch.Generator().manual_seed(k)) for k, name in enumerate("ab")}
    options = {"options": {"components": 1, "dense": 0}, "width": 48, "depth": 2, "learning_rate": 4e-3, "steps": 300}
    alone = ps.fit(bent, seed=4, **options, progress=False).groups[0].network.tensors()["gates"]
    beside = ps.fit_many([plain, plain, bent], [0, 1, 4], **options, progress=False)[2]
    assert alone.max() > 0.2
    torch.testing.assert_close(beside.groups[0].network.tensors()["gates"], alone, rtol=0, atol=0.05)


def test_ensembles_of_mixtures_know_their_doubt_by_standard_errors():
    p = ps.fit(clusters(100), kind="mixture", ensemble=2, progress=False)
    q = p["a"] * p["b"] / p["base"]
    x = torch.tensor([[120.0, 1.0], [131.0, 2.0]])
    one, two = (other.score(x, 0.2) for other in alternatives(q, 8))
    assert (one - two).abs().max() > 1e-3 and (one - q.score(x, 0.2)).abs().max() > 1e-3


def test_a_factor_of_few_points_moves_a_composition_by_little():
    """z = 1.9 errors asks for 1.93: what is moved is of that size, where an error that grew along never got there."""
    draw = torch.Generator().manual_seed(7)
    for few in (5, 6, 7, 8):
        data = {name: scale * torch.randn(n, 2, generator=draw) for name, n, scale in
                (("control", 3000, 2.0), ("A", 3000, 0.8), ("B", few, 0.7))}  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            q = ps.base_composition(ps.fit(data, kind="mixture", progress=False))
            z = certainty(q.factors, list(q.exponents.values()), 0.0)
            spread = [ps.exact(c).sample(2000, seed=0).std(0) for c in (q, proper(q))]
        assert z > 1.5 and (spread[1] > 0.7 * spread[0]).all()


@pytest.mark.parametrize("name, value", [
    ("weights", math.nan), ("weights", -0.5), ("weights", 0.0), ("variances", -1.0), ("variances", math.nan),
    ("bases", 0.0), ("bases", 3.0), ("means", math.inf), ("points", -1.0), ("points", math.inf),
    ("gates", math.nan), ("gates", 2.0), ("gates", -1.0), ("shells", math.inf),
])  # fmt: skip
def test_forged_mixtures_are_refused_in_words(name, value, tmp_path):
    """Files with a right checksum and wrong numbers."""
    p = ps.fit(clusters(200), **{**QUICK, "steps": 5})
    path = p.save(tmp_path / "model")
    tensors, about = read_tensors(path)
    key = next(key for key in tensors if key.rsplit(".", 1)[-1] == name)
    tensors[key] = torch.full_like(tensors[key], value)
    about.pop("checksum", None)
    write_tensors(path, tensors, about)
    with pytest.raises(ps.errors.PolyscoreError, match="is missing or wrong"):
        ps.load(path)


def split(data: dict[str, torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What a structured training of these conditions trains on, and what it holds out."""
    pools = stack_pools([data], standardise=False)
    made = trainer.Trainer(pools, [0], Recipe(width=8, depth=1, bend=False), torch.device("cpu"))
    parts = (made.points, made.sizes), made.held
    trained, held = (
        [pool[: int(size)] for pool, size in zip(points[0], sizes[0], strict=True)] for points, sizes in parts
    )
    return trained, held


def test_rows_that_repeat_are_trained_on_or_held_out():
    draw = torch.Generator().manual_seed(5)
    once = torch.randn(60, 2, generator=draw)
    thrice = torch.cat([once, once, once])[torch.randperm(180, generator=draw)]
    trained, held = split({"once": once, "thrice": thrice, "few": once[:9].repeat(20, 1)})
    assert torch.equal(held[0], once[4::5])  # as ever where nothing repeats
    rows = [{tuple(row) for row in part.tolist()} for part in (trained[1], held[1])]
    assert not rows[0] & rows[1] and (len(rows[0]), len(rows[1])) == (48, 12)
    assert (len(trained[1]), len(held[1])) == (144, 36)
    assert len(trained[2]) == 180 and not len(held[2])  # nine different rows are all trained on


@pytest.mark.parametrize("dim, points", [(2, 2000), (3, 500), (5, 3000)])
def test_fits_that_are_improper_by_their_form_get_a_tail_of_one_point(dim, points):
    """A's wide part falls off slower than control, so that A * B / control grows far from all data."""
    draw = torch.Generator().manual_seed(3)
    wide = 1 + 2 * (torch.rand(points, 1, generator=draw) < 0.15)
    data = {name: scale * torch.randn(points, dim, generator=draw) + place
            for name, scale, place in (("A", wide, 0.5), ("B", 1.0, 0.0), ("control", 0.6, 0.0))}  # fmt: skip
    q = ps.base_composition(ps.fit(data, kind="mixture", progress=False))
    assert q.validity().proper is False and certainty(q.factors, list(q.exponents.values()), 0.0) < -10
    with pytest.warns(ps.errors.PolyscoreWarning, match="one point's worth of a Gaussian of .* Trust no sample"):
        other = proper(q)
    assert other.validity().proper is True
    assert other.factors[2].components.weights[-1].item() == pytest.approx(1 / (points + 1))
    assert other.factors[:2] == q.factors[:2]
    # One point of n: where the data of control are, its density is what it was, to a few parts in n.
    x = data["control"][data["control"].square().sum(1) < 0.36 * dim]
    before, after = (ps.exact(c.family["control"]).log_prob(x) for c in (q, other))
    assert 0 < (after - before).abs().max() < 3 / points
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = ps.auto(q).sample(q, 300, seed=0, progress=False).samples
    assert samples.isfinite().all() and samples.abs().max() < 30


@pytest.mark.parametrize("kind", ["vanilla", "structured"])
@pytest.mark.parametrize("model", ["conditional", "separate"])
def test_a_step_of_training_reads_no_number(kind, model):
    """On a GPU it is captured as a graph, which fails at the first number that the host asks for."""
    recipe = Recipe(kind=kind, model=model, width=16, depth=2, batch=48, bend=False, ema=0.9)
    made = trainer.Trainer(stack_pools([clusters(300)], standardise=True), [0], recipe, torch.device("cpu"))
    made.advance()
    with Looks() as mode:
        made._optimise()
    assert mode.times == 0


def test_components_are_counted_anew_where_weights_change():
    p = ps.fit(clusters(400), kind="mixture", progress=False, options={"dense": 0})
    stack = p.members["a"].network.stack
    many = stack._used()
    assert stack._used() == many == int((stack.weights > 0).any(0).any(0).sum())
    stack.weights[..., 1:] = 0
    assert stack._used() == 1
    other = type(p.members["a"].network).of(stack, {"weights": torch.ones_like(stack.weights)})
    assert other.stack._used() == stack.weights.shape[-1] and stack._used() == 1


@pytest.mark.parametrize("seed", [3, 12])
def test_what_is_moved_is_proper_in_six_dimensions(seed):
    """Factors of unequally many points turn the least certain direction when they are moved."""
    draw = torch.Generator().manual_seed(seed)

    def covariance() -> torch.Tensor:
        axes = torch.linalg.qr(torch.randn(6, 6, generator=draw, dtype=torch.float64)).Q
        return axes * (1 + 5 * torch.rand(6, generator=draw, dtype=torch.float64)) @ axes.T

    a, b = covariance(), covariance()
    base = (a.inverse() + b.inverse() - torch.eye(6) / 30).inverse()
    data = {name: torch.randn(n, 6, generator=draw, dtype=torch.float64) @ torch.linalg.cholesky(cov).T
            for name, n, cov in (("a", 120, a), ("b", 400, b), ("base", 300, base))}  # fmt: skip
    q = ps.base_composition(ps.fit(data, kind="mixture", progress=False))
    assert all(factor.components.count == 1 for factor in q.factors)
    with pytest.warns(ps.errors.DegeneracyWarning, match="fits should be proper beyond doubt"):
        other = proper(q)
    assert other.validity().proper is True
    before, after = (torch.cat([factor.components.precisions for factor in c.factors]) for c in (q, other))
    w = torch.tensor(list(q.exponents.values()), dtype=torch.float64)
    values, axes = torch.linalg.eigh(torch.einsum("a,ade->de", w, after))
    forms = torch.einsum("d,ade,e->a", axes[:, 0], before, axes[:, 0])
    error = (w * torch.stack([factor.errors[0] for factor in q.factors]) * forms).norm()
    assert values[0] / error > 0.999 * expected(certainty(q.factors, w.tolist(), 0.0))


def test_a_composition_that_is_surely_improper_is_refused():
    """N(0, 9)^2 / N(0, 1) grows without bound, at 3000 points by 30 standard errors: none that chance could give."""
    data = {name: scale * torch.randn(3000, 1, generator=torch.Generator().manual_seed(k))
            for k, (name, scale) in enumerate((("a", 3.0), ("b", 3.0), ("base", 1.0)))}  # fmt: skip
    q = ps.base_composition(ps.fit(data, kind="mixture", progress=False))
    assert certainty(q.factors, list(q.exponents.values()), 0.0) < -10 and proper(q) is q
    for use in (ps.auto, ps.exact, lambda q: ps.FeynmanKac(4).sample(q, 10)):
        with pytest.raises(ps.errors.ImproperError, match="must be normalisable"):
            use(q)


@pytest.mark.parametrize(("dim", "n"), [(1, 60), (2, 60), (10, 200), (50, 500)])
def test_chance_alone_is_not_called_sure(dim, n):
    """Three sources whose composition has rate 0 in all directions: 200 draws of its least z, the worst of chance.

    A limit of four errors alone would call draws in 50 dimensions sure, where the least of all directions is asked.
    """
    source, least = torch.Generator().manual_seed(dim), math.inf
    for _ in range(200):
        x = torch.randn(3, n, dim, generator=source, dtype=torch.float64)
        inverse = (x.mT @ x / n).inverse()
        rates, directions = torch.linalg.eigh(inverse[0] + inverse[1] - 2 * inverse[2])
        own = (inverse @ directions).mul(directions).sum(1) * torch.tensor([1.0, 1.0, 2.0])[:, None]
        least = min(least, (rates / (math.sqrt(2 / n) * own.norm(dim=0))).min().item())
    assert -chance(dim) < least < -1
    assert dim < 50 or least < -4


def test_chance_is_that_of_the_least_eigenvalue():
    """The least of 50 equal ones, seen at 20,000 points, is 1 - 2 sqrt(d / n) + d / n (Marchenko and Pastur)."""
    x = torch.randn(20_000, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    away = (1 - torch.linalg.eigvalsh(x.T @ x / len(x))[0]).item() / math.sqrt(2 / len(x))
    assert chance(50) - chance(0) == pytest.approx(away, rel=0.08)
