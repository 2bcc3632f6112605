"""A causal model: mechanisms by variable, a mixing, and the distributions that interventions make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from polyscore.algebra import Family
from polyscore.causal.graph import causal_order, check_known, check_names
from polyscore.causal.mechanisms import Linear, Mechanism
from polyscore.causal.mixing import InvertibleMap, Matrix, mixing_of
from polyscore.causal.structural import Structural
from polyscore.devices import on_cpu
from polyscore.distributions import Gaussian
from polyscore.distributions.inputs import as_float64, check_draw
from polyscore.errors import CompositionError, check_conditions, require, shorten
from polyscore.limits import require_memory
from polyscore.rng import derive
from polyscore.schedules import Schedule

Intervention = Mapping[str, Mechanism]
"""From target to the mechanism that takes the place of its own."""


class Model:
    """A structural causal model, with an invertible mixing on top where what is seen is not the variables themselves.

    Args:
        mechanisms: by variable, in the order of the coordinates; their parents make the graph, which must be acyclic.
        mixing: x = g(z): an invertible matrix `(d, d)`, a `Mixing`, or None for x = z.
    """

    @on_cpu
    def __init__(self, mechanisms: Mapping[str, Mechanism], mixing: Any = None) -> None:
        require(isinstance(mechanisms, Mapping) and mechanisms, "mechanisms", "be a mapping from variable to mechanism",
                shorten(mechanisms), "Write Model({'x': Linear(), 'y': Linear({'x': 0.8})}).")  # fmt: skip
        check_names(mechanisms)
        for name, mechanism in mechanisms.items():
            _check_mechanism(name, mechanism, mechanisms)
        self.mechanisms = dict(mechanisms)
        self.variables = tuple(self.mechanisms)
        self.dim = len(self.variables)
        self.order = causal_order({name: tuple(m.parents) for name, m in self.mechanisms.items()})
        require_memory(32 * self.dim**2, f"a causal model of {self.dim} variables", "Use fewer.")
        self.mixing: InvertibleMap | None = mixing_of(mixing, self.dim)

    @classmethod
    def linear(
        cls, coefficients: Any, shift: Any = 0.0, variance: Any = 1.0, variables: Any = None, mixing: Any = None
    ) -> Model:
        """Return z = B z + shift + N(0, diag(variance)), every mechanism linear.

        Args:
            coefficients: B, `(d, d)`; entry (j, k) is the effect of variable k on variable j, 0 for no edge.
            shift, variance: `(d,)`, or one number for all.
            variables: d names; z1, z2, ... by default.
        """
        b = as_float64(coefficients, "coefficients")
        require(b.ndim == 2 and b.shape[0] == b.shape[1] and len(b), "coefficients", "be a square matrix (d, d)",
                f"shape {tuple(b.shape)}",
                "Write the effect of variable k on variable j into entry (j, k).")  # fmt: skip
        names = [f"z{k + 1}" for k in range(len(b))] if variables is None else list(variables)
        require(len(names) == len(b), "variables", f"be {len(b)} names, one a row of coefficients", shorten(names),
                "Name every variable once, or leave variables out.")  # fmt: skip
        check_names(names)
        shifts, variances = (_row(v, len(b), of) for v, of in ((shift, "shift"), (variance, "variance")))
        rows = [{name: w for name, w in zip(names, row, strict=True) if w} for row in b.tolist()]
        return cls(dict(zip(names, map(Linear, rows, shifts, variances), strict=True)), mixing)

    @property
    def is_linear(self) -> bool:
        """Whether every mechanism is `Linear` and the mixing a matrix: then all its distributions are Gaussian."""
        mechanisms = all(isinstance(m, Linear) for m in self.mechanisms.values())
        return mechanisms and (self.mixing is None or isinstance(self.mixing, Matrix))

    def __getitem__(self, name: str) -> Mechanism:
        check_known([name], self.mechanisms, "a variable")
        return self.mechanisms[name]

    def intervene(self, *interventions: Intervention) -> Model:
        """Return the model with the mechanisms of all targets replaced.

        Targets must be disjoint: what two changes of one mechanism do together follows from neither. Where they
        overlap, say it: `model.intervene({**a, **b, "y": the mechanism of y under both})`. One after the other,
        `model.intervene(a).intervene(b)`, the later replaces the earlier.
        """
        replaced: dict[str, Mechanism] = {}
        for intervention in interventions:
            self._check_intervention(intervention)
            shared = [name for name in intervention if name in replaced]
            require(not shared, "interventions", "have disjoint targets to be done together", f"{shared} in two",
                    "Give one joint intervention: {**a, **b, target: its mechanism under both}.")  # fmt: skip
            replaced |= intervention
        return Model(self.mechanisms | replaced, self.mixing)

    @on_cpu
    def distribution(self, *interventions: Intervention) -> Gaussian | Structural:
        """Return the distribution of x under interventions, none for the observational one.

        A `Gaussian` where all is linear: with z = B z + shift + noise of covariance O, z has mean (I - B)^-1 shift and
        covariance (I - B)^-1 O (I - B)^-T. Else a `Structural`, which has a density and draws at t = 0 alone.
        """
        model = self.intervene(*interventions)
        return model._gaussian() if model.is_linear else Structural(model.mechanisms, model.order, model.mixing)

    def family(
        self, interventions: Mapping[str, Intervention], base: str = "control", schedule: Schedule | None = None
    ) -> Family:
        """Return the family of `base`, the observational distribution, and of each intervention by its name.

        Its base composition is `distribution(*interventions.values())` where targets are disjoint.
        """
        members = self._conditions(interventions, base)
        for name, member in members.items():
            if not isinstance(member, Gaussian):
                raise CompositionError(
                    f"a family of a causal model must have linear mechanisms and a linear mixing; {name!r} has others, "
                    "and so no noised score. Learn it: ps.fit(model.data(interventions, n=5000))."
                )
        names = self.variables if self.mixing is None else None
        return Family({n: m for n, m in members.items() if isinstance(m, Gaussian)}, schedule, variables=names)

    def data(
        self, interventions: Mapping[str, Intervention], n: int, base: str = "control", seed: int = 0
    ) -> dict[str, Tensor]:
        """Return `n` draws of `base` and of each intervention, `(n, d)`, independent of each other: data for `fit`."""
        members = self._conditions(interventions, base)
        check_draw(n, self.dim * len(members), torch.float32)
        return {name: member.sample(n, derive(seed, "condition", name)) for name, member in members.items()}

    def _conditions(self, interventions: Mapping[str, Intervention], base: str) -> dict[str, Gaussian | Structural]:
        require(isinstance(interventions, Mapping), "interventions", "be a mapping from condition to intervention",
                shorten(interventions), "Write {'A': {'x': Linear(shift=2.0)}}.")  # fmt: skip
        check_conditions([base, *interventions])
        require(base not in interventions, "base", "be no intervention's name", shorten(base), "Rename either.")
        return {base: self.distribution(), **{name: self.distribution(i) for name, i in interventions.items()}}

    def _gaussian(self) -> Gaussian:
        """N((I - B)^-1 shift, (I - B)^-1 O (I - B)^-T), mixed."""
        mechanisms = [m for m in self.mechanisms.values() if isinstance(m, Linear)]
        effect = self._effect(mechanisms)
        if isinstance(self.mixing, Matrix):
            effect = self.mixing.matrix @ effect
        shifts, variances = (torch.tensor([getattr(m, of) for m in mechanisms], dtype=torch.float64)
                             for of in ("shift", "variance"))  # fmt: skip
        cov = effect * variances @ effect.T
        return Gaussian(effect @ shifts, 0.5 * (cov + cov.T))

    def _effect(self, mechanisms: Sequence[Linear]) -> Tensor:
        """(I - B)^-1. In causal order I - B is triangular, and no size of its entries makes it singular."""
        b = [[m.coefficients.get(name, 0.0) for name in self.variables] for m in mechanisms]
        places = {name: k for k, name in enumerate(self.variables)}
        order = torch.tensor([places[name] for name in self.order])
        eye = torch.eye(self.dim, dtype=torch.float64)
        ordered = (eye - torch.tensor(b, dtype=torch.float64))[order][:, order]
        found = torch.linalg.solve_triangular(ordered, eye, upper=False, unitriangular=True)
        require(found.isfinite().all(), "effects of a causal model", "be finite", "some that are not",
                "Use smaller coefficients, or another unit.")  # fmt: skip
        return found[order.argsort()][:, order.argsort()]

    def _check_intervention(self, intervention: Any) -> None:
        require(isinstance(intervention, Mapping) and intervention, "an intervention",
                "be a mapping from target to mechanism, of one target at least", shorten(intervention),
                "Write {'x': Linear(shift=2.0)}; no intervention at all is the observational model.")  # fmt: skip
        check_known(intervention, self.mechanisms, "a target")
        for name, mechanism in intervention.items():
            _check_mechanism(name, mechanism, self.mechanisms)

    def __repr__(self) -> str:
        seen = "" if self.mixing is None else f", seen through {self.mixing!r}"
        head = f"Causal model of {self.dim} variables{seen}"
        return "\n".join([head, *(f"  {name}: {m!r}" for name, m in list(self.mechanisms.items())[:12])])


def _check_mechanism(name: str, mechanism: Any, variables: Mapping[str, Any]) -> None:
    """Check one entry of a model or an intervention: a mechanism, of parents that there are."""
    require(isinstance(mechanism, Mechanism), f"the mechanism of {name!r}", "be a Mechanism", shorten(mechanism),
            "Write Linear(...), Additive(...), or model[name].changed(...).")  # fmt: skip
    parents = mechanism.parents
    require(isinstance(parents, (list, tuple)), f"parents of {name!r}", "be a tuple of names", shorten(parents),
            "Write ('x',).")  # fmt: skip
    check_names(parents, f"a parent of {name!r}")
    check_known(parents, variables, f"a parent of {name!r}")


def _row(value: Any, dim: int, subject: str) -> list[float]:
    """One number a variable."""
    row = as_float64(value, subject)
    require(row.shape in {(), (dim,)}, subject, f"be a number or ({dim},)", f"shape {tuple(row.shape)}",
            "Pass one number for all, or one a variable.")  # fmt: skip
    return list(row.expand(dim).tolist())
