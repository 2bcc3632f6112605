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

from polyscore.mixtures import Fit, Parts, fit_mixture, redrawn
from polyscore.nn.network import Architecture, At, ScoreNetwork
from polyscore.nn.stack import Stack
from polyscore.schedules import Schedule
from polyscore.schema import Checked, count, setting

_LOG_2PI = math.log(2 * math.pi)


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

    Components that are not there have weight 0. `points` (G, C, 1) counts the data behind each mixture.
    """

    Options = MixtureOptions
    per_condition: ClassVar[tuple[str, ...]] = ("weights", "means", "variances", "bases", "points")
    suggested: ClassVar[Mapping[str, Any]] = {"bend": "auto"}
    weights: Tensor
    means: Tensor
    variances: Tensor
    bases: Tensor
    points: Tensor

    def __init__(self, architecture: Architecture, seeds: Sequence[int]) -> None:
        super().__init__(architecture, seeds)
        self.seeds = list(seeds)
        options, dim = architecture.options, architecture.dim
        shape = (len(seeds), architecture.conditions, options.components + options.dense)
        eye = torch.eye(dim, dtype=torch.float32)
        self.register_buffer("weights", torch.zeros(shape, dtype=torch.float32))
        self.register_buffer("means", torch.zeros(*shape, dim, dtype=torch.float32))
        self.register_buffer("variances", torch.ones(*shape, dim, dtype=torch.float32))
        self.register_buffer("bases", eye.expand(*shape, dim, dim).clone())
        self.register_buffer("points", torch.zeros(*shape[:2], 1, dtype=torch.float32))
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
                self.put(g, c, fit_mixture(some, seed, options.components, "a condition", options.dense))

    def put(self, g: int, c: int, fit: Fit) -> None:
        """Hold a mixture."""
        values, bases = torch.linalg.eigh(fit.covariances)
        for name, part in (("weights", fit.weights), ("means", fit.means), ("variances", values), ("bases", bases)):
            held = getattr(self, name)[g, c]
            held[: fit.count] = part.to(held)
        self.weights[g, c, fit.count :] = 0
        self.points[g, c] = fit.points

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

    def embed(self, t: Tensor) -> At:
        """Return t, sigma, and the centres and variances of the noised components, `(..., M, d)`."""
        schedule, used = self.architecture.schedule, max(1, int((self.weights > 0).any(0).any(0).sum()))
        alpha, sigma = schedule.alpha(t)[..., None], schedule.sigma(t)[..., None]
        means, variances = (part[:, :, None, :used] for part in (self.means, self.variances))
        return t, sigma[..., 0], alpha * means, alpha**2 * variances + sigma**2

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
        """Return what a file holds; up to 0.5.0 there were no local Gaussians."""
        written = dict(about["architecture"])
        known = {**about, "architecture": {**written, "options": {"dense": 0, **written["options"]}}}
        found = super().from_tensors(tensors, known, kind, dim, schedule)
        cls.check_values(tensors)
        return found

    @classmethod
    def check_values(cls, tensors: Mapping[str, Tensor]) -> None:
        """Raise `ValueError` unless tensors of a file are mixtures: a right checksum does not make them so."""
        weights, variances, bases = (tensors[name].double() for name in ("weights", "variances", "bases"))
        if not bool((weights >= 0).all()) or not bool(((weights.sum(-1) - 1).abs() < 1e-3).all()):
            raise ValueError("weights of a mixture that are negative or do not sum to 1")
        if not bool((variances > 0).all()) or not bool(variances.isfinite().all()):
            raise ValueError("a variance that is not above 0")
        away = (bases @ bases.mT - torch.eye(bases.shape[-1], dtype=torch.float64)).abs()
        if not bool((away < 1e-3).all()):
            raise ValueError("axes of a mixture that are not at right angles")
        if not bool(tensors["means"].isfinite().all()) or not bool((tensors["points"] >= 0).all()):
            raise ValueError("a mean that is no number, or fewer than no points")

    @classmethod
    def numbers(cls, architecture: Architecture) -> tuple[int, int]:
        """Return how many numbers the mixtures have, and activations a row of a batch."""
        count, dim = architecture.options.components + architecture.options.dense, architecture.dim
        return architecture.conditions * count * (1 + 2 * dim + dim * dim), 4 * count * dim
