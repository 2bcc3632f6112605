"""The paper's pictures: what is composed, the epsilon example, and what resampling does to a swarm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from polyscore.plots import BLUE, GREEN, GREY, ORANGE, PINK, Panels, circle, plain, reach_of, scatter_panel


def composition(
    path: Path | str, sources: Mapping[str, Tensor], results: Mapping[str, Tensor], level: float, title: str = ""
) -> None:
    """Save sources overlaid in one panel, and one panel a way of composing them: two by two, to be read on a phone.

    Args:
        sources: from condition to points `(n, 2)`.
        results: from the panel's title to points `(n, 2)`, three of them; the last is the exact composition.
        level: radius that holds 95 % of the exact composition, drawn in every panel.
        title: lines of at most 48 characters, else wrapped.
    """
    exactly = list(results.values())[-1]
    reach = 1.25 * max(reach_of(values) for values in [*sources.values(), exactly])
    with Panels(path, [3.1] * 2, 6.6, plain(title), rows=2, dpi=120) as (figure, axes):
        figure.set_layout_engine("constrained", hspace=0.06)
        for colour, (name, values) in zip((BLUE, ORANGE, GREY), sources.items(), strict=False):
            scatter_panel(axes[0], values[:1500], colour, reach)
            axes[0].scatter([], [], color=colour, s=14, label=plain(name))
        axes[0].legend(loc="upper right", handletextpad=0.1, borderaxespad=0.1)
        axes[0].set_title("what is composed")
        for axis, colour, (name, values) in zip(axes[1:], (PINK, BLUE, GREEN), results.items(), strict=False):
            scatter_panel(axis, values[:1500], colour, reach)
            circle(axis, level)
            axis.set_title(plain(name))
        for axis in axes:
            axis.set(xlabel="", ylabel="")


def epsilon(path: Path | str, rows: Sequence[tuple[float, float, float, float, float]]) -> None:
    """Save how much too wide naive denoising is against epsilon (rows of `theory.epsilon_example`)."""
    e, ode_law, sde_law, ode, sde = (list(column) for column in zip(*rows, strict=True))
    with Panels(path, [4.8], 3.4) as (_, (axis,)):
        axis.loglog(e, ode_law, color=ORANGE, label=r"ODE, $(1+\varepsilon^2)/2\varepsilon$ (the paper's)")
        axis.loglog(
            e, sde_law, color=BLUE, label=r"SDE, $\frac{1+\varepsilon^2}{1-\varepsilon^2}\,\log\frac{1}{\varepsilon}$"
        )
        axis.loglog(e, ode, "o", color=ORANGE, ms=4, mfc="white", label="ODE, Lyapunov equation")
        axis.loglog(e, sde, "s", color=BLUE, ms=4, mfc="white", label="SDE, Lyapunov equation")
        axis.set_xlabel(r"$\varepsilon$")
        axis.set_ylabel("variance, naive / exact")
        axis.set_title(r"$\Sigma_1=\varepsilon I,\ \Sigma_2=I/\varepsilon,\ w=(\frac{1}{2},\frac{1}{2})$", loc="left")
        axis.legend()


def diversity(path: Path | str, curves: Mapping[str, Mapping[str, Sequence[float]]], particles: int) -> None:
    """Save how many different positions and ancestors a swarm keeps, SDE against ODE.

    Args:
        curves: `{"SDE": ..., "ODE": ...}`, each with `t`, `positions`, `ancestors` (means over swarms, along time) and
            `particles`, `final` (different final positions, against K).
        particles: K of the curves along time.
    """
    with Panels(path, [4.2, 3.2], 3.3, "Resampling the ODE loses diversity: copies never part again") as (_, axes):
        for colour, (name, curve) in zip((BLUE, ORANGE), curves.items(), strict=False):
            # wide and pale below, thin and dashed above: for the ODE both lines are one
            axes[0].plot(curve["t"], curve["positions"], color=colour, label=f"{name}: positions", lw=4, alpha=0.45)
            axes[0].plot(curve["t"], curve["ancestors"], color=colour, label=f"{name}: ancestors", lw=1.4, ls="--")
            axes[1].plot(curve["particles"], curve["final"], "o-", color=colour, label=name, ms=4)
        axes[0].set(xlim=(1, 0), ylim=(0, 1.04 * particles), xlabel="$t$ (1 = noise, 0 = data)")
        axes[0].set_ylabel(f"different ones in a swarm of K = {particles}")
        axes[0].legend(loc="lower left")
        axes[1].plot(
            curve["particles"], curve["particles"], color="#222222", lw=1.2, ls=":", label="all different", zorder=5
        )
        axes[1].set_xscale("log", base=2)
        axes[1].set_yscale("log", base=2)
        axes[1].set(xlabel="K", ylabel="different final positions")
        for axis in (axes[1].xaxis, axes[1].yaxis):
            axis.set_major_formatter("{x:g}")
        axes[1].legend()
