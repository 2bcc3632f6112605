"""Gates of a structured network, piece by piece: lines, shells, levels, and held-out points that repeat."""

import numpy as np
import pytest
import torch

import polyscore as ps
from polyscore.algebra.alternatives import alternatives, halves
from polyscore.mixtures import fit_mixture
from polyscore.models.ensemble import Ensemble
from polyscore.models.network import Network
from polyscore.nn import structured
from polyscore.nn.mixture import MixtureOptions
from polyscore.nn.network import Architecture
from polyscore.nn.stack import StackNetwork
from polyscore.nn.structured import Structured, shrunk


def network(conditions: int = 1) -> Structured:
    """Untrained, on top of a Gaussian a condition."""
    plain = Architecture("structured", 2, conditions, True, ps.VP(), 16, 2, options=MixtureOptions(dense=0))
    stack = Structured(plain, [3])
    points = torch.randn(400, 2, generator=torch.Generator().manual_seed(1))
    for c in range(conditions):
        stack.put(0, c, fit_mixture(points, most=1))
    return stack


def test_a_gate_is_a_line_between_shells_and_level_beyond_them():
    shells, gates = torch.tensor([1.0, 2.0, 4.0, 5.0]), torch.tensor([0.9, 0.5, 0.6, 0.0])
    depth = torch.tensor([-7.0, 1.0, 1.3, 3.5, 4.9, 5.0, 60.0])
    expected = np.interp(depth.numpy(), shells.numpy(), gates.numpy())
    np.testing.assert_allclose(structured._gate(depth[:, None], shells, gates)[:, 0].numpy(), expected, atol=1e-6)


def test_gates_between_two_levels_lie_on_the_line_between_theirs():
    levels = structured._LEVELS
    table = torch.rand(1, 1, 1, len(levels), 3, generator=torch.Generator().manual_seed(0))
    at = torch.tensor([-9.0, -4.0, -3.8, 0.1, 2.75, 3.0, 12.0])
    found = structured._between(table, at[:, None])[0, 0]
    for j in range(3):
        expected = np.interp(at.numpy(), levels.numpy(), table[0, 0, 0, :, j].numpy())
        np.testing.assert_allclose(found[:, j].numpy(), expected, atol=1e-6)


def test_a_gate_that_one_level_opened_alone_is_shut():
    gates = torch.tensor([[0.0, 0.7, 0.0, 0.4, 0.8, 0.6], [0.3, 0.2, 0.0, 0.0, 0.0, 0.9]]).T
    expected = torch.tensor([[0.0, 0.0, 0.0, 0.4, 0.6, 0.6], [0.2, 0.2, 0.0, 0.0, 0.0, 0.0]]).T
    torch.testing.assert_close(structured._joined(gates), expected)


def test_whether_a_network_is_worth_it_is_asked_where_most_points_are():
    inner, outer = torch.zeros(1, 2, 4, 6), torch.zeros(1, 2, 4, 6)
    inner[0, 1, :, :3], outer[..., 3:] = 0.06, 1.0
    assert structured._opened(inner).flatten().tolist() == [0, 1]
    assert structured._opened(outer).flatten().tolist() == [0, 0]


def test_a_gate_shuts_half_as_far_beyond_the_deepest_point_as_depths_reach_from_the_median():
    depth = torch.cat([torch.linspace(0, 4, 51), torch.linspace(4.02, 10, 50)])  # median 4
    shells, gates = shrunk(depth, torch.ones(101, 2), torch.ones(101, 2), torch.arange(101))
    assert shells[-1].item() == pytest.approx(10 + 0.5 * 6, abs=0.02) and gates[-1] == 0
    assert bool((gates[:-1] == 1).all())
    ends = np.quantile(depth.numpy(), [0, 0.5, 0.8, 0.95, 0.99, 1])  # a gate stands in the middle of its shell
    np.testing.assert_allclose(shells[:-1].numpy(), 0.5 * (ends[:-1] + ends[1:]), rtol=1e-5)


def test_draws_of_one_point_count_as_one():
    """A point that is noised eight times tells what it tells once, where the residual is of the point alone."""
    draw = torch.Generator().manual_seed(0)
    residual = torch.randn(300, 2, generator=draw)
    left, depth = 0.3 * residual + torch.randn(300, 2, generator=draw), torch.rand(300, generator=draw)
    once = shrunk(depth, residual, left, torch.arange(300))[1]
    often = [part.repeat_interleave(8, 0) for part in (depth, residual, left, torch.arange(300))]
    assert 0 < once[0] < 0.3
    torch.testing.assert_close(shrunk(*often)[1], once, rtol=0, atol=0.05)  # shells end between other draws
    assert shrunk(*often[:3], torch.arange(2400))[1][0] > once[0] + 0.05


def test_the_network_is_added_inside_of_its_shells_and_nowhere_else():
    stack = network()
    stack.shells.copy_(torch.tensor([0.0, 3.0, 4.0, 5.0, 6.0, 7.0]))
    stack.gates.copy_(torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0]))
    x, at = torch.tensor([[[[0.1, -0.2], [9.0, 9.0]]]]), stack.embed(torch.tensor(0.2).view(1, 1, 1, 1))
    noise, log_density = stack.noised(x, at)
    assert -log_density[0, 0, 0] < 6 and -log_density[0, 0, 1] > 7
    added = stack.predict(x, at) - noise
    torch.testing.assert_close(added[..., 0, :], stack.residual(x, at)[..., 0, :])
    assert stack.residual(x, at).abs().min() > 0 and added[..., 1, :].abs().max() == 0


@pytest.mark.parametrize("wrong", [False, True])
def test_gates_are_asked_of_points_enough_and_never_opened_again(monkeypatch, wrong):
    """Of a residual that says just what the mixture leaves, and of one that does at a single level."""

    def left(self, clean, level):
        found = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
        return found.square().sum(-1), -found if wrong and level != -1.0 else found, found

    monkeypatch.setattr(Structured, "_left", left)
    stack, points = network(3), torch.randn(1, 3, 40, 2, generator=torch.Generator().manual_seed(2))
    sizes = torch.tensor([[40, 19, 20]])
    stack.settle(points, sizes)
    assert [bool(gate.any()) for gate in stack.gates[0]] == [not wrong, False, not wrong]
    stack.gates.fill_(1.0)
    stack.gates[0, 0] = 0.0
    stack.review(points, sizes)
    assert [bool(gate.any()) for gate in stack.gates[0]] == [False, False, not wrong]
    stack.settle(points, sizes)
    assert [bool(gate.any()) for gate in stack.gates[0]] == [False, False, not wrong]
    stack.review(points, torch.zeros_like(sizes))
    assert stack.is_a_mixture and stack.is_finished


def test_open_networks_have_their_halves_and_are_redrawn_as_one():
    """Gates are open, so that conditions stay those of a network: mixtures inside are replaced, perceptrons kept."""
    stack, draw = network(2), torch.Generator().manual_seed(4)
    halved = [fit_mixture(scale * torch.randn(200, 2, generator=draw), most=1) for scale in (0.5, 2.0)]
    for c in range(2):
        for h, fit in enumerate(halved):
            stack._hold("half_", (0, c, h), fit)
    group, x = Network(StackNetwork(stack), ps.VP()), torch.tensor([[1.0, -2.0], [0.3, 0.4]])
    p = ps.Family({"a": group.condition(0), "b": group.condition(1)})
    found = halves(p["a"] * p["b"])
    for half, fit in zip(found, halved, strict=True):
        twin = network(2)
        twin.put(0, 1, fit)
        expected = Network(StackNetwork(twin), ps.VP()).condition(1).score(x, 0.3)
        torch.testing.assert_close(half.family.members["b"].score(x, 0.3), expected)
    others = [other.family.members for other in alternatives(p["a"] * p["b"], 2)]
    assert all(other["a"].group is other["b"].group is not group for other in others)
    assert [(other["a"].index, other["b"].index) for other in others] == [(0, 1), (0, 1)]
    assert not torch.equal(others[0]["a"].score(x, 0.3), others[1]["a"].score(x, 0.3))


def test_alternatives_of_ensembles_are_their_models_as_many_as_the_smallest_has():
    def models(count):
        return [ps.Learned(lambda x, t, k=k: k * x, (2,), ps.VP()) for k in range(count)]

    many, few = models(3), models(2)
    p = ps.Family({"many": Ensemble(many), "few": Ensemble(few), "exact": ps.Gaussian(dim=2)})
    found = [other.family.members for other in alternatives(p["many"] * p["few"] / p["exact"], 8)]
    assert [(one["many"], one["few"]) for one in found] == list(zip(many, few, strict=False))
    assert all(one["exact"] is p.members["exact"] for one in found)
    assert len(alternatives(p["many"] / p["exact"], 8)) == 3
