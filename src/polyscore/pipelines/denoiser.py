"""A denoising model of diffusers as a group of conditions: what it predicts becomes scores at the door.

With x = alpha x_0 + sigma eps the clean point is linear in x and what the model predicts, x_0 = of_x x + of_out out:

| prediction | of_x | of_out |
|---|---|---|
| epsilon | 1 / alpha | -sigma / alpha |
| v_prediction = alpha eps - sigma x_0 | alpha | -sigma |
| sample | 0 | 1 |
| flow = eps - x_0, alpha = 1 - sigma | 1 | -sigma |

and the score is (alpha x_0 - x) / sigma^2. Sums of v would be scores only where W = 1: nothing but scores goes further.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polyscore.errors import is_count, require
from polyscore.limits import available_memory
from polyscore.models.group import Condition, Group, scores_together
from polyscore.notices import warn
from polyscore.pipelines.schedulers import Noising
from polyscore.schedules import Stepped, signal

_HELD = 24  # hidden layers, each as large as the first, that a network holds at once without gradients; about
_SHARE = 0.25  # of the free memory that one call may take
_MOST_KEPT = 64  # batches of conditions

Told = Mapping[str, Tensor]


def clean_coefficients(prediction: str, alpha: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """Return of_x and of_out of the table above."""
    none, one = torch.zeros_like(alpha), torch.ones_like(alpha)
    if prediction == "epsilon":
        return 1 / alpha, -sigma / alpha
    if prediction == "v_prediction":
        return alpha, -sigma
    return (none, one) if prediction == "sample" else (one, -sigma)


class Denoiser(Group):
    """A model with its scheduler; every condition of a batch goes through it in one call.

    Args:
        model: the module, asked in its own precision.
        noising: what its scheduler says.
        most_rows: rows (points times conditions) of one call; by the free memory unless given, and halved where a GPU
            has less than it seemed.
    """

    schedule: Stepped

    def __init__(
        self, model: nn.Module, event: tuple[int, ...], noising: Noising, most_rows: int | None = None
    ) -> None:
        super().__init__(event, noising.schedule)
        require(most_rows is None or is_count(most_rows), "most_rows", "be a whole number of at least 1, or None",
                repr(most_rows), "Leave it out for no bound.")  # fmt: skip
        self.model, self.noising, self._bound = model.eval(), noising, most_rows
        self._found: dict[torch.device, int] = {}
        self._kept: dict[Any, tuple[tuple[Condition, ...], Told]] = {}

    @abstractmethod
    def told(self, index: Any) -> Told:
        """Return what the model is told of a condition, by the names of its arguments, `(1, ...)` each."""

    @abstractmethod
    def predict(self, x: Tensor, timestep: Tensor, told: Told) -> Tensor:
        """Return what the model says of rows x `(B, *event)`, timesteps `(B,)`, conditions `(B, ...)`."""

    @property
    def hidden(self) -> int:
        """Numbers of a row in the model's first hidden layer."""
        return (getattr(self.model.config, "block_out_channels", None) or (64,))[0] * self.event[-1] * self.event[-2]

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the model's weights."""
        return next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)

    @property
    def most_rows(self) -> int | None:  # type: ignore[override]
        """Rows of one call."""
        if self._bound is None and (place := self.device) not in self._found:
            self._found[place] = self._fitting(place)
        return self._bound or self._found[self.device]

    def _fitting(self, device: torch.device) -> int:
        """Rows that a share of the free memory holds."""
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory() or 1 << 30
        return max(1, int(_SHARE * free / (_HELD * self.hidden * self.dtype.itemsize)))

    def condition(self, index: Any) -> Condition:
        """Return a member of a family; samplers ask it at no time before the first timestep."""
        made = Condition(self, index)
        made.earliest = self.schedule.earliest  # type: ignore[attr-defined]
        return made

    def scores(self, x: Tensor, t: Tensor, members: Sequence[Condition]) -> Tensor:
        """Return the members' scores, `(A, *x.shape)`: one call of the model, or more where memory does not suffice."""
        try:
            return self._scores(x, t, members)
        except torch.OutOfMemoryError:
            rows = len(members) * x.shape[: x.ndim - len(self.event)].numel()
            if rows == 1:
                raise
            self._bound = rows // 2
        torch.cuda.empty_cache()
        warn(
            f"the GPU's memory must hold a call of the model; going on with {self._bound} rows a call, or fewer. "
            "Pass most_rows= to choose it yourself."
        )
        return scores_together(self, x, t, members)

    def _scores(self, x: Tensor, t: Tensor, members: Sequence[Condition]) -> Tensor:
        ones, number = [1] * len(self.event), len(members)
        points, asked = x.reshape(-1, *self.event), self.schedule.asked(t)
        alpha, sigma = self.schedule.alpha(asked), self.schedule.sigma(asked)
        when = self.schedule.timestep(asked).float().expand(x.shape[: x.ndim - len(self.event)]).reshape(-1)
        rows = points.to(self.dtype).repeat(number, *ones)
        if getattr(self, "compiled", False) and rows.ndim == 4:  # as its weights are laid out
            rows = rows.contiguous(memory_format=torch.channels_last)
        out = self.predict(rows, when.repeat(number), self._batch(members, len(points), x.device))
        out = out.to(x.dtype).reshape(number, *x.shape)
        return self._to_scores(x, out, *(level.reshape(*level.shape, *ones) for level in (alpha, sigma)))

    def _batch(self, members: Sequence[Condition], points: int, device: torch.device) -> Told:
        """What the model is told in one call, a row for each point of each condition."""
        told = self._on(device, members)
        return {
            name: part[:, None].expand(len(part), points, *part.shape[1:]).flatten(0, 1) for name, part in told.items()
        }

    def _on(self, device: torch.device, members: Sequence[Condition]) -> Told:
        """What the model is told of conditions, a row each; kept, so that a loop copies nothing to a GPU."""
        key = (tuple(map(id, members)), device, self.dtype)
        if key not in self._kept:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            each = [self.told(member.index) for member in members]
            parts = {name: torch.cat([told[name] for told in each]).to(device) for name in each[0]}
            # The members are kept too: one that was let go would leave its id to another condition.
            self._kept[key] = tuple(members), {name: self._as_asked(part) for name, part in parts.items()}
        return self._kept[key][1]

    def _as_asked(self, part: Tensor) -> Tensor:
        return part.to(self.dtype) if part.is_floating_point() else part

    def _to_scores(self, x: Tensor, out: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        """Coefficients in float64: differences of numbers near 1 stand in them."""
        of_x, of_out = clean_coefficients(self.noising.prediction, alpha, sigma)
        held, variance = signal(alpha), sigma**2
        if (clip := self.noising.clip) is not None:
            free = of_x.to(x) * x + of_out.to(x) * out
            clean = free.clamp(-clip, clip).add(free, alpha=0)  # a clip would hide that an answer is infinite
            return (held / variance).to(x) * clean - x / variance.to(x)
        return ((held * of_x - 1) / variance).to(x) * x + (held * of_out / variance).to(x) * out
