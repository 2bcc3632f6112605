"""What must hold before any work is begun: sizes, names, scores to learn from, and something to compare with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from polyscore.distributions import Distribution
from polyscore.errors import PolyscoreError, cut, require
from polyscore.experiments.compute import is_compared, metric_of, recipe_of
from polyscore.experiments.experiment import Experiment
from polyscore.experiments.references import composed, target_of
from polyscore.experiments.sources import family_of
from polyscore.limits import require_memory
from polyscore.training import Recipe

_TAKEN = ("clipped", "ancestors", "ess")  # results that every cell has


class ExperimentError(PolyscoreError):
    """An experiment that cannot be computed as it is described."""


def check_experiments(experiments: Sequence[Experiment]) -> None:
    """Refuse what could not be computed: too large, unknown metrics, nothing to learn from or to compare with."""
    for experiment in experiments:
        check_size(experiment)
        for name in experiment.metrics:
            require(name not in _TAKEN, "a metric", "have a name of its own", name, "Rename it.")
            metric_of(name, experiment)
        _check_training(experiment)
        _check_reference(experiment)


def _check_training(experiment: Experiment) -> None:
    mute = [name for name, member in family_of(experiment.source).members.items() if not _can_sample(member)]
    if experiment.learned and experiment.train_sizes and mute:
        raise ExperimentError(
            f"experiment {experiment.name} must have points to learn from; condition {mute[0]!r} of "
            f"{experiment.family} cannot be sampled. Leave {', '.join(experiment.learned)} out of its models."
        )


def _can_sample(member: Any) -> bool:
    return member.has_sample if isinstance(member, Distribution) else hasattr(member, "sample")


def _check_reference(experiment: Experiment) -> None:
    """Ask for the exact target where it is in doubt: closed forms have one."""
    family = family_of(experiment.source)
    if experiment.points is not None:
        found, event = experiment.points.shape[1:], tuple(family.event)
        require(found == event, f"the reference of {experiment.name}", f"have points of shape {event}", found,
                "Make the reference of points of the same family.")  # fmt: skip
    elif is_compared(experiment) and not composed(family, experiment.exponents()).is_closed_form:
        try:
            target_of(experiment.source, experiment.exponents())
        except PolyscoreError as error:
            raise ExperimentError(
                f"experiment {experiment.name} must have something to compare with; the exact answer is not known "
                f"({error}). Give `reference: points.npz`, samples that you trust, or metrics that need none."
            ) from error


def check_size(experiment: Experiment) -> None:
    """Refuse an experiment that no machine of this memory could hold or no patience see the end of.

    Memory is estimated from below, in float32: what one swarm, the samples, the training data, a network with its
    gradient and Adam's two moments, and one batch of activations take.
    """
    next(experiment.cells(), None)
    p, most = experiment.protocol, max((getattr(s, "particles", 1) for s in experiment.built.values()), default=1)
    most = max((most, *experiment.particles))
    size, name = max(experiment.train_sizes, default=0) if experiment.learned else 0, experiment.name
    needed = {
        f"a swarm of K = {most} particles": 64 * most,
        f"{p.swarms} swarms": 64 * p.swarms,
        f"{p.projections} projections": 64 * p.projections,
        f"{size} training points a condition": 24 * size,
    }
    for recipe in _recipes(experiment) if size else ():
        shape = f"width {recipe.width} and depth {recipe.depth}"
        needed[f"a network of {shape}"] = 16 * recipe.depth * recipe.width**2
        needed[f"a batch of {recipe.batch} through {shape}"] = 4 * recipe.batch * recipe.width * recipe.depth
    for what, amount in needed.items():
        require_memory(amount, f"{name}: {cut(what)}", "Lower it.")


def _recipes(experiment: Experiment) -> Iterator[Recipe]:
    """Yield how each kind of model is trained."""
    schedule = family_of(experiment.source).schedule
    for kind in experiment.learned:
        yield recipe_of(kind, experiment.protocol, schedule, experiment.networks.get(kind))
