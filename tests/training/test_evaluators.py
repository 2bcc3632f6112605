"""The list of ways to evaluate a network: their order, what serves where, and that each but the last can go."""

from types import SimpleNamespace

import pytest
import torch

import polyscore as ps
from polyscore.fields import evaluators
from polyscore.fields.evaluators import EVALUATORS, Case
from polyscore.nn import Perceptron
from polyscore.nn.fast import hopper, plane
from polyscore.samplers.plan import make_plan
from training.networks import families

NAMES = ["ByTable", "RefinedTable", "OneKernel", "LayeredKernels", "EagerHalf", "EagerBFloat", "TF32", "Float32"]


class OnGpu(Perceptron):
    """A perceptron that claims a GPU."""

    device = torch.device("cuda")

    def __init__(self, dim):
        self.dim = dim


def case(device, precision, dim=2, has_half=True):
    network = SimpleNamespace(device=torch.device(device), dim=dim, has_half=has_half)
    return Case(network, torch.zeros(1), precision, lambda values, x, i: (values[0], None))


def serving(case):
    """Names of the ways that a ladder would hold, which are made of no network here."""
    made = [type(kind.__name__, (kind,), {"__init__": lambda *_: None}) for kind in EVALUATORS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluators, "EVALUATORS", tuple(made))
        return [type(way).__name__ for way in evaluators.ladder(case)]


def test_the_quickest_stands_first():
    assert [kind.__name__ for kind in EVALUATORS] == NAMES
    assert [kind.shortcut for kind in EVALUATORS] == [True] * 6 + [False] * 2


@pytest.mark.parametrize(
    ("asked", "ways"),
    [
        (case("cpu", "auto"), ["RefinedTable", "Float32"]),
        (case("cpu", "auto", dim=3), ["Float32"]),
        (case("cpu", "bf16"), ["Float32"]),
        (case("cpu", "fp16"), ["Float32"]),
        (case("cpu", "tf32"), ["Float32"]),
        (case("cpu", "table"), ["ByTable", "Float32"]),
        (case("cpu", "table", dim=3), ["Float32"]),
        (case("cuda", "auto"), ["ByTable", "EagerHalf", "Float32"]),
        (case("cuda", "auto", dim=3), ["EagerHalf", "Float32"]),
        (case("cuda", "auto", has_half=False), ["ByTable", "Float32"]),
        (case("cuda", "fp16"), ["EagerHalf", "Float32"]),
        (case("cuda", "bf16"), ["EagerBFloat", "Float32"]),
        (case("cuda", "bf16", has_half=False), ["Float32"]),
        (case("cuda", "tf32"), ["TF32"]),
        (case("cuda", "float32"), ["Float32"]),
    ],
)
def test_a_ladder_by_device_and_precision(asked, ways):
    assert serving(asked) == ways


@pytest.mark.parametrize("supported", [True, False])
def test_kernels_come_before_pytorch_where_they_support_a_perceptron(supported, monkeypatch):
    monkeypatch.setattr(hopper, "supports", lambda network, device: supported)
    monkeypatch.setattr(evaluators, "has_triton", lambda: False)
    monkeypatch.setattr(OnGpu, "has_half", True, raising=False)
    kernel = "OneKernel" if supported else "EagerHalf"
    assert serving(Case(OnGpu(2), torch.zeros(1), "auto")) == ["ByTable", kernel, "Float32"]
    assert serving(Case(OnGpu(3), torch.zeros(1), "fp16")) == [kernel, "Float32"]
    assert serving(Case(OnGpu(3), torch.zeros(1), "float32")) == ["Float32"]


@pytest.mark.parametrize("gone", NAMES[:-1])
@pytest.mark.parametrize("precision", ["auto", "table", "tf32"])
def test_each_but_the_last_can_go(gone, precision, monkeypatch):
    left = tuple(kind for kind in EVALUATORS if kind.__name__ != gone)
    monkeypatch.setattr(evaluators, "EVALUATORS", left)
    q = ps.parse("c0 * c1 / c2", families(3, 2, True)[0].to(precision=precision))
    field = make_plan(q, ps.Denoise(steps=4), 0, torch.empty(0)).field
    assert field.mend(torch.randn(1, 50, 2), 2, alarmed=False) is field
    assert field(torch.randn(1, 50, 2), 2)[0].isfinite().all()


def test_a_way_that_does_not_trust_itself_is_left_wherever_it_stands(monkeypatch):
    """As a table does, and with none of it."""

    class Doubtful(evaluators.Float32):
        """Right, but does not think so."""

        arithmetic, shortcut = "doubtful", True

        def trusts(self, x, i, exact, compose):
            score, excess = compose(exact(x, i), x)
            return not (score.shape == x.shape and excess.shape == x.shape[:1])

    monkeypatch.setattr(plane, "WORTHWHILE", 10)
    monkeypatch.setattr(evaluators, "EVALUATORS", (Doubtful, evaluators.ByTable, evaluators.Float32))
    q = ps.parse("c0 * c1 / c2", families(3, 2, True)[0].to(precision="table"))
    field = make_plan(q, ps.Denoise(steps=4), 0, torch.empty(0)).field
    left = field.mend(torch.randn(1, 50, 2), 2, alarmed=False)
    assert (field.arithmetic(50), left.arithmetic(50)) == ("doubtful", "table")
