"""Networks with a Gaussian mixture inside: fitted to the data before training, noised in closed form.

A mixture sum_k w_k N(m_k, B_k diag(v_k) B_k') keeps its bases under noising, so its score at any noise level costs two
small products. Far from all data it falls off like the widest of its components, where a perceptron says anything.

`Mixed` is the stack of such mixtures; by itself it is the kind "mixture", which has nothing to train.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from polyscore.mixtures import Fit, Parts, fit_halves, fit_mixture, redrawn
from polyscore.nn.network import Architecture, At, ScoreNetwork
from polyscore.nn.stack import Stack
from polyscore.schedules import Schedule
from polyscore.schema import Checked, count, setting

_LOG_2PI = math.log(2 * math.pi)
_HALVES = tuple(f"half_{name}" for name in Parts._fields)


@dataclass(frozen=True)
class MixtureOptions(Checked):
    """Options of a mixture.

    Attributes:
        components: at most so many a condition; the data choose how many.
        dense: local Gaussians beside them, at most, for shapes that no small mixture has; the data choose whether.
    """

    components: int = setting(24, count(1, 1000))
    dense: int = setting(128, count(0, 1000))


class Mixed(Stack):
    """G times C mixtures of at most M components: `weights` (G, C, M), `means` (G, C, M, d), `variances`, `bases`.

    Components that are not there have weight 0. `points` (G, C, 1) counts the data behind each mixture. What either
    half of the points gave by itself is kept as `half_weights` (G, C, 2, M) and so on: how far they differ tells
    what standard errors do not, that the form is wrong.
    """

    Options = MixtureOptions
    per_condition: ClassVar[tuple[str, ...]] = (*Parts._fields, "points", *_HALVES)
    suggested: ClassVar[Mapping[str, Any]] = {"bend": "auto"}
    weights: Tensor
    means: Tensor
    variances: Tensor
    bases: Tensor
    points: Tensor
    half_weights: Tensor

    def __init__(self, architecture: Architecture, seeds: Sequence[int]) -> None:
        super().__init__(architecture, seeds)
        self.seeds = list(seeds)
        options, dim = architecture.options, architecture.dim
        rows, most = (len(seeds), architecture.conditions), options.components + options.dense
        for name, part in _empty((*rows, most), dim).items():
            self.register_buffer(name, part)
        for name, part in _empty((*rows, 2, most), dim).items():
            self.register_buffer(f"half_{name}", part)
        self.register_buffer("points", torch.zeros(*rows, 1, dtype=torch.float32))
        self.weights[..., :1] = 1

    @property
    def is_a_mixture(self) -> bool:
        """Whether nothing is added to the mixture."""
        return True

    def observe(self, points: Tensor, sizes: Tensor) -> None:
        """Fit a mixture to the points of every condition of every network."""
        options = self.architecture.options
        for g, seed in enumerate(self.seeds):
            for c in range(sizes.shape[1]):
                some = points[g, c, : int(sizes[g, c])].double().cpu()
                fit = fit_mixture(some, seed, options.components, "a condition", options.dense)
                self.put(g, c, fit)
                for h, half in enumerate(fit_halves(some, fit, seed, options.components, options.dense)):
                    self._hold("half_", (g, c, h), half)

    def put(self, g: int, c: int, fit: Fit) -> None:
        """Hold a mixture, of which no halves are known."""
        self._hold("", (g, c), fit)
        self.points[g, c] = fit.points
        self.half_weights[g, c] = 0

    def _hold(self, prefix: str, place: tuple[int, ...], fit: Fit) -> None:
        values, bases = torch.linalg.eigh(fit.covariances)
        for name, part in Parts(fit.weights, fit.means, values, bases)._asdict().items():
            held = getattr(self, prefix + name)[place]
            held[: fit.count] = part.to(held)
        getattr(self, f"{prefix}weights")[place][fit.count :] = 0

    def parts(self, g: int, c: int) -> Parts:
        """Return one mixture, the components that are there."""
        there = self.weights[g, c] > 0
        held = (getattr(self, name)[g, c][there] for name in Parts._fields)
        return Parts(*(part.double().cpu() for part in held))

    def redrawn(self, source: torch.Generator) -> dict[str, Tensor]:
        """Return all tensors, with other mixtures that the same number of points could have given."""
        found = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        for g, c in torch.cartesian_prod(*(torch.arange(size) for size in self.points.shape[:2])).tolist():
            other = redrawn(self.parts(g, c), max(1.0, self.points[g, c].item()), source)
            there = self.weights[g, c] > 0
            for name, part in other._asdict().items():
                found[name][g, c, there] = part.to(found[name])
        return found

    def halved(self, h: int) -> dict[str, Tensor] | None:
        """Return all tensors, with what one half of the points gave in place of the mixtures; None if not known."""
        found = dict(self.state_dict())
        if not bool((self.half_weights.sum(-1) > 0).all()):
            return None
        return found | {name: found[f"half_{name}"][:, :, h] for name in Parts._fields}

    def embed(self, t: Tensor) -> At:
        """Return t, sigma, and the centres and variances of the noised components, `(..., M, d)`."""
        schedule, used = self.architecture.schedule, self._used()
        alpha, sigma = schedule.alpha(t)[..., None], schedule.sigma(t)[..., None]
        means, variances = (part[:, :, None, :used] for part in (self.means, self.variances))
        return t, sigma[..., 0], alpha * means, alpha**2 * variances + sigma**2

    def _used(self) -> int:
        """How many components any mixture has. Read once for weights as they are: a captured step can read nothing."""
        version = None if self.weights.is_inference() else self.weights._version
        known, when, used = self.__dict__.get("_counted", (None, None, 0))
        if known is not self.weights or when != version:
            used = max(1, int((self.weights > 0).any(0).any(0).sum()))
            self.__dict__["_counted"] = self.weights, version, used
        return int(used)

    def predict(self, x: Tensor, at: At) -> Tensor:
        """Return the noise of the mixture, -sigma times its score, like x `(G, C, b, d)`."""
        return self.noised(x, at)[0]

    def noised(self, x: Tensor, at: At) -> tuple[Tensor, Tensor]:
        """Return the noise of the mixture, and its log-density `(G, C, b, 1)`."""
        sigma, centres, variances = at[1:4]
        used = centres.shape[-2]
        bases, log_weights = self.bases[:, :, :used], self.weights[:, :, None, :used].log()
        turned = torch.einsum("gcbmd,gcmde->gcbme", x[..., None, :] - centres, bases)
        pulled = turned / variances
        joint = log_weights - 0.5 * (turned * pulled + variances.log() + _LOG_2PI).sum(-1)
        shares = torch.softmax(joint, -1)
        back = torch.einsum("gcbme,gcmde->gcbd", shares[..., None] * pulled, bases)
        return sigma * back, torch.logsumexp(joint, -1, keepdim=True)

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], about: Mapping[str, Any], kind: str, dim: int, schedule: Schedule
    ) -> ScoreNetwork:
        """Return what a file holds; up to 0.5.0 there were no local Gaussians, up to 0.6.0 no halves."""
        written = dict(about["architecture"])
        known = {**about, "architecture": {**written, "options": {"dense": 0, **written["options"]}}}
        if not any(name in tensors for name in _HALVES):
            tensors = {**tensors, **_unknown_halves(tensors)}
        found = super().from_tensors(tensors, known, kind, dim, schedule)
        cls.check_values(tensors)
        return found

    @classmethod
    def check_values(cls, tensors: Mapping[str, Tensor]) -> None:
        """Raise `ValueError` unless tensors of a file are mixtures: a right checksum does not make them so."""
        _check_parts(Parts(*(tensors[name].double() for name in Parts._fields)), (1.0,))
        _check_parts(Parts(*(tensors[name].double() for name in _HALVES)), (0.0, 1.0))
        if not bool(((tensors["points"] >= 0) & tensors["points"].isfinite()).all()):
            raise ValueError("fewer than no points, or more than all,")

    @classmethod
    def numbers(cls, architecture: Architecture) -> tuple[int, int]:
        """Return how many numbers the mixtures have, and activations a row of a batch."""
        count, dim = architecture.options.components + architecture.options.dense, architecture.dim
        return 3 * architecture.conditions * count * (1 + 2 * dim + dim * dim), 4 * count * dim


def _empty(shape: tuple[int, ...], dim: int) -> dict[str, Tensor]:
    """Mixtures without a component, M being the last of `shape`."""
    eye = torch.eye(dim, dtype=torch.float32).expand(*shape, dim, dim).clone()
    weights, means = (torch.zeros(*shape, *more, dtype=torch.float32) for more in ((), (dim,)))
    return Parts(weights, means, torch.ones_like(means), eye)._asdict()


def _unknown_halves(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What stands for halves in files that have none."""
    rows, conditions, most, dim = tensors["means"].shape
    empty = _empty((rows, conditions, 2, most), dim)
    return {f"half_{name}": part.to(tensors["means"]) for name, part in empty.items()}


def _check_parts(parts: Parts, totals: Sequence[float]) -> None:
    """Raise `ValueError` unless these are mixtures, whose weights come to one of the totals."""
    sums = parts.weights.sum(-1)
    whole = torch.stack([(sums - total).abs() < 1e-3 for total in totals]).any(0)
    if not bool((parts.weights >= 0).all()) or not bool(whole.all()):
        raise ValueError("weights of a mixture that are negative or do not sum to 1")
    if not bool((parts.variances > 0).all()) or not bool(parts.variances.isfinite().all()):
        raise ValueError("a variance that is not above 0")
    away = (parts.bases @ parts.bases.mT - torch.eye(parts.bases.shape[-1], dtype=torch.float64)).abs()
    if not bool((away < 1e-3).all()):
        raise ValueError("axes of a mixture that are not at right angles")
    if not bool(parts.means.isfinite().all()):
        raise ValueError("a mean that is no number")
