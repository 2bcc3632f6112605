"""The sampler that a command line describes, by options of its own or by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyscore.samplers import Sampler


@dataclass(frozen=True)
class Flags:
    """The flags that choose a sampler; None is "not given"."""

    particles: int | None
    steps: int | None
    churn: float | None
    clip: float | None
    resampling: str | None
    threshold: float | None
    published: bool
    naive: bool
    sampler: str | None = None
    pooled: bool = False


def make_sampler(options: Flags) -> Sampler:
    """Return the sampler that the options describe, or say which of them do not go together."""
    from polyscore.errors import ArgumentError
    from polyscore.samplers import Auto, Denoise, FeynmanKac

    flags = {"-K": options.particles, "--churn": options.churn, "--clip": options.clip,
             "--resampling": options.resampling, "--threshold": options.threshold,
             "--pooled": options.pooled or None}  # fmt: skip
    given: dict[str, Any] = {flag: value for flag, value in flags.items() if value is not None}
    if options.published and options.naive:
        raise ArgumentError("--published and --naive must not be given together; got both. Choose one.")
    if options.sampler is not None:
        return _named(options, given)
    if options.naive:
        _refuse(given, "--naive", ("--churn",))
        return Denoise(steps=_or(options.steps, Denoise.steps), churn=given.get("--churn", 1.0))
    if options.published:
        _refuse(given, "--published", ("-K", "--clip"))
        return FeynmanKac.published(given.get("-K", 16), _or(options.steps, 500), given.get("--clip", 15.0))
    if not given:
        return Auto(steps=_or(options.steps, Auto.steps))
    return FeynmanKac(
        particles=given.get("-K", 16), steps=_or(options.steps, FeynmanKac.steps), clip=options.clip,
        churn=given.get("--churn", 1.0),
        resampling=given.get("--resampling", "systematic"), threshold=given.get("--threshold", 1.0),
        pooled=options.pooled,
    )  # fmt: skip


def _named(options: Flags, given: dict[str, Any]) -> Sampler:
    """The sampler of --sampler, which says everything itself."""
    from polyscore.errors import require
    from polyscore.files.yaml_file import parse
    from polyscore.samplers import build_sampler

    modes = {"--steps": options.steps is not None, "--published": options.published, "--naive": options.naive}
    others = [*given, *(flag for flag, on in modes.items() if on)]
    require(not others, "--sampler", "choose the sampler alone", ", ".join(others), "Put fields into its mapping.")
    text = options.sampler or ""
    return build_sampler(parse(text) if text.lstrip().startswith("{") else text)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _refuse(given: dict[str, Any], mode: str, allowed: tuple[str, ...]) -> None:
    from polyscore.errors import ArgumentError

    extra = [flag for flag in given if flag not in allowed]
    if extra:
        raise ArgumentError(
            f"{mode} must go with {', '.join(('--steps', *allowed))} alone; got {', '.join(extra)}. Drop one side."
        )
